"""How much heat minibatches bring: measured of a few elements of each group, while an optimizer runs."""

from __future__ import annotations

import bisect
import warnings
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from langevin.checks import level_of_caller
from langevin.shards import local_part
from langevin.trust import TrustWarning

__all__ = ["MinibatchHeat", "Spread", "Watch", "sizes_of"]

RUNS, RUN = 32, 32
"""At most so many stretches of so many consecutive elements are looked at."""

PERIOD = 16
"""Steps from one look at three successive gradients to the next."""

ENOUGH = 16
"""Looks, at 256 steps, before anything is said."""

MAX_SHARE, MAX_ABSORBED = 0.1, 0.3
"""Above these shares of the temperature there is a warning: where the noise heats, and where it is absorbed element by element."""

_SLOWEST = 0.02  # weight of a look in the averages: they are those of the last 50 looks or so
_BEYOND = 2.0  # standard errors
_LARGE = 2**16  # elements of a parameter that are not copied for a look


class MinibatchHeat(NamedTuple):
    """What the noise of minibatches adds to the temperature of a group's law, as a share of the temperature that is asked for.

    It is that of rows drawn with replacement, in directions so soft that they take many steps. Epochs of reshuffled rows heat less.

    Example:
        >>> print(MinibatchHeat(share=0.029, error=0.002, estimator="successive gradients", is_absorbed=False))
        0.029 ± 0.002 of the temperature on top, from successive gradients
    """

    share: float  # mean over the elements looked at; NaN where it is not known (yet)
    error: float  # its standard error
    estimator: str  # "successive gradients", "micro-batches", or "" for none
    is_absorbed: bool  # whether the step absorbs it, noise="corrected"

    def __str__(self) -> str:
        """Return a sentence."""
        if not self.estimator:
            return "not known: too few steps, no temperature, or a sampler that does not say"
        kept = ", absorbed element by element" if self.is_absorbed else ""
        return f"{self.share:.2g} ± {self.error:.1g} of the temperature on top{kept}, from {self.estimator}"


class Spread:
    """The variance of a sum of independent gradients, from the sum after each of them (Welford 1962).

    Args:
        like: a tensor of its shape.
        count: how many gradients there were, all zero.
    """

    def __init__(self, like: Tensor, count: int = 0) -> None:
        """Begin with zeros."""
        self.total, self.squares, self.count = torch.zeros_like(like), torch.zeros_like(like), count

    def add(self, total: Tensor) -> None:
        """Take the sum with one more gradient in it."""
        if self.count:
            surprise = total - self.total * (1 + 1 / self.count)  # the gradient, less the mean of those before
            self.squares += surprise.square() * (self.count / (self.count + 1))
        self.total.copy_(total)
        self.count += 1

    def variance(self, total: Tensor) -> Tensor:
        """Return the variance of the sum, which has become `total` since: by one factor, as clipping and unscaling do it."""
        seen = torch.dot(self.total.flatten(), self.total.flatten())
        factor = torch.where(seen > 0, torch.dot(self.total.flatten(), total.flatten()) / seen, 1.0)
        return self.squares * (self.count / (self.count - 1)) * factor.square()


def sizes_of(parameters: Sequence[Tensor]) -> list[int]:
    """Return the number of elements of each parameter that are on this rank."""
    return [local_part(parameter).numel() for parameter in parameters]


