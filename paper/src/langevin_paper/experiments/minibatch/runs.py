"""One method on one problem with one batch size: laws solved for, ladders run, and the calls that find their settings."""

from __future__ import annotations

import contextlib
import io
import math
import re
import time
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from langevin.diagnostics.trust import TrustWarning
from langevin.execution import side_by_side
from langevin.sampling.sample import sample
from langevin.storage import Samples
from langevin_paper.experiments.minibatch.known import Problem
from langevin_paper.experiments.minibatch.ladders import Rung, kernel_of, law_at, noise_of, rungs_of
from langevin_paper.experiments.minibatch.measures import NAMES, measured
from langevin_paper.spec import Method

__all__ = ["run_found", "run_ladder", "solve"]

Given = Mapping[str, Any]


def solve(method: Method, rung: Rung, case: Problem, batch_size: int) -> dict[str, Any]:
    """Solve for the law of one setting."""
    told, found = _said(rung), law_at(method, rung, case, batch_size)
    if found is None:
        return {**told, **dict.fromkeys(NAMES), "draws": None, "law_worst": None, "law_draws": None}
    worst, draws, law = found
    curvatures, axes = torch.linalg.eigh(case.hessian)
    off = 100 * law.errors(axes, 1 / curvatures)
    numbers = {
        "worst": 100 * worst, "mean": float(off.abs().mean()), "signed": float(off.mean()), "least": float(off.min()),
        "most": float(off.max()), "excess": 100 * worst, "worst_chance": 0.0, "mean_chance": 0.0, "shift": 0.0, "shift_chance": 0.0,
    }  # fmt: skip
    return {**told, **numbers, "ess": None, "ess_squares": None, "draws": draws, "law_worst": 100 * worst, "law_draws": draws}


def _said(rung: Rung) -> dict[str, Any]:
    return {"step": rung.step, "factor": rung.factor, "beta": rung.beta}


def run_ladder(method: Method, case: Problem, batch_size: int, given: Given, seed: int) -> dict[str, dict[str, Any]]:
    """Run the settings of a ladder from draws of the reference, side by side where the sampler allows it."""
    own, chains = method.settings, given["batches"][str(batch_size)]["chains"]
    rungs = rungs_of(method, case, batch_size, given)
    cost = 2 * batch_size if own["centred"] else batch_size
    steps = max(20, round(given["batches"][str(batch_size)]["epochs"] * case.num_data / cost))
    thin = math.ceil(steps / given["most_draws"])
    kernels = [kernel_of(method, rung, case, batch_size, torch.float32, given["warmup"]) for rung in rungs]
    together = [kernels] if own["noise"] is None else [[kernel] for kernel in kernels]
    draws, seconds = [], 0.0
    for group in together:
        assert case.draw is not None
        assert case.target is not None
        started = time.perf_counter()
        start = case.draw(len(group) * chains, given["seed"] + seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TrustWarning)  # a law that is wrong is what is looked for
            found = sample(
                case.target,
                data=case.data,
                sampler=side_by_side(group, chains) if len(group) > 1 else group[0],
                init=start,
                num_steps=given["warmup"] + steps // thin * thin,
                warmup=given["warmup"],
                thin=thin,
                batch_size=batch_size,
                batches=own["batches"],
                control_variate=case.mode if own["centred"] else None,
                seed=given["seed"] + seed,
                compile=False,
                progress=False,
            )  # fmt: skip
        draws += list(found.draws.reshape(len(group), chains, -1, start.shape[-1]))
        seconds += time.perf_counter() - started
    epochs = chains * steps * cost / case.num_data
    made = {}
    for rung, drawn in zip(rungs, draws, strict=True):
        law = law_at(method, rung, case, batch_size) if given["linear"] else None
        made[rung.name] = {**_said(rung), **_judged(drawn, case, epochs, law), "seconds": seconds / len(rungs)}
    return made


def _judged(draws: Tensor, case: Problem, epochs: float, law: Any) -> dict[str, Any]:
    """Measure draws; of chains too slow for their length, the draws per epoch are those of the law, where it is known."""
    found = measured(draws, case)
    counted = None if found["ess"] is None else found["ess"] / epochs
    is_slow = counted is not None and found["ess"] < 2 * len(draws)  # mostly the chains' independent starts
    by_law = None if law is None else law[1]
    return {
        **found, "epochs": epochs, "counted": counted, "is_slow": is_slow, "law_worst": None if law is None else 100 * law[0],
        "law_draws": by_law, "draws": by_law if is_slow and by_law is not None else counted,
    }  # fmt: skip


def run_found(method: Method, case: Problem, batch_size: int, given: Given, seed: int) -> dict[str, Any]:
    """Run what finds its settings: as many steps as there are single-datum gradients for, which it does not say beforehand."""
    own, chains = method.settings, given["batches"][str(batch_size)]["chains"]
    epochs = given["batches"][str(batch_size)]["epochs"]
    options: dict[str, Any] = {
        "data": case.data, "batch_size": batch_size, "seed": given["seed"] + seed, "compile": False, "progress": False,
    }  # fmt: skip
    is_auto = own["family"] == "default"
    cost = 2 * batch_size if own["centred"] else batch_size
    steps = max(20, round(epochs * case.num_data / cost))
    assert case.target is not None
    assert case.draw is not None
    started = time.perf_counter()
    with warnings.catch_warnings(record=True) as heard, contextlib.redirect_stdout(io.StringIO()) as spoken:
        warnings.simplefilter("always", TrustWarning)
        if is_auto:
            noise = float(torch.linalg.eigvals(torch.linalg.solve(case.hessian, noise_of(method, case, batch_size))).abs().max())
            thin = min(100, max(1, round((3 + noise) / 3)))  # about what it will take, so that the budget is about kept
            start = case.draw(1, given["seed"] + seed)[0] if given["starts"] == "reference" else None
            found = sample(
                case.target, init=start, chains=chains, num_draws=max(20, steps // thin),
                control_variate="auto" if own["centred"] else None, **options,
            )  # fmt: skip
        else:
            thin = math.ceil(steps / given["most_draws"])
            start = case.draw(chains, given["seed"] + seed)
            found = sample(
                case.target,
                sampler=kernel_of(method, Rung("found", 1.0, 0.0, 0.0), case, batch_size, torch.float32, 1),
                init=start,
                num_steps=given["warmup"] + steps // thin * thin,
                warmup=given["warmup"],
                thin=thin,
                metric="auto",
                **options,
            )  # fmt: skip
    seconds = time.perf_counter() - started
    text = spoken.getvalue()
    if is_auto:
        thin = int(told[1]) if (told := re.search(r"thinning (\d+)", text)) else 1
    has_centre = "control variates" in text
    used = len(found.draws) * found.draws.shape[1] * thin * batch_size * (2 if has_centre else 1) / case.num_data
    judged = _judged(found.draws, case, used, None)
    return {
        **judged, "seconds": seconds, "warmup_gradients": _warmup(found, text), "has_centre": has_centre, "text": text,
        "warnings": [str(warning.message) for warning in heard if issubclass(warning.category, TrustWarning)],
    }  # fmt: skip


def _warmup(found: Samples, text: str) -> int:
    """Return the full gradients of each chain before the run."""
    told = re.search(r"learnt from (\d+) gradients", text)
    return found.warmup_gradients or (int(told[1]) if told else 0)
