"""Cycles of temperature whose finds are accepted or not: restarts with the weights of the posterior."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor
from typing_extensions import override

from langevin.checks import check_field, check_integer, needs
from langevin.drifts import Memory
from langevin.kernels.around import Around
from langevin.kernels.base import StepInputs
from langevin.targets import Evaluation

__all__ = ["Cycles"]

_HOT, _DECISION = 0.0, 1.0  # rounds; all other steps have none
_OWN = ("last_temperature", "log_weight", "kept_log_weight", "kept_position")


@dataclass(frozen=True)
class Cycles(Around):
    """A cycle heats a chain, cools it slowly, decides whether to take what it found, and samples; see `cyclical_annealing`.

    While it cools from τ_1 to τ_2 < τ_1 in a step at θ, the cycle's weight grows by ``log w += (1 / τ_1 - 1 / τ_2) U(θ)``: annealed
    importance sampling (Neal 2001), for which ``E[w f(θ)] / E[w]`` is the mean of f under the target, however fast it cools. At the
    end the chain takes the new place with probability ``min(1, w / w_kept)`` and else goes back to the place that it took last,
    with its weight. That is a Metropolis chain whose proposals are independent (Andrieu, Doucet and Holenstein 2010, with one
    particle): places have the law ``exp(-U / τ)`` as far as the hot phase forgets where it began. Then the cold phase samples from
    there, and only its draws are kept.

    White noise of an energy estimate, of variance s^2, multiplies every weight by the same
    ``exp(s^2 sum (1 / τ_1 - 1 / τ_2)^2 / 2)`` on average, which drops out: it need not be known. It makes log weights differ by a
    variance of s^2 times that sum, which is small where cooling takes many steps.

    Args:
        cycle_length: steps in a cycle.
        hottest: temperature of the hot phase, as a multiple of that of `inner`.
        hot: share of a cycle that is hot.
        cold: share of a cycle that samples. In between it cools, by the same factor at every step.
    """

    cycle_length: int = field(kw_only=True)
    hottest: float = field(kw_only=True, default=10.0)
    hot: float = field(kw_only=True, default=0.2)
    cold: float = field(kw_only=True, default=0.4)

    def __post_init__(self) -> None:
        self._check_heatable()
        super().__post_init__()
        check_field(self, self.name, "hottest", "> 1", lambda v: v > 1)
        check_field(self, self.name, "hot", "0 < hot < 1", lambda v: 0 < v < 1)
        check_field(self, self.name, "cold", "0 < cold < 1 - hot", lambda v: 0 < v < 1 - self.hot)
        check_integer(self.name, "cycle_length", self.cycle_length, 4)
        if self._hot_steps < 1 or self._cooling_steps < 1 or self._decision >= self.cycle_length - 1:
            raise needs(self.name, "cycle_length", "so many steps that each phase has one", self.cycle_length)

    @property
    def _hot_steps(self) -> int:
        return int(self.hot * self.cycle_length)

    @property
    def _cooling_steps(self) -> int:
        return int((1 - self.cold) * self.cycle_length) - self._hot_steps

    @property
    def _decision(self) -> int:
        """Place in the cycle of the step that decides; sampling begins after it."""
        return self._hot_steps + self._cooling_steps

    @property
    @override
    def memory(self) -> tuple[str, ...]:
        return (*self.inner.memory, *_OWN, *(f"kept_{name}" for name in self.inner.memory))

    @property
    @override
    def needs_energy(self) -> bool:
        return True

    @property
    @override
    def takes_chances(self) -> bool:
        return True

    @property
    @override
    def is_steady(self) -> bool:
        return False

    @override
    def explores(self, step: int) -> bool:
        return step % self.cycle_length <= self._decision or self.inner.explores(step)

    def _warmth(self, place: int) -> float:
        """Return the temperature at a place of the cycle, as a multiple of that of `inner`."""
        cooled = (place - self._hot_steps + 1) / (self._cooling_steps + 1)  # 1 at the decision
        return self.hottest ** (1 - min(1.0, max(0.0, cooled)))

    @override
    def inputs(self, step: int, *, seen: int | None = None, step_size: float | None = None) -> StepInputs:
        inputs, place = super().inputs(step, seen=seen, step_size=step_size), step % self.cycle_length
        inputs = inputs._replace(temperature=inputs.temperature * self._warmth(place))
        if place < self._hot_steps:
            return inputs._replace(round=_HOT)
        return inputs._replace(round=_DECISION) if place == self._decision else inputs

    @override
    def start(self, position: Tensor) -> Memory:
        inner, one = super().start(position), torch.ones_like(position[:, :1])
        own = (self.hottest * self.temperature * one, 0 * one, -torch.inf * one, position.clone())
        return *inner, *own, *(tensor.clone() for tensor in inner)

    @override
    def update(
        self, position: Tensor, evaluation: Evaluation, noise: Tensor, memory: Memory, inputs: StepInputs
    ) -> tuple[Tensor, Memory]:
        split, end = len(self.inner.memory), len(self.inner.memory) + len(_OWN)
        own, (last, log_weight, kept_weight, kept), kept_own = memory[:split], memory[split:end], memory[end:]
        now = torch.as_tensor(inputs.round, device=position.device)
        is_hot, decides = now == _HOT, now == _DECISION

        log_weight = torch.where(is_hot, 0.0, log_weight + (1 / last - 1 / inputs.temperature) * evaluation.energy[:, None])
        own = self.inner.at_temperature(own, evaluation.gradient, (inputs.temperature / last) ** 0.5, inputs)
        moved, after = self.inner.update(position, evaluation, noise, own, inputs)

        # The step that decides moves nothing: the gradient of the place that was kept is not known.
        takes = self._chances(inputs).log() < log_weight - kept_weight
        moved = torch.where(decides, torch.where(takes, position, kept), moved)
        places = tuple(torch.where(takes, new, old) for new, old in zip(own, kept_own, strict=True))
        after = tuple(torch.where(decides, there, then) for there, then in zip(places, after, strict=True))
        newly = decides & takes
        kept, kept_weight = torch.where(newly, position, kept), torch.where(newly, log_weight, kept_weight)
        kept_own = tuple(torch.where(newly, new, old) for new, old in zip(own, kept_own, strict=True))
        return moved, (*after, 0 * last + inputs.temperature, log_weight, kept_weight, kept, *kept_own)

    @property
    @override
    def description(self) -> str:
        hot, cooling, cold = self._hot_steps, self._cooling_steps, self.cycle_length - self._decision - 1
        return "\n".join(
            [
                f"{self.name}: cycles of {self.cycle_length} steps: {hot} at {self.hottest:g} times τ, {cooling} that cool,",
                f"  one that takes the new place or goes back (annealed importance weights), {cold} whose draws are kept",
                f"  Each step is {self.inner.description}",
            ]
        )
