"""SGHMC in a metric that is learnt and then frozen: scale-adapted as published, and by a step that is exact on Gaussians."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

import torch
from torch import Tensor
from typing_extensions import override

from langevin.checks import check_field, check_integer, needs
from langevin.drifts import Memory, Number
from langevin.kernels.base import Kernel, StepInputs, follow
from langevin.preconditioners import RMS, Identity, Preconditioner, Windowed
from langevin.targets import Evaluation

__all__ = ["AdaptedHamiltonian", "InvariantHamiltonian"]

_TINY = 1e-30  # beside a variance whose root is taken as x (x + tiny)^(-1/2): zero stays zero


@dataclass(frozen=True)
class InvariantHamiltonian(Kernel):
    """BAOAB in a frozen metric G: ``exp(-U / τ)`` is invariant up to O(ε^2), and exactly on Gaussians, for any stable step.

        ``w  = v - h G^(1/2) g``                              ``h^2 = 2 ε / (1 + β)``
        ``v' = β w + sqrt(τ (1 - β^2)) η``
        ``θ' = θ + (h / 2) G^(1/2) (w + v')``

    A gradient moves θ by ``ε G / (1 - β)`` in all, as in `AdaptedHamiltonian` and, for G = 1, in `Hamiltonian`; the step is stable
    for ``h^2 G k < 4``, k the largest curvature. It is `Invariant` without the velocity that is made anew: the limit of a large
    bias factor and a small step.

    Args:
        beta: β, the share of the velocity that is kept, in [0, 1).
        preconditioner: G, elementwise, learnt from gradients.
        adapt_steps: first steps in which G follows the gradients; then it is frozen, which invariance needs, but for exploration
            phases of a schedule. None takes the warm-up of `sample`; stepped by hand, G then follows for ever.
    """

    beta: float = 0.95
    preconditioner: Preconditioner = field(default_factory=Windowed)
    adapt_steps: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_field(self, self.name, "beta", "0 <= beta < 1", lambda v: 0 <= v < 1)
        if not self.preconditioner.is_elementwise or self.preconditioner.sees_position:
            raise needs(self.name, "preconditioner", "an elementwise one that does not look at positions", self.preconditioner)
        if self.adapt_steps is not None:
            check_integer(self.name, "adapt_steps", self.adapt_steps, 1)

    @property
    @override
    def memory(self) -> tuple[str, ...]:
        return ("velocity", *self.preconditioner.memory)

    @override
    def start(self, position: Tensor) -> Memory:
        return torch.zeros_like(position), *self.preconditioner.start(position)

    @override
    def inputs(self, step: int, *, seen: int | None = None, step_size: float | None = None) -> StepInputs:
        inputs = super().inputs(step, seen=seen, step_size=step_size)
        return inputs._replace(adapting=self._adapting(self.adapt_steps, step, seen))

    @override
    def for_run(self, warmup: int, position: Tensor) -> Kernel:
        if not self.preconditioner.memory or self.adapt_steps is not None:
            return self
        if warmup < 1:
            raise needs(self.name, "warmup", "first steps in which the scale is learnt", warmup)
        return dataclasses.replace(self, adapt_steps=warmup)

    def _learn(self, memory: Memory, gradient: Tensor, inputs: StepInputs) -> Memory:
        """Return what is remembered of the metric, with this gradient in it while it adapts."""
        learnt = self.preconditioner.update(memory, gradient, inputs.started)
        return follow(learnt, memory, inputs.adapting)

    @override
    def update(
        self, position: Tensor, evaluation: Evaluation, noise: Tensor, memory: Memory, inputs: StepInputs
    ) -> tuple[Tensor, Memory]:
        velocity, *averages = memory
        gradient, (η,) = evaluation.gradient, noise
        learnt = self._learn(tuple(averages), gradient, inputs)
        metric = self.preconditioner.metric(learnt, position)
        stride, β = (2 * inputs.step_size / (1 + self.beta)) ** 0.5, self.beta
        kicked = velocity - stride * self.preconditioner.spread(metric, gradient)  # an elementwise root is its own transpose
        refreshed = β * kicked + (inputs.temperature * (1 - β * β)) ** 0.5 * η
        moved = position + 0.5 * stride * self.preconditioner.spread(metric, kicked + refreshed)
        return moved, (refreshed, *learnt)

    @override
    def without_metric(self) -> tuple[Kernel, Preconditioner]:
        metric = self.preconditioner
        if isinstance(metric, Windowed):  # where the averages settle it is this one, but for λ outside the root
            metric = RMS(eps=metric.eps_root**0.5, num_data=metric.num_data)
        return dataclasses.replace(self, preconditioner=Identity(), adapt_steps=None), metric

    @override
    def noise_scale(self, inputs: StepInputs) -> Number:
        # (h / 2) sqrt(τ (1 - β^2)) where G is one
        return (inputs.step_size * inputs.temperature * (1 - self.beta) / 2) ** 0.5

    @override
    def reach(self, memory: Memory, inputs: StepInputs) -> Number | None:
        one = torch.ones_like(memory[0])
        metric = self.preconditioner.metric(memory[1:], one)
        return inputs.step_size / (1 - self.beta) * self.preconditioner.apply(metric, one)

    @property
    @override
    def description(self) -> str:
        return "\n".join([*self._equations(), *self._law()])

    def _equations(self) -> list[str]:
        symbol, sentence = self.preconditioner.describe()
        root = f"{symbol}^(1/2) " if symbol else ""
        return [
            f"{self.name}: dθ = {root}v dt,  dv = -({root}grad U + C v) dt + sqrt(2 C * {self.temperature:g}) dW",
            *([f"  {sentence}"] if sentence else []),
            f"  time step h of the order of sqrt(ε), friction C = (1 - {self.beta:g}) / h",
            f"  step size ε = {self.step_size}; beta {self.beta:g}",
            f"  target: exp(-U / {self.temperature:g})",
        ]

    def _law(self) -> list[str]:
        return [
            f"  law: the target, effective temperature {self.temperature:g}: exact on Gaussians, elsewhere up to O(ε^2), and up to",
            f"    the gradient's own noise (invariant form); {self._guarantee()}",
        ]

    def _guarantee(self) -> str:
        if not self.preconditioner.memory:
            return "nothing is learnt, so every step has this law"
        if self.adapt_steps is None:
            return "guaranteed while V stands still; it follows the gradients until sample() freezes it after the warm-up"
        return f"guaranteed from step {self.adapt_steps} on, where V is frozen: not before, nor in exploration phases"


@dataclass(frozen=True)
class AdaptedHamiltonian(InvariantHamiltonian):
    """``v' = β v - ε G g + sqrt(2 τ ε (1 - β) G - (ε N)^2) η``, ``θ' = θ + v'``: scale-adapted SGHMC as published.

    Springenberg, Klein, Falkner and Hutter (2016), section 4, with their ε^2 for our ε, 1 - β for ``ε V^(-1/2) C`` and N the
    `num_data` of the metric. The noise is SGHMC's ``2 (C - B) h`` with ``B = h V / 2`` for the noise of the gradient, and where
    nothing is left of it there is none.

    V is the raw second moment, ``s^2 + τ k`` for noise of variance s^2 on a Gaussian of curvature k: noise and signal. So the step
    takes out more than the gradient put in, and for small steps the temperature is ``τ (1 - ε G k / (2 (1 - β)))``, whatever the
    noise: nearly right where ``G k = k / sqrt(s^2 + τ k)`` is small, which is where there is much noise, and cold elsewhere.

    Example:
        >>> import langevin as lv
        >>> type(lv.adaptive_sghmc(step_size=1e-4)).__name__, type(lv.adaptive_sghmc(step_size=1e-4, invariant=True)).__name__
        ('AdaptedHamiltonian', 'InvariantHamiltonian')
    """

    preconditioner: Windowed = field(default_factory=Windowed)

    @override
    def update(
        self, position: Tensor, evaluation: Evaluation, noise: Tensor, memory: Memory, inputs: StepInputs
    ) -> tuple[Tensor, Memory]:
        velocity, *averages = memory
        (η,) = noise
        learnt = self._learn(tuple(averages), evaluation.gradient, inputs)
        metric = self.preconditioner.metric(learnt, position)
        injected, taken = self.noise_scale(inputs), inputs.step_size * self.preconditioner.num_data
        variance = (injected * injected * metric - taken * taken).clamp(min=0.0)
        spread = variance * (variance + _TINY) ** -0.5
        velocity = self.beta * velocity - inputs.step_size * metric * evaluation.gradient + spread * η
        return position + velocity, (velocity, *learnt)

    @override
    def without_metric(self) -> tuple[Kernel, Preconditioner]:
        return self, self.preconditioner  # the noise that is taken out is not that of a metric

    @override
    def noise_scale(self, inputs: StepInputs) -> Number:
        return (2 * inputs.temperature * inputs.step_size * (1 - self.beta)) ** 0.5  # of which the gradient's part is taken out

    @override
    def reach(self, memory: Memory, inputs: StepInputs) -> Number | None:
        return None  # how much of the gradient's heat is left depends on what V saw

    @override
    def _law(self) -> list[str]:
        return [
            f"  law: colder than the target, effective temperature {self.temperature:g} (1 - ε G k / (2 (1 - β))) for curvature k,",
            "    up to O(h): what is taken out for the gradient's noise is its second moment, signal and all (published form);",
            f"    {self._guarantee()}",
        ]
