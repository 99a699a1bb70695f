"""Overdamped Langevin steps with any drift and any preconditioner: SGLD and its relatives."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from functools import cached_property
from typing import Self

import torch
from torch import Tensor
from typing_extensions import override

from langevin.checks import needs
from langevin.kernels.adapting import Adapting, interpolate
from langevin.kernels.base import Kernel, StepInputs, Traits
from langevin.kernels.parts import Drift, Identity, NoDrift, Number, Preconditioner, Tensors, joined
from langevin.kernels.schedules import AUTO, Schedule, as_schedule, constant
from langevin.targets import Evaluation

__all__ = ["Langevin"]


@dataclass(frozen=True)
class Langevin(Adapting):
    """``θ' = θ - ε (G (g + a A_t) - τ Γ) + sqrt(2 ε τ) G^(1/2) η`` (equation 1; section 2 for G).

    Args:
        drift: the adaptive bias ``a A_t``, read before the current gradient enters it.
        preconditioner: the metric G, which already includes the current gradient.
        annealing: what the bias is multiplied by at each step, a schedule; where it falls to zero
            the target is the limit.
        adapt_steps: first steps in which an adaptive metric follows the gradients; None never
            stops, as published.
    """

    drift: Drift = field(default_factory=NoDrift)
    preconditioner: Preconditioner = field(default_factory=Identity)
    annealing: Schedule = constant(1.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.drift, Drift):
            raise needs(
                self.name, "drift", "a drift of langevin.kernels.drifts", self.drift, TypeError
            )
        self.check_part(self.preconditioner)
        object.__setattr__(self, "annealing", as_schedule(self.name, "annealing", self.annealing))
        self._value("annealing", 0)

    @property
    @override
    def adapted_names(self) -> tuple[str, ...]:
        return self.preconditioner.state_names

    @property
    @override
    def state_names(self) -> tuple[str, ...]:
        return self.drift.state_names + self.preconditioner.state_names

    @cached_property
    @override
    def traits(self) -> Traits:
        parts = self.drift, self.preconditioner
        return Traits(
            elementwise=all(part.is_elementwise for part in parts),
            reads_position=self.preconditioner.reads_position,
        )

    @override
    def refined(self, inputs: StepInputs, step: int, seen: int) -> StepInputs:
        inputs = super().refined(inputs, step, seen)
        return inputs._replace(annealing=self._value("annealing", step))

    @override
    def for_run(self, warmup: int, position: Tensor) -> Self:
        # `sample` tunes a step size for a frozen metric; a given step size goes with the published
        # form, which never freezes it.
        is_open = self.step_size == AUTO and warmup > 0
        return super().for_run(warmup, position) if is_open else self

    @override
    def without_metric(self) -> tuple[Kernel, Preconditioner]:
        return dataclasses.replace(self, preconditioner=Identity()), self.preconditioner

    @override
    def start(self, position: Tensor) -> Tensors:
        return joined(self.drift.start(position), self.preconditioner.start(position))

    @override
    def update(
        self,
        position: Tensor,
        evaluation: Evaluation,
        noise: Tensor,
        state: Tensors,
        inputs: StepInputs,
    ) -> tuple[Tensor, Tensors]:
        split = len(self.drift.state_names)
        averages, metric_state = state[:split], state[split:]
        gradient, (η,) = evaluation.gradient, noise
        bias = self.drift.bias(averages)  # m_t and V_t: gradients before step t
        adapted = self.preconditioner.update(metric_state, gradient, inputs.started)
        metric_state = (
            adapted
            if self.adapt_steps is None
            else interpolate(adapted, metric_state, inputs.adapting)
        )
        metric = self.preconditioner.metric(metric_state, position)

        force = gradient if bias is None else gradient + inputs.annealing * bias
        move = inputs.step_size * self.preconditioner.apply(metric, force)
        kick = self.noise_scale(inputs) * self.preconditioner.spread(metric, η)
        moved = position - move + kick
        gamma = self.preconditioner.divergence(metric, metric_state, position, gradient)
        if gamma is not None:
            moved = moved + inputs.step_size * inputs.temperature * gamma
        return moved, joined(self.drift.update(averages, gradient), metric_state)

    def rescale_state(
        self, state: Tensors, gradient: Tensor, ratio: Number, inputs: StepInputs
    ) -> Tensors:
        """See `TemperatureChange`."""
        return state  # averages of gradients, which decay

    @override
    def total_response(self, state: Tensors, inputs: StepInputs) -> Number | None:
        split, metric = len(self.drift.state_names), self.preconditioner
        gain = self.drift.gain(state[:split])
        if gain is None or not self.traits.elementwise or metric.reads_position:
            return None
        one = torch.ones_like(state[0]) if state else torch.ones(())
        return (
            inputs.step_size
            * metric.apply(metric.metric(state[split:], one), one)
            * (1 + inputs.annealing * gain)
        )

    @property
    @override
    def effective_temperature(self) -> float | None:
        cooling = self.drift.cooling()
        return (
            None
            if cooling is None or (cooling != 1 and self.is_annealed)
            else self.temperature / cooling
        )

    @property
    def is_annealed(self) -> bool:
        """Whether the bias factor changes along the run."""
        return self.annealing != constant(1.0)

    @property
    @override
    def description(self) -> str:
        bias, *memory_equations = self.drift.sde()
        symbol, metric_sentence = self.preconditioner.describe()
        left, root = (f"{symbol} ", f"{symbol}^(1/2) ") if symbol else ("", "")
        annealed = f", the bias times {self.annealing}" if self.is_annealed else ""
        settings = self.drift.settings()
        return self.described(
            f"dθ = -{left}(grad U{bias}) dt + sqrt(2 * {self.temperature:g}) {root}dW",
            *memory_equations,
            *([metric_sentence] if metric_sentence else []),
            settings=f"{settings}{annealed}" if settings else "",
            law=[self._law() + self._frozen()],
        )

    def _law(self) -> str:
        effective, noise = self.effective_temperature, "the gradient's own noise"
        if effective is None and self.is_annealed:
            return (
                "colder than the target while the bias factor is large; tends to effective "
                f"temperature {self.temperature:g} as it is annealed to zero, slower than the "
                f"chain mixes, up to O(ε) and {noise}"
            )
        if effective is None:
            return (
                "colder than the target, in each direction by the factor (grad U + bias) / grad "
                "U where the averages follow the gradient; effective temperature between 0 and "
                f"{self.temperature:g}, to which {noise} adds (published form)"
            )
        if effective == self.temperature:
            stands_still = not self.adapted_names or self.adapt_steps is not None
            where = "" if stands_still else " while V stands still"
            return f"the target{where}, effective temperature {effective:g}, up to O(ε) and {noise}"
        return (
            f"effective temperature {effective:g} = τ / (1 + a) for steps so small that the "
            f"average follows the gradient, to which {noise} adds (published form: colder than "
            "the target)"
        )

    def _frozen(self) -> str:
        """Return what a metric that follows the gradients means for the stationary distribution."""
        if not self.adapted_names:
            return ""
        if self.adapt_steps is not None:
            return f"; {self.guarantee}"
        if self.preconditioner.reads_position:
            return (
                "; V follows the gradients at every step, and Γ corrects for the newest of "
                "them only"
            )
        return (
            "; V follows the gradients at every step and Γ is left out, so the stationary "
            "distribution is not the target: the "
            "density is off by a factor of up to 1/G (adapt_steps= freezes V)"
        )
