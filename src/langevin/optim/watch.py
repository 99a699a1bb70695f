"""The gradient noise of a few elements of a group, from successive gradients or micro-batches."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from langevin.execution.shards import local_part
from langevin.optim.effective_parameters import EffectiveParameters, Series

__all__ = ["ENOUGH", "FRICTION", "PERIOD", "SumVariance", "Watch"]

RUNS, RUN = 32, 512
"""Observed elements: at most so many runs of so many consecutive elements."""

PERIOD = 16
"""Steps between estimates, each from three successive gradients."""

ENOUGH = 16
"""Estimates before the first warning: 256 steps."""

FRICTION = "the thermostat's friction"
_SLOWEST = 0.02  # weight of an estimate in the averages, which span about 50 of them
_LARGE = 2**16  # elements; larger parameters are sliced, not copied


class SumVariance:
    """The variance of a sum of independent gradients, from its partial sums (Welford 1962).

    Args:
        like: a tensor of its shape.
        count: how many gradients came before, all zero.
    """

    def __init__(self, like: Tensor, count: int = 0) -> None:
        """Start with a sum of zero."""
        self.total, self.squares, self.count = torch.zeros_like(like), torch.zeros_like(like), count

    def add(self, total: Tensor) -> None:
        """Add the next partial sum."""
        if self.count:
            # The gradient, minus the mean of those before.
            deviation = total - self.total * (1 + 1 / self.count)
            self.squares += deviation.square() * (self.count / (self.count + 1))
        self.total.copy_(total)
        self.count += 1

    def variance(self, total: Tensor) -> Tensor:
        """Return the variance of the sum, which clipping or unscaling has changed to `total`."""
        seen = torch.dot(self.total.flatten(), self.total.flatten())
        factor = torch.where(seen > 0, torch.dot(self.total.flatten(), total.flatten()) / seen, 1.0)
        return self.squares * (self.count / (self.count - 1)) * factor.square()


class Watch:
    """The gradient noise of a few elements of a group.

    Three successive gradients give ``(g1 - (g0 + g2) / 2)^2 / 1.5``, whose mean is the noise
    variance: linear trends cancel. Micro-batches give it without trends.

    Args:
        parameters: of the group.
    """

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        """Choose evenly spaced runs of elements, the same in every run."""
        self.sizes = sizes_of(parameters)
        ends = list(accumulate(self.sizes, initial=0))
        self._slices: list[tuple[int, int, int]] = []  # parameter, first element, end
        for a, b in pairwise(ends[-1] * k // RUNS for k in range(RUNS + 1)):
            number = bisect.bisect_right(ends, a) - 1
            if a < b and (
                local_part(parameters[number]).is_contiguous() or self.sizes[number] <= _LARGE
            ):
                begin, end = ends[number : number + 2]
                self._slices.append((number, a - begin, min(b, end, a + RUN) - begin))
        self._parameters = sorted({number for number, _, _ in self._slices})
        # Of small parameters, one copy of all and one index take less time than up to 32 slices.
        sizes = [self.sizes[number] for number in self._parameters]
        starts = dict(zip(self._parameters, accumulate(sizes, initial=0), strict=False))
        self._small = sum(sizes)
        self._index: Tensor | None = None
        if self._slices and self._small <= _LARGE:
            index = [torch.arange(a, b) + starts[number] for number, a, b in self._slices]
            self._index = torch.cat(index)
        owners = [torch.full((b - a,), number) for number, a, b in self._slices]
        self.owners = torch.cat(owners) if owners else torch.zeros(0, dtype=torch.long)
        self.effective = EffectiveParameters()
        self.kinetic = Series()  # excess of |v|^2 / τ over its value without noise
        self.estimator = ""
        self.count = 0  # estimates so far
        self._recent: list[Tensor] = []
        self.batches: SumVariance | None = None
        self._compared = 0.0  # share at the last comparison with the limit
        self.has_warned = False

    def gather(self, tensors: Sequence[Tensor | None]) -> Tensor | None:
        """Return the observed elements in float64; None if a tensor is missing."""
        whole: dict[int, Tensor] = {}
        for number in self._parameters:
            tensor = local_part(tensors[number])
            if tensor is None or tensor.layout != torch.strided or tensor.is_meta:
                return None
            whole[number] = tensor.reshape(-1)
        if len({tensor.device for tensor in whole.values()}) != 1:
            return None
        if self._index is not None and sum(map(Tensor.numel, whole.values())) == self._small:
            everything = torch.cat(list(whole.values()))
            return everything[self._index.to(everything.device)].double()
        return torch.cat([whole[number][begin:end] for number, begin, end in self._slices]).double()

    def observe(self, parameters: Sequence[Tensor]) -> None:
        """Add the partial sum of gradients after a micro-batch."""
        total = self.gather([parameter.grad for parameter in parameters])
        if total is not None:
            self.batches = SumVariance(total) if self.batches is None else self.batches
            self.batches.add(total)

    def step(self, parameters: Sequence[Tensor], number: int) -> bool:
        """Use the gradients of a step if one is due; return whether to compare with the limit."""
        batches, phase = self.batches, number % PERIOD
        self.batches = None
        has_batches = batches is not None and batches.count > 1
        found = None
        if has_batches or phase < 3:
            found = self.gather([parameter.grad for parameter in parameters])
            self.effective.add(self.gather(parameters), found)
        if batches is not None and has_batches and found is not None:
            self._add(batches.variance(found), "micro-batches")
        elif phase < 3:
            self._recent = [*(self._recent if phase else []), *([] if found is None else [found])]
            if phase < 2 or len(self._recent) < 3:
                return False
            first, middle, last = self._recent
            self._recent = []
            self._add((middle - (first + last) / 2).square() / 1.5, "successive gradients")
        else:
            return False
        return not self.has_warned and self.count >= ENOUGH and self.count % ENOUGH == 0

    def look(self, parameters: Sequence[Tensor]) -> None:
        """Use a step's gradients for the effective number of parameters only."""
        self.effective.add(
            self.gather(parameters), self.gather([parameter.grad for parameter in parameters])
        )

    def take(self, share: Tensor | None) -> bool:
        """Add the share that a thermostat measures; return whether to compare with the limit."""
        self.batches = None
        if share is None:
            return False
        self._add(share, FRICTION)
        if self.count % ENOUGH:
            return False
        # After a start far from the mode, friction falls slowly. While it changes, it measures more
        # than minibatch noise.
        before, self._compared = self._compared, float(self._variance.mean())
        return not self.has_warned and abs(self._compared - before) < 0.2 * self._compared

    def _add(self, found: Tensor, estimator: str) -> None:
        if estimator != self.estimator:
            self.estimator, self.count = estimator, 0
            self._variance = torch.zeros_like(found)
            self._size, self._size_square = found.new_zeros(()), found.new_zeros(())
        found = torch.where(torch.isfinite(found), found, self._variance)
        self.count += 1
        # The first values of a friction are from before convergence: they count for less.
        weight = 2 / (self.count + 1) if estimator == FRICTION else 1 / self.count
        rate, size = max(weight, _SLOWEST), found.mean()
        self._variance = self._variance + rate * (found - self._variance)
        self._size = self._size + rate * (size - self._size)
        self._size_square = self._size_square + rate * (size * size - self._size_square)

    def shares(
        self, response: Tensor | float | None, scale: float, temperature: float
    ) -> Tensor | None:
        """Return the excess temperature of each element, ``R s^2 / (2 τ)``; None if unknown.

        Args:
            response: total response of the kernel to a gradient in these elements; None if unknown.
            scale: factor from a gradient of the loss to one of U.
            temperature: of the target.
        """
        if self.count < 2 or temperature == 0:
            return None
        if self.estimator == FRICTION:
            return self._variance
        if response is None:
            return None
        return self._variance * response * (scale**2 / (2 * temperature))

    def relative_error(self) -> float:
        """Return the relative standard error of the mean of `shares`."""
        if self.estimator == FRICTION:
            # Values of one element are correlated, elements are not.
            shares, mean = self._variance, float(self._variance.mean())
            if shares.numel() < 2 or mean == 0:
                return torch.nan
            return float(shares.std()) / shares.numel() ** 0.5 / abs(mean)
        size, square = float(self._size), float(self._size_square)
        number = min(self.count, 2 / _SLOWEST - 1)  # equivalent number of equal weights
        return (max(square - size * size, 0.0) / (number - 1)) ** 0.5 / size if size > 0 else 0.0


def sizes_of(parameters: Sequence[Tensor]) -> list[int]:
    """Return the number of elements of each parameter on this rank."""
    return [local_part(parameter).numel() for parameter in parameters]
