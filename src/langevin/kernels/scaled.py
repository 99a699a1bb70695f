"""Any sampler in the coordinates of an estimated metric."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor
from typing_extensions import override

from langevin.checks import needs
from langevin.kernels.base import Kernel, StepInputs, Traits, reads_position
from langevin.kernels.parts import Number, Tensors
from langevin.kernels.wrapper import Wrapper
from langevin.targets import Evaluation
from langevin.targets.metric import Metric

__all__ = ["Scaled"]


@dataclass(frozen=True)
class Scaled(Wrapper):
    """A sampler that runs in ``y = R^-1 θ``; use `Scaled.of` to build one.

    With ``U(R y)`` as its energy the sampler sees the gradient ``R^T g`` and moves y; θ moves by R
    times that. So SGLD becomes ``θ' = θ - ε R R^T g + sqrt(2 ε τ) R η``, and R R^T is the inverse
    mass matrix of those with a velocity. R is a constant: y, and hence θ, is sampled as
    accurately as by the sampler itself.

    Args:
        inner: the sampler; its formula must not read the position itself
            (`Traits.reads_position`).
        scale: R.
        force_limit: (a, b) to clamp every element of ``R^T g`` to ``± (a + b / sqrt(ε)) sqrt(τ)``,
            or None. A step that is unstable far out in a tail then stays bounded, and the chain
            comes back ("tamed" Langevin dynamics: Brosse, Durmus, Moulines and Sabanis 2019). The
            limit disappears with small steps.

    Example:
        >>> import langevin as lv
        >>> import torch
        >>> from langevin.targets import metric
        >>> scale = metric.Diagonal(torch.tensor([1.0, 10.0]))
        >>> Scaled.of(lv.sgld(step_size=0.01), scale).traits.elementwise
        True
    """

    scale: Metric = field(kw_only=True)
    force_limit: tuple[float, float] | None = field(default=None, kw_only=True)

    @classmethod
    def of(
        cls, inner: Kernel, scale: Metric, force_limit: tuple[float, float] | None = None
    ) -> Scaled:
        """Put a sampler into a scale."""
        cls.check(inner)
        return cls.around(inner.name, inner, scale=scale, force_limit=force_limit)

    @staticmethod
    def check(inner: Kernel) -> None:
        """Fail when a sampler's formula reads positions or other chains."""
        if reads_position(inner) or inner.traits.group_size > 1:
            raise needs(
                "sample",
                "scale",
                f"None for {inner.name}, whose formula reads positions or other chains",
                "a scale",
            )

    def is_limited(self, gradient: Tensor, step_size: Number) -> Tensor:
        """Return in which positions the limit changes the force, for gradients (..., dim)."""
        if self.force_limit is None:
            return torch.zeros(gradient.shape[:-1], dtype=torch.bool, device=gradient.device)
        return (self.scale.pull(gradient).abs() > self._most(step_size)).any(-1)

    def _most(self, step_size: Number) -> Number:
        assert self.force_limit is not None
        return self.temperature**0.5 * (self.force_limit[0] + self.force_limit[1] / step_size**0.5)

    @cached_property
    @override
    def traits(self) -> Traits:
        inner = self.inner.traits
        elementwise = inner.elementwise and self.scale.is_elementwise
        return dataclasses.replace(inner, elementwise=elementwise, reads_position=False)

    @property
    @override
    def constants(self) -> dict[str, Tensor]:
        return {
            f"scale_{index}": tensor for index, tensor in enumerate(self.scale.tensors)
        } | self.inner.constants

    @override
    def update(
        self,
        position: Tensor,
        evaluation: Evaluation,
        noise: Tensor,
        state: Tensors,
        inputs: StepInputs,
    ) -> tuple[Tensor, Tensors]:
        force = self.scale.pull(evaluation.gradient)
        if self.force_limit is not None:
            most = torch.as_tensor(
                self._most(inputs.step_size), dtype=force.dtype, device=force.device
            )
            force = force.clamp(-most, most)
        pulled = evaluation._replace(gradient=force)
        moved, state = self.inner.update(torch.zeros_like(position), pulled, noise, state, inputs)
        return position + self.scale.push(moved), state

    def rescale_state(
        self, state: Tensors, gradient: Tensor, ratio: Number, inputs: StepInputs
    ) -> Tensors:
        """See `TemperatureChange`."""
        return self._rescale_inner(state, self.scale.pull(gradient), ratio, inputs)

    @property
    @override
    def description(self) -> str:
        scale = self.scale.describe()
        return f"{self.inner.description}\n  in the scale y = R^-1 θ of the target: {scale}"
