"""Replica exchange: chains at several temperatures that swap states."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from langevin.checks import check_integer, check_number, needs
from langevin.kernels.base import Kernel, StepInputs, Traits
from langevin.kernels.parts import Tensors
from langevin.kernels.wrapper import Wrapper
from langevin.targets import Evaluation

__all__ = ["replica_exchange"]

_REMEMBERED = 2000.0  # steps over which the noise of the energy is averaged


_NOISE_NAMES = ("energy_variance", "last_energy", "last_position", "last_gradient")


@dataclass(frozen=True)
class Replica(Wrapper):
    """Groups of K chains at temperatures ``τ_1 < ... < τ_K``, τ times the `ladder`.

    `replica_exchange` builds one.

    Chain k of a group has always temperature τ_k. Every `swap_every` steps neighbours j, k = j + 1
    swap positions with probability

        ``min(1, exp(δ (U_j - U_k) - δ^2 (s_j^2 + s_k^2) / 2))``,    ``δ = 1 / τ_j - 1 / τ_k``,

    pairs that begin with an even and with an odd j in turn, and then all chains take a step of
    `inner`. The whole state is swapped: velocities in proportion to the root of the temperature
    (`TemperatureChange`). So a swap exchanges two temperatures, and the product of the
    distributions
    ``exp(-U / τ_k)`` is invariant as far as it is under `inner`.

    s_k^2 is the variance of an energy that is estimated. For Gaussian noise of that variance the
    average of the probability above is ``Φ(x - w) + exp(Δ) Φ(-x - w)`` with ``Δ = δ (U_j - U_k)``,
    ``v = δ^2 (s_j^2 + s_k^2)``, ``x = Δ / sqrt(v)``, ``w = sqrt(v) / 2``: its ratio to that of the
    way back is exp(Δ), as detailed balance asks, for any v (the penalty method of Ceperley and
    Dewing 1999). Without the correction swaps are too many, and the cold chains too hot.

    Args:
        ladder: temperatures as multiples of that of `inner`, rising from 1.
        swap_every: steps from one round of swaps to the next.
        energy_noise: s, the standard deviation of an energy estimate; None for exact energies;
            "auto" follows s_k^2 of each temperature: half the mean square of
            ``U' - U - (θ' - θ) . (g + g') / 2`` of consecutive estimates, which is zero on
            quadratic energies without noise. It takes two more vectors per chain and no evaluation.
    """

    is_steady: ClassVar[bool] = False

    ladder: tuple[float, ...] = field(kw_only=True)
    swap_every: int = field(kw_only=True, default=10)
    energy_noise: float | str | None = field(kw_only=True, default=None)

    def __post_init__(self) -> None:
        self._check_heatable()
        super().__post_init__()
        ladder = self.ladder
        try:
            ladder = tuple(
                check_number(self.name, "temperatures", each, "numbers") for each in ladder
            )
        except TypeError:
            ladder = ()
        if len(ladder) < 2 or ladder[0] != 1 or any(high <= low for low, high in pairwise(ladder)):
            raise needs(
                self.name, "temperatures", "two or more numbers that rise from 1", self.ladder
            )
        object.__setattr__(self, "ladder", ladder)
        check_integer(self.name, "swap_every", self.swap_every, 1)
        if isinstance(self.energy_noise, str):
            if self.energy_noise != "auto":
                raise needs(
                    self.name, "energy_noise", 'None, a number >= 0 or "auto"', self.energy_noise
                )
        elif self.energy_noise is not None:
            number = check_number(
                self.name, "energy_noise", self.energy_noise, ">= 0", lambda v: v >= 0
            )
            object.__setattr__(self, "energy_noise", number)

    @property
    @override
    def state_names(self) -> tuple[str, ...]:
        return self.inner.state_names + (_NOISE_NAMES if self._follows else ())

    @property
    def _follows(self) -> bool:
        """Whether the noise of the energy is estimated during the run."""
        return self.energy_noise == "auto"

    @cached_property
    @override
    def traits(self) -> Traits:
        return dataclasses.replace(
            super().traits,
            needs_energy=True,
            needs_exact_energy=self.energy_noise is None,
            needs_uniform=True,
            group_size=len(self.ladder),
            temperatures=tuple(self.temperature * each for each in self.ladder),
        )

    @override
    def refined(self, inputs: StepInputs, step: int, seen: int) -> StepInputs:
        if self._follows:
            inputs = inputs._replace(seen=float(seen))
        if (step + 1) % self.swap_every or self.explores(step):
            return inputs
        return inputs._replace(
            phase=float(step // self.swap_every % 2 if len(self.ladder) > 2 else 0)
        )

    @override
    def start(self, position: Tensor) -> Tensors:
        if not self._follows:
            return super().start(position)
        zero = torch.zeros_like(position)
        return (
            *super().start(position),
            zero[:, :1].clone(),
            zero[:, :1].clone(),
            zero.clone(),
            zero.clone(),
        )

    @override
    def update(
        self,
        position: Tensor,
        evaluation: Evaluation,
        noise: Tensor,
        state: Tensors,
        inputs: StepInputs,
    ) -> tuple[Tensor, Tensors]:
        split = len(self.inner.state_names)
        state, known = state[:split], state[split:]
        size = len(self.ladder)
        rows = torch.arange(len(position), device=position.device)
        slots = rows % size
        taus = position.new_tensor(self.ladder)[slots][:, None]
        variance = (
            known[0]
            if known
            else torch.full_like(
                taus, 0.0 if self.energy_noise is None else float(self.energy_noise) ** 2
            )
        )

        source = self._sources(
            rows, slots, evaluation.energy[:, None], inputs.temperature * taus, variance, inputs
        )
        place, energy, gradient = (
            position[source],
            evaluation.energy[source],
            evaluation.gradient[source],
        )
        ratio = (taus / taus[source]) ** 0.5
        state = self._rescale_inner(
            tuple(tensor[source] for tensor in state), gradient, ratio, inputs
        )
        heated = inputs._replace(temperature=inputs.temperature * taus)
        moved, state = self.inner.update(place, Evaluation(energy, gradient), noise, state, heated)
        if not known:
            return moved, state
        # The swap did not know the noise of the present energy: it enters the average now.
        return moved, (
            *state,
            self._follow(known, position, evaluation, inputs),
            energy[:, None],
            place,
            gradient,
        )

    def _sources(
        self,
        rows: Tensor,
        slots: Tensor,
        energy: Tensor,
        taus: Tensor,
        variance: Tensor,
        inputs: StepInputs,
    ) -> Tensor:
        """Return which chain moves to each row, (chains,)."""
        now = torch.as_tensor(inputs.phase, device=rows.device)
        step = torch.where((slots + now) % 2 == 0, 1, -1)
        swaps = (slots + step >= 0) & (slots + step < len(self.ladder)) & (now >= 0)
        other = torch.where(swaps, rows + step, rows)
        gap = 1 / taus - 1 / taus[other]
        gain = gap * (energy - energy[other]) - 0.5 * gap * gap * (variance + variance[other])
        # The uniform number of the colder chain decides for both.
        chance = self._uniforms(inputs)[torch.minimum(rows, other)]
        return torch.where((chance.log() < gain)[:, 0], other, rows)

    @staticmethod
    def _follow(
        known: Tensors, position: Tensor, evaluation: Evaluation, inputs: StepInputs
    ) -> Tensor:
        """Return the energy variance of each temperature, updated with the present estimate."""
        variance, last_energy, last_position, last_gradient = known
        work = ((position - last_position) * (evaluation.gradient + last_gradient)).sum(
            -1, keepdim=True
        ) / 2
        residual = evaluation.energy[:, None] - last_energy - work
        share = inputs.started / torch.as_tensor(
            inputs.seen, dtype=position.dtype, device=position.device
        ).clamp(1.0, _REMEMBERED)
        return variance + share * (0.5 * residual * residual - variance)

    @property
    @override
    def description(self) -> str:
        shown = ", ".join(f"{each:g}" for each in self.traits.temperatures)
        noise = {
            None: "taken as exact",
            "auto": "noisy, with a variance that is followed and corrected for",
        }.get(
            self.energy_noise,  # type: ignore[arg-type]
            f"noisy, with standard deviation {self.energy_noise}, which is corrected for",
        )
        return "\n".join(
            [
                f"{self.name}: {len(self.ladder)} chains in a group, at temperatures {shown}; "
                "neighbours may swap",
                f"  positions every {self.swap_every} steps. Energies are {noise}. Draws are "
                "those of the "
                "first chain of each group.",
                f"  Each chain is {self.inner.description}",
            ]
        )


def replica_exchange(
    kernel: Kernel,
    *,
    temperatures: Sequence[float] = (1.0, 3.0, 10.0),
    swap_every: int = 10,
    energy_noise: float | str | None = None,
) -> Replica:
    """Build replica exchange (Deng et al. 2020) around any sampler.

    ``θ_j, θ_k`` are swapped with probability
    ``min(1, exp(δ (U_j - U_k) - δ^2 (s_j^2 + s_k^2) / 2))``, δ = 1 / τ_j - 1 / τ_k

    Hot chains cross between modes, and cold chains receive their positions, with the weights of
    the posterior. Consecutive chains, as many as there are temperatures, form a group: `init` has a
    row for each. `samples` has the chains at the target's temperature only; `samples.replicas` has
    all, and the trust check "swaps" has the rate at which neighbours swap.

    Args:
        kernel: the sampler of each chain, such as ``sgld(0.01)`` or
            ``msgld(0.01, invariant=True)``, at the target's temperature.
        temperatures: multiples of it, rising from 1: the last high enough to cross, neighbours so
            near that they swap. In d dimensions near a mode neighbours swap with a ratio of up to
            about ``1 + 3 / sqrt(d)``.
        swap_every: steps from one round of swaps to the next.
        energy_noise: s, the standard deviation of one energy estimate; "auto" follows it, for
            minibatches; None for exact energies. Swaps become rare where ``δ s`` is above about 2.

    Differs from: Deng et al. divide the correction by a factor F, which makes swaps more frequent
    and the distribution wrong: a smaller number as `energy_noise` does that. They estimate the
    noise from further evaluations; "auto" takes the steps' own. Exact for Gaussian noise of known
    variance that is independent of the gradient's; that of minibatches is correlated with it, which
    biases one step in `swap_every`.

    Example:
        >>> import langevin as lv
        >>> kernel = replica_exchange(lv.sgld(0.01), temperatures=(1.0, 4.0), swap_every=5)
        >>> kernel.traits.group_size, kernel.traits.temperatures
        (2, (1.0, 4.0))
    """
    ladder = tuple(temperatures) if isinstance(temperatures, Sequence) else temperatures
    swaps = {"ladder": ladder, "swap_every": swap_every, "energy_noise": energy_noise}
    return Replica.around("replica_exchange", kernel, **swaps)
