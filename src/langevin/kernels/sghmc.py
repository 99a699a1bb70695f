"""SGHMC: stochastic gradient Hamiltonian Monte Carlo (Chen, Fox and Guestrin 2014; section 2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from typing_extensions import override

from langevin.checks import check_field
from langevin.kernels.base import Kernel, StepInputs
from langevin.kernels.compose import StepSize, make
from langevin.kernels.parts import Number, Tensors
from langevin.targets import Evaluation

__all__ = ["sghmc"]


class SGHMCState(NamedTuple):
    """State of `Hamiltonian`."""

    velocity: Tensor  # v_t, in units of h


@dataclass(frozen=True)
class Hamiltonian(Kernel):
    """``v' = β v - ε g + sqrt(2 τ ε (1 - β)) η``, then ``θ' = θ + v'`` (SGHMC, section 2).

    This is the symplectic Euler step of length h = sqrt(ε) for friction C = (1 - β) / h and unit
    mass, with the velocity in units of h (Chen et al. 2014, equation 15). The new velocity moves
    the position: with the old one the step is explicit Euler, unstable for small friction.

    Args:
        beta: β, the share of the velocity that is kept, in [0, 1); 0 is SGLD.
    """

    state_names: ClassVar[tuple[str, ...]] = SGHMCState._fields

    beta: float = 0.9

    def __post_init__(self) -> None:
        super().__post_init__()
        check_field(self, self.name, "beta", "0 <= beta < 1", lambda v: 0 <= v < 1)

    @override
    def start(self, position: Tensor) -> SGHMCState:
        return SGHMCState(torch.zeros_like(position))

    @override
    def update(
        self,
        position: Tensor,
        evaluation: Evaluation,
        noise: Tensor,
        state: Tensors,
        inputs: StepInputs,
    ) -> tuple[Tensor, Tensors]:
        (velocity,) = state
        (η,) = noise
        velocity = (
            self.beta * velocity
            - inputs.step_size * evaluation.gradient
            + self.noise_scale(inputs) * η
        )
        return position + velocity, SGHMCState(velocity)

    def rescale_state(
        self, state: Tensors, gradient: Tensor, ratio: Number, inputs: StepInputs
    ) -> Tensors:
        """See `TemperatureChange`."""
        (velocity,) = state  # half a kick of the gradient is still to come
        return SGHMCState(ratio * velocity + (0.5 * (1 - ratio)) * inputs.step_size * gradient)

    @override
    def noise_scale(self, inputs: StepInputs) -> Number:
        return (2 * inputs.temperature * inputs.step_size * (1 - self.beta)) ** 0.5

    @override
    def total_response(self, state: Tensors, inputs: StepInputs) -> Number | None:
        return inputs.step_size / (1 - self.beta)

    @property
    @override
    def description(self) -> str:
        tau = self.temperature
        return self.described(
            f"dθ = v dt,  dv = -(grad U + C v) dt + sqrt(2 C * {tau:g}) dW",
            f"time step h = sqrt(ε), friction C = (1 - {self.beta:g}) / h, unit mass",
            settings=f"beta {self.beta:g}",
            law=[
                f"the target, effective temperature {tau:g}, "
                "up to O(h) and the gradient's own noise"
            ],
        )


def sghmc(step_size: StepSize, *, beta: float = 0.9, temperature: float = 1.0) -> Hamiltonian:
    """Stochastic gradient Hamiltonian Monte Carlo (Chen, Fox and Guestrin 2014; section 2).

    ``v' = β v - ε g + sqrt(2 τ ε (1 - β)) η``, ``θ' = θ + v'``

    Args:
        step_size: ε on U (the square of the time step); a number or a schedule.
        beta: β, the share of the velocity that is kept, as in SGD with momentum.
        temperature: τ.

    Example:
        >>> sghmc(step_size=0.01).state_names
        ('velocity',)
    """
    return make(Hamiltonian, "sghmc", step_size, temperature, beta)
