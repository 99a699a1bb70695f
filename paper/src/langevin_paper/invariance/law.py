"""Part 1: how far the law of each form is from the target, against the bias factor and against the step size."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from langevin.diagnostics import mode_shares
from langevin.kernels import Kernel
from langevin.samplers import adamax_sgld, asgld, msgld, sgld
from langevin.schedules import polynomial
from langevin.targets import Mixture
from langevin_paper.invariance.problems import Problem
from langevin_paper.invariance.walk import errors, walk

__all__ = ["ANNEALING", "FACTORS", "FORMS", "STEP_FACTORS", "law"]

FACTORS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
STEP_FACTORS = (1.0, 10.0)  # bias factors at which the step size varies
THIN = 5  # neighbours add little but memory
ANNEALING = polynomial(1.0, power=0.75, offset=10)  # what a is multiplied by in the annealed forms


class Form(NamedTuple):
    """A way to use a bias: its kernel with bias factor 1, and whether its noise is that of temperature 1 + a."""

    kernel: Kernel
    is_corrected: bool = False


FORMS: dict[str, Form] = {
    "SGLD": Form(sgld(1.0)),
    "MSGLD published": Form(msgld(1.0)),
    "MSGLD corrected": Form(msgld(1.0), is_corrected=True),
    "MSGLD annealed": Form(msgld(1.0, bias_factor=ANNEALING)),
    "MSGLD invariant": Form(msgld(1.0, invariant=True)),
    "ASGLD published": Form(asgld(1.0)),
    "ASGLD annealed": Form(asgld(1.0, bias_factor=ANNEALING)),
    "ASGLD invariant": Form(asgld(1.0, invariant=True)),
    "AdaMax invariant": Form(adamax_sgld(1.0, invariant=True)),
}


def law(problem: Problem, name: str, *, seed: int, quick: bool) -> dict[str, Any]:
    """Measure one form on one problem: points (bias factor, step size, errors)."""
    grid = [(a, problem.step) for a in FACTORS] + [(a, step) for a in STEP_FACTORS for step in problem.steps]
    plan = {"warmup": problem.warmup, "num_steps": problem.num_steps, "num_chains": problem.num_chains}
    if quick:
        grid = [(a, problem.step) for a in (1.0, 10.0)]
        plan = {"warmup": 100, "num_steps": 300, "num_chains": 100 if problem.batch_size is None else 10}
    form = FORMS[name]
    chosen = list(dict.fromkeys((0.0, step) for _, step in grid) if name == "SGLD" else dict.fromkeys(grid))
    factors, steps = torch.tensor(chosen).T
    warmth = 1 + factors if form.is_corrected else 1.0
    draws = walk(form.kernel, problem, steps / problem.curvature, factors=factors, warmth=warmth, seed=seed, thin=THIN, **plan)
    exact = mode_shares(problem.draw(200_000, 0)[None], problem.target) if isinstance(problem.target, Mixture) else None
    points = [
        {"factor": a, "step": step, **_measure(setting, problem, exact)} for (a, step), setting in zip(chosen, draws, strict=True)
    ]
    about = {
        "annealing": f"a {str(ANNEALING).removeprefix('1 * ')}",
        "curvature": problem.curvature,
        "reference": problem.reference,
    }
    return {"points": points, "plan": {**plan, "thin": THIN, **about}}


def _measure(draws: Tensor, problem: Problem, exact: Tensor | None) -> dict[str, Any]:
    """Return the errors of one setting, None for each where it is unstable; `exact` are the shares of a mixture's modes."""
    found = errors(draws, problem)
    if found is None:
        return dict.fromkeys(("error", "signed", "chance", "shares", "shares_chance"))
    measured = {"error": found.error, "signed": found.signed, "chance": found.chance, "shares": None, "shares_chance": None}
    if isinstance(problem.target, Mixture) and exact is not None:  # total variation of the regions nearest to each mean
        by_chain = torch.stack([mode_shares(chain[None], problem.target) for chain in draws])
        measured["shares"] = float(0.5 * (by_chain.mean(0) - exact).abs().sum())
        measured["shares_chance"] = float((0.5 / torch.pi) ** 0.5 * (by_chain.std(0) / len(by_chain) ** 0.5).sum())
    return measured
