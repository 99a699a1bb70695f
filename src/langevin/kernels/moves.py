"""What moves θ in a step with several velocities, for `kernels.Invariant`."""

from __future__ import annotations

import functools
import operator

from torch import Tensor

from langevin.drifts import Memory, Number, ScaledAverage
from langevin.kernels.base import StepInputs
from langevin.preconditioners import Preconditioner

__all__ = ["Moves", "sum_of"]


class Moves:
    """What moves θ in one step: ``E = P^(1/2) (h_1 G_1^(1/2), ..., h_K G_K^(1/2), sqrt(2 ε) I)``, and ``S = E E^T``."""

    def __init__(
        self,
        parts: tuple[ScaledAverage, ...],
        scales: list[Memory],
        preconditioner: Preconditioner,
        metric_memory: Memory,
        inputs: StepInputs,
    ) -> None:
        """Take the averages, what each scale remembers, and P with its memory."""
        self.parts, self.scales, self.preconditioner, self.step_size = parts, scales, preconditioner, inputs.step_size
        self.metric = preconditioner.metric(metric_memory, metric_memory[0]) if metric_memory else None
        self.strides = [
            (2 * part.bias_factor * inputs.annealing * inputs.step_size * (1 - part.smoothing) / (1 + part.smoothing)) ** 0.5
            for part in self.parts
        ]

    def spread(self, vector: Tensor) -> Tensor:
        """Return ``P^(1/2) vector``."""
        return self.preconditioner.spread(self.metric, vector)

    def half_size(self, vector: Tensor) -> Tensor:
        """Return ``S vector / 2``."""
        pulled = self.spread(vector)
        return self.spread(self.step_size * pulled + self._half_scaled(pulled))

    def damped(self, vector: Tensor, excess: Tensor, whole: Number) -> Tensor:
        """Return ``(whole I + S X / 2)^-1 vector`` for the diagonal X of `excess`."""
        if len(self.parts) == 1 and self.metric is None:  # G may be a matrix
            (part,), (scale,), (stride,) = self.parts, self.scales, self.strides
            return part.damped(scale, vector, whole, self.step_size, 0.5 * stride * stride, excess)
        return vector / (whole + self.half_size(excess))

    def _half_scaled(self, vector: Tensor) -> Tensor:
        """Return ``sum_i h_i^2 G_i vector / 2``."""
        each = zip(self.parts, self.scales, self.strides, strict=True)
        return sum_of([0.5 * stride * stride * part.scale(scale, vector) for part, scale, stride in each])


def sum_of(terms: list[Tensor]) -> Tensor:
    """Return the sum, without a zero in front that would cost an operation."""
    return functools.reduce(operator.add, terms)
