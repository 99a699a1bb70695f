"""Settings of a kernel as inputs of compiled code, which serves kernels with other settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from langevin.kernels import Kernel
from langevin.kernels.schedules import Schedule

__all__ = ["settings_of", "structure_of", "with_settings"]


def settings_of(kernel: Kernel) -> list[Tensor]:
    """Return a kernel's numbers, as float64 tensors without axes, and its tensors, in fixed order.

    Step size, temperature and schedules are left out: they are inputs of a step.
    """
    found: list[Tensor] = []

    def note(value: float | Tensor) -> None:
        if not isinstance(value, Tensor):
            value = torch.tensor(value, dtype=torch.float64)
        found.append(value)

    _mapped(kernel, note)
    return found


def with_settings(kernel: Kernel, settings: list[Tensor]) -> Kernel:
    """Return a kernel with these numbers and tensors, in the order of `settings_of`."""
    values = iter(settings)
    made: Kernel = _mapped(kernel, lambda _: next(values))
    return made


def structure_of(value: Any) -> object:
    """Return the types, shapes and other values that two kernels must share to share code."""
    if isinstance(value, Tensor):
        return value.shape, value.dtype
    if isinstance(value, (float, Schedule)):
        return type(value)
    if isinstance(value, tuple):
        return tuple(map(structure_of, value))
    if _is_part(value):
        return type(value), *(structure_of(getattr(value, field.name)) for field in fields(value))
    return value


def _mapped(value: Any, function: Callable[[Any], Any]) -> Any:
    """Return a copy of a kernel, or of a part, with its numbers and tensors replaced."""
    if isinstance(value, (float, Tensor)):
        return function(value)
    if isinstance(value, tuple):
        return tuple(_mapped(entry, function) for entry in value)
    if not _is_part(value):
        return value
    made = object.__new__(type(value))
    for field in fields(value):
        old = getattr(value, field.name)
        new = old if field.name == "temperature" else _mapped(old, function)
        object.__setattr__(made, field.name, new)
    return made


def _is_part(value: Any) -> bool:
    is_instance = is_dataclass(value) and not isinstance(value, type)
    return is_instance and not isinstance(value, Schedule)
