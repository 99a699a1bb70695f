"""Excess temperature from minibatch noise, estimated from a few elements of each group."""

from __future__ import annotations

import math
import warnings
from typing import NamedTuple, cast

import torch
from torch import Tensor

from langevin.checks import level_of_caller
from langevin.diagnostics.trust import TrustWarning
from langevin.execution.fused import Entry, wide_dtype
from langevin.execution.shards import local_part
from langevin.kernels import Kernel, StepInputs
from langevin.kernels.base import NoiseMeter
from langevin.kernels.invariant import Invariant
from langevin.optim.entries import States, aligned_gradient
from langevin.optim.kronecker import Totals, blocks_of
from langevin.optim.settings import SUCCESSIVE, Group
from langevin.optim.state import STEPS
from langevin.optim.watch import FRICTION, PERIOD, SumVariance, Watch, sizes_of

__all__ = ["MinibatchHeat", "MinibatchNoise", "is_observed"]

EARLY, LATE_PERIOD = 4096, 64
"""Later than the first 4,096 steps, 64 steps between estimates, not `PERIOD`."""

MAX_EXCESS, MAX_DIAGONAL, MAX_ROTATED = 0.1, 0.3, 10.0
"""Limits of a warning: what remains; and before it is corrected, elementwise or rotated."""

_ERRORS = 3.0  # standard errors by which a limit must be exceeded, since it is checked often


class MinibatchHeat(NamedTuple):
    """What minibatch noise adds to a group's draws, relative to the posterior.

    It holds for data drawn with replacement, in directions that relax over many steps. Reshuffled
    epochs add less. The derivation is in docs/theory.md, section 6.

    Example:
        >>> print(MinibatchHeat(0.4, 0.1, 0.4, 0.03, 0.01, "micro-batches", False))
        0.4 ± 0.1 of the variance of predictions; mean over elements 0.03 ± 0.01, from micro-batches
    """

    predictions: float  # excess variance of predictions that remains; NaN if not (yet) known
    predictions_error: float
    before: float  # the same before a correction
    share: float  # excess temperature, mean over the observed elements; before a correction
    error: float  # its standard error
    estimator: str  # "successive gradients", "micro-batches", "the thermostat's friction" or ""
    is_corrected: bool  # whether the step corrects for it: noise="corrected", or a thermostat
    effective_parameters: float = math.nan  # of the observed elements

    def __str__(self) -> str:
        """Return the shares, their errors and the estimator."""
        if not self.estimator:
            return "unknown (too few steps, temperature 0, or not defined for this sampler)"
        share = f"mean over elements {self.share:.2g} ± {self.error:.1g}, from {self.estimator}"
        if math.isnan(self.predictions):
            return f"unknown for predictions; {share}"
        known = f"{self.predictions:.2g} ± {self.predictions_error:.1g}"
        if self.is_corrected:
            known = f"{self.before:.2g} before the correction, at least {known} after it,"
        return f"{known} of the variance of predictions; {share}"


