"""Argument checks with one message shape: ``name(arg=...) needs <condition>, got <value>``."""

from __future__ import annotations

import inspect
import math
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

__all__ = [
    "check_bool",
    "check_columns",
    "check_dense",
    "check_field",
    "check_finite",
    "check_function",
    "check_integer",
    "check_number",
    "check_path",
    "check_position",
    "check_tensor",
    "level_of_caller",
    "lacks_memory",
    "needs",
    "takes",
]


def needs(who: str, argument: str, condition: str, value: Any, error: type[Exception] = ValueError) -> Exception:
    """Build the library's one kind of bad-argument error."""
    text = repr(value)
    return error(f"{who}({argument}=...) needs {condition}, got {text if len(text) <= 200 else text[:200] + '...'}")


def level_of_caller() -> int:
    """Return the `stacklevel` by which a warning points at the line of the user's that called us, past torch's wrappers."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in ("langevin", "torch", "contextlib"):
        frame, level = frame.f_back, level + 1
    return level


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


def check_function(who: str, argument: str, value: Any, what: str, count: int | None = None) -> None:
    """Fail when `value` cannot be called, with `count` arguments where that is known, or is a class, or a module without values."""
    if not callable(value) or isinstance(value, type) or (count is not None and not takes(value, count)):
        raise needs(who, argument, what, value, TypeError)
    if isinstance(value, nn.Module) and any(tensor.is_meta for tensor in (*value.parameters(), *value.buffers())):
        raise needs(who, argument, what, f"{value} on the meta device, where tensors have no values", TypeError)


def check_integer(who: str, argument: str, value: Any, minimum: int, end: int = 2**63) -> int:
    """Return `value`, or fail when it is no int (a bool is none), below `minimum`, or not below `end`, a power of two."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise needs(who, argument, f"an int >= {minimum}", value, TypeError)
    if not minimum <= value < end:
        condition = f"an int >= {minimum}" if value < minimum else f"an int in [{minimum}, 2**{end.bit_length() - 1})"
        raise needs(who, argument, condition, value)
    return value


def takes(function: Callable[..., Any], count: int) -> bool:
    """Say whether a function can be called with so many arguments; those of which Python does not know it can."""
    try:
        inspect.signature(function).bind(*range(count))
    except TypeError:
        return False
    except ValueError:  # some functions written in C
        return True
    return True


def check_path(who: str, argument: str, value: Any, what: str) -> Path:
    """Return `value` as a path, or fail when it is none that a file system could have."""
    path = os.fspath(value) if isinstance(value, str | os.PathLike) else value
    if not isinstance(path, str):
        raise needs(who, argument, what, value, TypeError)
    if not path or "\0" in path:
        raise needs(who, argument, what, value)
    return Path(path)


def check_dense(who: str, argument: str, tensor: Tensor) -> Tensor:
    """Return `tensor` when it has values, one for each element: no sparse or nested one, none on the meta device."""
    if tensor.layout != torch.strided or tensor.is_meta:
        raise needs(who, argument, "a dense tensor with values", f"{tensor.layout} on {tensor.device}", TypeError)
    return tensor


def check_finite(who: str, argument: str, tensor: Tensor, where: str = "", hint: str = "") -> Tensor:
    """Return `tensor`, or fail with the place of the first element that is NaN or infinite."""
    bad = ~torch.isfinite(tensor)
    if bad.any():
        place = bad.nonzero()[0].tolist()
        raise needs(who, argument, f"finite values ({where}element {place} is not{hint})", tensor[tuple(place)].item())
    return tensor


def check_position(who: str, argument: str, position: Any) -> Tensor:
    """Return `position` when it is a finite floating-point tensor of shape (..., dim) with dim >= 1."""
    if not isinstance(position, Tensor):
        raise needs(who, argument, "a torch.Tensor of shape (chains, dim)", position, TypeError)
    if not position.is_floating_point():
        raise needs(who, argument, "a floating-point tensor", position.dtype, TypeError)
    check_dense(who, argument, position)
    if position.ndim == 0 or position.numel() == 0:
        raise needs(who, argument, "shape (..., dim) with at least one element", tuple(position.shape))
    return check_finite(who, argument, position)


def check_tensor(who: str, argument: str, value: Any, *shape: int | str) -> Tensor:
    """Return numbers (a tensor, an array or nested lists) as finite float64 values on the CPU.

    Args:
        who: the caller.
        argument: its argument.
        value: what was given.
        shape: axes that it must have: a length, or a name for a length of at least 1.
    """
    shown = f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"
    if isinstance(value, Tensor):
        check_dense(who, argument, value)
    try:
        if isinstance(value, Tensor | np.ndarray) and "complex" in str(value.dtype):  # torch would drop the imaginary part
            raise TypeError(f"{value.dtype} is not real")
        tensor = torch.as_tensor(value, dtype=torch.float64, device="cpu").detach()
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise needs(who, argument, f"numbers of shape {shown}", value, TypeError) from error
    fits = tensor.ndim == len(shape) and all(
        length > 0 if isinstance(axis, str) else length == axis for axis, length in zip(shape, tensor.shape, strict=True)
    )
    if not fits:
        raise needs(who, argument, f"shape {shown}", tuple(tensor.shape))
    return check_finite(who, argument, tensor)


def check_columns(who: str, data: Any) -> tuple[Tensor, ...]:
    """Return the columns of a data set, or fail when they are no tensors, empty, ragged or not finite."""
    if not isinstance(data, Tensor | Sequence) or isinstance(data, str | bytes):
        raise needs(who, "data", "tensors, one per column", data, TypeError)
    columns = (data,) if isinstance(data, Tensor) else tuple(data)
    if not columns or not all(isinstance(column, Tensor) for column in columns):
        raise needs(who, "data", "tensors, one per column", [type(column).__name__ for column in columns], TypeError)
    lengths = [len(column) if column.ndim else 0 for column in columns]
    if min(lengths) == 0:
        raise needs(who, "data", "at least one row", f"columns of {lengths} rows")
    if len(set(lengths)) > 1:
        raise needs(who, "data", "columns of the same length", f"{lengths} rows")
    for k, column in enumerate(columns):
        check_finite(who, "data", check_dense(who, "data", column), f"column {k}, ")
    return columns


def lacks_memory(tensor: Tensor) -> bool:
    """Say whether a dense tensor has more elements than memory, as after its storage was freed: torch itself crashes on those."""
    last = tensor.storage_offset() + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.numel() > 0 and tensor.untyped_storage().nbytes() < (last + 1) * tensor.element_size()
