"""Base of samplers with scales that follow the gradients at first and are then frozen."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Self

from torch import Tensor
from typing_extensions import override

from langevin.checks import check_integer, needs
from langevin.kernels.base import Kernel, StepInputs
from langevin.kernels.parts import Number, Preconditioner, Tensors

__all__ = ["Adapting", "interpolate"]


@dataclass(frozen=True)
class Adapting(Kernel):
    """A sampler with scales that are exact once they are frozen.

    Args:
        adapt_steps: first steps in which scales follow the gradients; then they are frozen, but for
            the exploration phases of a schedule, which are warm-ups again: `sample` keeps no draws
            of them. None takes the warm-up of `sample`; stepped by hand, they always follow.
    """

    adapt_steps: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.adapt_steps is not None:
            check_integer(self.name, "adapt_steps", self.adapt_steps, 1)

    @property
    def adapted_names(self) -> tuple[str, ...]:
        """Names of the state tensors of the scales."""
        raise NotImplementedError

    def check_part(self, preconditioner: object) -> None:
        """Fail when a setting is not a preconditioner."""
        if not isinstance(preconditioner, Preconditioner):
            what = "one of langevin.kernels.preconditioners"
            raise needs(self.name, "preconditioner", what, preconditioner, TypeError)

    @override
    def refined(self, inputs: StepInputs, step: int, seen: int) -> StepInputs:
        is_first = self.adapt_steps is None or seen < self.adapt_steps
        return inputs._replace(adapting=float(is_first or self.explores(step)))

    @override
    def for_run(self, warmup: int, position: Tensor) -> Self:
        if not self.adapted_names or self.adapt_steps is not None:
            return self
        if warmup < 1:
            what = "first steps in which the scale is estimated, when invariant"
            raise needs(self.name, "warmup", what, warmup)
        return dataclasses.replace(self, adapt_steps=warmup)

    @property
    def guarantee(self) -> str:
        """From which step on the stationary distribution is as described, as text."""
        if not self.adapted_names:
            return "nothing is adapted, so this holds at every step"
        if self.adapt_steps is None:
            return (
                "guaranteed while V stands still; it follows the gradients until sample() "
                "freezes it after the warm-up"
            )
        return (
            f"guaranteed from step {self.adapt_steps} on, where V is frozen: not before, nor "
            "in exploration phases"
        )


def interpolate(adapted: Tensors, frozen: Tensors, adapting: Number) -> Tensors:
    """Return the tensors of a scale after a step: adapted ones while it adapts, else the old."""
    return tuple(
        adapting * new + (1 - adapting) * old for new, old in zip(adapted, frozen, strict=True)
    )