_NAN = math.nan
_UNKNOWN = MinibatchHeat(_NAN, _NAN, _NAN, _NAN, _NAN, estimator="", is_corrected=False)


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
        if watch is None or (is_due and watch.sizes != sizes_of(group["params"])):
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
            if isinstance(kernel, Invariant) and group["step"] % PERIOD == 2:
                self._add_velocity(watch, group, states)
        elif is_due := group["step"] % PERIOD == PERIOD - 1:
            watch.look(group["params"])
            observed = self._observed(number, group, kernel, states)
            is_due = watch.take(None if observed is None else kernel.noise_share(*observed))
        if is_due:
            heat = self.heat(number, group, kernel, states)
            is_rotated = bool(blocks_of(group))
            watch.has_warned = _warn(who, number, float(group["lr"]), heat, is_rotated)

    def heat(self, number: int, group: Group, kernel: Kernel, states: States) -> MinibatchHeat:
        """Return what minibatch noise adds to the draws of a group.

        With R the total response of θ to a gradient, the excess covariance E of θ and the Hessian H
        fulfil ``tr(H E) = sum_i R_i s_i^2 / 2``, so the variance of predictions exceeds the right
        one by ``sum_i R_i s_i^2 / (2 τ)`` over the effective number of parameters.
        """
        observed = self._observed(number, group, kernel, states)
        response = None if observed is None else kernel.total_response(*observed)
        tau, scale = group["temperature"], group["num_data"]
        watch = self.watch(number, group)
        shares = watch.shares(response, scale, tau)
        is_corrected = kernel.gradient_noise is not None or watch.estimator == FRICTION
        if shares is None:
            return _UNKNOWN._replace(is_corrected=is_corrected)
        elements, relative = len(shares), watch.relative_error()
        mean, total = float(shares.mean()), float(shares.sum())
        heat = _UNKNOWN._replace(
            share=mean,
            error=mean * relative,
            estimator=watch.estimator,
            is_corrected=is_corrected,
        )
        work = watch.effective.mean()
        if work is None:
            return heat
        # In directions that many elements share, a correction of each of them takes off only the
        # mean over all directions.
        rotated = [number for block in blocks_of(group) for number in block]
        is_rotated = torch.isin(watch.owners.to(shares.device), torch.tensor(rotated).to(shares))
        diagonal = float(shares[~is_rotated].sum()) if is_corrected else 0.0
        plain = 0.0 if is_corrected else total
        if isinstance(kernel, Invariant) and not is_corrected:
            # Of the response (1 + a G) ε, ε does not pass through the momentum.
            epsilon = float(group["lr"]) / group["num_data"]
            direct = float((shares * (epsilon / cast(Tensor, response))).sum())
            share, unsure = _arriving_share(watch, kernel, total, direct)
            plain, relative = share * plain, math.hypot(relative, unsure)
        cold = (kernel.effective_temperature or tau) / tau
        measured, doubt = (scale * value / tau for value in work)

        def parameters(value: float) -> float:
            found = (value - diagonal - plain) / (cold - diagonal / elements)
            return min(max(found, doubt, 1e-9), elements)

        effective, most = parameters(measured), parameters(measured + doubt)
        remains = plain + diagonal * (1 - effective / elements)
        relative = math.hypot(relative, effective / most - 1)
        return heat._replace(
            predictions=remains / effective,
            predictions_error=remains / effective * relative,
            before=(total if is_corrected else plain) / effective,
            effective_parameters=effective,
        )

    def _add_velocity(self, watch: Watch, group: Group, states: States) -> None:
        """Add the kinetic energy of an invariant form, which minibatch noise raises."""
        velocity = watch.gather([states.get(p, {}).get("velocity") for p in group["params"]])
        if velocity is not None:
            energy = float(torch.dot(velocity, velocity)) / group["temperature"]
            watch.kinetic.add(energy - len(velocity))

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


def _arriving_share(
    watch: Watch, kernel: Invariant, total: float, direct: float
) -> tuple[float, float]:
    """Return how much of the noise's heat arrives, and the error; 1 where it is not known well.

    Directions that relax faster than the momentum forgets get less of what passes through it. So
    does the velocity, whose excess would be ``4 / (1 + β)^2`` of that heat before it is
    refreshed (docs/theory.md, section 6).
    """
    found = watch.kinetic.mean() if kernel.is_plain else None
    passing = total - direct
    if found is None or passing <= 0 or kernel.average.smoothing < 0.5:
        return 1.0, 0.0
    beta = kernel.average.smoothing
    kept, error = (value / (passing * (2 * beta / (1 + beta)) ** 2) for value in found)
    if error > 0.5:
        return 1.0, 0.0
    share = (passing * min(max(kept, 0.0), 1.0) + direct) / total
    return share, error * passing / total / share


def _warn(who: str, number: int, lr: float, heat: MinibatchHeat, is_rotated: bool) -> bool:
    """Warn if the excess is above a limit; return whether it is."""
    factor = (
        max(0.0, 1 - _ERRORS * heat.predictions_error / heat.predictions)
        if heat.predictions
        else 0.0
    )
    excess, share = heat.predictions * factor, heat.share - _ERRORS * heat.error
    limit = MAX_DIAGONAL if heat.is_corrected else MAX_EXCESS
    too_much = excess > limit or (share > limit and not is_rotated)
    too_much |= is_rotated and heat.before > MAX_ROTATED
    if not too_much:
        return False
    size = f"{heat.predictions:.0%} ± {heat.predictions_error:.0%}"
    if heat.is_corrected:
        by = "the thermostat" if heat.estimator == FRICTION else "the correction"
        text = (
            f"{by} of single elements does not see noise that elements share, and the Kronecker "
            "eigenbasis not all of it. Use a smaller lr or a larger batch."
        )
        size += f" ({heat.before:.0%} before the correction)"
    else:
        text = (
            "less if epochs are reshuffled, not drawn with replacement. Use a smaller lr, a larger "
            'batch, or MSGLD, ASGLD or AdaMaxSGLD with invariant=True, noise="corrected".'
        )
    warnings.warn(
        f"{who}: minibatch noise adds {size} to the variance of predictions and "
        f"{heat.share:.0%} ± {heat.error:.0%} to the mean temperature of elements (group {number}, "
        f"lr {lr:g}); {text}",
        TrustWarning,
        stacklevel=level_of_caller(),
    )
    return True
