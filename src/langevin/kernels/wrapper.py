"""Base of samplers around another sampler: all that they do not change is delegated."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self

from torch import Tensor
from typing_extensions import override

from langevin.checks import needs
from langevin.kernels.base import Kernel, StepInputs, TemperatureChange, Traits
from langevin.kernels.gradient_noise import GradientNoise, is_open
from langevin.kernels.parts import Number, Tensors
from langevin.kernels.schedules import AUTO, Schedule

__all__ = ["Wrapper"]


@dataclass(frozen=True)
class Wrapper(Kernel):
    """A sampler around `inner`.

    Args:
        inner: the sampler.
    """

    inner: Kernel = field(kw_only=True)

    @classmethod
    def around(cls, name: str, inner: Kernel, **settings: Any) -> Self:
        """Put a sampler into another one of a name."""
        if not isinstance(inner, Kernel):
            what = "a sampler such as sgld(step_size=...)"
            raise needs(name, "kernel", what, inner, TypeError)
        return cls(name, inner.step_size, inner.temperature, inner=inner, **settings)

    def _check_heatable(self) -> None:
        """Fail when `inner` cannot run at several temperatures that are set from outside."""
        inner = self.inner
        if (
            inner.traits.group_size > 1
            or inner.traits.differs_by_chain
            or inner.traits.needs_uniform
            or inner.temperature == 0
        ):
            raise needs(
                self.name,
                "kernel",
                "chains that do not interact, with one setting for all, at a temperature > 0",
                inner.name,
            )
        if inner.step_size == AUTO or inner.has_open_bias or is_open(inner.gradient_noise):
            raise needs(
                self.name,
                "kernel",
                "numbers: what sample() finds, it finds at one temperature",
                f"{inner.name}, auto",
            )
        noise = inner.gradient_noise
        if noise is not None and not noise.is_elementwise:
            raise needs(
                self.name, "kernel", "a gradient noise that is elementwise", type(noise).__name__
            )
        if inner.state_names and not isinstance(inner, TemperatureChange):
            what = "one whose state can change its temperature (`rescale_state`)"
            raise needs(
                self.name,
                "kernel",
                what,
                f"{inner.name}, with state {', '.join(inner.state_names)}",
            )

    def _rescale_inner(
        self, state: Tensors, gradient: Tensor, ratio: Number, inputs: StepInputs
    ) -> Tensors:
        """Return the state of `inner` for a temperature multiplied by ratio**2."""
        if not isinstance(self.inner, TemperatureChange):
            return state  # empty, see `_check_heatable`
        return self.inner.rescale_state(state, gradient, ratio, inputs)

    def _uniforms(self, inputs: StepInputs) -> Tensor:
        """Return the uniform number of each chain, (chains, 1); fails for a step without."""
        if not isinstance(inputs.uniform, Tensor):
            raise needs(
                self.name,
                "inputs",
                "a chance for each chain, as langevin.sample draws them",
                inputs.uniform,
            )
        return inputs.uniform

    @property
    @override
    def state_names(self) -> tuple[str, ...]:
        return self.inner.state_names

    @cached_property
    @override
    def traits(self) -> Traits:
        return dataclasses.replace(self.inner.traits, elementwise=False, reads_position=True)

    @property
    @override
    def constants(self) -> dict[str, Tensor]:
        return self.inner.constants

    @override
    def inputs(
        self, step: int, *, seen: int | None = None, step_size: float | None = None
    ) -> StepInputs:
        inputs = self.inner.inputs(step, seen=seen, step_size=step_size)
        return self.refined(inputs, step, step if seen is None else seen)

    @cached_property
    @override
    def is_steady(self) -> bool:
        return self.inner.is_steady

    @override
    def explores(self, step: int) -> bool:
        return self.inner.explores(step)

    @override
    def start(self, position: Tensor) -> Tensors:
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
