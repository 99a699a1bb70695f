"""The parts of the study and their units: what is run, kept and resumed as one."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from langevin_paper.invariance import efficiency, integrator, law, ravine
from langevin_paper.invariance.problems import PROBLEMS, problem
from langevin_paper.invariance.record import timed

__all__ = ["PARTS", "run_unit", "units"]

PARTS = ("law", "integrator", "efficiency", "ravine")
SEEDS = {"law": 1, "integrator": 1, "efficiency": 100, "ravine": 1000}


def units(part: str, quick: bool = False) -> list[str]:
    """Return the units of a part; a quick run has one or two problems."""
    problems = PROBLEMS[: 2 if part == "law" else 1] if quick else PROBLEMS
    if part == "integrator":
        return list(integrator.SETTINGS)
    if part == "ravine":
        return list(ravine.METHODS)
    return [f"{name}/{method}" for name in problems for method in (law.FORMS if part == "law" else efficiency.METHODS)]


def run_unit(part: str, unit: str, quick: bool) -> dict[str, Any]:
    """Run one unit, on one thread: the tensors are small, and the units share the cores."""
    torch.set_num_threads(1)
    seed = SEEDS[part]
    if part == "integrator":
        return timed(seed, partial(integrator.integrator, *integrator.SETTINGS[unit], seed=seed, quick=quick))
    if part == "ravine":
        return timed(seed, partial(ravine.ravine, unit, seed=seed, quick=quick))
    name, method = unit.split("/")
    run = {"law": law.law, "efficiency": efficiency.efficiency}[part]
    return timed(seed, partial(run, problem(name), method, seed=seed, quick=quick))
