"""Part 1: how far the law of each form is from the target, against the bias factor and against the step size."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from langevin.kernels import Kernel
from langevin.kernels.samplers import SAMPLERS
from langevin.kernels.schedules import polynomial
from langevin_paper.experiments.invariant.draws import errors, run_settings
from langevin_paper.experiments.invariant.problems import DEFINITIONS, TITLES, Problem, problem
from langevin_paper.spec import Column, Experiment, Method, Progress, Results, Scale, Setting, Table

__all__ = ["LAW", "kernel_of"]

FACTORS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
STEPS: dict[str, dict[str, Any]] = {  # step size times curvature: where the bias factor varies, and where the step size does
    "gaussian": {"step": 0.1, "steps": (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)},
    "mixture": {"step": 0.1, "steps": (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)},
    "banana": {"step": 0.05, "steps": (0.025, 0.05, 0.1, 0.2, 0.4)},
    "wide": {"step": 0.2, "steps": (0.1, 0.2, 0.4, 0.8, 1.2, 1.6)},
    "logistic": {"step": 0.01, "steps": (0.005, 0.01, 0.02, 0.04, 0.08, 0.16)},
}
LENGTHS = {  # by how slowly chains forget
    "gaussian": {"num_chains": 300, "num_steps": 2000, "warmup": 600},
    "mixture": {"num_chains": 150, "num_steps": 3000, "warmup": 1000},
    "banana": {"num_chains": 1000, "num_steps": 2000, "warmup": 600},
    "wide": {"num_chains": 40, "num_steps": 6000, "warmup": 3000},
    "logistic": {"num_chains": 32, "num_steps": 2400, "warmup": 800},
}
SHARED: dict[str, Any] = {
    "seed": 1,
    "thin": 5,  # neighbours add little but memory
    "factors": FACTORS,
    "step_factors": (1.0, 10.0),  # bias factors at which the step size varies
    "exact_draws": 200_000,  # whose mode shares are the true ones
}


def run(method: Method, scale: Scale, seeds: range, folder: Path, progress: Progress) -> Results:
    """Run a cell: on every problem, all bias factors and step sizes side by side; seed s is the scale's plus s."""
    problems = scale.settings["problems"]
    results: Results = {seed: {} for seed in seeds}  # the law's temperature differs by bias factor
    for done, (name, given) in enumerate(problems.items()):
        for place, seed in enumerate(seeds):
            results[seed][name] = _measure(method, problem(name, given), {**scale.settings, **given}, seed)
            progress((done + (place + 1) / len(seeds)) / len(problems))
    return results


