"""AMAGOLD: SGHMC whose trajectories end in a Metropolis test, so that the law is exact with noisy gradients and large steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from langevin.checks import check_field, check_integer
from langevin.drifts import Memory, Number
from langevin.kernels.base import Kernel, StepInputs
from langevin.targets import Evaluation

__all__ = ["Amagold"]


@dataclass(frozen=True)
class Amagold(Kernel):
    """A trajectory of `length` moves, then one Metropolis test (Zhang, Cooper and De Sa 2020, Algorithm 1).

    With ``h^2 = 2 ε / (1 + β)`` and v a fresh N(0, τ), a trajectory is half a kick, moves with kicks between them, half a kick:

        ``v' = v - (h / 2) g``                                       at its first and its last place
        ``v' = β v - (h / 2) (1 + β) g + sqrt(τ (1 - β^2)) η``       at those between
        ``θ' = θ + h v'``                                            from every place but the last

    and its end is taken with probability ``exp((U(start) - U(end) + ρ) / τ)``, else its start, where
    ``ρ = sum of c h g (v + v') / 2`` with c = 1/2 at both ends and 1 between.

    Why that is exact: let a kick have the gradient's own noise in g. Run backwards, from -v' to -v with the same g, it needs
    another η, and the densities of the two have the ratio ``exp(-(v'^2 - v^2) / 2τ - c h g (v + v') / 2τ)``, whatever β. The moves
    keep volumes. So in the ratio of Metropolis the kinetic energies cancel and U and ρ are left; g may be any gradient at that
    place, right or wrong, as long as a trajectory run backwards sees the gradients in the opposite order as often: independent
    noise, minibatches with replacement. The energies must be exact.

    Here kicks stand at the ends, where the published trajectory has half moves: a step of this library has one gradient, taken
    where the chain is, and the energies are asked for at the ends. So a draw costs length + 1 gradients, all of them used; steps
    inside a trajectory are no draws, and `sample` keeps none. Without friction and noise (β = 1) it is HMC.

    Args:
        beta: β, the share of the velocity that a kick keeps, in [0, 1].
        length: moves of a trajectory.
    """

    memory: ClassVar[tuple[str, ...]] = ("velocity", "start", "start_energy", "work", "place")
    is_elementwise: ClassVar[bool] = False
    needs_energy: ClassVar[bool] = True
    needs_full_energy: ClassVar[bool] = True
    sees_position: ClassVar[bool] = True
    is_steady: ClassVar[bool] = False  # a step differs from the next by its place in the trajectory

    beta: float = 0.9
    length: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        check_field(self, self.name, "beta", "0 <= beta <= 1", lambda v: 0 <= v <= 1)
        check_integer(self.name, "length", self.length, 1)

    @override
    def start(self, position: Tensor) -> Memory:
        one = torch.zeros_like(position[..., :1])
        return torch.zeros_like(position), position.clone(), one, one.clone(), one.clone()

    @override
    def explores(self, step: int) -> bool:
        begun = step - step % (self.length + 1)
        return step - begun < self.length or self.step_size.explores(begun)

    @override
    def inputs(self, step: int, *, seen: int | None = None, step_size: float | None = None) -> StepInputs:
        begun = step - step % (self.length + 1)  # step size and temperature are those of a trajectory's first step
        value = self._value("step_size", begun) if step_size is None else step_size
        is_exploring = step_size is None and self.step_size.explores(begun)
        return StepInputs(value, 0.0 if is_exploring else self.temperature, started=float(step > 0))

    @override
    def update(
        self, position: Tensor, evaluation: Evaluation, noise: Tensor, memory: Memory, inputs: StepInputs
    ) -> tuple[Tensor, Memory]:
        velocity, start, start_energy, work, place = memory
        energy, gradient, (η,) = evaluation.energy[..., None].to(position.dtype), evaluation.gradient, noise
        τ, β = inputs.temperature, self.beta
        stride = (2 * inputs.step_size / (1 + β)) ** 0.5
        is_first, is_last = place == 0, place == self.length

        velocity = torch.where(is_first, τ**0.5 * η, velocity)
        start, start_energy = torch.where(is_first, position, start), torch.where(is_first, energy, start_energy)
        at_end, between = velocity - 0.5 * stride * gradient, β * velocity - 0.5 * stride * (1 + β) * gradient
        kicked = torch.where(is_first | is_last, at_end, between + (τ * (1 - β * β)) ** 0.5 * η)
        share = torch.where(is_first | is_last, 0.5, 1.0)
        work = torch.where(is_first, 0.0, work) + 0.5 * stride * share * (gradient * (velocity + kicked)).sum(-1, keepdim=True)

        # An end whose energy is not finite is never taken. The last place moves no more: its noise is free for the test.
        is_taken = self._is_taken(start_energy - energy + work, τ, η[..., :1])
        ended = torch.where(is_taken, position, start)
        moved = torch.where(is_last, ended, position + stride * kicked)
        return moved, (kicked, start, start_energy, work, torch.where(is_last, 0.0, place + 1).to(position.dtype))

    def _is_taken(self, gain: Tensor, temperature: Number, normal: Tensor) -> Tensor:
        """Say where the end of a trajectory is taken: with probability exp(gain / τ)."""
        return temperature * torch.special.log_ndtr(normal) <= gain

    @override
    def noise_scale(self, inputs: StepInputs) -> Number:
        return (2 * inputs.step_size * inputs.temperature / (1 + self.beta)) ** 0.5

    @property
    @override
    def description(self) -> str:
        tau = self.temperature
        return "\n".join(
            [
                f"{self.name}: dθ = v dt,  dv = -(grad U + C v) dt + sqrt(2 C * {tau:g}) dW",
                f"  time step h = sqrt(2 ε / (1 + β)), friction C = 2 (1 - {self.beta:g}) / ((1 + {self.beta:g}) h)",
                f"  trajectories of {self.length} moves, fresh velocities, Metropolis tests: a draw in {self.length + 1} steps",
                f"  step size ε = {self.step_size}; beta {self.beta:g}",
                f"  target: exp(-U / {tau:g})",
                f"  law: the target, effective temperature {tau:g}, exactly, whatever the step, under independent noise of the",
                "    gradient of any size and kind; the energies must be exact; noise and large steps cost acceptance",
            ]
        )
