"""AMAGOLD: SGHMC trajectories with a Metropolis test (Zhang, Cooper and De Sa 2020)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from typing_extensions import override

from langevin.checks import check_field, check_integer
from langevin.kernels.base import Kernel, StepInputs, Traits
from langevin.kernels.compose import StepSize, make
from langevin.kernels.parts import Number, Tensors
from langevin.targets import Evaluation

__all__ = ["amagold"]


class AmagoldState(NamedTuple):
    """State of `Amagold`."""

    velocity: Tensor
    start: Tensor  # position at the start of the trajectory
    start_energy: Tensor
    work: Tensor  # ρ so far
    place: Tensor  # moves since the start


@dataclass(frozen=True)
class Amagold(Kernel):
    """A trajectory of `length` moves, then one Metropolis test (Algorithm 1 of AMAGOLD).

    With ``h^2 = 2 ε / (1 + β)`` and v a fresh N(0, τ), a trajectory is half a kick, moves with
    kicks between them, half a kick:

        ``v' = v - (h / 2) g``                                    at its first and its last position
        ``v' = β v - (h / 2) (1 + β) g + sqrt(τ (1 - β^2)) η``    at those between
        ``θ' = θ + h v'``                                         from every position but the last

    and its end is taken with probability ``exp((U(start) - U(end) + ρ) / τ)``, else its start,
    where ``ρ = sum of c h g (v + v') / 2`` with c = 1/2 at both ends and 1 between.

    Why that is exact: let a kick have the gradient's own noise in g. Run backwards, from -v' to -v
    with the same g, it needs another η, and the densities of the two have the ratio
    ``exp(-(v'^2 - v^2) / 2τ - c h g (v + v') / 2τ)``, whatever β. The moves keep volumes. So in the
    ratio of Metropolis the kinetic energies cancel and U and ρ are left; g may be any gradient at
    that position, right or wrong, as long as a trajectory run backwards sees the gradients in the
    opposite order as often: independent noise, minibatches with replacement. The energies must be
    exact.

    Here kicks are at the ends, where the published trajectory has half moves: a step of this
    library has one gradient, at the current position, and the energies are needed at the ends.
    So a draw costs length + 1 gradients, all of them used; steps inside a trajectory are no draws,
    and `sample` keeps none. Without friction and noise (β = 1) it is HMC.

    Args:
        beta: β, the share of the velocity that a kick keeps, in [0, 1].
        length: moves of a trajectory.
    """

    state_names: ClassVar[tuple[str, ...]] = AmagoldState._fields
    traits: ClassVar[Traits] = Traits(
        elementwise=False,
        reads_position=True,
        needs_energy=True,
        needs_full_energy=True,
    )
    is_steady: ClassVar[bool] = False

    beta: float = 0.9
    length: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        check_field(self, self.name, "beta", "0 <= beta <= 1", lambda v: 0 <= v <= 1)
        check_integer(self.name, "length", self.length, 1)

    @override
    def start(self, position: Tensor) -> Tensors:
        one = torch.zeros_like(position[..., :1])
        velocity, start = torch.zeros_like(position), position.clone()
        return AmagoldState(velocity, start, one, one.clone(), one.clone())

    @override
    def explores(self, step: int) -> bool:
        begun = step - step % (self.length + 1)
        return step - begun < self.length or self.step_size.explores(begun)

    @override
    def inputs(
        self, step: int, *, seen: int | None = None, step_size: float | None = None
    ) -> StepInputs:
        begun = step - step % (
            self.length + 1
        )  # step size and temperature are those of a trajectory's first step
        value = self._value("step_size", begun) if step_size is None else step_size
        is_exploring = step_size is None and self.step_size.explores(begun)
        return StepInputs(value, 0.0 if is_exploring else self.temperature, started=float(step > 0))

    @override
    def update(
        self,
        position: Tensor,
        evaluation: Evaluation,
        noise: Tensor,
        state: Tensors,
        inputs: StepInputs,
    ) -> tuple[Tensor, Tensors]:
        velocity, start, start_energy, work, place = state
        energy, gradient, (η,) = (
            evaluation.energy[..., None].to(position.dtype),
            evaluation.gradient,
            noise,
        )
        τ, β = inputs.temperature, self.beta
        stride = (2 * inputs.step_size / (1 + β)) ** 0.5
        is_first, is_last = place == 0, place == self.length

        velocity = torch.where(is_first, τ**0.5 * η, velocity)
        start, start_energy = (
            torch.where(is_first, position, start),
            torch.where(is_first, energy, start_energy),
        )
        at_end, between = (
            velocity - 0.5 * stride * gradient,
            β * velocity - 0.5 * stride * (1 + β) * gradient,
        )
        kicked = torch.where(is_first | is_last, at_end, between + (τ * (1 - β * β)) ** 0.5 * η)
        share = torch.where(is_first | is_last, 0.5, 1.0)
        work = torch.where(is_first, 0.0, work) + 0.5 * stride * share * (
            gradient * (velocity + kicked)
        ).sum(-1, keepdim=True)

        # An end whose energy is not finite is never accepted. The last position does not move, so
        # its noise is free for the test.
        is_taken = self._is_taken(start_energy - energy + work, τ, η[..., :1])
        ended = torch.where(is_taken, position, start)
        moved = torch.where(is_last, ended, position + stride * kicked)
        place = torch.where(is_last, 0.0, place + 1).to(position.dtype)
        return moved, AmagoldState(kicked, start, start_energy, work, place)

    def _is_taken(self, gain: Tensor, temperature: Number, normal: Tensor) -> Tensor:
        """Return where the end of a trajectory is accepted: with probability exp(gain / τ)."""
        return temperature * torch.special.log_ndtr(normal) <= gain

    @override
    def noise_scale(self, inputs: StepInputs) -> Number:
        return (2 * inputs.step_size * inputs.temperature / (1 + self.beta)) ** 0.5

    @property
    @override
    def description(self) -> str:
        tau = self.temperature
        return self.described(
            f"dθ = v dt,  dv = -(grad U + C v) dt + sqrt(2 C * {tau:g}) dW",
            f"time step h = sqrt(2 ε / (1 + β)), friction C = 2 (1 - {self.beta:g}) / ((1 "
            f"+ {self.beta:g}) h)",
            f"trajectories of {self.length} moves, fresh velocities, Metropolis tests: a "
            f"draw in {self.length + 1} steps",
            settings=f"beta {self.beta:g}",
            law=[
                f"the target, effective temperature {tau:g}, exactly, whatever the step, "
                "under independent noise of the",
                "gradient of any size and kind; the energies must be exact; noise and large "
                "steps cost acceptance",
            ],
        )


def amagold(
    step_size: StepSize, *, beta: float = 0.9, length: int = 10, temperature: float = 1.0
) -> Amagold:
    """Build AMAGOLD: SGHMC with a Metropolis test after every trajectory.

    Zhang, Cooper and De Sa (2020), Algorithm 1.

    ``v' = β v - (h / 2) (1 + β) g + sqrt(τ (1 - β**2)) η``, ``θ' = θ + h v'``,
    ``h**2 = 2 ε / (1 + β)``, with half kicks at the ends of a trajectory, whose end is taken with
    probability ``exp((U(start) - U(end) + ρ) / τ)``, ρ the gradients' work along it

    The exact reference for small problems: it samples the target with noisy gradients and large
    steps. Draws are kept at the ends of trajectories, one in length + 1 steps (a `thin` that is not
    a multiple of that keeps fewer); with a batch_size rows are drawn with replacement, and the
    energy of all data is evaluated at every step. `diagnostics.acceptance_rate` is the share that
    was accepted.

    Args:
        step_size: ε on U, as in `sghmc`; a number or a schedule.
        beta: β, the share of the velocity that is kept; 1 is HMC, with noisy gradients or without.
        length: moves of a trajectory.
        temperature: τ.

    Differs from: the published order has half moves at the ends of a trajectory and full kicks
    within (`kernels.Amagold` explains why both are exact); every trajectory has a fresh velocity.

    Example:
        >>> kernel = amagold(step_size=0.1, length=4)
        >>> [step for step in range(12) if not kernel.explores(step)]  # that are kept
        [4, 9]
    """
    return make(Amagold, "amagold", step_size, temperature, beta, length)