class Watch:
    """The gradient noise of a few elements of a group; not saved with its state.

    Three successive gradients give ``(g1 - (g0 + g2) / 2)^2 / 1.5``, whose mean is the variance of their noise: what moves evenly
    over the three cancels. Micro-batches give it without the motion.

    Args:
        parameters: of the group.
    """

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        """Choose the elements: stretches that are evenly spaced, and the same in every run."""
        self.sizes = sizes_of(parameters)
        ends = list(accumulate(self.sizes, initial=0))
        self._places: list[tuple[int, int, int]] = []  # parameter, first element, the one after the last
        for a, b in pairwise(ends[-1] * k // RUNS for k in range(RUNS + 1)):
            number = bisect.bisect_right(ends, a) - 1
            if a < b and (local_part(parameters[number]).is_contiguous() or self.sizes[number] <= _LARGE):
                begin, end = ends[number : number + 2]
                self._places.append((number, a - begin, min(b, end, a + RUN) - begin))
        self.estimator = ""
        self.looks = 0
        self._recent: list[Tensor] = []
        self._spread: Spread | None = None
        self._is_said = False

    def gather(self, tensors: Sequence[Tensor | None]) -> Tensor | None:
        """Return the elements of tensors like the parameters, in float64; None where one is missing."""
        parts = []
        for number, begin, end in self._places:
            tensor = local_part(tensors[number])
            if tensor is None or tensor.layout != torch.strided or tensor.is_meta:
                return None
            parts.append(tensor.reshape(-1)[begin:end])
        return torch.cat(parts).double() if parts and len({part.device for part in parts}) == 1 else None

    def observe(self, parameters: Sequence[Tensor]) -> None:
        """Take the sum of gradients with one more micro-batch in it."""
        total = self.gather([parameter.grad for parameter in parameters])
        if total is not None:
            self._spread = Spread(total) if self._spread is None else self._spread
            self._spread.add(total)

    def forget(self) -> None:
        """Drop the micro-batches so far."""
        self._spread = None

    def step(self, parameters: Sequence[Tensor], number: int) -> bool:
        """Look at the gradients of a step, if it is the turn of its number; say whether it was time to compare the heat."""
        spread, place = self._spread, number % PERIOD
        self._spread = None
        is_inside = spread is not None and spread.count > 1
        found = self.gather([parameter.grad for parameter in parameters]) if is_inside or place < 3 else None
        if is_inside and spread is not None and found is not None:
            self._add(spread.variance(found), "micro-batches")
        elif place < 3:
            self._recent = [*(self._recent if place else []), *([] if found is None else [found])]
            if place < 2 or len(self._recent) < 3:
                return False
            first, middle, last = self._recent
            self._recent = []
            self._add((middle - (first + last) / 2).square() / 1.5, "successive gradients")
        else:
            return False
        return not self._is_said and self.looks >= ENOUGH and self.looks % ENOUGH == 0

    def _add(self, found: Tensor, estimator: str) -> None:
        if estimator != self.estimator:
            self.estimator, self.looks = estimator, 0
            self._variance, self._size, self._size_square = torch.zeros_like(found), found.new_zeros(()), found.new_zeros(())
        found = torch.where(torch.isfinite(found), found, self._variance)
        self.looks += 1
        rate, size = max(1 / self.looks, _SLOWEST), found.mean()
        self._variance = self._variance + rate * (found - self._variance)
        self._size = self._size + rate * (size - self._size)
        self._size_square = self._size_square + rate * (size * size - self._size_square)

    def heat(self, reach: Any, scale: float, temperature: float, is_absorbed: bool) -> MinibatchHeat:
        """Return the share of the temperature that noise adds.

        Args:
            reach: of the kernel for these elements; None where it is not known.
            scale: what a gradient of the loss is multiplied by to be one of U.
            temperature: that of the target.
            is_absorbed: whether the step absorbs it.
        """
        if self.looks < 2 or reach is None or temperature == 0:
            return MinibatchHeat(torch.nan, torch.nan, "", is_absorbed)
        share = float((self._variance * reach).mean()) * scale**2 / (2 * temperature)
        size, square = float(self._size), float(self._size_square)
        number = min(self.looks, 2 / _SLOWEST - 1)  # of equal looks that say as much
        relative = (max(square - size * size, 0.0) / (number - 1)) ** 0.5 / size if size > 0 else 0.0
        return MinibatchHeat(share, share * relative, self.estimator, is_absorbed)

    def warn(self, who: str, number: int, lr: float, heat: MinibatchHeat) -> None:
        """Warn once where the heat is too much."""
        allowed = MAX_ABSORBED if heat.is_absorbed else MAX_SHARE
        if not heat.share - _BEYOND * heat.error > allowed:
            return
        self._is_said = True
        size = f"{heat.share:.0%} ± {heat.error:.0%}"
        found = f"{who}: the noise of minibatches adds {size} to the temperature (group {number}, lr {lr:g}"
        if heat.is_absorbed:
            text = (
                ") before it is absorbed. Element by element that is right where the noise of elements is independent; where it "
                "is not, half of it may stay (at 30 %, +27 % of the variance in the worst direction). Take a smaller lr, or a "
                "larger batch."
            )
        else:
            text = (
                "; less where rows are reshuffled, not drawn with replacement): in soft directions the variance of the draws is "
                "too large by as much. Take a smaller lr, a larger batch, or MSGLD, ASGLD or AdaMaxSGLD with invariant=True, "
                'noise="corrected".'
            )
        warnings.warn(found + text, TrustWarning, stacklevel=level_of_caller())
