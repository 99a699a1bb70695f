"""Cycles of temperature with a Metropolis test at the end of each."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from langevin.checks import check_field, check_integer, needs
from langevin.kernels.base import Kernel, StepInputs, Traits
from langevin.kernels.parts import Tensors
from langevin.kernels.wrapper import Wrapper
from langevin.targets import Evaluation

__all__ = ["cyclical_annealing"]

_HOT, _DECISION = 0.0, 1.0  # rounds; all other steps have none


_OWN = ("last_temperature", "log_weight", "kept_log_weight", "kept_position")


@dataclass(frozen=True)
class Cycles(Wrapper):
    """Heat a chain, cool it slowly, accept or reject the new position, then sample.

    While it cools from τ_1 to τ_2 < τ_1 in a step at θ, the cycle's weight grows by
    ``log w += (1 / τ_1 - 1 / τ_2) U(θ)``: annealed importance sampling (Neal 2001), for which
    ``E[w f(θ)] / E[w]`` is the mean of f under the target, however fast it cools. At the end the
    chain accepts the new position with probability ``min(1, w / w_kept)`` and else returns to the
    position accepted last, with its weight. That is a Metropolis chain whose proposals are
    independent (Andrieu, Doucet and Holenstein 2010, with one particle): positions have the
    density ``exp(-U / τ)`` as far as the hot phase forgets its start. Then the cold phase samples
    from there, and only its draws are kept.

    White noise of an energy estimate, of variance s^2, multiplies every weight by the same
    ``exp(s^2 sum (1 / τ_1 - 1 / τ_2)^2 / 2)`` on average, which drops out: it need not be known. It
    makes log weights differ by a variance of s^2 times that sum, which is small where cooling takes
    many steps.

    Args:
        cycle_length: steps in a cycle.
        hottest: temperature of the hot phase, as a multiple of that of `inner`.
        hot: share of a cycle that is hot.
        cold: share of a cycle that samples. In between it cools, by the same factor at every step.
    """

    is_steady: ClassVar[bool] = False

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
        if (
            self._hot_steps < 1
            or self._cooling_steps < 1
            or self._decision >= self.cycle_length - 1
        ):
            raise needs(
                self.name,
                "cycle_length",
                "so many steps that each phase has one",
                self.cycle_length,
            )

    @property
    def _hot_steps(self) -> int:
        return int(self.hot * self.cycle_length)

    @property
    def _cooling_steps(self) -> int:
        return int((1 - self.cold) * self.cycle_length) - self._hot_steps

    @property
    def _decision(self) -> int:
        """Index in the cycle of the accept/reject step; sampling begins after it."""
        return self._hot_steps + self._cooling_steps

    @property
    @override
    def state_names(self) -> tuple[str, ...]:
        return (
            *self.inner.state_names,
            *_OWN,
            *(f"kept_{name}" for name in self.inner.state_names),
        )

    @cached_property
    @override
    def traits(self) -> Traits:
        traits = super().traits
        return dataclasses.replace(traits, needs_energy=True, needs_uniform=True)

    @override
    def explores(self, step: int) -> bool:
        return step % self.cycle_length <= self._decision or self.inner.explores(step)

    def _temperature_ratio(self, index: int) -> float:
        """Return the temperature at a step of the cycle, as a multiple of that of `inner`."""
        cooled = (index - self._hot_steps + 1) / (self._cooling_steps + 1)  # 1 at the decision
        return self.hottest ** (1 - min(1.0, max(0.0, cooled)))

    @override
    def refined(self, inputs: StepInputs, step: int, seen: int) -> StepInputs:
        index = step % self.cycle_length
        inputs = inputs._replace(temperature=inputs.temperature * self._temperature_ratio(index))
        if index < self._hot_steps:
            return inputs._replace(phase=_HOT)
        return inputs._replace(phase=_DECISION) if index == self._decision else inputs

    @override
    def start(self, position: Tensor) -> Tensors:
        inner, one = super().start(position), torch.ones_like(position[:, :1])
        own = (self.hottest * self.temperature * one, 0 * one, -torch.inf * one, position.clone())
        return *inner, *own, *(tensor.clone() for tensor in inner)

    @override
    def update(
        self,
        position: Tensor,
        evaluation: Evaluation,
        noise: Tensor,
        state: Tensors,
        inputs: StepInputs,
    ) -> tuple[Tensor, Tensors]:
        split, end = len(self.inner.state_names), len(self.inner.state_names) + len(_OWN)
        own, (last, log_weight, kept_weight, kept), kept_own = (
            state[:split],
            state[split:end],
            state[end:],
        )
        now = torch.as_tensor(inputs.phase, device=position.device)
        is_hot, decides = now == _HOT, now == _DECISION

        log_weight = torch.where(
            is_hot,
            0.0,
            log_weight + (1 / last - 1 / inputs.temperature) * evaluation.energy[:, None],
        )
        own = self._rescale_inner(
            own, evaluation.gradient, (inputs.temperature / last) ** 0.5, inputs
        )
        moved, after = self.inner.update(position, evaluation, noise, own, inputs)

        # The deciding step moves nothing: the gradient at the kept position is not known.
        takes = self._uniforms(inputs).log() < log_weight - kept_weight
        moved = torch.where(decides, torch.where(takes, position, kept), moved)
        inner_state = tuple(
            torch.where(takes, new, old) for new, old in zip(own, kept_own, strict=True)
        )
        after = tuple(
            torch.where(decides, there, then)
            for there, then in zip(inner_state, after, strict=True)
        )
        newly = decides & takes
        kept, kept_weight = (
            torch.where(newly, position, kept),
            torch.where(newly, log_weight, kept_weight),
        )
        kept_own = tuple(
            torch.where(newly, new, old) for new, old in zip(own, kept_own, strict=True)
        )
        return moved, (
            *after,
            0 * last + inputs.temperature,
            log_weight,
            kept_weight,
            kept,
            *kept_own,
        )

    @property
    @override
    def description(self) -> str:
        hot, cooling, cold = (
            self._hot_steps,
            self._cooling_steps,
            self.cycle_length - self._decision - 1,
        )
        return "\n".join(
            [
                f"{self.name}: cycles of {self.cycle_length} steps: {hot} at {self.hottest:g} "
                f"times τ, {cooling} that cool,",
                f"  one that accepts the new position or goes back (annealed importance weights),"
                f" {cold} whose draws are kept",
                f"  Each step is {self.inner.description}",
            ]
        )


def cyclical_annealing(
    kernel: Kernel, *, cycle_length: int, hottest: float = 10.0, hot: float = 0.2, cold: float = 0.4
) -> Cycles:
    """Build cyclical sampling with the weights of the posterior, around any sampler.

    ``θ' = θ_new`` with probability ``min(1, w / w_kept)``, else the last position;
    ``log w = sum (1 / τ_t - 1 / τ_t+1) U(θ_t)``

    Each cycle heats the chain, cools it slowly and then decides, by its energies on the way,
    whether to accept the mode that it found; draws are kept only after that, at the target's
    temperature and with the step size of `kernel`. A rejected cycle goes back to the last
    position, so that a good mode counts as often as it should.

    Args:
        kernel: the sampler of all steps, such as ``sgld(0.01)``, with the step size of the cold
            phase.
        cycle_length: steps in a cycle.
        hottest: temperature of the hot phase as a multiple of the kernel's: so high that a chain
            crosses between modes there.
        hot: share of a cycle at that temperature: so long that the chain forgets its start.
        cold: share of a cycle that samples, at the kernel's temperature. In between it cools:
            slowly, so that cycles are taken.

    Differs from: cyclical step sizes (Zhang et al. 2020, `schedules.cyclical`) heat by steps that
    are too large: their modes come with the weights of the restart, not with those of the
    posterior, and draws at the start of a phase are hot (docs/modes.md).

    Example:
        >>> import langevin as lv
        >>> kernel = cyclical_annealing(lv.sgld(0.01), cycle_length=1000)
        >>> [kernel.explores(step) for step in (0, 600, 601, 999)]
        [True, True, False, False]
    """
    phases = {"cycle_length": cycle_length, "hottest": hottest, "hot": hot, "cold": cold}
    return Cycles.around("cyclical_annealing", kernel, **phases)
