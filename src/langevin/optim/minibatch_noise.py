"""Excess temperature from minibatch noise, estimated from a few elements of each group."""

from __future__ import annotations

import bisect
import warnings
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from langevin.checks import level_of_caller
from langevin.diagnostics.trust import TrustWarning
from langevin.execution.fused import Entry, wide_dtype
from langevin.execution.shards import local_part
from langevin.kernels import Kernel, StepInputs
from langevin.kernels.base import NoiseMeter
from langevin.optim.entries import States, aligned_gradient
from langevin.optim.kronecker import Totals, blocks_of
from langevin.optim.settings import SUCCESSIVE, Group
from langevin.optim.state import STEPS

__all__ = ["MinibatchHeat", "MinibatchNoise", "SumVariance", "Watch", "is_observed"]

RUNS, RUN = 32, 32
"""Observed elements: at most so many runs of so many consecutive elements."""

PERIOD, EARLY, LATE_PERIOD = 16, 4096, 64
"""Steps between estimates, each from three successive gradients: 16 in the first 4,096, then 64."""

ENOUGH = 16
"""Estimates before the first warning: 256 steps."""

MAX_SHARE, MAX_CORRECTED = 0.1, 0.3
"""Shares of the temperature above which a warning follows, without and with a correction."""

_FRICTION = "the thermostat's friction"
_SLOWEST = 0.02  # weight of an estimate in the averages, which span about 50 of them
_ERRORS = 2.0  # standard errors by which a share must exceed the limit
_LARGE = 2**16  # elements; larger parameters are sliced, not copied


class MinibatchHeat(NamedTuple):
    """Excess temperature of a group, caused by minibatch noise, as a share of the temperature.

    It holds for data drawn with replacement, in directions that relax over many steps. Reshuffled
    epochs add less.

    Example:
        >>> print(MinibatchHeat(0.029, 0.002, "successive gradients", is_corrected=False))
        0.029 ± 0.002 of the temperature, from successive gradients
    """

    share: float  # mean over the observed elements; NaN if not (yet) known
    error: float  # its standard error
    estimator: str  # "successive gradients", "micro-batches", "the thermostat's friction" or ""
    is_corrected: bool  # whether the step corrects for it: noise="corrected", or a thermostat

    def __str__(self) -> str:
        """Return the share, its error and the estimator."""
        if not self.estimator:
            return "unknown (too few steps, temperature 0, or not defined for this sampler)"
        kept = ", corrected element by element" if self.is_corrected else ""
        share = f"{self.share:.2g} ± {self.error:.1g} of the temperature"
        return f"{share}{kept}, from {self.estimator}"


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


def is_observed(step: int) -> bool:
    """Return whether the gradients of a step are used: the last and first three of a period."""
    period = PERIOD if step < EARLY else LATE_PERIOD
    return not 3 <= step % period < period - 1


