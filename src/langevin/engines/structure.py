"""What a function is made of, as a hashable value: two that are built anew from the same code and equal numbers are equal."""

from __future__ import annotations

import types
from collections.abc import Hashable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

__all__ = ["structure"]

_PLAIN = (bool, int, float, complex, str, bytes, range, type(None), types.CodeType, type, torch.dtype, torch.device)
_MOST = 1000  # entries of a collection that are looked at; a longer one counts as itself only


def structure(value: Any) -> Hashable:
    """Return a name for `value` that holds no tensor: its code, its numbers and the layout of its tensors.

    Functions are taken apart into code, defaults and what they close over; other objects into class and attributes; what cannot be
    taken apart is named by its identity. The name finds compiled code, no more: whether that code fits is checked by the compiler's
    own guards, which look at every number again, and take tensors as inputs.

    Example:
        >>> def shifted(by):
        ...     return lambda x: x + by
        >>> structure(shifted(1.0)) == structure(shifted(1.0)), structure(shifted(1.0)) == structure(shifted(2.0))
        (True, False)
    """
    return _take_apart(value, [])


def _take_apart(value: Any, above: list[int]) -> Hashable:
    """Name `value`; `above` has the identities of what contains it, for structures that contain themselves."""
    if isinstance(value, _PLAIN):
        return type(value), value
    if isinstance(value, Tensor):
        return "tensor", value.dtype, value.device, value.layout, tuple(value.shape), value.requires_grad
    if id(value) in above:
        return "again", above.index(id(value))
    within = [*above, id(value)]
    if isinstance(value, types.FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        parts: list[Any] = [value.__code__, value.__defaults__, value.__kwdefaults__, *cells]
    elif isinstance(value, types.MethodType):
        parts = [value.__func__, value.__self__]
    elif isinstance(value, partial):
        parts = [value.func, value.args, value.keywords]
    elif isinstance(value, (tuple, list)) and len(value) <= _MOST:
        parts = list(value)
    elif isinstance(value, (set, frozenset)) and len(value) <= _MOST:
        return type(value), frozenset(_take_apart(part, within) for part in value)
    elif isinstance(value, Mapping) and len(value) <= _MOST:
        parts = [*value.keys(), *value.values()]
    elif type(getattr(value, "__dict__", None)) is dict and not isinstance(value, types.ModuleType):
        parts = [value.__dict__]
    else:
        return type(value), id(value)
    return type(value), *(_take_apart(part, within) for part in parts)
