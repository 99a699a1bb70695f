"""Samplers broken on purpose: what a check must refuse, or it could not see the fault in ours either."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from torch import Tensor

from langevin.kernels import Kernel, StepInputs
from langevin.kernels.drifts import Tensors
from langevin.targets import Evaluation

__all__ = ["hot", "turned_round"]

Given = tuple[Tensor, Evaluation, Tensor, Tensors, StepInputs]


def _broken(kernel: Kernel, change: Callable[[Given], Given]) -> Kernel:
    """Return the kernel whose update is given something else than it should be."""

    class Broken(type(kernel)):  # type: ignore[misc] # any kernel
        def update(self, *given: object) -> tuple[Tensor, Tensors]:
            return super().update(*change(given))  # type: ignore[arg-type]

    return Broken(**{field.name: getattr(kernel, field.name) for field in dataclasses.fields(kernel)})


def hot(kernel: Kernel, factor: float = 1.1) -> Kernel:
    """Return the kernel with its noise too large by a factor."""
    return _broken(kernel, lambda given: (*given[:2], factor * given[2], *given[3:]))


def turned_round(kernel: Kernel) -> Kernel:
    """Return the kernel with an error of sign: what it remembers first, momentum or velocity, counts with the opposite sign."""
    return _broken(kernel, lambda given: (*given[:3], (-given[3][0], *given[3][1:]), given[4]))
