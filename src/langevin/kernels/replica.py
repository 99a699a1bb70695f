"""Chains at several temperatures that swap places: replica exchange, with the correction for noisy energies."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor
from typing_extensions import override

from langevin.checks import check_integer, check_number, needs
from langevin.drifts import Memory
from langevin.kernels.around import Around
from langevin.kernels.base import StepInputs
from langevin.targets import Evaluation

__all__ = ["Replica"]

_REMEMBERED = 2000.0  # steps over which the noise of the energy is averaged
_NOISE_MEMORY = ("energy_variance", "last_energy", "last_position", "last_gradient")


@dataclass(frozen=True)
class Replica(Around):
    """Groups of K chains at temperatures ``τ_1 < ... < τ_K``, τ times the `ladder`; use `replica_exchange` to build one.

    Chain k of a group has always temperature τ_k. Every `swap_every` steps neighbours j, k = j + 1 swap places with probability

        ``min(1, exp(δ (U_j - U_k) - δ^2 (s_j^2 + s_k^2) / 2))``,    ``δ = 1 / τ_j - 1 / τ_k``,

    pairs that begin with an even and with an odd j in turn, and then all chains take a step of `inner`. With a place come all
    memories: velocities in proportion to the root of the temperature (`Kernel.at_temperature`). So a swap exchanges two
    temperatures, and the product of the laws ``exp(-U / τ_k)`` is invariant as far as it is under `inner`.

    s_k^2 is the variance of an energy that is estimated. For Gaussian noise of that variance the average of the probability above
    is ``Φ(x - w) + exp(Δ) Φ(-x - w)`` with ``Δ = δ (U_j - U_k)``, ``v = δ^2 (s_j^2 + s_k^2)``, ``x = Δ / sqrt(v)``,
    ``w = sqrt(v) / 2``: its ratio to that of the way back is exp(Δ), as detailed balance asks, for any v (the penalty method of
    Ceperley and Dewing 1999). Without the correction swaps are too many, and the cold chains too hot.

    Args:
        ladder: temperatures as multiples of that of `inner`, rising from 1.
        swap_every: steps from one round of swaps to the next.
        energy_noise: s, the standard deviation of an energy estimate; None for exact energies; "auto" follows s_k^2 of each
            temperature: half the mean square of ``U' - U - (θ' - θ) . (g + g') / 2`` of consecutive estimates, which is zero on
            quadratic energies without noise. It takes two more vectors per chain and no evaluation.
    """

    ladder: tuple[float, ...] = field(kw_only=True)
    swap_every: int = field(kw_only=True, default=10)
    energy_noise: float | str | None = field(kw_only=True, default=None)

    def __post_init__(self) -> None:
        self._check_heatable()
        super().__post_init__()
        ladder = self.ladder
        try:
            ladder = tuple(check_number(self.name, "temperatures", each, "numbers") for each in ladder)
        except TypeError:
            ladder = ()
        if len(ladder) < 2 or ladder[0] != 1 or any(high <= low for low, high in pairwise(ladder)):
            raise needs(self.name, "temperatures", "two or more numbers that rise from 1", self.ladder)
        object.__setattr__(self, "ladder", ladder)
        check_integer(self.name, "swap_every", self.swap_every, 1)
        if isinstance(self.energy_noise, str):
            if self.energy_noise != "auto":
                raise needs(self.name, "energy_noise", 'None, a number >= 0 or "auto"', self.energy_noise)
        elif self.energy_noise is not None:
            number = check_number(self.name, "energy_noise", self.energy_noise, ">= 0", lambda v: v >= 0)
            object.__setattr__(self, "energy_noise", number)

    @property
    @override
    def memory(self) -> tuple[str, ...]:
        return self.inner.memory + (_NOISE_MEMORY if self._follows else ())

    @property
    def _follows(self) -> bool:
        """Whether the noise of the energy is learnt on the way."""
        return self.energy_noise == "auto"

    @property
    @override
    def needs_energy(self) -> bool:
        return True

    @property
    @override
    def needs_exact_energy(self) -> bool:
        return self.energy_noise is None

    @property
    @override
    def group_size(self) -> int:
        return len(self.ladder)

    @property
    @override
    def takes_chances(self) -> bool:
        return True

    @property
    @override
    def temperatures(self) -> tuple[float, ...]:
        return tuple(self.temperature * each for each in self.ladder)

    @property
    @override
    def is_steady(self) -> bool:
        return False

    @override
    def inputs(self, step: int, *, seen: int | None = None, step_size: float | None = None) -> StepInputs:
        inputs = super().inputs(step, seen=seen, step_size=step_size)
        if self._follows:
            inputs = inputs._replace(seen=float(step if seen is None else seen))
        if (step + 1) % self.swap_every or self.explores(step):
            return inputs
        return inputs._replace(round=float(step // self.swap_every % 2 if len(self.ladder) > 2 else 0))

    @override
    def start(self, position: Tensor) -> Memory:
        if not self._follows:
            return super().start(position)
        zero = torch.zeros_like(position)
        return *super().start(position), zero[:, :1].clone(), zero[:, :1].clone(), zero.clone(), zero.clone()

    @override
    def update(
        self, position: Tensor, evaluation: Evaluation, noise: Tensor, memory: Memory, inputs: StepInputs
    ) -> tuple[Tensor, Memory]:
        split = len(self.inner.memory)
        memory, known = memory[:split], memory[split:]
        size = len(self.ladder)
        rows = torch.arange(len(position), device=position.device)
        slots = rows % size
        taus = position.new_tensor(self.ladder)[slots][:, None]
        variance = known[0] if known else torch.full_like(taus, 0.0 if self.energy_noise is None else float(self.energy_noise) ** 2)

        source = self._sources(rows, slots, evaluation.energy[:, None], inputs.temperature * taus, variance, inputs)
        place, energy, gradient = position[source], evaluation.energy[source], evaluation.gradient[source]
        warmth = (taus / taus[source]) ** 0.5
        memory = self.inner.at_temperature(tuple(tensor[source] for tensor in memory), gradient, warmth, inputs)
        heated = inputs._replace(temperature=inputs.temperature * taus)
        moved, memory = self.inner.update(place, Evaluation(energy, gradient), noise, memory, heated)
        if not known:
            return moved, memory
        # The swap did not know the noise of the present energy: it enters the average now.
        return moved, (*memory, self._follow(known, position, evaluation, inputs), energy[:, None], place, gradient)

    def _sources(self, rows: Tensor, slots: Tensor, energy: Tensor, taus: Tensor, variance: Tensor, inputs: StepInputs) -> Tensor:
        """Return which chain comes to each place, (chains,)."""
        now = torch.as_tensor(inputs.round, device=rows.device)
        step = torch.where((slots + now) % 2 == 0, 1, -1)
        meets = (slots + step >= 0) & (slots + step < len(self.ladder)) & (now >= 0)
        other = torch.where(meets, rows + step, rows)
        gap = 1 / taus - 1 / taus[other]
        gain = gap * (energy - energy[other]) - 0.5 * gap * gap * (variance + variance[other])
        chance = self._chances(inputs)[torch.minimum(rows, other)]  # that of the colder one decides for both
        return torch.where((chance.log() < gain)[:, 0], other, rows)

    @staticmethod
    def _follow(known: Memory, position: Tensor, evaluation: Evaluation, inputs: StepInputs) -> Tensor:
        """Return the variance of the energy of each temperature, with what the present estimate says of it."""
        variance, last_energy, last_position, last_gradient = known
        work = ((position - last_position) * (evaluation.gradient + last_gradient)).sum(-1, keepdim=True) / 2
        residual = evaluation.energy[:, None] - last_energy - work
        share = inputs.started / torch.as_tensor(inputs.seen, dtype=position.dtype, device=position.device).clamp(1.0, _REMEMBERED)
        return variance + share * (0.5 * residual * residual - variance)

    @property
    @override
    def description(self) -> str:
        shown = ", ".join(f"{each:g}" for each in self.temperatures)
        noise = {None: "taken as exact", "auto": "noisy, with a variance that is followed and corrected for"}.get(
            self.energy_noise,  # type: ignore[arg-type]
            f"noisy, with standard deviation {self.energy_noise}, which is corrected for",
        )
        return "\n".join(
            [
                f"{self.name}: {self.group_size} chains in a group, at temperatures {shown}; neighbours may swap places",
                f"  every {self.swap_every} steps. Energies are {noise}. Draws are those of the first chain of each group.",
                f"  Each chain is {self.inner.description}",
            ]
        )
