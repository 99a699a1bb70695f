"""Adaptive drifts that keep the posterior invariant: the published bias plus noise in m."""

from __future__ import annotations

import dataclasses
import functools
import operator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Self, cast

import torch
from torch import Tensor
from typing_extensions import override

from langevin.checks import needs
from langevin.kernels.adapting import Adapting, interpolate
from langevin.kernels.base import StepInputs, Traits
from langevin.kernels.gradient_noise import GradientNoise, is_open
from langevin.kernels.parts import Identity, Number, Preconditioner, ScaledAverage, Tensors, Total
from langevin.kernels.schedules import AUTO, Schedule, as_schedule, constant
from langevin.targets import Evaluation

__all__ = ["Invariant"]

_OWN_NOISE = "the gradient's own noise"
_MANY = 20_000  # gradients after which an average of them has no beginning any more


@dataclass(frozen=True)
class Invariant(Adapting):
    """A bias ``a G m`` whose momentum has its own noise, so that ``exp(-U / τ)`` is invariant.

    The derivation is in docs/theory.md.

    In continuous time, with ``γ = (1 - β) / ε``, the drift is that of Algorithm 1 (G = 1) or 2,

    ``dθ = -(grad U + a G m) dt + sqrt(2 τ) dW``,
    ``dm = γ (grad U - m) dt + γ sqrt(2 τ / (a G)) dB``,

    the complete recipe of Ma, Chen and Fox (2015) for ``H = U + a m^T G m / (2 γ)``. The step is a
    BAOAB splitting with two velocities, one that lasts (v, which is m in units of its standard
    deviation) and one drawn at every step (the noise η of SGLD), for one gradient g at θ:

        ``w   = v - h G^(1/2) g``
        ``h^2 = 2 a ε (1 - β) / (1 + β)`` ``v'  = β w + sqrt(τ (1 - β^2)) ξ'``
        ``θ' = θ - ε g + sqrt(ε τ / 2) (η + η') + (h / 2) G^(1/2) (w + v')``

    A gradient moves θ by (1 + a G) ε g in all, as in the published form. On a Gaussian with exact
    gradients θ has the target's distribution for any step, as long as ``k (2 ε + h^2 G) < 4`` for
    the largest curvature k; elsewhere the error is O(ε^2). With a = 0 it is the method of
    Leimkuhler and Matthews (2013), for large a SGHMC by BAOAB.

    A sum of biases ``sum_i a_i G_i m_i`` has a velocity v_i for each, with its own h_i and β_i, and
    all move θ together. With a preconditioner P the drift is ``P (grad U + sum_i a_i G_i m_i)``, as
    published: ``P^(1/2) g`` replaces g, and ``P^(1/2)`` multiplies all that moves θ
    (beside a matrix G, which need not commute with P, the bias is ``P^(1/2) G P^(1/2) m``). Both
    keep the target for the same reason as one average does (docs/theory.md, section 8).

    White gradient noise of covariance Σ raises the temperature. With `gradient_noise` the step
    replaces g by

        ``g + D p``,    ``p = h G^(1/2) v + sqrt(2 ε) η - S g / 2``,    ``S = h^2 G + 2 ε``,
        ``D = Σ (2 τ I + S (Σ - τ K) / 2)^-1``

    where ``V = E[g g^T] = Σ + τ K`` (p is the velocity along the kick, half way through it, and D
    the friction that removes the energy of the noise). On a Gaussian the distribution is then the
    target again, for any Σ: the step above where there is no noise, and one independent draw per
    ``Σ / K`` steps (an epoch) where there is much (docs/theory.md, section 6).

    Args:
        drift: a scaled average: momentum, Adam, AdaMax or the Adam with a matrix; or a `Total` of
            them.
        annealing: what the bias factor is multiplied by, a schedule; any keeps the target. `AUTO`
            leaves the factor to `sample`.
        adapt_steps: first steps in which G follows the gradients; then it is frozen, which
            invariance needs (`Adapting`).
        gradient_noise: to correct for; None for exact gradients, or without a correction.
        preconditioner: P, the identity or a diagonal that is adapted and frozen as G is (`RMS`).
    """

    drift: ScaledAverage | Total = field(kw_only=True)
    annealing: Schedule = constant(1.0)
    gradient_noise: GradientNoise | None = None
    preconditioner: Preconditioner = field(default_factory=Identity)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not all(isinstance(part, ScaledAverage) for part in self.parts):
            what = "a scaled average of gradients, or a Total of them, when invariant"
            raise needs(self.name, "drift", what, self.drift, TypeError)
        object.__setattr__(self, "annealing", as_schedule(self.name, "annealing", self.annealing))
        if not self.has_open_bias:
            self._value("annealing", 0)
        self._check_preconditioner()
        if self.gradient_noise is not None:
            self._check_noise(self.gradient_noise)

    def _check_preconditioner(self) -> None:
        metric = self.preconditioner
        self.check_part(metric)
        if metric.reads_position or not metric.is_elementwise:
            what = (
                "a diagonal that does not depend on the position, when invariant "
                "(for a constant matrix use the `metric` of sample())"
            )
            raise needs(self.name, "preconditioner", what, type(metric).__name__)
        if self.has_open_bias and not self.is_plain:
            raise needs(
                self.name,
                "annealing",
                "a number or a schedule for a sum, or with a preconditioner",
                "auto",
            )

    def _check_noise(self, noise: GradientNoise) -> None:
        if not isinstance(noise, GradientNoise):
            raise needs(
                self.name, "noise", "one of langevin.kernels.gradient_noise", noise, TypeError
            )
        if self.temperature == 0:
            raise needs(
                self.name,
                "noise",
                "temperature > 0: at 0 there is nothing to balance",
                self.temperature,
            )
        if not noise.is_elementwise and self.adapted_names:
            what = 'a diagonal one beside an adapted scale: sample(metric="auto") makes it diagonal'
            raise needs(self.name, "noise", what, type(noise).__name__)
        if self.is_plain:
            return
        if is_open(noise):
            what = (
                "one that is given, (Σ, τ K), for a sum or with a preconditioner: "
                "sample() estimates it for one average only"
            )
            raise needs(self.name, "noise", what, "corrected")
        if not all(part.is_elementwise for part in self.parts):
            raise needs(
                self.name,
                "noise",
                "None for a sum with a scale that is a matrix",
                type(noise).__name__,
            )

    @property
    def parts(self) -> tuple[ScaledAverage, ...]:
        """The averages of the bias; `__post_init__` rejects anything else."""
        return cast(
            tuple[ScaledAverage, ...],
            self.drift.drifts if isinstance(self.drift, Total) else (self.drift,),
        )

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
    @override
    def adapted_names(self) -> tuple[str, ...]:
        if not isinstance(self.drift, Total):
            return (*self.drift.scale_names, *self.preconditioner.state_names)
        names = (f"{name}_{k}" for k, part in enumerate(self.parts) for name in part.scale_names)
        return (*names, *self.preconditioner.state_names)

    @property
    @override
    def state_names(self) -> tuple[str, ...]:
        is_sum = isinstance(self.drift, Total)
        velocities = (
            tuple(f"velocity_{k}" for k in range(len(self.parts))) if is_sum else ("velocity",)
        )
        return (
            *velocities,
            "passing_velocity",
            *self.adapted_names,
            *(self.gradient_noise.state_names if self.gradient_noise else ()),
        )

    @cached_property
    @override
    def traits(self) -> Traits:
        parts = self.drift, *([self.gradient_noise] if self.gradient_noise else [])
        return Traits(
            num_noises=1 + len(self.parts),
            elementwise=all(part.is_elementwise for part in parts),
        )

    @property
    @override
    def constants(self) -> dict[str, Tensor]:
        return (
            {f"noise_{index}": tensor for index, tensor in enumerate(self.gradient_noise.tensors)}
            if self.gradient_noise
            else {}
        )

    @override
    def with_gradient_noise(self, noise: GradientNoise | None) -> Self:
        return (
            dataclasses.replace(self, gradient_noise=noise)
            if is_open(self.gradient_noise)
            else self
        )

    @property
    @override
    def has_open_bias(self) -> bool:
        return self.annealing == AUTO

    @override
    def with_bias_factor(self, factor: float) -> Self:
        return dataclasses.replace(self, annealing=constant(factor)) if self.has_open_bias else self

    @override
    def start(self, position: Tensor) -> Tensors:
        velocities = tuple(torch.zeros_like(position) for _ in range(1 + len(self.parts)))
        scales = tuple(tensor for part in self.parts for tensor in part.start(position)[1:])
        own = self.gradient_noise.start(position) if self.gradient_noise else ()
        return *velocities, *scales, *self.preconditioner.start(position), *own

    @override
    def refined(self, inputs: StepInputs, step: int, seen: int) -> StepInputs:
        inputs = super().refined(inputs, step, seen)
        if self.gradient_noise and self.gradient_noise.state_names:
            inputs = inputs._replace(seen=float(min(seen, _MANY)))
        return inputs._replace(annealing=self._value("annealing", step))

    @override
    def for_run(self, warmup: int, position: Tensor) -> Self:
        made, noise = super().for_run(warmup, position), self.gradient_noise
        if noise is None or is_open(noise):
            return made
        return dataclasses.replace(made, gradient_noise=noise.like(self.name, position))

    @override
    def update(
        self,
        position: Tensor,
        evaluation: Evaluation,
        noise: Tensor,
        state: Tensors,
        inputs: StepInputs,
    ) -> tuple[Tensor, Tensors]:
        gradient, (η, *ξs) = evaluation.gradient, noise
        ε, τ = inputs.step_size, inputs.temperature
        velocities, last, scales, metric_state, known = self._adapted_state(state, gradient, inputs)
        moves = Moves(self.parts, scales, self.preconditioner, metric_state, inputs)
        if self.gradient_noise is not None:
            # D depends on earlier gradients only, so it is independent of this one's noise.
            noisy, read = gradient, self._read(known, gradient, moves, inputs)
            gradient = gradient + inputs.correcting * self._drag(
                gradient, velocities, last, moves, read, inputs
            )

        inertia, refreshed = [], []
        pulled = moves.spread(gradient)
        for part, scale, stride, velocity, ξ in zip(
            self.parts, scales, moves.strides, velocities, ξs, strict=True
        ):
            β = part.smoothing
            kicked = velocity - stride * part.root(scale, pulled)
            refreshed.append(β * kicked + (τ * (1 - β * β)) ** 0.5 * ξ)
            inertia.append(0.5 * stride * part.root(scale, kicked + refreshed[-1]))
        passing = τ**0.5 * η  # the fresh velocity
        moved = (
            position
            - ε * moves.spread(pulled)
            + moves.spread((0.5 * ε) ** 0.5 * (last + passing))
            + moves.spread(sum_of(inertia))
        )
        if self.gradient_noise is not None and self.gradient_noise.state_names:
            move = inputs.correcting * (moved - position) / (τ + (1 - inputs.correcting))
            known = self.gradient_noise.follow(
                known, read, noisy, move, inputs.started, inputs.seen
            )
        return moved, (
            *refreshed,
            passing,
            *(tensor for scale in scales for tensor in scale),
            *metric_state,
            *known,
        )

    def _split(self, state: Tensors) -> tuple[Tensors, Tensor, list[Tensors], Tensors, Tensors]:
        """Split the state: velocities, the passing one, each scale, preconditioner, noise."""
        count, rest = len(self.parts), state[1 + len(self.parts) :]
        scales = []
        for part in self.parts:
            scales.append(rest[: len(part.scale_names)])
            rest = rest[len(part.scale_names) :]
        split = len(self.preconditioner.state_names)
        return state[:count], state[count], scales, rest[:split], rest[split:]

    def _adapted_state(
        self, state: Tensors, gradient: Tensor, inputs: StepInputs
    ) -> tuple[Tensors, Tensor, list[Tensors], Tensors, Tensors]:
        """Return the split state with scales and preconditioner as this step uses them."""
        velocities, last, scales, metric_state, known = self._split(state)
        # While it adapts the scale includes the current gradient, which bounds the kick.
        scales = [
            interpolate(part.scale_update(scale, gradient, inputs.started), scale, inputs.adapting)
            for part, scale in zip(self.parts, scales, strict=True)
        ]
        adapted = self.preconditioner.update(metric_state, gradient, inputs.started)
        metric_state = interpolate(adapted, metric_state, inputs.adapting)
        return velocities, last, scales, metric_state, known

    def kick_velocity(
        self, state: Tensors, gradient: Tensor, inputs: StepInputs
    ) -> tuple[Tensor, Tensor]:
        """Return p, the velocity along the kick half way through it, and the diagonal of S."""
        velocities, last, scales, metric_state, _ = self._adapted_state(state, gradient, inputs)
        moves = Moves(self.parts, scales, self.preconditioner, metric_state, inputs)
        size = 2 * moves.half_size(torch.ones_like(gradient))
        return self._speed(gradient, velocities, last, moves, inputs), size

    def _read(self, known: Tensors, gradient: Tensor, moves: Moves, inputs: StepInputs) -> Tensors:
        """Return the estimates of the gradient noise, where it is estimated during the run."""
        if self.gradient_noise is None or not self.gradient_noise.state_names:
            return known
        return self.gradient_noise.read(
            known, inputs.seen, inputs.temperature / moves.half_size(1.0 + 0.0 * gradient)
        )  # 2 τ / S

    def _drag(
        self,
        gradient: Tensor,
        velocities: Tensors,
        last: Tensor,
        moves: Moves,
        known: Tensors,
        inputs: StepInputs,
    ) -> Tensor:
        """Return ``D p``, the friction that corrects for the gradient noise."""
        assert self.gradient_noise is not None
        # Not zero where nothing is corrected.
        whole = 2 * inputs.temperature + (1 - inputs.correcting)
        speed = self._speed(gradient, velocities, last, moves, inputs)
        return self.gradient_noise.drag(
            known, speed, lambda vector, excess: moves.damped(vector, excess, whole)
        )

    def _speed(
        self, gradient: Tensor, velocities: Tensors, last: Tensor, moves: Moves, inputs: StepInputs
    ) -> Tensor:
        """Return ``p = E w - S g / 2``."""
        lasting = [
            stride * part.root(scale, velocity)
            for part, scale, stride, velocity in zip(
                self.parts, moves.scales, moves.strides, velocities, strict=True
            )
        ]
        root = (2 * inputs.step_size) ** 0.5
        return moves.spread(sum_of(lasting) + root * last) - moves.half_size(gradient)

    def rescale_state(
        self, state: Tensors, gradient: Tensor, ratio: Number, inputs: StepInputs
    ) -> Tensors:
        """See `TemperatureChange`."""
        # All velocities lack half of the kick that the next step gives them; the rest has a
        # variance in proportion to τ.
        velocities, last, scales, metric_state, _ = self._split(state)
        moves = Moves(self.parts, scales, self.preconditioner, metric_state, inputs)
        pulled, coming = moves.spread(gradient), 0.5 * (1 - ratio)
        lasting = [
            ratio * velocity + coming * stride * part.root(scale, pulled)
            for part, scale, stride, velocity in zip(
                self.parts, scales, moves.strides, velocities, strict=True
            )
        ]
        return (
            *lasting,
            ratio * last + coming * (2 * inputs.step_size) ** 0.5 * pulled,
            *state[len(lasting) + 1 :],
        )

    @override
    def noise_scale(self, inputs: StepInputs) -> Number:
        # sqrt(ε τ / 2) (η + η') and (h / 2) sqrt(τ (1 - β^2)) ξ', where G is one, as in the first
        # step
        inertia = sum(
            part.bias_factor * inputs.annealing * (1 - part.smoothing) ** 2 / 2
            for part in self.parts
        )
        return (inputs.step_size * inputs.temperature * (1 + inertia)) ** 0.5

    @override
    def total_response(self, state: Tensors, inputs: StepInputs) -> Number | None:
        velocities, _, scales, metric_state, _ = self._split(state)
        one = torch.ones_like(velocities[0])
        gain = sum_of(
            [
                part.bias_factor * part.scale(scale, one)
                for part, scale in zip(self.parts, scales, strict=True)
            ]
        )
        metric = self.preconditioner.metric(metric_state, one)
        return inputs.step_size * self.preconditioner.apply(metric, 1 + inputs.annealing * gain)

    @property
    @override
    def description(self) -> str:
        noise, tau = self.gradient_noise, self.temperature
        of_noise = "what is not known of the gradient's own noise" if noise else _OWN_NOISE
        betas = ", ".join(f"{part.smoothing:g}" for part in self.parts)
        each = "" if len(self.parts) == 1 else ", one m for each average"
        symbol, metric_sentence = self.preconditioner.describe()
        left, root = ("P ", "P^(1/2) ") if symbol else ("", "")
        is_plain = self.annealing == constant(1.0)
        annealed = "" if is_plain else f", the bias factor times {self.annealing}"
        guarantee = self.guarantee
        if noise and noise.state_names and not self.adapted_names:
            guarantee = "as far as the noise is followed"
        return self.described(
            f"dθ = -{left}(grad U{self.drift.sde()[0]}) dt + sqrt(2 * {tau:g}) {root}dW",
            f"dm = γ (grad U - m) dt + γ sqrt(2 * {tau:g} / (a G)) dB,  γ = (1 - {betas}) "
            f"/ ε, a G m the bias{each}",
            *([f"P: {metric_sentence}"] if symbol else []),
            settings=f"{self.drift.settings()}{annealed}, invariant",
            noise=noise.describe() if noise else "",
            law=[
                f"the target, effective temperature {tau:g}: exact on Gaussians, elsewhere up to "
                "O(ε^2), and up to",
                f"{of_noise} (invariant form); {guarantee}",
            ],
        )


class Moves:
    """The matrix ``E = P^(1/2) (h_1 G_1^(1/2), ..., sqrt(2 ε) I)`` that moves θ; ``S = E E^T``."""

    def __init__(
        self,
        parts: tuple[ScaledAverage, ...],
        scales: list[Tensors],
        preconditioner: Preconditioner,
        metric_state: Tensors,
        inputs: StepInputs,
    ) -> None:
        """Take the averages, the state of each scale, and P with its state."""
        self.parts, self.scales, self.preconditioner, self.step_size = (
            parts,
            scales,
            preconditioner,
            inputs.step_size,
        )
        self.metric = preconditioner.metric(metric_state, metric_state[0]) if metric_state else None
        rates = [2 * part.bias_factor * inputs.annealing * inputs.step_size for part in parts]
        self.strides = [
            (rate * (1 - part.smoothing) / (1 + part.smoothing)) ** 0.5
            for rate, part in zip(rates, parts, strict=True)
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
        return sum_of(
            [0.5 * stride * stride * part.scale(scale, vector) for part, scale, stride in each]
        )


def sum_of(terms: list[Tensor]) -> Tensor:
    """Return the sum, without a zero in front that would cost an operation."""
    return functools.reduce(operator.add, terms)
