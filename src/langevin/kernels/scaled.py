"""Any sampler in the scale of its target: the one place where a learnt metric G enters."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

import torch
from torch import Tensor
from typing_extensions import override

from langevin.checks import needs
from langevin.drifts import Memory, Number
from langevin.gradient_noise import GradientNoise
from langevin.kernels.base import Kernel, StepInputs
from langevin.scales import Scale
from langevin.schedules import Schedule
from langevin.targets import Evaluation

__all__ = ["Scaled"]


@dataclass(frozen=True)
class Scaled(Kernel):
    """A sampler that runs in ``y = R^-1 θ``; use `Scaled.of` to build one.

    With ``U(R y)`` as its energy the sampler sees the gradient ``R^T g`` and moves y; θ moves by R times that. So SGLD becomes
    ``θ' = θ - ε R R^T g + sqrt(2 ε τ) R η``, and R R^T is the inverse mass matrix of those with a velocity. R is a constant: the
    law of y, hence that of θ, is as right or wrong as that of the sampler itself.

    Args:
        inner: the sampler; its formula must not look at the position itself (`Kernel.sees_position`).
        scale: R.
    """

    inner: Kernel = field(kw_only=True)
    scale: Scale = field(kw_only=True)

    @classmethod
    def of(cls, inner: Kernel, scale: Scale) -> Scaled:
        """Put a sampler into a scale."""
        cls.check(inner)
        return cls(inner.name, inner.step_size, inner.temperature, inner=inner, scale=scale)

    @staticmethod
    def check(inner: Kernel) -> None:
        """Fail when a sampler's formula looks at positions or at other chains."""
        if inner.sees_position or inner.group_size > 1:
            raise needs("sample", "scale", f"None for {inner.name}, whose formula looks at positions or at other chains", "a scale")

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
        return self.inner.is_elementwise and self.scale.is_elementwise

    @property
    @override
    def differs_by_chain(self) -> bool:
        return self.inner.differs_by_chain

    @property
    @override
    def constants(self) -> dict[str, Tensor]:
        return {f"scale_{index}": tensor for index, tensor in enumerate(self.scale.tensors)} | self.inner.constants

    @property
    @override
    def needs_energy(self) -> bool:
        return self.inner.needs_energy

    @property
    @override
    def formula(self) -> Callable[..., tuple[Tensor, Memory]]:
        bare, scale = self.inner.formula, self.scale  # one object: the compiler refuses to see its tensors twice

        def update(
            position: Tensor, evaluation: Evaluation, noise: Tensor, memory: Memory, inputs: StepInputs
        ) -> tuple[Tensor, Memory]:
            known = Evaluation(evaluation.energy, scale.pull(evaluation.gradient))
            moved, memory = bare(torch.zeros_like(position), known, noise, memory, inputs)
            return position + scale.push(moved), memory

        return update

    @override
    def update(
        self, position: Tensor, evaluation: Evaluation, noise: Tensor, memory: Memory, inputs: StepInputs
    ) -> tuple[Tensor, Memory]:
        return self.formula(position, evaluation, noise, memory, inputs)

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

    @property
    @override
    def description(self) -> str:
        return f"{self.inner.description}\n  in the scale y = R^-1 θ of the target: {self.scale.describe()}"
