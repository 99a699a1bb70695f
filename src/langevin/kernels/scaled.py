"""Any sampler in the scale of its target: the one place where a learnt metric G enters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor
from typing_extensions import override

from langevin.checks import needs
from langevin.drifts import Memory, Number
from langevin.kernels.around import Around
from langevin.kernels.base import Kernel, StepInputs
from langevin.scales import Scale
from langevin.targets import Evaluation

__all__ = ["Scaled"]


@dataclass(frozen=True)
class Scaled(Around):
    """A sampler that runs in ``y = R^-1 θ``; use `Scaled.of` to build one.

    With ``U(R y)`` as its energy the sampler sees the gradient ``R^T g`` and moves y; θ moves by R times that. So SGLD becomes
    ``θ' = θ - ε R R^T g + sqrt(2 ε τ) R η``, and R R^T is the inverse mass matrix of those with a velocity. R is a constant: the
    law of y, hence that of θ, is as right or wrong as that of the sampler itself.

    Args:
        inner: the sampler; its formula must not look at the position itself (`Kernel.sees_position`).
        scale: R.

    Example:
        >>> import langevin as lv
        >>> import torch
        >>> from langevin import scales
        >>> Scaled.of(lv.sgld(step_size=0.01), scales.Diagonal(torch.tensor([1.0, 10.0]))).is_elementwise
        True
    """

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
    def is_elementwise(self) -> bool:
        return self.inner.is_elementwise and self.scale.is_elementwise

    @property
    @override
    def sees_position(self) -> bool:
        return self.inner.sees_position

    @property
    @override
    def constants(self) -> dict[str, Tensor]:
        return {f"scale_{index}": tensor for index, tensor in enumerate(self.scale.tensors)} | self.inner.constants

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
    def at_temperature(self, memory: Memory, gradient: Tensor, warmth: Number, inputs: StepInputs) -> Memory:
        return self.inner.at_temperature(memory, self.scale.pull(gradient), warmth, inputs)

    @property
    @override
    def description(self) -> str:
        return f"{self.inner.description}\n  in the scale y = R^-1 θ of the target: {self.scale.describe()}"
