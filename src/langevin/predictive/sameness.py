"""Whether draws differ enough to be worth averaging: said unasked, from sums that cost nothing."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["MIN_WORTH", "warnings_of", "worth"]

MIN_WORTH = 5.0
"""Draws that are worth fewer independent ones than this are named."""

_ROUNDING = 4.0  # times the spacing of floats: draws whose predictions differ less are one
_ERRORS = 3.0  # standard errors below what independent draws show


def warnings_of(mean: Tensor, spread: float, jumps: float, num_draws: int) -> tuple[str, ...]:
    """Say what speaks against a prediction.

    Draws that are the same up to rounding are named, and a chain that crawls: one whose draws hardly differ from one to the next,
    beside how far they come in all. How far that is, is not judged: with much data a posterior is narrow.

    Args:
        mean: over draws, (n, ...).
        spread: sum over rows and draws of the squared deviation from it.
        jumps: sum over rows and draws of the squared difference to the draw before.
        num_draws: how many.
    """
    bad = ~torch.isfinite(mean).reshape(len(mean), -1).all(-1)
    if bad.any():
        row = int(bad.nonzero()[0])
        return (
            f"not finite: the predictions of {int(bad.sum())} of {len(mean)} rows, row {row} the first; look at its inputs, and "
            "leave out draws of a chain that has blown up",
        )
    if num_draws < 2:
        return ()
    size = float(mean.double().square().sum())
    if spread <= num_draws * (_ROUNDING * torch.finfo(mean.dtype).eps) ** 2 * size:
        return (
            f"the same draw {num_draws} times: predictions differ by rounding only, and say nothing of what is not known: "
            "did the chain move between draws (lr, temperature)?",
        )
    value = worth(spread, jumps, num_draws)
    if value < MIN_WORTH and is_below_chance(spread, jumps, num_draws):
        return (
            f"draws that hardly differ: each predicts nearly what the one before it does, and {num_draws} draws are worth about "
            f"{value:.1f} independent ones; keep draws further apart (thin), run longer, with larger steps, or run several chains",
        )
    return ()


def worth(spread: float, jumps: float, num_draws: int) -> float:
    """Return how many independent draws a chain is worth whose predictions forget at a constant rate.

    The squared differences of neighbours over twice the squared deviations (von Neumann 1941) are 1 - rho on average, rho the
    correlation of neighbours, which makes n draws worth n (1 - rho) / (1 + rho).

    Example:
        >>> worth(spread=100.0, jumps=200.0, num_draws=50), worth(spread=100.0, jumps=20.0, num_draws=50)
        (50.0, 2.6315789473684212)
    """
    ratio = min(jumps / (2 * spread), 1.0)
    return num_draws * ratio / (2 - ratio)


def is_below_chance(spread: float, jumps: float, num_draws: int) -> bool:
    """Say whether neighbours are closer than those of independent draws, whose ratio is 1 +- sqrt((n - 2) / (n^2 - 1))."""
    error = ((num_draws - 2) / (num_draws**2 - 1)) ** 0.5
    return jumps / (2 * spread) < 1 - _ERRORS * error
