"""A bias atlas: samplers at several steps and batch sizes, against a reference, at equal numbers of single-datum gradients."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from langevin_paper.chains import once
from langevin_paper.experiments.minibatch.ladders import rungs_of
from langevin_paper.experiments.minibatch.problems import DEFINITIONS, TITLES, problem
from langevin_paper.experiments.minibatch.runs import run_found, run_ladder, solve
from langevin_paper.spec import Column, Experiment, Method, Progress, Results, Scale, Setting, Table

__all__ = ["MINIBATCH"]

Given = Mapping[str, Any]
SHARED: dict[str, Any] = {
    "seed": 300,  # of the runs
    "bound": 10.0,  # percent of a variance: what a setting's error may be, for the most draws among those of a method
    "tuned": True,
    "halvings": 16,
    "grid": {  # a and β among which a law chooses for uncorrected samplers
        "sgld": ((0.0, 0.0),),
        "psgld": ((0.0, 0.0),),
        "sghmc": tuple((0.0, beta) for beta in (0.5, 0.8, 0.9, 0.95, 0.99)),
        "msgld": tuple((factor, beta) for factor in (0.1, 1.0, 10.0, 100.0, 1000.0) for beta in (0.9, 0.99, 0.999)),
        "asgld": tuple((factor, beta) for factor in (0.1, 1.0, 10.0, 100.0, 1000.0) for beta in (0.8, 0.9, 0.99)),
    },
    "warmup": 300,  # steps, on top of those that are counted
    "most_draws": 4000,  # that are kept of a chain
}


def run(method: Method, scale: Scale, seeds: range, folder: Path, progress: Progress) -> Results:
    """Run a cell: on every problem, with every batch size; what is done is not run again."""
    parts = [(name, size) for name, own in scale.settings["problems"].items() if _has(method, name) for size in own["batches"]]
    results: Results = {seed: {} for seed in seeds}
    for done, (name, size) in enumerate(parts):
        given = {**scale.settings, **scale.settings["problems"][name]}
        for seed in seeds:
            found = once(folder / f"{name}-{size}-{seed}.json", partial(_measure, method, name, given, size, seed))
            results[seed].setdefault(name, {})[size] = found
        progress((done + 1) / len(parts))
    return results


def _has(method: Method, name: str) -> bool:
    """Whether a problem is one for a method: on the Gaussian laws are solved for, with white noise and known settings."""
    own = method.settings
    return name != "gaussian" or (own["batches"] == "white" and not own["centred"] and own["family"] not in ("default", "nasgld"))


def _measure(method: Method, name: str, given: Given, size: str, seed: int) -> dict[str, Any]:
    """Measure all settings of a method on a problem with one batch size."""
    case, batch_size, family = problem(name, given), int(size), method.settings["family"]
    if name == "gaussian":
        rungs = {rung.name: solve(method, rung, case, batch_size) for rung in rungs_of(method, case, batch_size, given)}
    elif family in ("default", "nasgld"):
        rungs = {"found": run_found(method, case, batch_size, given, seed)}
    else:
        rungs = run_ladder(method, case, batch_size, given, seed)
    near = [rung for rung in rungs.values() if _is_near(rung, given["bound"])]
    curvatures, axes = torch.linalg.eigh(case.hessian)
    ratio = float(((axes * (case.noise(batch_size) @ axes)).sum(0) / curvatures).max())
    known = {"curvature": case.curvature, "ratio": ratio, "reference": case.reference}
    return {"rungs": rungs, "best": max(near, key=lambda rung: rung["draws"], default=None), **known}


def _is_near(rung: Given, bound: float) -> bool:
    """Whether no variance is off by more than the bound and two standard errors, nor by more than the bound by its law."""
    return rung["worst"] is not None and rung["excess"] <= bound and (rung["law_worst"] is None or rung["law_worst"] <= 1.1 * bound)


_FREE = {"factor": 10.0, "beta": 0.9, "noise": None, "centred": False, "shares": (0.5, 0.05, 0.005), "batches": "white"}
_ABSORBING = {**_FREE, "factor": 100.0, "beta": 0.99, "shares": (0.5, 0.05)}


def _method(name: str, label: str, family: str, note: str = "", base: Given = _FREE, **own: Any) -> Method:
    sampler = {"nasgld": "nasgld", "default": "msgld"}.get(family, family)
    return Method(name, label, sampler, {**base, "family": family, **own}, ours=("*",), note=note)


METHODS = (
    _method("sgld", "SGLD", "sgld", batches="reshuffled"),
    _method("sgld-white", "SGLD, white", "sgld"),
    _method("psgld", "pSGLD", "psgld", "its scale is frozen after the warm-up", batches="reshuffled", beta_2=0.99),
    _method("sghmc", "SGHMC", "sghmc", batches="reshuffled"),
    _method("msgld", "MSGLD", "msgld", batches="reshuffled"),
    _method("msgld-white", "MSGLD, white", "msgld"),
    _method("asgld", "ASGLD", "asgld", batches="reshuffled", beta_2=0.99),
    _method("asgld-white", "ASGLD, white", "asgld", beta_2=0.99),
    _method("msgld-centred", "MSGLD, centred", "msgld", centred=True),
    _method("diagonal", "corrected, diagonal Σ", "msgld", base=_ABSORBING, noise="diagonal", shares=(0.5, 0.05, 0.005)),
    _method("full", "corrected, full Σ", "msgld", base=_ABSORBING, noise="full"),
    _method(
        "full-centred", "corrected, full Σ, centred", "msgld", base=_ABSORBING, noise="full", centred=True,
        shares=(0.5, 0.15, 0.05),
    ),
    _method("nasgld", "corrected, Σ learnt", "nasgld", 'lv.nasgld() with metric="auto"', base=_ABSORBING, noise="learnt"),
    _method("default", "without settings", "default", "lv.sample, control_variate=None", base=_ABSORBING, noise="learnt"),
    _method(
        "default-centred", "without settings, centred", "default", 'lv.sample, control_variate="auto"', base=_ABSORBING,
        noise="learnt", centred=True,
    ),
)  # fmt: skip


def _scale(name: str, seconds: float, problems: Mapping[str, Given]) -> Scale:
    made = {
        key: {**DEFINITIONS[key], "linear": key != "network", "starts": "reference" if key == "network" else "found", **own}
        for key, own in problems.items()
    }
    return Scale(name, {**SHARED, "problems": made}, 1, seconds)


def _sizes(**sizes: tuple[int, float]) -> dict[str, Any]:
    """Return chains, and epochs of each of them, by batch size."""
    return {"batches": {size[1:]: {"chains": chains, "epochs": epochs} for size, (chains, epochs) in sizes.items()}}


def _columns(name: str, sizes: tuple[int, ...]) -> tuple[Column, ...]:
    found = []
    for size in sizes:
        at = f"{name}/{size}/best"
        found += [
            Column(f"{at}/draws", f"n = {size}: draws per epoch", 3, better="high"),
            Column(f"{at}/worst", "worst variance, % (chance)", 1, aside=f"{at}/worst_chance"),
            Column(f"{at}/mean", "mean, % (chance)", 1, aside=f"{at}/mean_chance"),
            Column(f"{at}/shift", "shift, sd (chance)", 2, aside=f"{at}/shift_chance"),
        ]
    return tuple(found)


_SMALL_NETWORK = {"reference": {**DEFINITIONS["network"]["reference"], "num_draws": 200}}
_ALL = _sizes(n10=(32, 40.0), n100=(32, 100.0), n1000=(16, 200.0))
_MILLION = _sizes(n100=(16, 10.0), n1000=(16, 20.0))

MINIBATCH = Experiment(
    name="minibatch",
    title="Under minibatches: bias and draws per epoch",
    section="Not in the paper: gradient noise",
    about="Every sampler at several steps and batch sizes n, against a reference, at equal numbers of single-datum gradients; an "
    "epoch is N of them, and a step with control variates (centred) takes 2 n. Uncorrected samplers let the noise of their "
    "gradients heat the law; corrected ones absorb it, from a Σ that is full, diagonal or learnt. Minibatches are reshuffled "
    "epochs or white (rows with replacement). The ladder has shares of the largest stable step; for uncorrected samplers also "
    "the setting with the most draws whose law, on the Gaussian of like curvature and noise, is off by at most 10 % (tuned, "
    "over a, β and the step). A table shows the setting with the most draws per epoch among those near enough: along no axis "
    "of the posterior is the variance off by more than 10 % and two standard errors, nor by more than 11 % by its law. Chains "
    "start at draws of the reference, but for those without settings, which find it.",
    methods=METHODS,
    scales=(
        _scale("quick", 20, {
            "gaussian": _sizes(n10=(0, 0), n100=(0, 0), n1000=(0, 0)), "linear": _sizes(n100=(8, 16.0)),
            "logistic": _sizes(n10=(16, 5.0), n100=(8, 24.0)), "misspecified": _sizes(n100=(8, 24.0)),
            "network": {**_SMALL_NETWORK, **_sizes(n10=(8, 12.0))},
        }),
        _scale("short", 100, {
            "gaussian": _sizes(n10=(0, 0), n100=(0, 0), n1000=(0, 0)), "linear": _sizes(n100=(16, 40.0)),
            "logistic": _sizes(n10=(32, 20.0), n100=(16, 80.0), n1000=(8, 80.0)), "misspecified": _sizes(n100=(16, 60.0)),
            "logistic-50": _sizes(n100=(8, 40.0)), "network": _sizes(n10=(16, 25.0), n100=(16, 50.0)),
        }),
        _scale("paper", 1000, {
            "gaussian": _sizes(n10=(0, 0), n100=(0, 0), n1000=(0, 0)),
            **{name: _ALL for name in ("linear", "logistic", "misspecified", "linear-50", "logistic-50")},
            "logistic-200": _sizes(n100=(8, 20.0), n1000=(8, 20.0)), "linear-million": _MILLION, "logistic-million": _MILLION,
            "network": _sizes(n10=(32, 100.0), n100=(32, 200.0)),
        }),
    ),
    run=run,
    tables=tuple(
        Table(
            f"{title}: the most draws per epoch within the bound",
            _columns(name, (10, 100) if name == "network" else (10, 100, 1000)),
            note="Chance is what an error would be without any bias, from the effective sample size; half of the time the worst is "
            "below it. A dash where no setting was near enough, or none was run. Of chains that are too slow for their length "
            "(fewer than two draws each), the draws per epoch are those of the law. The effective sample size of chains of 20 "
            "autocorrelation times is low by a tenth, and that of the worst axis by up to two fifths; of chains of 80, hardly.",
        )
        for name, title in TITLES.items()
    ),
    settings=(
        Setting("step size", "a share of the largest stable ε on a Gaussian of the curvature k, or tuned by the law", "ours"),
        Setting("a and β", "uncorrected: 10 and 0.9, or tuned; corrected: 100 and 0.99; found where Σ is learnt", "ours"),
        Setting("scales of pSGLD and ASGLD", "steps are divided by their mean; they are learnt in the warm-up", "ours"),
        Setting("warm-up", "300 steps, not counted; of calls that find their settings, what the page says", "ours"),
        Setting("Σ", "from rows at draws of the reference, where it is not learnt", "ours"),
    ),
)  # fmt: skip
