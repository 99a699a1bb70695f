"""The ravine of section 4.3 with a search of equal budget for every method, chosen on some data sets and reported on others."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from langevin.checks import needs
from langevin.kernels.schedules import constant
from langevin_paper.batched import mean_positions
from langevin_paper.chains import normal_starts, once, run_chains
from langevin_paper.experiments import ravine_search_settings as settings
from langevin_paper.experiments.ravine import Side, stacked_data, target_of
from langevin_paper.experiments.ravine_candidates import Candidate, candidates, reheating
from langevin_paper.spec import Experiment, Method, Progress, Results, Scale

__all__ = ["RAVINE_SEARCH", "run"]


def run(method: Method, scale: Scale, seeds: range, folder: Path, progress: Progress) -> Results:
    """Run a cell: search on data sets of its own, then report on those of the seeds; seed s is data set s with chain s."""
    given = scale.settings
    starts, near, kept = given["search_from"], given["near"], given["finalists"]
    if seeds.stop > min(starts):
        raise needs("ravine-search", "seeds", f"data sets below {min(starts)}, where those of the search begin", seeds)
    if not isinstance(method.settings["step_size"], tuple):
        return _run_fixed(method, given, seeds, progress)
    tried = candidates(method, given)
    first, further = (range(start, start + given[name]) for start, name in zip(starts, ("first_sets", "further_sets"), strict=True))
    work = [len(tried) * len(first), kept * len(further), len(seeds)]

    def measured(stage: int, chosen: list[int], sets: range) -> Tensor:
        """Return the estimates of settings on data sets, (settings, sets, 2)."""
        before, own = sum(work[:stage]), work[stage]
        return mean_positions(
            [tried[k].kernel(method) for k in chosen],
            target_of(given),
            normal_starts(sets, 2, seed=given["seed"], std=given["start_std"]),
            stacked_data(sets, given),
            chains=sets,
            num_steps=given["num_steps"],
            warmup=given["warmup"],
            batch_size=given["batch_size"],
            seed=given["seed"],
            progress=lambda share: progress((before + own * share) / sum(work)),
        )

    def finalists() -> list[list[Any]]:
        far = _distances(measured(0, list(range(len(tried))), first), given["truth"])
        return [[k, far[k].tolist()] for k in _ranked(far, near)[:kept]]

    def winner() -> list[Any]:
        chosen = [k for k, _ in best]
        far = torch.cat([torch.tensor([far for _, far in best]), _distances(measured(1, chosen, further), given["truth"])], 1)
        place = _ranked(far, near)[0]
        return [chosen[place], float((far[place] < near).double().mean())]

    best = once(folder / "finalists.json", finalists)
    index, search_share = once(folder / "winner.json", winner)
    estimates = measured(2, [index], seeds)[0]
    num_sets = len(first) + len(further)
    return _results(
        estimates,
        seeds,
        given,
        chosen=tried[index].text,
        search_share=search_share,
        search=f"{round(search_share * num_sets)} of {num_sets}",
        law_temperature=tried[index].kernel(method).effective_temperature,
    )


def _run_fixed(method: Method, given: Mapping[str, Any], seeds: range, progress: Progress) -> Results:
    """Run settings that are given, through `sample`, some data sets at a time."""
    rest = dict(method.settings)
    initial, kind = rest.pop("step_size"), rest.pop("schedule")
    step_size = reheating(initial, given) if kind == "reheating" else constant(initial)
    setting = Candidate(rest, step_size, given["temperature"])
    kernel, size = setting.kernel(method), given["sets_together"]
    groups = [seeds[start : start + size] for start in range(0, len(seeds), size)]
    estimates = []
    for number, group in enumerate(groups):

        def told(share: float, number: int = number) -> None:
            progress((number + share) / len(groups))

        samples = run_chains(
            kernel,
            Side(target_of(given)),
            normal_starts(group, 2, seed=given["seed"], std=given["start_std"]),
            chains=group,
            seed=given["seed"],
            num_steps=given["num_steps"],
            progress=told,
            data=stacked_data(group, given),
            warmup=given["warmup"],
            batch_size=given["batch_size"],
            compile=given["compile"],
        )
        estimates.append(samples.draws.mean(1))
    facts = {"chosen": setting.text, "search": "none", "law_temperature": kernel.effective_temperature}
    return _results(torch.cat(estimates), seeds, given, **facts)


def _results(estimates: Tensor, seeds: range, given: Mapping[str, Any], **common: Any) -> Results:
    """Return what is recorded of every data set."""
    results: Results = {}
    far = _distances(estimates, given["truth"]).tolist()
    for seed, estimate, distance in zip(seeds, estimates.tolist(), far, strict=True):
        is_finite, near = math.isfinite(distance), float(distance < given["near"])
        first, second = estimate if is_finite else (None, None)
        results[seed] = {
            "theta_1": first,
            "theta_2": second,
            "distance": distance if is_finite else None,
            "near": near,
            "near_of_five": near if seed < 5 else None,
            **common,
        }
    return results


def _distances(estimates: Tensor, truth: tuple[float, float]) -> Tensor:
    """Return the distances of estimates (..., 2) to the truth, infinite for a chain that went non-finite."""
    far = (estimates - torch.tensor(truth, dtype=estimates.dtype)).norm(dim=-1)
    return far.nan_to_num(nan=math.inf)


def _ranked(far: Tensor, near: float) -> list[int]:
    """Order settings, (settings, sets): the truth found most often first, then the smaller median distance."""
    found, median = (far < near).sum(1).tolist(), far.median(1).values.tolist()
    return sorted(range(len(far)), key=lambda k: (-found[k], median[k], k))


RAVINE_SEARCH = Experiment(
    name="ravine-search",
    title="Long narrow ravines, every method searched",
    section="Section 4.3, table 1, with settings of ours",
    about=settings.ABOUT,
    methods=settings.METHODS,
    scales=settings.SCALES,
    run=run,
    tables=settings.TABLES,
    listings=settings.LISTINGS,
    settings=settings.SETTINGS,
)
