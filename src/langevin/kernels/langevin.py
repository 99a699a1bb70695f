"""Overdamped Langevin steps with any drift and any preconditioner: SGLD, pSGLD, SGRLD, MSGLD, ASGLD and their mixtures."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

import torch
from torch import Tensor
from typing_extensions import override

from langevin.checks import check_integer, needs
from langevin.drifts import Drift, Memory, NoDrift, Number
from langevin.kernels.base import Kernel, StepInputs, follow
from langevin.preconditioners import Identity, Preconditioner
from langevin.schedules import AUTO, Schedule, as_schedule, constant
from langevin.targets import Evaluation

__all__ = ["Langevin"]


@dataclass(frozen=True)
class Langevin(Kernel):
    """``θ' = θ - ε (G (g + a A_t) - τ Γ) + sqrt(2 ε τ) G^(1/2) η`` (equation 1; section 2 for G).

    Args:
        drift: the adaptive bias ``a A_t``, read before the current gradient enters it.
        preconditioner: the metric G, which already knows the current gradient.
        annealing: what the bias is multiplied by at each step, a schedule; where it falls to zero the target is the limit law.
        adapt_steps: first steps in which a metric that is learnt follows the gradients; None never stops, as published.
    """

    drift: Drift = field(default_factory=NoDrift)
    preconditioner: Preconditioner = field(default_factory=Identity)
    annealing: Schedule = constant(1.0)
    adapt_steps: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.drift, Drift):
            raise needs(self.name, "drift", "a drift of langevin.drifts", self.drift, TypeError)
        if not isinstance(self.preconditioner, Preconditioner):
            raise needs(self.name, "preconditioner", "one of langevin.preconditioners", self.preconditioner, TypeError)
        object.__setattr__(self, "annealing", as_schedule(self.name, "annealing", self.annealing))
        self._value("annealing", 0)
        if self.adapt_steps is not None:
            check_integer(self.name, "adapt_steps", self.adapt_steps, 1)

    @property
    @override
    def memory(self) -> tuple[str, ...]:
        return self.drift.memory + self.preconditioner.memory

    @property
    @override
    def is_elementwise(self) -> bool:
        return self.drift.is_elementwise and self.preconditioner.is_elementwise

    @property
    @override
    def sees_position(self) -> bool:
        return self.preconditioner.sees_position

    @override
    def inputs(self, step: int, *, seen: int | None = None, step_size: float | None = None) -> StepInputs:
        inputs, adapting = super().inputs(step, seen=seen, step_size=step_size), self._adapting(self.adapt_steps, step, seen)
        return inputs._replace(annealing=self._value("annealing", step), adapting=adapting)

    @override
    def for_run(self, warmup: int, position: Tensor) -> Kernel:
        # A step size that is found is found for a metric that stands still; one that is given goes with the published form.
        is_open = self.adapt_steps is None and self.step_size == AUTO and bool(self.preconditioner.memory)
        return dataclasses.replace(self, adapt_steps=warmup) if is_open and warmup > 0 else self

    @override
    def without_metric(self) -> tuple[Kernel, Preconditioner]:
        return dataclasses.replace(self, preconditioner=Identity()), self.preconditioner

    @override
    def start(self, position: Tensor) -> Memory:
        return self.drift.start(position) + self.preconditioner.start(position)

    @override
    def update(
        self, position: Tensor, evaluation: Evaluation, noise: Tensor, memory: Memory, inputs: StepInputs
    ) -> tuple[Tensor, Memory]:
        split = len(self.drift.memory)
        averages, metric_memory = memory[:split], memory[split:]
        gradient, (η,) = evaluation.gradient, noise
        bias = self.drift.bias(averages)  # m_t and V_t: gradients before step t
        learnt = self.preconditioner.update(metric_memory, gradient, inputs.started)
        metric_memory = learnt if self.adapt_steps is None else follow(learnt, metric_memory, inputs.adapting)
        metric = self.preconditioner.metric(metric_memory, position)

        force = gradient if bias is None else gradient + inputs.annealing * bias
        move = inputs.step_size * self.preconditioner.apply(metric, force)
        kick = self.noise_scale(inputs) * self.preconditioner.spread(metric, η)
        moved = position - move + kick
        gamma = self.preconditioner.divergence(metric, metric_memory, position, gradient)
        if gamma is not None:
            moved = moved + inputs.step_size * inputs.temperature * gamma
        return moved, self.drift.update(averages, gradient) + metric_memory

    @override
    def at_temperature(self, memory: Memory, gradient: Tensor, warmth: Number, inputs: StepInputs) -> Memory:
        return memory  # averages of gradients: they forget by themselves

    @override
    def reach(self, memory: Memory, inputs: StepInputs) -> Number | None:
        split, metric = len(self.drift.memory), self.preconditioner
        gain = self.drift.gain(memory[:split])
        if gain is None or not self.is_elementwise or metric.sees_position:
            return None
        one = torch.ones_like(memory[0]) if memory else torch.ones(())
        return inputs.step_size * metric.apply(metric.metric(memory[split:], one), one) * (1 + inputs.annealing * gain)

    @property
    @override
    def effective_temperature(self) -> float | None:
        cooling = self.drift.cooling()
        return None if cooling is None or (cooling != 1 and self.is_annealed) else self.temperature / cooling

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
        lines = [
            f"{self.name}: dθ = -{left}(grad U{bias}) dt + sqrt(2 * {self.temperature:g}) {root}dW",
            *(f"  {equation}" for equation in memory_equations),
            *([f"  {metric_sentence}"] if metric_sentence else []),
            f"  step size ε = {self.step_size}" + (f"; {self.drift.settings()}{annealed}" if self.drift.settings() else ""),
            f"  target: exp(-U / {self.temperature:g})",
            f"  law: {self._law()}",
        ]
        return "\n".join(lines)

    def _law(self) -> str:
        effective = self.effective_temperature
        if effective is None and self.is_annealed:
            return (
                f"colder than the target while the bias factor is large; tends to effective temperature {self.temperature:g} "
                "as it is annealed to zero, slower than the chain mixes"
            )
        if effective is None:
            return (
                f"colder than the target, by 1 + a / sqrt(V + λ) in each direction where the averages follow the "
                f"gradient; effective temperature between 0 and {self.temperature:g} (published form)"
            )
        if effective == self.temperature:
            return f"the target, effective temperature {effective:g}, up to O(ε) and the gradient's own noise"
        return (
            f"effective temperature {effective:g} = τ / (1 + a) for steps so small that the average follows the "
            f"gradient (published form: colder than the target)"
        )