class MinibatchNoise:
    """The minibatch noise of an optimizer's groups; not saved with its state."""

    def __init__(self) -> None:
        """Start without observations."""
        self.watches: dict[int, Watch] = {}
        self.sums: dict[Tensor, SumVariance] = {}  # micro-batches so far, where they are corrected
        self.totals: Totals = {}  # the same of Kronecker blocks
        self.has_batches = False  # whether `observe` was called in this step

    def watch(self, number: int, group: Group) -> Watch:
        """Return the watch of a group; a new one if parameters have changed size."""
        watch = self.watches.get(number)
        is_due = group["step"] % PERIOD == 0
        if watch is None or (is_due and watch.sizes != _sizes(group["params"])):
            watch = self.watches[number] = Watch(group["params"])
        return watch

    def observe(self, number: int, group: Group, kernel: Kernel) -> None:
        """Add the accumulated gradients after a micro-batch."""
        self.has_batches = True
        self.watch(number, group).observe(group["params"])
        if kernel.gradient_noise is None:
            return
        rotated = {group["params"][number] for block in blocks_of(group) for number in block}
        counts = [self.sums[p].count for p in group["params"] if p in self.sums]
        count = max(counts, default=0)
        for parameter in group["params"]:
            if parameter.grad is not None:
                gradient = local_part(aligned_gradient(parameter))
                total = gradient.to(wide_dtype(parameter.dtype))
                if parameter in rotated:
                    self.totals.setdefault(parameter, []).append(total.clone())
                else:
                    self.sums.setdefault(parameter, SumVariance(total, count)).add(total)

    def forget(self) -> None:
        """Drop the micro-batches of this step."""
        self.has_batches = False
        self.sums.clear()
        self.totals.clear()
        for watch in self.watches.values():
            watch.batches = None

    def measure(self, who: str, number: int, group: Group, kernel: Kernel, states: States) -> None:
        """Add a step's gradients to the estimate, and warn once if the excess is too large."""
        if group["temperature"] == 0:
            return
        watch = self.watch(number, group)
        if not isinstance(kernel, NoiseMeter):
            is_due = watch.step(group["params"], group["step"])
        elif is_due := group["step"] % PERIOD == PERIOD - 1:
            observed = self._observed(number, group, kernel, states)
            is_due = watch.take(None if observed is None else kernel.noise_share(*observed))
        if is_due:
            watch.warn(who, number, float(group["lr"]), self.heat(number, group, kernel, states))

    def heat(self, number: int, group: Group, kernel: Kernel, states: States) -> MinibatchHeat:
        """Return the excess temperature of a group."""
        observed = self._observed(number, group, kernel, states)
        response = None if observed is None else kernel.total_response(*observed)
        is_corrected = kernel.gradient_noise is not None
        watch = self.watch(number, group)
        return watch.heat(response, group["num_data"], group["temperature"], is_corrected)

    def _observed(
        self, number: int, group: Group, kernel: Kernel, states: States
    ) -> tuple[tuple[Tensor, ...], StepInputs] | None:
        """Return the kernel's state of the observed elements, if complete, and its inputs."""
        watch, own = self.watch(number, group), [states.get(p, {}) for p in group["params"]]
        noise_names = kernel.gradient_noise.state_names if kernel.gradient_noise else ()
        names = [name for name in kernel.state_names if name not in noise_names]
        columns = [watch.gather([state.get(name) for state in own]) for name in names]
        # The response does not depend on the noise, whose estimates differ between parameters.
        columns += [None if not columns else columns[0]] * len(noise_names)
        known = tuple(tensor for tensor in columns if tensor is not None)
        epsilon = float(group["lr"]) / group["num_data"]
        inputs = kernel.inputs(group["step"], step_size=epsilon)
        return (known, inputs) if len(known) == len(columns) else None

    def store_variance(
        self, group: Group, kernel: Kernel, entries: list[Entry], states: States
    ) -> bool:
        """Write the variance from micro-batches into the state; return False if there is none."""
        sums = [self.sums.get(entry.parameter) for entry in entries]
        if kernel.gradient_noise is None or not sums or not all(s and s.count > 1 for s in sums):
            return False
        for entry, own in zip(entries, sums, strict=True):
            assert own is not None
            state = states[entry.parameter]
            found = own.variance(entry.gradient.to(own.total.dtype)) * group["num_data"] ** 2
            local_part(state["noise_variance"]).lerp_(found, SUCCESSIVE.rate(state[STEPS] + 1))
        return True


def _sizes(parameters: Sequence[Tensor]) -> list[int]:
    """Return the number of elements of each parameter on this rank."""
    return [local_part(parameter).numel() for parameter in parameters]