def _measure(method: Method, case: Problem, given: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Measure one form on one problem: the errors by bias factor, and by step size at some bias factors."""
    by_factor = [(a, given["step"]) for a in given["factors"]]
    by_step = {a: [(a, step) for step in given["steps"]] for a in given["step_factors"]}
    asked = [*by_factor, *(point for points in by_step.values() for point in points)]
    points = list(dict.fromkeys(_used(method, point) for point in asked))
    draws = run_settings(
        [kernel_of(method, a, step / case.curvature) for a, step in points], case, seed=given["seed"] + seed, thin=given["thin"],
        num_chains=given["num_chains"], num_steps=given["num_steps"], warmup=given["warmup"],
    )  # fmt: skip
    exact = None if case.shares is None else case.shares(case.draw(given["exact_draws"], 0)[None])
    found = {point: _errors(setting, case, exact) for point, setting in zip(points, draws, strict=True)}
    return {
        "factors": {f"{a:g}": found[_used(method, (a, step))] for a, step in by_factor},
        "steps": {f"{a:g}": {f"{step:g}": found[_used(method, (a, step))] for _, step in by_step[a]} for a in by_step},
        "curvature": case.curvature,
        "reference": case.reference,
    }


def _used(method: Method, point: tuple[float, float]) -> tuple[float, float]:
    """Return the bias factor and step size that are run: SGLD has no bias."""
    return (0.0, point[1]) if method.sampler == "sgld" else point


def kernel_of(method: Method, a: float, step_size: float) -> Kernel:
    """Make the sampler of a form with a bias factor."""
    settings = dict(method.settings)
    is_corrected, annealing = settings.pop("corrected", False), settings.pop("annealing", None)
    if method.sampler != "sgld":
        settings["bias_factor"] = a if annealing is None else polynomial(a, **annealing)
    return SAMPLERS[method.sampler](step_size, temperature=1 + a if is_corrected else 1.0, **settings)


def _errors(draws: Tensor, case: Problem, exact: Tensor | None) -> dict[str, float | None]:
    """Return the errors of one setting, None for each where it is unstable; `exact` are the true shares of the modes."""
    found = errors(draws, case)
    names = ("error", "signed", "chance")
    if found is None:
        return dict.fromkeys((*names, *(() if exact is None else ("shares", "shares_chance"))))
    measured: dict[str, float | None] = {name: getattr(found, name) for name in names}
    if case.shares is not None and exact is not None:  # total variation of the regions nearest to each mean
        by_chain = 100 * torch.stack([case.shares(chain[None]) for chain in draws])
        measured["shares"] = float(0.5 * (by_chain.mean(0) - 100 * exact).abs().sum())
        measured["shares_chance"] = float((0.5 / torch.pi) ** 0.5 * (by_chain.std(0) / len(by_chain) ** 0.5).sum())
    return measured


def _scale(name: str, num_seeds: int, seconds: float, problems: Mapping[str, Mapping[str, Any]], **more: Any) -> Scale:
    made = {key: {**DEFINITIONS[key], **STEPS[key], **lengths} for key, lengths in problems.items()}
    return Scale(name, {**SHARED, **more, "problems": made}, num_seeds, seconds)


def _form(family: str, form: str, **settings: Any) -> Method:
    sampler, own = FAMILIES[family]
    return Method(f"{family.lower()}-{form}", f"{family} {form}", sampler, {**own, **settings}, ours=("*",))


def _columns(name: str, what: str, chance: str) -> tuple[Column, ...]:
    return tuple(Column(f"{name}/factors/{a:g}/{what}", f"a = {a:g}", 1, aside=f"{name}/factors/{a:g}/{chance}") for a in FACTORS)


FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "MSGLD": ("msgld", {"beta": 0.9}),
    "ASGLD": ("asgld", {"betas": (0.9, 0.999), "eps_root": 1e-5}),
    "AdaMax": ("adamax_sgld", {"betas": (0.9, 0.999), "eps": 1e-8}),
}
ANNEALING = {"power": 0.75, "offset": 10.0}  # of the bias factor a (1 + step / offset)^-power
_QUICK = {"num_chains": 100, "num_steps": 300, "warmup": 100, "steps": (0.1, 0.4)}
_SHORT = {name: {**lengths, "num_chains": lengths["num_chains"] // 2} for name, lengths in LENGTHS.items()}

LAW = Experiment(
    name="invariant-law",
    title="Which law the adaptive drifts sample",
    section="Not in the paper: the invariant forms, part 1",
    about="The published MSGLD and ASGLD add a bias a A_t to the drift and no noise for it: their law is colder than the "
    "posterior. The invariant forms give the momentum noise of its own. All chains start at draws of the target: what is "
    "measured is where a sampler goes from there, not how it gets there. The error is that of second moments about the true "
    "mean, along the principal axes of the true covariance: the mean over the axes of |moment / variance − 1|. Chance is what "
    "that would be without any bias, from the spread over independent chains.",
    methods=(
        Method("sgld", "SGLD", "sgld", ours=("*",)),
        _form("MSGLD", "published"),
        _form("MSGLD", "corrected", corrected=True),
        _form("MSGLD", "annealed", annealing=ANNEALING),
        _form("MSGLD", "invariant", invariant=True),
        _form("ASGLD", "published"),
        _form("ASGLD", "annealed", annealing=ANNEALING),
        _form("ASGLD", "invariant", invariant=True),
        _form("AdaMax", "invariant", invariant=True),
    ),
    scales=(
        _scale("quick", 1, 4, {"gaussian": _QUICK, "mixture": _QUICK}, factors=(1.0, 10.0), step_factors=(10.0,)),
        _scale("short", 1, 20, _SHORT),
        _scale("paper", 1, 40, LENGTHS),
    ),
    run=run,
    tables=(
        *(
            Table(f"{title}: error of the variance, percent (chance)", _columns(name, "error", "chance"))
            for name, title in TITLES.items()
        ),
        Table(
            "Mode shares of the mixture: total variation distance from those of exact draws, percent (chance)",
            _columns("mixture", "shares", "shares_chance"),
            note="All at the step size of the first figure; a dash where a chain blew up. Gradients are exact but on the logistic "
            "regression: there the noise of the minibatches heats every form, the more the larger ε (1 + a) is, and none of them "
            "corrects for it; control variates, which take it away, were not part of this. On the banana the second moment has "
            "heavy tails: an estimate that is low comes with a spread that is low, so chance is understated there.",
        ),
    ),
    settings=(
        Setting("corrected", "the published form with noise of temperature 1 + a", "ours"),
        Setting("annealed", "bias factor a (1 + step/10)^-0.75", "ours"),
        Setting("a seed", "all chains of a method: its spread is that over chains", "ours"),
    ),
)
