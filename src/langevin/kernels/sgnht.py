"""SGNHT: SGHMC with a thermostat (Ding et al. 2014)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from typing_extensions import override

from langevin.checks import check_bool, check_field
from langevin.kernels.base import Kernel, StepInputs, Traits
from langevin.kernels.compose import StepSize, make
from langevin.kernels.parts import Identity, Number, Preconditioner, Tensors
from langevin.kernels.sghmc import Hamiltonian
from langevin.targets import Evaluation

__all__ = ["sgnht"]

_TINY = 1e-30  # beside τ^2: at τ = 0 the thermostat is constant, and v / τ is not needed


class SGNHTState(NamedTuple):
    """State of `Thermostat`."""

    velocity: Tensor  # v_t
    friction: Tensor  # ξ_t, per element or per chain


@dataclass(frozen=True)
class Thermostat(Kernel):
    """``v' = ((β - ξ) v - ε g + sqrt(2 τ ε (1 - β)) η) / (1 + ξ)``, ``θ' = θ + v'``.

    ``ξ' = ξ + (T(v') / τ - 1) / μ``

    The step of SGHMC with a friction ξ more, which rises while the velocity is hotter than τ and
    falls while it is colder: ``T(v) = (1 + β) v^2 / (2 ε)``, averaged over the elements of θ or for
    each of them alone. So the energy added by gradient noise of unknown variance s^2 is removed
    again, and the mean of ξ measures it: ``ε s^2 / (4 τ)``.

    In continuous time it is the stochastic gradient Nosé-Hoover thermostat of Ding et al. (2014),
    for each element alone that of Gan et al. (2015),

    ``dθ = v dt``, ``dv = -(grad U + ζ v) dt + sqrt(2 A τ) dW``, ``dζ = (v^2 / τ - 1) dt / M``

    for the time step ``h^2 = 2 ε / (1 + β)``, with ``A h = 2 (1 - β) / (1 + β)``,
    ``ζ h = A h + 4 ξ / (1 + β)``, ``M = ε μ / 2`` and the v above in units of h. White noise of the
    gradient adds ``h s^2 / 2 τ`` to A, and the stationary distribution is
    ``exp(-U / τ - v^2 / 2 τ - M d (ζ - A)^2 / 2)``, d the elements that a thermostat averages over:
    ξ has the variance ``(1 + β) / (4 μ d)``, and the mean above.

    Friction acts on the mean of the old and the new velocity, as in a splitting B O B A D (half a
    kick, friction, half a kick, the move, the thermostat): a step of second order for one gradient.
    What the thermostat sees is the velocity that moves θ. This matters more than the order: a chain
    at equilibrium has ``E[θ'^2] = E[θ^2]``, hence ``E[θ v'] = -E[v'^2] / 2``, and one line more
    gives ``E[θ grad U] = τ`` for ξ that changes slowly, whatever the step and the noise. On a
    Gaussian that is its variance. In BADODAB (Leimkuhler and Shang 2016) the thermostat sees the
    velocities around the friction, which the noise drives apart: at ξ = .14 the variance is 3 % too
    small, at ξ = .38 it is 24 % (tests/law/test_thermostat.py).

    The friction measures that noise. For a fixed ξ and where U is flat, E[v^2] stays if
    ``T (1 - β + 2 ξ) = τ (1 - β) + ε s^2 / 2``, with T = E[T(v)]. So the noise adds the share

    ``ε s^2 / (2 τ (1 - β)) = (1 + 2 ξ / (1 - β)) T / τ - 1``

    to the temperature of SGHMC without a thermostat (`noise_share`). At rest T = τ, and it is
    ``2 ξ / (1 - β) = (ζ - A) / A``: the excess of the friction over the one that the injected noise
    needs. The factor T / τ keeps it right while ξ still settles.

    What it cannot do: one thermostat for all holds the mean temperature only, so where the noise
    differs between elements some stay hot and the others get cold; one for each holds variances,
    and not correlations, where the noise is correlated. Noise whose size changes along the path has
    no friction that fits it everywhere.

    Args:
        beta: β, the share of the velocity that is kept where ξ = 0, in [0, 1).
        thermal_mass: μ > 0: in μ steps at rest ξ falls by one. The jitter of ξ makes the variance
            wrong by about -.5 / μ; a larger mass takes longer to find the friction, about μ ((1 -
            β) / 2 + ξ) steps. A very large one makes the step that of SGHMC.
        elementwise: a thermostat for each element; else one for each chain.
    """

    state_names: ClassVar[tuple[str, ...]] = SGNHTState._fields

    beta: float = 0.9
    thermal_mass: float = 500.0
    elementwise: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_field(self, self.name, "beta", "0 <= beta < 1", lambda v: 0 <= v < 1)
        check_field(self, self.name, "thermal_mass", "> 0", lambda v: v > 0)
        check_bool(self.name, "elementwise", self.elementwise)

    @cached_property
    @override
    def traits(self) -> Traits:
        return Traits(elementwise=self.elementwise)

    @override
    def start(self, position: Tensor) -> Tensors:
        velocity = torch.zeros_like(position)
        friction = velocity if self.elementwise else velocity[..., :1]
        return SGNHTState(velocity, friction.clone())

    @override
    def update(
        self,
        position: Tensor,
        evaluation: Evaluation,
        noise: Tensor,
        state: Tensors,
        inputs: StepInputs,
    ) -> tuple[Tensor, Tensors]:
        velocity, friction = state
        (η,) = noise
        ε, τ, β = inputs.step_size, inputs.temperature, self.beta
        kick = self.noise_scale(inputs) * η - ε * evaluation.gradient
        velocity = ((β - friction) * velocity + kick) / (1 + friction)
        square = velocity * velocity
        if not self.elementwise:
            square = square.mean(-1, keepdim=True)
        excess = (0.5 * (1 + β) / ε) * square - τ
        friction = friction + (τ / (τ * τ + _TINY) / self.thermal_mass) * excess
        return position + velocity, SGNHTState(velocity, friction)

    def rescale_state(
        self, state: Tensors, gradient: Tensor, ratio: Number, inputs: StepInputs
    ) -> Tensors:
        """See `TemperatureChange`."""
        velocity, friction = state  # the friction has no unit of energy
        velocity = ratio * velocity + (0.5 * (1 - ratio)) * inputs.step_size * gradient
        return SGNHTState(velocity, friction)

    @override
    def without_metric(self) -> tuple[Kernel, Preconditioner]:
        # A step size chosen for SGHMC serves here too; the thermostat is not linear.
        return Hamiltonian(self.name, self.step_size, self.temperature, self.beta), Identity()

    @override
    def noise_scale(self, inputs: StepInputs) -> Number:
        return (2 * inputs.temperature * inputs.step_size * (1 - self.beta)) ** 0.5

    def noise_share(self, state: Tensors, inputs: StepInputs) -> Tensor | None:
        """See `NoiseMeter`."""
        velocity, friction = state
        ratio = (
            (0.5 * (1 + self.beta) / inputs.step_size / inputs.temperature) * velocity * velocity
        )  # T / τ
        if not ratio.mean() < 1 + 5 * (2 / ratio.numel()) ** 0.5:
            return None  # the chain has not converged
        middle = friction - (ratio - 1) / (
            2 * self.thermal_mass
        )  # ξ between its last two values: these know T too well
        return (1 + 2 * middle / (1 - self.beta)) * ratio - 1

    @property
    @override
    def description(self) -> str:
        tau, average = self.temperature, "v^2" if self.elementwise else "mean of v^2"
        alike = "along the path and for every element"
        if self.elementwise:
            alike = (
                "along the path, and independent between elements: where they share it,\n"
                "    their variances stay right and their covariances do not"
            )
        return self.described(
            f"dθ = v dt,  dv = -(grad U + ζ v) dt + sqrt(2 A * {tau:g}) dW",
            f"dζ = ({average} / {tau:g} - 1) dt / M",
            f"time step h = sqrt(2 ε / (1 + β)), A = (1 - {self.beta:g}) h / ε, M = "
            f"{self.thermal_mass:g} ε / 2",
            settings=f"beta {self.beta:g}, thermal mass {self.thermal_mass:g}",
            law=[
                f"the target, effective temperature {tau:g}, up to O(h^2), also under "
                "white noise of the gradient, of",
                f"unknown size but the same {alike}",
            ],
        )


def sgnht(
    step_size: StepSize,
    *,
    beta: float = 0.9,
    thermal_mass: float = 500.0,
    elementwise: bool = False,
    temperature: float = 1.0,
) -> Thermostat:
    """Build the stochastic gradient Nosé-Hoover thermostat, for gradients of unknown noise.

    Ding et al. (2014); not in section 2.

    ``v' = ((β - ξ) v - ε g + sqrt(2 τ ε (1 - β)) η) / (1 + ξ)``, ``θ' = θ + v'``,
    ``ξ' = ξ + ((1 + β) v'**2 / (2 ε τ) - 1) / μ``, with v'**2 averaged over the elements of θ, or
    of each element alone

    It is `sghmc` with a friction ξ that removes the energy of minibatch noise: white noise of
    variance s^2 in the gradient raises the mean of ξ by ``ε s^2 / (4 τ)``, and the variance of θ
    stays. At temperature 0 the thermostat does not move.

    Args:
        step_size: ε on U, as in `sghmc`; a number or a schedule. "auto" takes the step of
            `sghmc`.
        beta: β, the share of the velocity that is kept where ξ = 0: the noise that is injected.
        thermal_mass: μ, in steps: how slowly ξ changes.
        elementwise: a thermostat for each element, for noise that differs between them; else one
            for each chain.
        temperature: τ.

    Differs from: Ding et al. in that friction acts on the mean of the old and the new velocity,
    which makes the step second order and its temperature that of the draws (`kernels.Thermostat`
    explains why); in that τ is a setting; and in units of ξ and μ in which the step size drops out.
    A thermostat holds one temperature: with one for all, noise that differs between elements leaves
    some too hot and others too cold; noise that is correlated between elements leaves their
    correlation wrong in either form. Minibatches of a model that fits its data have noise in
    proportion to the curvature: in a scale that makes the curvature one
    (``sample(..., metric=...)``) it is the same in all directions, and one thermostat serves. The
    temperature that `samples.trust` checks is the one that the thermostat holds, so that check is
    nearly blind here. Where Σ can be estimated, `nasgld` is exact.

    Example:
        >>> sgnht(step_size=0.01).state_names
        ('velocity', 'friction')
    """
    return make(Thermostat, "sgnht", step_size, temperature, beta, thermal_mass, elementwise)
