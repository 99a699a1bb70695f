"""Running averages over draws, and warnings about draws that hardly differ."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from langevin.checks import needs
from langevin.targets.likelihoods import Likelihood

__all__ = ["MIN_EFFECTIVE", "Averages", "Block", "draw_warnings", "effective_draws"]

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
    """Averages over draws of predictions for all rows, in float32 or wider.

    Args:
        likelihood: of y given outputs.
        keep: whether to keep all outputs.
    """

    def __init__(self, likelihood: Likelihood, keep: bool) -> None:
        """Start without draws."""
        self._likelihood, self._keep = likelihood, keep
        self.count = 0  # draws
        self.mean = _Column()  # of a draw's expectation of y, (n, ...)
        self.spread = _Column()  # sum of squared deviations from it, (n, ...)
        self.noise = _Column()  # mean entropy (n,) or variance (n, ...); empty if unknown
        self.log_density = _Column()  # log of the mean density of y, (n,); empty without y
        self.jumps = 0.0  # sum over rows and draws of the squared difference to the previous draw
        self.kept: list[list[Tensor]] = []  # outputs (draws, rows, ...) of each batch
        self._last = _Column()  # the mean of the previous draw

    def add(self, block: Block) -> None:
        """Add the outputs of some draws for one batch."""
        outputs, before, at = block.outputs, block.before, block.rows
        shape = num, _ = outputs.shape[:2]
        share = num / (before + num)
        flat = outputs.flatten(0, 1)  # a likelihood takes rows one by one, so draws can be rows
        mean = _wide(self._likelihood.mean(flat))
        values = mean.unflatten(0, shape)
        is_of_classes = self._likelihood.predicts == "classes"
        noise = self._likelihood.entropy(mean) if is_of_classes else self._likelihood.variance(flat)
        if noise is not None:
            noise = _wide(noise)
            noise = noise if num == 1 else noise.unflatten(0, shape).mean(0)
            if before:  # weights, no difference: a variance may be infinite, and inf - inf is NaN
                self.noise[at].mul_(1 - share).add_(noise, alpha=share)
            else:
                self.noise.put(at, noise)
        if block.y is not None:
            self.log_density.put(at, self._density(block, block.y.to(outputs.device)))
        if self._keep:
            self.kept += [[]] if block.batch == len(self.kept) else []
            self.kept[block.batch].append(outputs)
        if num > 1:
            self.jumps += _sum_of_squares(values.diff(dim=0))
        if before:
            self.jumps += _sum_of_squares(values[0] - self._last[at])
        self._last.put(at, values[-1])
        # The running mean and sum of squares of Chan, Golub and LeVeque (1983), in place.
        centre = values[0] if num == 1 else values.mean(0)
        within = torch.zeros_like(centre) if num == 1 else (values - centre).square().sum(0)
        if not before:
            self.mean.put(at, centre)
            self.spread.put(at, within)
        else:
            gap = centre - self.mean[at]
            self.mean[at].add_(gap, alpha=share)
            self.spread[at].addcmul_(gap, gap, value=before * share)
            if num > 1:
                self.spread[at].add_(within)
        self.count = before + num

    def take_outputs(self) -> Tensor:
        """Return all outputs (draws, n, ...), and free the kept ones batch by batch."""
        like, rows = self.kept[0][0], len(self.mean.all())
        result, start = like.new_empty(self.count, rows, *like.shape[2:]), 0
        while self.kept:
            batch = self.kept.pop(0)
            stop = start + batch[0].shape[1]
            torch.cat(batch, out=result[:, start:stop])
            start = stop
        return result

    def _density(self, block: Block, y: Tensor) -> Tensor:
        """Return the log of the density of y, averaged over the draws up to these."""
        shape = num, _ = block.outputs.shape[:2]
        if not block.before:
            self._likelihood.check(block.outputs[0], y)
        many = y if num == 1 else y.repeat(num, *[1] * (y.ndim - 1))
        terms = _wide(self._likelihood.log_likelihood(block.outputs.flatten(0, 1), many))
        total = terms.unflatten(0, shape).logsumexp(0)
        if block.before:
            total = torch.logaddexp(self.log_density[block.rows] + math.log(block.before), total)
        return total - math.log(block.before + num)


class _Column:
    """A growing number of rows in one tensor: many small ones would fragment memory."""

    def __init__(self) -> None:
        self._room = torch.empty(0)
        self._used = 0

    def __getitem__(self, at: slice) -> Tensor:
        return self._room[at]

    def put(self, at: slice, rows: Tensor) -> None:
        """Write rows; new rows follow the last one, and double the capacity where it is full."""
        if at.start == 0 and self._used == 0:
            self._room = rows.clone()
        elif at.stop > len(self._room):
            new = 2 * at.stop - len(self._room)
            self._room = torch.cat([self._room, self._room.new_empty(new, *self._room.shape[1:])])
        if (shape := self._room.shape[1:]) != rows.shape[1:]:  # which might broadcast
            condition = f"rows of one shape, {tuple(shape)}"
            raise needs("predict", "model", condition, tuple(rows.shape[1:]))
        self._room[at] = rows
        self._used = max(self._used, at.stop)

    def __bool__(self) -> bool:
        return self._used > 0

    def all(self) -> Tensor:
        """Return the rows without spare capacity."""
        return self._room if self._used == len(self._room) else self._room[: self._used].clone()


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
