"""Underdamped Langevin steps whose friction follows the temperature: SGNHT."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from langevin.checks import check_bool, check_field
from langevin.drifts import Memory, Number
from langevin.kernels.base import Kernel, StepInputs
from langevin.kernels.hamiltonian import Hamiltonian
from langevin.preconditioners import Identity, Preconditioner
from langevin.targets import Evaluation

__all__ = ["Thermostat"]

_TINY = 1e-30  # beside τ^2: at τ = 0 the thermostat stands still, and v / τ is not asked for


@dataclass(frozen=True)
class Thermostat(Kernel):
    """``v' = ((β - ξ) v - ε g + sqrt(2 τ ε (1 - β)) η) / (1 + ξ)``, ``θ' = θ + v'``, ``ξ' = ξ + (T(v') / τ - 1) / μ``.

    The step of SGHMC with a friction ξ more, which rises while the velocity is hotter than τ and falls while it is colder:
    ``T(v) = (1 + β) v^2 / (2 ε)``, averaged over the elements of θ or for each of them alone. So heat that the gradient's noise
    brings, of a variance s^2 that nobody knows, is taken out again, and the mean of ξ says how much that was: ``ε s^2 / (4 τ)``.

    In continuous time it is the stochastic gradient Nosé-Hoover thermostat of Ding et al. (2014), for each element alone that of
    Gan et al. (2015),

    ``dθ = v dt``, ``dv = -(grad U + ζ v) dt + sqrt(2 A τ) dW``, ``dζ = (v^2 / τ - 1) dt / M``

    for the time step ``h^2 = 2 ε / (1 + β)``, with ``A h = 2 (1 - β) / (1 + β)``, ``ζ h = A h + 4 ξ / (1 + β)``, ``M = ε μ / 2``
    and the v above in units of h. White noise of the gradient adds ``h s^2 / 2 τ`` to A, and the law is
    ``exp(-U / τ - v^2 / 2 τ - M d (ζ - A)^2 / 2)``, d the elements that a thermostat averages over: ξ has the variance
    ``(1 + β) / (4 μ d)``, and the mean above.

    Friction acts on the mean of the old and the new velocity, as in a splitting B O B A D (half a kick, friction, half a kick, the
    move, the thermostat): a step of second order for one gradient. What the thermostat sees is the velocity that moves θ. This
    matters more than the order: a chain that stands still has ``E[θ'^2] = E[θ^2]``, hence ``E[θ v'] = -E[v'^2] / 2``, and one line
    more gives ``E[θ grad U] = τ`` for ξ that changes slowly, whatever the step and the noise. On a Gaussian that is its variance.
    In BADODAB (Leimkuhler and Shang 2016) the thermostat sees the velocities around the friction, which the noise drives apart: at
    ξ = .14 the variance is 3 % too small, at ξ = .38 it is 24 % (tests/law/test_thermostat.py).

    What it cannot do: one thermostat for all holds the mean temperature only, so where the noise differs between elements some stay
    hot and the others get cold; one for each holds variances, and not correlations, where the noise is correlated. Noise whose size
    changes along the path has no friction that fits it everywhere.

    Args:
        beta: β, the share of the velocity that is kept where ξ = 0, in [0, 1).
        thermal_mass: μ > 0: in μ steps at rest ξ falls by one. The jitter of ξ makes the variance wrong by about -.5 / μ; a larger
            mass takes longer to find the friction, about μ ((1 - β) / 2 + ξ) steps. A very large one makes the step that of SGHMC.
        elementwise: a thermostat for each element; else one for each chain.
    """

    memory: ClassVar[tuple[str, ...]] = ("velocity", "friction")

    beta: float = 0.9
    thermal_mass: float = 500.0
    elementwise: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_field(self, self.name, "beta", "0 <= beta < 1", lambda v: 0 <= v < 1)
        check_field(self, self.name, "thermal_mass", "> 0", lambda v: v > 0)
        check_bool(self.name, "elementwise", self.elementwise)

    @property
    @override
    def is_elementwise(self) -> bool:
        return self.elementwise

    @override
    def start(self, position: Tensor) -> Memory:
        velocity = torch.zeros_like(position)
        return velocity, velocity.clone() if self.elementwise else velocity[..., :1].clone()

    @override
    def update(
        self, position: Tensor, evaluation: Evaluation, noise: Tensor, memory: Memory, inputs: StepInputs
    ) -> tuple[Tensor, Memory]:
        velocity, friction = memory
        (η,) = noise
        ε, τ, β = inputs.step_size, inputs.temperature, self.beta
        kick = self.noise_scale(inputs) * η - ε * evaluation.gradient
        velocity = ((β - friction) * velocity + kick) / (1 + friction)
        square = velocity * velocity
        if not self.elementwise:
            square = square.mean(-1, keepdim=True)
        excess = (0.5 * (1 + β) / ε) * square - τ
        return position + velocity, (velocity, friction + (τ / (τ * τ + _TINY) / self.thermal_mass) * excess)

    @override
    def at_temperature(self, memory: Memory, gradient: Tensor, warmth: Number, inputs: StepInputs) -> Memory:
        velocity, friction = memory  # the friction has no unit of energy
        return warmth * velocity + (0.5 * (1 - warmth)) * inputs.step_size * gradient, friction

    @override
    def without_metric(self) -> tuple[Kernel, Preconditioner]:
        # A step size that serves SGHMC, heat included, serves here too; the law with the thermostat is not linear.
        return Hamiltonian(self.name, self.step_size, self.temperature, self.beta), Identity()

    @override
    def noise_scale(self, inputs: StepInputs) -> Number:
        return (2 * inputs.temperature * inputs.step_size * (1 - self.beta)) ** 0.5

    @property
    @override
    def description(self) -> str:
        tau, average = self.temperature, "v^2" if self.elementwise else "mean of v^2"
        alike = "along the path" if self.elementwise else "along the path and for every element"
        return "\n".join(
            [
                f"{self.name}: dθ = v dt,  dv = -(grad U + ζ v) dt + sqrt(2 A * {tau:g}) dW",
                f"  dζ = ({average} / {tau:g} - 1) dt / M",
                f"  time step h = sqrt(2 ε / (1 + β)), A = (1 - {self.beta:g}) h / ε, M = {self.thermal_mass:g} ε / 2",
                f"  step size ε = {self.step_size}; beta {self.beta:g}, thermal mass {self.thermal_mass:g}",
                f"  target: exp(-U / {tau:g})",
                f"  law: the target, effective temperature {tau:g}, up to O(h^2), also under white noise of the gradient, of",
                f"    unknown size but the same {alike}",
            ]
        )
