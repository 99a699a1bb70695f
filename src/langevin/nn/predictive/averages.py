"""Running averages over draws, batch by batch, and warnings about draws that hardly differ."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from langevin.checks import needs
from langevin.targets.likelihoods import Likelihood

__all__ = [
    "MIN_EFFECTIVE",
    "Averages",
    "Block",
    "draw_warnings",
    "effective_draws",
    "joined",
    "take_outputs",
]

MIN_EFFECTIVE = 5.0
"""Effective number of draws below which there is a warning."""

_ROUNDING = 4.0  # draws whose predictions differ by less than this many float spacings are equal
_ERRORS = 3.0  # standard errors below the ratio of independent draws


class Block(NamedTuple):
    """The outputs of a few draws for one batch."""

    batch: int  # number of the batch
    rows: slice  # its rows among all
    before: int  # number of draws before these
    outputs: Tensor  # (draws, rows, ...)
    y: Tensor | None  # targets of these rows
    chains: list[int]  # chain of each draw


class Averages:
    """Running averages over draws of the predictions for one batch, in float32 or wider.

    Args:
        likelihood: of y given outputs.
        keep: whether to keep all outputs.
    """

    mean: Tensor  # of a draw's expectation of y, (rows, ...)
    spread: Tensor  # sum of squared deviations from it, (rows, ...)
    noise: Tensor | None = None  # mean entropy (rows,) or variance (rows, ...), if known
    _last: Tensor  # the expectation of y under the previous draw
    log_density: Tensor | None = None  # log of the mean density of y, (rows,)

    def __init__(self, likelihood: Likelihood, keep: bool) -> None:
        """Start without draws."""
        self._likelihood, self._keep = likelihood, keep
        self.count = 0  # draws
        self.jumps = 0.0  # sum over rows and draws of the squared difference to the previous draw
        self.kept: list[Tensor] = []  # outputs (draws, rows, ...)

    def add(self, block: Block) -> None:
        """Add the outputs of some draws."""
        outputs, before = block.outputs, self.count
        shape = num, _ = outputs.shape[:2]
        share = num / (before + num)
        flat = outputs.flatten(0, 1)  # a likelihood takes rows one by one, so draws can be rows
        mean = _wide(self._likelihood.mean(flat))
        values = mean.unflatten(0, shape)
        is_of_classes = self._likelihood.predicts == "classes"
        noise = self._likelihood.entropy(mean) if is_of_classes else self._likelihood.variance(flat)
        if noise is not None:
            noise = _wide(noise)
            noise = noise.clone() if num == 1 else noise.unflatten(0, shape).mean(0)
            if self.noise is None:
                self.noise = noise
            else:  # weights, no difference: a variance may be infinite, and inf - inf is NaN
                self.noise.mul_(1 - share).add_(noise, alpha=share)
        if block.y is not None:
            self._add_density(outputs, block.y.to(outputs.device))
        if self._keep:
            self.kept.append(outputs)
        if num > 1:
            self.jumps += _sum_of_squares(values.diff(dim=0))
        if before:
            self.jumps += _sum_of_squares(values[0] - self._last)
        self._last = values[-1].clone()
        # The running mean and sum of squares of Chan, Golub and LeVeque (1983), in place.
        centre = values[0].clone() if num == 1 else values.mean(0)
        within = torch.zeros_like(centre) if num == 1 else (values - centre).square().sum(0)
        if not before:
            self.mean, self.spread = centre, within
        else:
            gap = centre - self.mean
            self.mean.add_(gap, alpha=share)
            self.spread.addcmul_(gap, gap, value=before * share).add_(within)
        self.count = before + num

    def _add_density(self, outputs: Tensor, y: Tensor) -> None:
        """Average the density of y over the draws up to these."""
        shape = num, _ = outputs.shape[:2]
        if not self.count:
            self._likelihood.check(outputs[0], y)
        many = y if num == 1 else y.repeat(num, *[1] * (y.ndim - 1))
        terms = _wide(self._likelihood.log_likelihood(outputs.flatten(0, 1), many))
        total = terms.unflatten(0, shape).logsumexp(0)
        if self.log_density is not None:
            total = torch.logaddexp(self.log_density + math.log(self.count), total)
        self.log_density = total - math.log(self.count + num)


def joined(parts: Sequence[Tensor | None]) -> Tensor | None:
    """Concatenate the rows of all batches; None if they are not known."""
    found = [part for part in parts if part is not None]
    if len(shapes := {tuple(part.shape[1:]) for part in found}) > 1:  # which might broadcast
        raise needs("predict", "model", "rows of one shape", sorted(shapes))
    return torch.cat(found) if found else None


def take_outputs(batches: Sequence[Averages]) -> Tensor:
    """Return all outputs (draws, n, ...), and free the kept ones batch by batch."""
    like, rows = batches[0].kept[0], sum(len(batch.mean) for batch in batches)
    result, start = like.new_empty(batches[0].count, rows, *like.shape[2:]), 0
    for batch in batches:
        stop = start + len(batch.mean)
        torch.cat(batch.kept, out=result[:, start:stop])
        batch.kept, start = [], stop
    return result


def _sum_of_squares(values: Tensor) -> float:
    return float(values.square().sum(dtype=torch.float64))


def _wide(values: Tensor) -> Tensor:
    return values.to(torch.promote_types(values.dtype, torch.float32))


def draw_warnings(mean: Tensor, spread: float, jumps: float, num_draws: int) -> tuple[str, ...]:
    """Return warnings about predictions that are not finite, equal, or strongly autocorrelated.

    Only the autocorrelation is judged, not the spread: with much data a posterior is narrow.

    Args:
        mean: over draws, (n, ...).
        spread: sum over rows and draws of the squared deviation from it.
        jumps: sum over rows and draws of the squared difference to the previous draw.
        num_draws: number of draws.
    """
    bad = ~torch.isfinite(mean).reshape(len(mean), -1).all(-1)
    if bad.any():
        row = int(bad.nonzero()[0])
        return (
            f"not finite: the predictions of {int(bad.sum())} of {len(mean)} rows, row {row} the "
            "first; check its inputs, and leave out draws of a chain that has diverged",
        )
    if num_draws < 2:
        return ()
    size = float(mean.double().square().sum())
    if spread <= num_draws * (_ROUNDING * torch.finfo(mean.dtype).eps) ** 2 * size:
        return (
            f"the same draw {num_draws} times: predictions differ by rounding only and show no "
            "uncertainty: did the chain move between draws (lr, temperature)?",
        )
    # neighbours that are closer than those of independent draws, with ratio 1 +- error
    error = math.sqrt((num_draws - 2) / (num_draws**2 - 1))
    value = effective_draws(spread, jumps, num_draws)
    if value < MIN_EFFECTIVE and jumps / (2 * spread) < 1 - _ERRORS * error:
        return (
            "draws that hardly differ: each predicts nearly the same as the one before, and "
            f"{num_draws} draws are worth about {value:.1f} independent ones; increase thin or the "
            "step size, run longer, or run several chains",
        )
    return ()


def effective_draws(spread: float, jumps: float, num_draws: int) -> float:
    """Return the effective number of draws of a chain whose autocorrelation decays exponentially.

    The squared differences of neighbours over twice the squared deviations (von Neumann 1941) are
    ``1 - rho`` on average, with the correlation ``rho`` of neighbours, and n draws are worth
    ``n (1 - rho) / (1 + rho)``.

    Example:
        >>> effective_draws(spread=100.0, jumps=200.0, num_draws=50)
        50.0
        >>> effective_draws(spread=100.0, jumps=20.0, num_draws=50)
        2.6315789473684212
    """
    ratio = min(jumps / (2 * spread), 1.0)
    return num_draws * ratio / (2 - ratio)
