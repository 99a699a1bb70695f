"""What samplers around another sampler share: all that they do not change is asked of it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Self

from torch import Tensor
from typing_extensions import override

from langevin.checks import needs
from langevin.drifts import Memory, Number
from langevin.gradient_noise import GradientNoise, is_open
from langevin.kernels.base import Kernel, StepInputs
from langevin.schedules import AUTO, Schedule

__all__ = ["Around"]


@dataclass(frozen=True)
class Around(Kernel):
    """A sampler around `inner`.

    Args:
        inner: the sampler.
    """

    inner: Kernel = field(kw_only=True)

    def _check_heatable(self) -> None:
        """Fail when `inner` cannot run at several temperatures that are set from outside."""
        inner = self.inner
        if not isinstance(inner, Kernel):
            raise needs(self.name, "kernel", "a sampler such as sgld(step_size=...)", inner, TypeError)
        if inner.group_size > 1 or inner.differs_by_chain or inner.takes_chances or inner.temperature == 0:
            raise needs(self.name, "kernel", "chains that do not meet, with one setting for all, at a temperature > 0", inner.name)
        if inner.step_size == AUTO or inner.has_open_bias or is_open(inner.gradient_noise):
            raise needs(self.name, "kernel", "numbers: what sample() finds, it finds at one temperature", f"{inner.name}, auto")
        noise = inner.gradient_noise
        if noise is not None and not noise.is_elementwise:
            raise needs(self.name, "kernel", "an absorbed noise that is elementwise", type(noise).__name__)
        if inner.memory and type(inner).at_temperature is Kernel.at_temperature:
            what = "one that says what another temperature makes of its memory (Kernel.at_temperature)"
            raise needs(self.name, "kernel", what, f"{inner.name}, which remembers {', '.join(inner.memory)}")

    def _chances(self, inputs: StepInputs) -> Tensor:
        """Return the uniform number of each chain, (chains, 1), or fail where a step by hand has none."""
        if not isinstance(inputs.chance, Tensor):
            raise needs(self.name, "inputs", "a chance for each chain, as langevin.sample draws them", inputs.chance)
        return inputs.chance

    @property
    @override
    def memory(self) -> tuple[str, ...]:
        return self.inner.memory

    @property
    @override
    def num_noises(self) -> int:
        return self.inner.num_noises

    @property
    @override
    def noise_kind(self) -> str:
        return self.inner.noise_kind

    @property
    @override
    def is_elementwise(self) -> bool:
        return False

    @property
    @override
    def sees_position(self) -> bool:
        return True

    @property
    @override
    def differs_by_chain(self) -> bool:
        return self.inner.differs_by_chain

    @property
    @override
    def constants(self) -> dict[str, Tensor]:
        return self.inner.constants

    @property
    @override
    def needs_energy(self) -> bool:
        return self.inner.needs_energy

    @override
    def inputs(self, step: int, *, seen: int | None = None, step_size: float | None = None) -> StepInputs:
        return self.inner.inputs(step, seen=seen, step_size=step_size)

    @property
    @override
    def is_steady(self) -> bool:
        return self.inner.is_steady

    @override
    def explores(self, step: int) -> bool:
        return self.inner.explores(step)

    @override
    def start(self, position: Tensor) -> Memory:
        return self.inner.start(position)

    @override
    def for_run(self, warmup: int, position: Tensor) -> Kernel:
        return dataclasses.replace(self, inner=self.inner.for_run(warmup, position))

    @override
    def with_step_size(self, step_size: float | Schedule) -> Self:
        inner = self.inner.with_step_size(step_size)
        return dataclasses.replace(self, step_size=inner.step_size, inner=inner)

    @property
    @override
    def has_open_bias(self) -> bool:
        return self.inner.has_open_bias

    @override
    def with_bias_factor(self, factor: float) -> Self:
        return dataclasses.replace(self, inner=self.inner.with_bias_factor(factor))

    @property
    @override
    def gradient_noise(self) -> GradientNoise | None:
        return self.inner.gradient_noise

    @override
    def with_gradient_noise(self, noise: GradientNoise | None) -> Self:
        return dataclasses.replace(self, inner=self.inner.with_gradient_noise(noise))

    @override
    def noise_scale(self, inputs: StepInputs) -> Number:
        return self.inner.noise_scale(inputs)

    @property
    @override
    def target_temperature(self) -> float | None:
        return self.inner.target_temperature

    @property
    @override
    def effective_temperature(self) -> float | None:
        return self.inner.effective_temperature
