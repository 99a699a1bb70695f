"""Adaptive drifts that keep the posterior invariant: the published bias, with the noise that its momentum lacks."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Self, cast

import torch
from torch import Tensor
from typing_extensions import override

from langevin.checks import check_integer, needs
from langevin.drifts import Memory, Momentum, Number, ScaledAverage, Total
from langevin.gradient_noise import GradientNoise, is_open
from langevin.kernels.base import Kernel, StepInputs, follow
from langevin.kernels.moves import Moves, sum_of
from langevin.preconditioners import Identity, Preconditioner
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

    A sum of biases ``sum_i a_i G_i m_i`` has a velocity v_i for each, with its own h_i and β_i, and all move θ together. With a
    preconditioner P the drift is ``P (grad U + sum_i a_i G_i m_i)``, as published: ``P^(1/2) g`` takes the place of g, and
    ``P^(1/2)`` stands before all that moves θ (beside a matrix G, which need not commute with P, the bias is
    ``P^(1/2) G P^(1/2) m``). Both keep the target for the same reason as one average does (docs/theory.md, section 8).

    A gradient with white noise of covariance Σ heats all that. With `absorbed` the step takes, in place of g,

        ``g + D p``,    ``p = h G^(1/2) v + sqrt(2 ε) η - S g / 2``,    ``S = h^2 G + 2 ε``,
        ``D = Σ (2 τ I + S (Σ - τ K) / 2)^-1``

    where ``V = E[g g^T] = Σ + τ K`` (p is the velocity along the kick, half way through it, and D the friction that takes out the
    heat of the noise). The law on a Gaussian is then the target again, for any Σ: today's step where there is no noise, and one
    independent draw per ``Σ / K`` steps (an epoch) where there is much (docs/theory.md, section 6).

    Args:
        drift: a scaled average: momentum, Adam, AdaMax or the Adam with a matrix; or a `Total` of them.
        annealing: what the bias factor is multiplied by, a schedule; any keeps the target. `AUTO` leaves the factor to `sample`.
        adapt_steps: first steps in which G follows the gradients; then it is frozen, which invariance needs, but for the
            exploration phases of a schedule, which are warm-ups again: `sample` keeps no draws of them. None takes the warm-up of
            `sample`; stepped by hand, G then follows for ever, and the law holds as far as it changes slowly.
        absorbed: the noise of the gradient; None for gradients that are exact, or whose noise may heat.
        preconditioner: P, the identity or a diagonal that is learnt and frozen as G is (`RMS`).
    """

    drift: ScaledAverage | Total = field(default_factory=Momentum)
    annealing: Schedule = constant(1.0)
    adapt_steps: int | None = None
    absorbed: GradientNoise | None = None
    preconditioner: Preconditioner = field(default_factory=Identity)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not all(isinstance(part, ScaledAverage) for part in self.parts):
            what = "a scaled average of gradients, or a Total of them, when invariant"
            raise needs(self.name, "drift", what, self.drift, TypeError)
        object.__setattr__(self, "annealing", as_schedule(self.name, "annealing", self.annealing))
        if not self.has_open_bias:
            self._value("annealing", 0)
        if self.adapt_steps is not None:
            check_integer(self.name, "adapt_steps", self.adapt_steps, 1)
        self._check_preconditioner()
        if self.absorbed is not None:
            self._check_absorbed(self.absorbed)

    def _check_preconditioner(self) -> None:
        metric = self.preconditioner
        if not isinstance(metric, Preconditioner):
            raise needs(self.name, "preconditioner", "one of langevin.preconditioners", metric, TypeError)
        if metric.sees_position or not metric.is_elementwise:
            what = "a diagonal that does not look at positions, when invariant (a constant matrix is the `scale` of sample())"
            raise needs(self.name, "preconditioner", what, type(metric).__name__)
        if self.has_open_bias and not self.is_plain:
            raise needs(self.name, "annealing", "a number or a schedule for a sum, or with a preconditioner", "auto")

    def _check_absorbed(self, noise: GradientNoise) -> None:
        if not isinstance(noise, GradientNoise):
            raise needs(self.name, "noise", "one of langevin.gradient_noise", noise, TypeError)
        if self.temperature == 0:
            raise needs(self.name, "noise", "temperature > 0: without heat there is nothing to balance", self.temperature)
        if not noise.is_elementwise and self._learnt:
            what = 'a diagonal one beside a scale that is learnt: sample(scale="auto") makes it diagonal'
            raise needs(self.name, "noise", what, type(noise).__name__)
        if self.is_plain:
            return
        if is_open(noise):
            what = "one that is given, (Σ, τ K), for a sum or with a preconditioner: sample() learns it for one average only"
            raise needs(self.name, "noise", what, "corrected")
        if not all(part.is_elementwise for part in self.parts):
            raise needs(self.name, "noise", "None for a sum with a scale that is a matrix", type(noise).__name__)

    @property
    def parts(self) -> tuple[ScaledAverage, ...]:
        """The averages of the bias; what is not one is seen by `__post_init__`."""
        return cast(tuple[ScaledAverage, ...], self.drift.drifts if isinstance(self.drift, Total) else (self.drift,))

    @property
    def average(self) -> ScaledAverage:
        """The average of the bias, where it has one only."""
        (part,) = self.parts
        return part

    @property
    def is_plain(self) -> bool:
        """Whether there is one average and no preconditioner."""
        return not isinstance(self.drift, Total) and self.preconditioner == Identity()

    @property
    def _learnt(self) -> tuple[str, ...]:
        """Names of the tensors of all scales, then of the preconditioner."""
        if not isinstance(self.drift, Total):
            return (*self.drift.scale_memory, *self.preconditioner.memory)
        names = (f"{name}_{k}" for k, part in enumerate(self.parts) for name in part.scale_memory)
        return (*names, *self.preconditioner.memory)

    @property
    @override
    def num_noises(self) -> int:
        return 1 + len(self.parts)

    @property
    @override
    def memory(self) -> tuple[str, ...]:
        is_sum = isinstance(self.drift, Total)
        velocities = tuple(f"velocity_{k}" for k in range(len(self.parts))) if is_sum else ("velocity",)
        return (*velocities, "passing_velocity", *self._learnt, *(self.absorbed.memory if self.absorbed else ()))

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
        velocities = tuple(torch.zeros_like(position) for _ in range(self.num_noises))
        scales = tuple(tensor for part in self.parts for tensor in part.start(position)[1:])
        own = self.absorbed.start(position) if self.absorbed else ()
        return *velocities, *scales, *self.preconditioner.start(position), *own

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
        if not self._learnt or self.adapt_steps is not None:
            return made
        if warmup < 1:
            raise needs(self.name, "warmup", "first steps in which the scale is learnt, when invariant", warmup)
        return dataclasses.replace(made, adapt_steps=warmup)

    @override
    def update(
        self, position: Tensor, evaluation: Evaluation, noise: Tensor, memory: Memory, inputs: StepInputs
    ) -> tuple[Tensor, Memory]:
        velocities, last, scales, metric_memory, known = self._split(memory)
        gradient, (η, *ξs) = evaluation.gradient, noise
        ε, τ = inputs.step_size, inputs.temperature
        # While it adapts the scale knows the current gradient, which bounds the kick; frozen, it is a constant.
        scales = [
            follow(part.scale_update(scale, gradient, inputs.started), scale, inputs.adapting)
            for part, scale in zip(self.parts, scales, strict=True)
        ]
        learnt = self.preconditioner.update(metric_memory, gradient, inputs.started)
        metric_memory = follow(learnt, metric_memory, inputs.adapting)
        moves = Moves(self.parts, scales, self.preconditioner, metric_memory, inputs)
        if self.absorbed is not None:
            # D knows the gradients before this one only, and is independent of its noise, as the law asks.
            noisy, read = gradient, self._read(known, gradient, moves, inputs)
            gradient = gradient + inputs.absorbing * self._drag(gradient, velocities, last, moves, read, inputs)

        inertia, refreshed = [], []
        pulled = moves.spread(gradient)
        for part, scale, stride, velocity, ξ in zip(self.parts, scales, moves.strides, velocities, ξs, strict=True):
            β = part.smoothing
            kicked = velocity - stride * part.root(scale, pulled)
            refreshed.append(β * kicked + (τ * (1 - β * β)) ** 0.5 * ξ)
            inertia.append(0.5 * stride * part.root(scale, kicked + refreshed[-1]))
        passing = τ**0.5 * η  # the velocity made anew at every step
        moved = (
            position - ε * moves.spread(pulled) + moves.spread((0.5 * ε) ** 0.5 * (last + passing)) + moves.spread(sum_of(inertia))
        )
        if self.absorbed is not None and self.absorbed.memory:
            move = inputs.absorbing * (moved - position) / (τ + (1 - inputs.absorbing))
            known = self.absorbed.follow(known, read, noisy, move, inputs.started, inputs.seen)
        return moved, (*refreshed, passing, *(tensor for scale in scales for tensor in scale), *metric_memory, *known)

    def _split(self, memory: Memory) -> tuple[Memory, Tensor, list[Memory], Memory, Memory]:
        """Return the velocities, the passing one, the memory of each scale, of the preconditioner and of the noise."""
        count, rest = len(self.parts), memory[1 + len(self.parts) :]
        scales = []
        for part in self.parts:
            scales.append(rest[: len(part.scale_memory)])
            rest = rest[len(part.scale_memory) :]
        split = len(self.preconditioner.memory)
        return memory[:count], memory[count], scales, rest[:split], rest[split:]

    def _read(self, known: Memory, gradient: Tensor, moves: Moves, inputs: StepInputs) -> Memory:
        """Return what is known of the gradient's noise, where that is learnt on the way."""
        if self.absorbed is None or not self.absorbed.memory:
            return known
        return self.absorbed.read(known, inputs.seen, inputs.temperature / moves.half_size(1.0 + 0.0 * gradient))  # 2 τ / S

    def _drag(self, gradient: Tensor, velocities: Memory, last: Tensor, moves: Moves, known: Memory, inputs: StepInputs) -> Tensor:
        """Return ``D p``, the friction that absorbs the gradient's noise."""
        assert self.absorbed is not None
        ε, whole = inputs.step_size, 2 * inputs.temperature + (1 - inputs.absorbing)  # not zero where nothing is absorbed
        lasting = [
            stride * part.root(scale, velocity)
            for part, scale, stride, velocity in zip(self.parts, moves.scales, moves.strides, velocities, strict=True)
        ]
        speed = moves.spread(sum_of(lasting) + (2 * ε) ** 0.5 * last) - moves.half_size(gradient)
        return self.absorbed.drag(known, speed, lambda vector, excess: moves.damped(vector, excess, whole))

    @override
    def at_temperature(self, memory: Memory, gradient: Tensor, warmth: Number, inputs: StepInputs) -> Memory:
        # All velocities lack half of the kick that the next step gives them; the rest has a variance in proportion to τ.
        velocities, last, scales, metric_memory, _ = self._split(memory)
        moves = Moves(self.parts, scales, self.preconditioner, metric_memory, inputs)
        pulled, coming = moves.spread(gradient), 0.5 * (1 - warmth)
        lasting = [
            warmth * velocity + coming * stride * part.root(scale, pulled)
            for part, scale, stride, velocity in zip(self.parts, scales, moves.strides, velocities, strict=True)
        ]
        return *lasting, warmth * last + coming * (2 * inputs.step_size) ** 0.5 * pulled, *memory[len(lasting) + 1 :]

    @override
    def noise_scale(self, inputs: StepInputs) -> Number:
        # sqrt(ε τ / 2) (η + η') and (h / 2) sqrt(τ (1 - β^2)) ξ', where G is one, as in the first step
        inertia = sum(part.bias_factor * inputs.annealing * (1 - part.smoothing) ** 2 / 2 for part in self.parts)
        return (inputs.step_size * inputs.temperature * (1 + inertia)) ** 0.5

    @override
    def reach(self, memory: Memory, inputs: StepInputs) -> Number | None:
        velocities, _, scales, metric_memory, _ = self._split(memory)
        one = torch.ones_like(velocities[0])
        gain = sum_of([part.bias_factor * part.scale(scale, one) for part, scale in zip(self.parts, scales, strict=True)])
        metric = self.preconditioner.metric(metric_memory, one)
        return inputs.step_size * self.preconditioner.apply(metric, 1 + inputs.annealing * gain)

    @property
    @override
    def description(self) -> str:
        of_noise = "what is not known of the gradient's own noise" if self.absorbed else "the gradient's own noise"
        bias, tau = self.drift.sde()[0], self.temperature
        betas = ", ".join(f"{part.smoothing:g}" for part in self.parts)
        each = "" if len(self.parts) == 1 else ", one m for each average"
        symbol, metric_sentence = self.preconditioner.describe()
        left, root = ("P ", "P^(1/2) ") if symbol else ("", "")
        annealed = f", the bias factor times {self.annealing}" if self.annealing != constant(1.0) else ""
        return "\n".join(
            [
                f"{self.name}: dθ = -{left}(grad U{bias}) dt + sqrt(2 * {tau:g}) {root}dW",
                f"  dm = γ (grad U - m) dt + γ sqrt(2 * {tau:g} / (a G)) dB,  γ = (1 - {betas}) / ε, a G m the bias{each}",
                *([f"  P: {metric_sentence}"] if symbol else []),
                f"  step size ε = {self.step_size}; {self.drift.settings()}{annealed}, invariant",
                f"  target: exp(-U / {tau:g})",
                *([f"  gradient noise, white, absorbed: {self.absorbed.describe()}"] if self.absorbed else []),
                f"  law: the target, effective temperature {tau:g}: exact on Gaussians, elsewhere up to O(ε^2), and up to",
                f"    {of_noise} (invariant form); {self._guarantee()}",
            ]
        )

    def _guarantee(self) -> str:
        if not self._learnt:
            follows = self.absorbed is not None and bool(self.absorbed.memory)
            return "as far as the noise is followed" if follows else "nothing is learnt, so every step has this law"
        if self.adapt_steps is None:
            return "guaranteed while V stands still; it follows the gradients until sample() freezes it after the warm-up"
        return f"guaranteed from step {self.adapt_steps} on, where V is frozen: not before, nor in exploration phases"
