"""What draws say of a law that is known: errors of variances and means with their chance, and independent draws. In percent."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from langevin.diagnostics import ess
from langevin_paper.experiments.minibatch.known import Problem

__all__ = ["NAMES", "measured"]

NAMES = (
    "worst", "worst_chance", "mean", "mean_chance", "signed", "least", "most", "excess", "shift", "shift_chance",
    "ess", "ess_squares",  # of the worst coordinate, and of the worst square of one
)  # fmt: skip


def measured(draws: Tensor, case: Problem) -> dict[str, Any]:
    """Measure draws (chain, draw, dim); None for everything where one is not finite.

    Chance is what an error would be without any bias: half of the time the worst is below `worst_chance`.
    """
    if not torch.isfinite(draws).all():
        return dict.fromkeys(NAMES)
    found = (case.coordinates(draws).double() - case.mean) / case.variance**0.5
    squares = found * found
    independent, of_squares = ess(found), ess(squares)
    off = 100 * (squares.mean((0, 1)) - 1)
    spread = 100 * squares.flatten(0, 1).std(0) * (1 / of_squares + 1 / case.reference_draws) ** 0.5
    shift, shift_spread = found.mean((0, 1)).abs(), found.flatten(0, 1).std(0) * (1 / independent + 1 / case.reference_draws) ** 0.5
    middle = torch.special.ndtri(
        torch.tensor((1 + 0.5 ** (1 / len(off))) / 2, dtype=torch.float64)
    )  # of the largest of many |normals|
    numbers = (
        off.abs().max(), middle * spread.mean(), off.abs().mean(), (2 / torch.pi) ** 0.5 * spread.mean(), off.mean(), off.min(),
        off.max(), (off.abs() - 2 * spread).max(), shift.max(), middle * shift_spread.mean(), independent.min(), of_squares.min(),
    )  # fmt: skip
    return {name: float(value) for name, value in zip(NAMES, numbers, strict=True)}