class Watch:
    """The gradient noise of a few elements of a group.

    Three successive gradients give ``(g1 - (g0 + g2) / 2)^2 / 1.5``, whose mean is the noise
    variance: linear trends cancel. Micro-batches give it without trends.

    Args:
        parameters: of the group.
    """

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        """Choose evenly spaced runs of elements, the same in every run."""
        self.sizes = _sizes(parameters)
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
        self.estimator = ""
        self.count = 0  # estimates so far
        self._recent: list[Tensor] = []
        self.batches: SumVariance | None = None
        self._compared = 0.0  # share at the last comparison with the limit
        self._has_warned = False

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
        return not self._has_warned and self.count >= ENOUGH and self.count % ENOUGH == 0

    def take(self, share: Tensor | None) -> bool:
        """Add the share that a thermostat measures; return whether to compare with the limit."""
        self.batches = None
        if share is None:
            return False
        self._add(share, _FRICTION)
        if self.count % ENOUGH:
            return False
        # After a start far from the mode, friction falls slowly. While it changes, it measures more
        # than minibatch noise.
        before, self._compared = self._compared, float(self._variance.mean())
        return not self._has_warned and abs(self._compared - before) < 0.2 * self._compared

    def _add(self, found: Tensor, estimator: str) -> None:
        if estimator != self.estimator:
            self.estimator, self.count = estimator, 0
            self._variance = torch.zeros_like(found)
            self._size, self._size_square = found.new_zeros(()), found.new_zeros(())
        found = torch.where(torch.isfinite(found), found, self._variance)
        self.count += 1
        # The first values of a friction are from before convergence: they count for less.
        weight = 2 / (self.count + 1) if estimator == _FRICTION else 1 / self.count
        rate, size = max(weight, _SLOWEST), found.mean()
        self._variance = self._variance + rate * (found - self._variance)
        self._size = self._size + rate * (size - self._size)
        self._size_square = self._size_square + rate * (size * size - self._size_square)

    def heat(
        self, response: Tensor | float | None, scale: float, temperature: float, is_corrected: bool
    ) -> MinibatchHeat:
        """Return the excess temperature, as a share.

        Args:
            response: total response of the kernel to a gradient in these elements; None if unknown.
            scale: factor from a gradient of the loss to one of U.
            temperature: of the target.
            is_corrected: whether the step corrects for the noise.
        """
        if self.count < 2 or temperature == 0:
            return MinibatchHeat(torch.nan, torch.nan, "", is_corrected)
        if self.estimator == _FRICTION:
            # Values of one element are correlated, elements are not.
            shares, error = self._variance, torch.nan
            if shares.numel() > 1:
                error = float(shares.std()) / shares.numel() ** 0.5
            return MinibatchHeat(float(shares.mean()), error, self.estimator, is_corrected=True)
        if response is None:
            return MinibatchHeat(torch.nan, torch.nan, "", is_corrected)
        share = float((self._variance * response).mean()) * scale**2 / (2 * temperature)
        size, square = float(self._size), float(self._size_square)
        number = min(self.count, 2 / _SLOWEST - 1)  # equivalent number of equal weights
        relative = 0.0
        if size > 0:
            relative = (max(square - size * size, 0.0) / (number - 1)) ** 0.5 / size
        return MinibatchHeat(share, share * relative, self.estimator, is_corrected)

    def warn(self, who: str, number: int, lr: float, heat: MinibatchHeat) -> None:
        """Warn once if the excess temperature is above the limit."""
        limit = MAX_CORRECTED if heat.is_corrected else MAX_SHARE
        if not heat.share - _ERRORS * heat.error > limit:
            return
        self._has_warned = True
        size = f"{heat.share:.0%} ± {heat.error:.0%}"
        if heat.estimator == _FRICTION:
            text = (
                " before the thermostat removes it, element by element. If noise is correlated "
                "between elements, variances of single elements stay right, but those of "
                "predictions do not. Use a smaller lr or a larger batch."
            )
        elif heat.is_corrected:
            text = (
                " before the correction, which is exact if the noise of elements is independent. "
                "If it is not, half of it may remain (at 30 %, +27 % of the variance in the worst "
                "direction). Use a smaller lr or a larger batch."
            )
        else:
            text = (
                "; less if epochs are reshuffled, not drawn with replacement. In directions of "
                "small curvature, the variance of the draws is too large by as much. Use a smaller "
                "lr, a larger batch, or MSGLD, ASGLD or AdaMaxSGLD with invariant=True, "
                'noise="corrected".'
            )
        warnings.warn(
            f"{who}: minibatch noise adds {size} to the temperature (group {number}, "
            f"lr {lr:g}){text}",
            TrustWarning,
            stacklevel=level_of_caller(),
        )
