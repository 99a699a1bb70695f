"""Argument checks with one message shape: ``name(arg=...) needs <condition>, got <value>``."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

__all__ = [
    "check_bool",
    "check_field",
    "check_function",
    "check_integer",
    "check_number",
    "check_position",
    "lacks_memory",
    "needs",
]


def needs(who: str, argument: str, condition: str, value: Any, error: type[Exception] = ValueError) -> Exception:
    """Build the library's one kind of bad-argument error."""
    text = repr(value)
    return error(f"{who}({argument}=...) needs {condition}, got {text if len(text) <= 200 else text[:200] + '...'}")


def check_number(who: str, argument: str, value: Any, condition: str, holds: Callable[[float], bool] = lambda value: True) -> float:
    """Return `value` as a float, or fail when it is no finite real number or breaks `condition`."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise needs(who, argument, f"a number with {condition}", value, TypeError)
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number) or not holds(number):
        raise needs(who, argument, condition, value)
    return number


def check_field(instance: Any, who: str, name: str, condition: str, holds: Callable[[float], bool]) -> None:
    """Check a number that is a field of a frozen dataclass, and make it a float: a large int would not meet a tensor."""
    object.__setattr__(instance, name, check_number(who, name, getattr(instance, name), condition, holds))


def check_bool(who: str, argument: str, value: Any) -> bool:
    """Return `value` when it is True or False, and nothing that merely counts as one of them."""
    if not isinstance(value, bool):
        raise needs(who, argument, "True or False", value, TypeError)
    return value


def check_function(who: str, argument: str, value: Any, what: str) -> None:
    """Fail when `value` cannot be called, or is a class."""
    if not callable(value) or isinstance(value, type):
        raise needs(who, argument, what, value, TypeError)


def check_integer(who: str, argument: str, value: Any, minimum: int, end: int = 2**63) -> int:
    """Return `value`, or fail when it is no int (a bool is none), below `minimum`, or not below `end`, a power of two."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise needs(who, argument, f"an int >= {minimum}", value, TypeError)
    if not minimum <= value < end:
        condition = f"an int >= {minimum}" if value < minimum else f"an int in [{minimum}, 2**{end.bit_length() - 1})"
        raise needs(who, argument, condition, value)
    return value


def check_position(who: str, argument: str, position: Any) -> Tensor:
    """Return `position` when it is a finite floating-point tensor of shape (..., dim) with dim >= 1."""
    if not isinstance(position, Tensor):
        raise needs(who, argument, "a torch.Tensor of shape (chains, dim)", position, TypeError)
    if not position.is_floating_point():
        raise needs(who, argument, "a floating-point tensor", position.dtype, TypeError)
    if position.layout != torch.strided or position.is_meta:
        raise needs(who, argument, "a dense tensor with values", f"{position.layout} on {position.device}")
    if position.ndim == 0 or position.numel() == 0:
        raise needs(who, argument, "shape (..., dim) with at least one element", tuple(position.shape))
    if not torch.isfinite(position).all():
        bad = (~torch.isfinite(position)).nonzero()[0].tolist()
        raise needs(who, argument, f"finite values (element {bad} is not)", position[tuple(bad)].item())
    return position


def lacks_memory(tensor: Tensor) -> bool:
    """Say whether a dense tensor has more elements than memory, as after its storage was freed: torch itself crashes on those."""
    last = tensor.storage_offset() + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.numel() > 0 and tensor.untyped_storage().nbytes() < (last + 1) * tensor.element_size()
