"""Adaptive drifts that keep the posterior invariant: the published bias, with the noise that its momentum lacks."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import ClassVar, Self

import torch
from torch import Tensor
from typing_extensions import override

from langevin.checks import check_integer, needs
from langevin.drifts import Memory, Momentum, Number, ScaledAverage
from langevin.gradient_noise import GradientNoise, is_open
from langevin.kernels.base import Kernel, StepInputs, follow
from langevin.schedules import AUTO, Schedule, as_schedule, constant
from langevin.targets import Evaluation

__all__ = ["Invariant"]

_MANY = 20_000  # gradients after which an average of them has no beginning any more


@dataclass(frozen=True)
class Invariant(Kernel):
    """A bias ``a G m`` whose momentum has its own noise, so that ``exp(-U / τ)`` is invariant (theory.md in the docs).

    In continuous time, with ``γ = (1 - β) / ε``, the drift is that of Algorithm 1 (G = 1) or 2,

    ``dθ = -(grad U + a G m) dt + sqrt(2 τ) dW``, ``dm = γ (grad U - m) dt + γ sqrt(2 τ / (a G)) dB``,

    the complete recipe of Ma, Chen and Fox (2015) for ``H = U + a m^T G m / (2 γ)``. The step is a BAOAB splitting with two
    velocities, one that lasts (v, which is m in units of its standard deviation) and one made anew at every step (the noise
    η of SGLD), for one gradient g at θ:

        ``w   = v - h G^(1/2) g``                                          ``h^2 = 2 a ε (1 - β) / (1 + β)``
        ``v'  = β w + sqrt(τ (1 - β^2)) ξ'``
        ``θ' = θ - ε g + sqrt(ε τ / 2) (η + η') + (h / 2) G^(1/2) (w + v')``

    A gradient moves θ by (1 + a G) ε g in all, as in the published form. On a Gaussian with exact gradients the law of θ
    is the target whatever the step, as long as ``k (2 ε + h^2 G) < 4`` for the largest curvature k; elsewhere the error is
    O(ε^2). With a = 0 it is the method of Leimkuhler and Matthews (2013), for large a SGHMC by BAOAB.

    A gradient with white noise of covariance Σ heats all that. With `absorbed` the step takes, in place of g,

        ``g + D p``,    ``p = h G^(1/2) v + sqrt(2 ε) η - S g / 2``,    ``S = h^2 G + 2 ε``,
        ``D = Σ (2 τ I + S (Σ - τ K) / 2)^-1``

    where ``V = E[g g^T] = Σ + τ K`` (p is the velocity along the kick, half way through it, and D the friction that takes out the
    heat of the noise). The law on a Gaussian is then the target again, for any Σ: today's step where there is no noise, and one
    independent draw per ``Σ / K`` steps (an epoch) where there is much (docs/theory.md, section 6).

    Args:
        drift: a scaled average: momentum, Adam, AdaMax or the Adam with a matrix.
        annealing: what the bias factor is multiplied by, a schedule; any keeps the target. `AUTO` leaves the factor to `sample`.
        adapt_steps: first steps in which G follows the gradients; then it is frozen, which invariance needs, but for the
            exploration phases of a schedule, which are warm-ups again: `sample` keeps no draws of them. None takes the warm-up of
            `sample`; stepped by hand, G then follows for ever, and the law holds as far as it changes slowly.
        absorbed: the noise of the gradient; None for gradients that are exact, or whose noise may heat.
    """

    num_noises: ClassVar[int] = 2

    drift: ScaledAverage = field(default_factory=Momentum)
    annealing: Schedule = constant(1.0)
    adapt_steps: int | None = None
    absorbed: GradientNoise | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.drift, ScaledAverage):
            raise needs(self.name, "drift", "a scaled average of gradients, when invariant", self.drift, TypeError)
        object.__setattr__(self, "annealing", as_schedule(self.name, "annealing", self.annealing))
        if not self.has_open_bias:
            self._value("annealing", 0)
        if self.adapt_steps is not None:
            check_integer(self.name, "adapt_steps", self.adapt_steps, 1)
        if self.absorbed is not None:
            self._check_absorbed(self.absorbed)

    def _check_absorbed(self, noise: GradientNoise) -> None:
        if not isinstance(noise, GradientNoise):
            raise needs(self.name, "noise", "one of langevin.gradient_noise", noise, TypeError)
        if self.temperature == 0:
            raise needs(self.name, "noise", "temperature > 0: without heat there is nothing to balance", self.temperature)
        if not noise.is_elementwise and self.drift.scale_memory:
            what = 'a diagonal one beside a scale that is learnt: sample(scale="auto") makes it diagonal'
            raise needs(self.name, "noise", what, type(noise).__name__)

    @property
    @override
    def memory(self) -> tuple[str, ...]:
        return ("velocity", "passing_velocity", *self.drift.scale_memory, *(self.absorbed.memory if self.absorbed else ()))

    @property
    @override
    def is_elementwise(self) -> bool:
        return self.drift.is_elementwise and (self.absorbed is None or self.absorbed.is_elementwise)

    @property
    @override
    def constants(self) -> dict[str, Tensor]:
        return {f"noise_{index}": tensor for index, tensor in enumerate(self.absorbed.tensors)} if self.absorbed else {}

    @property
    @override
    def gradient_noise(self) -> GradientNoise | None:
        return self.absorbed

    @override
    def with_gradient_noise(self, noise: GradientNoise | None) -> Self:
        return dataclasses.replace(self, absorbed=noise) if is_open(self.absorbed) else self

    @property
    @override
    def has_open_bias(self) -> bool:
        return self.annealing == AUTO

    @override
    def with_bias_factor(self, factor: float) -> Self:
        return dataclasses.replace(self, annealing=constant(factor)) if self.has_open_bias else self

    @override
    def start(self, position: Tensor) -> Memory:
        own = self.absorbed.start(position) if self.absorbed else ()
        return torch.zeros_like(position), torch.zeros_like(position), *self.drift.start(position)[1:], *own

    @override
    def inputs(self, step: int, *, seen: int | None = None, step_size: float | None = None) -> StepInputs:
        adapting = self._adapting(self.adapt_steps, step, seen)
        inputs = super().inputs(step, seen=seen, step_size=step_size)
        if self.absorbed and self.absorbed.memory:
            inputs = inputs._replace(seen=float(min(step if seen is None else seen, _MANY)))
        return inputs._replace(annealing=self._value("annealing", step), adapting=adapting)

    @override
    def for_run(self, warmup: int, position: Tensor) -> Kernel:
        made = self
        if self.absorbed is not None and not is_open(self.absorbed):
            made = dataclasses.replace(self, absorbed=self.absorbed.like(self.name, position))
        if not self.drift.scale_memory or self.adapt_steps is not None:
            return made
        if warmup < 1:
            raise needs(self.name, "warmup", "first steps in which the scale is learnt, when invariant", warmup)
        return dataclasses.replace(made, adapt_steps=warmup)

    @override
    def update(
        self, position: Tensor, evaluation: Evaluation, noise: Tensor, memory: Memory, inputs: StepInputs
    ) -> tuple[Tensor, Memory]:
        split = 2 + len(self.drift.scale_memory)
        (velocity, last), scale, known = memory[:2], memory[2:split], memory[split:]
        gradient, (η, ξ) = evaluation.gradient, noise
        ε, τ, β = inputs.step_size, inputs.temperature, self.drift.smoothing
        # While it adapts the scale knows the current gradient, which bounds the kick; frozen, it is a constant.
        learnt = self.drift.scale_update(scale, gradient, inputs.started)
        scale = follow(learnt, scale, inputs.adapting)
        stride = self._stride(inputs)
        if self.absorbed is not None:
            # D knows the gradients before this one only, and is independent of its noise, as the law asks.
            noisy, read = gradient, self._read(known, gradient, scale, stride, inputs)
            gradient = gradient + inputs.absorbing * self._drag(gradient, velocity, last, scale, read, stride, inputs)

        kicked = velocity - stride * self.drift.root(scale, gradient)
        refreshed = β * kicked + (τ * (1 - β * β)) ** 0.5 * ξ
        inertia = 0.5 * stride * self.drift.root(scale, kicked + refreshed)
        passing = τ**0.5 * η  # the velocity made anew at every step
        moved = position - ε * gradient + (0.5 * ε) ** 0.5 * (last + passing) + inertia
        if self.absorbed is not None and self.absorbed.memory:
            move = inputs.absorbing * (moved - position) / (τ + (1 - inputs.absorbing))
            known = self.absorbed.follow(known, read, noisy, move, inputs.started, inputs.seen)
        return moved, (refreshed, passing, *scale, *known)

    def _read(self, known: Memory, gradient: Tensor, scale: Memory, stride: Number, inputs: StepInputs) -> Memory:
        """Return what is known of the gradient's noise, where that is learnt on the way."""
        if self.absorbed is None or not self.absorbed.memory:
            return known
        one = 1.0 + 0.0 * gradient
        most = inputs.temperature / (inputs.step_size * one + 0.5 * stride * stride * self.drift.scale(scale, one))  # 2 τ / S
        return self.absorbed.read(known, inputs.seen, most)

    def _drag(
        self, gradient: Tensor, velocity: Tensor, last: Tensor, scale: Memory, known: Memory, stride: Number, inputs: StepInputs
    ) -> Tensor:
        """Return ``D p``, the friction that absorbs the gradient's noise."""
        assert self.absorbed is not None
        drift, ε, half = self.drift, inputs.step_size, 0.5 * stride * stride  # S / 2 = ε + half G
        whole = 2 * inputs.temperature + (1 - inputs.absorbing)  # not zero where nothing is absorbed
        speed = stride * drift.root(scale, velocity) + (2 * ε) ** 0.5 * last - (ε * gradient + half * drift.scale(scale, gradient))
        return self.absorbed.drag(known, speed, lambda vector, excess: drift.damped(scale, vector, whole, ε, half, excess))

    @override
    def at_temperature(self, memory: Memory, gradient: Tensor, warmth: Number, inputs: StepInputs) -> Memory:
        # Both velocities lack half of the kick that the next step gives them; the rest has a variance in proportion to τ.
        (velocity, last), rest, scale = memory[:2], memory[2:], memory[2 : 2 + len(self.drift.scale_memory)]
        coming = 0.5 * (1 - warmth)
        velocity = warmth * velocity + coming * self._stride(inputs) * self.drift.root(scale, gradient)
        return velocity, warmth * last + coming * (2 * inputs.step_size) ** 0.5 * gradient, *rest

    def _stride(self, inputs: StepInputs) -> Number:
        """Return h."""
        β = self.drift.smoothing
        return (2 * self.drift.bias_factor * inputs.annealing * inputs.step_size * (1 - β) / (1 + β)) ** 0.5

    @override
    def noise_scale(self, inputs: StepInputs) -> Number:
        # sqrt(ε τ / 2) (η + η') and (h / 2) sqrt(τ (1 - β^2)) ξ', where G is one, as in the first step
        inertia = self.drift.bias_factor * inputs.annealing * (1 - self.drift.smoothing) ** 2 / 2
        return (inputs.step_size * inputs.temperature * (1 + inertia)) ** 0.5

    @override
    def reach(self, memory: Memory, inputs: StepInputs) -> Number | None:
        scale = memory[2 : 2 + len(self.drift.scale_memory)]
        gain = self.drift.bias_factor * self.drift.scale(scale, torch.ones_like(memory[0]))
        return inputs.step_size * (1 + inputs.annealing * gain)

    @property
    @override
    def description(self) -> str:
        of_noise = "what is not known of the gradient's own noise" if self.absorbed else "the gradient's own noise"
        bias, tau, beta = self.drift.sde()[0], self.temperature, self.drift.smoothing
        annealed = f", the bias factor times {self.annealing}" if self.annealing != constant(1.0) else ""
        return "\n".join(
            [
                f"{self.name}: dθ = -(grad U{bias}) dt + sqrt(2 * {tau:g}) dW",
                f"  dm = γ (grad U - m) dt + γ sqrt(2 * {tau:g} / (a G)) dB,  γ = (1 - {beta:g}) / ε, a G m the bias",
                f"  step size ε = {self.step_size}; {self.drift.settings()}{annealed}, invariant",
                f"  target: exp(-U / {tau:g})",
                *([f"  gradient noise, white, absorbed: {self.absorbed.describe()}"] if self.absorbed else []),
                f"  law: the target, effective temperature {tau:g}: exact on Gaussians, elsewhere up to O(ε^2), and up to",
                f"    {of_noise} (invariant form); {self._guarantee()}",
            ]
        )

    def _guarantee(self) -> str:
        if not self.drift.scale_memory:
            follows = self.absorbed is not None and bool(self.absorbed.memory)
            return "as far as the noise is followed" if follows else "nothing is learnt, so every step has this law"
        if self.adapt_steps is None:
            return "guaranteed while V stands still; it follows the gradients until sample() freezes it after the warm-up"
        return f"guaranteed from step {self.adapt_steps} on, where V is frozen: not before, nor in exploration phases"
