"""Convert data and module inputs to columns: tensors with one row per observation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from langevin.checks import check_dense, needs

__all__ = ["arguments", "as_inputs", "named_columns", "rows"]

_KINDS: dict[str, type[np.generic]] = {
    "f": np.float64,
    "i": np.int64,
    "u": np.int64,
    "b": np.bool_,
}


def named_columns(
    who: str, names: Sequence[str], data: Any, dtype: torch.dtype
) -> tuple[Tensor, ...]:
    """Return the columns for a function's arguments, all with the same number of rows.

    Args:
        who: the caller, for error messages.
        names: of the function's arguments; empty if it takes any number.
        data: columns in order, or a dict or pandas DataFrame by argument names.
        dtype: of floating-point columns. Integers become int64, so that they can be indices.
    """
    if isinstance(data, Mapping) or (hasattr(data, "to_numpy") and hasattr(data, "columns")):
        given = list(data.keys())
        if not names:
            condition = "a tuple of columns, for a function whose arguments have no names"
            raise needs(who, "data", condition, given)
        # A data frame may have further columns.
        has_unknown = isinstance(data, Mapping) and not set(given) <= set(names)
        if has_unknown or not set(names) <= set(given):
            condition = f"the names of the function's arguments, {list(names)}"
            raise needs(who, "data", condition, given)
        found = {name: data[name] for name in names}
    else:
        parts = list(data) if isinstance(data, tuple | list) else [data]
        if not parts or (names and len(parts) != len(names)):
            wanted = f"{len(names)} columns, {list(names)}" if names else "at least one column"
            condition = f"{wanted}, or a dict by these names"
            raise needs(who, "data", condition, f"{len(parts)} columns")
        labels = names or [f"column {k}" for k in range(len(parts))]
        found = dict(zip(labels, parts, strict=True))
    columns = {name: _as_tensor(who, name, value, dtype) for name, value in found.items()}
    lengths = {name: len(column) if column.ndim else 0 for name, column in columns.items()}
    if min(lengths.values()) == 0 or len(set(lengths.values())) > 1:
        condition = (
            "columns of the same length, one row per observation (constants belong inside the "
            "function)"
        )
        shown = ", ".join(f"{name}: {length} rows" for name, length in lengths.items())
        raise needs(who, "data", condition, shown)
    return tuple(columns.values())


def _as_tensor(who: str, name: str, value: Any, dtype: torch.dtype) -> Tensor:
    if isinstance(value, Tensor):
        tensor = check_dense(who, "data", value).detach()
    else:
        tensor = torch.from_numpy(_as_array(who, name, value))
    if tensor.is_complex():
        raise needs(who, "data", f"real numbers in {name!r}", tensor.dtype, TypeError)
    if not tensor.is_floating_point():
        return tensor if tensor.dtype == torch.bool else tensor.long()
    bad = ~torch.isfinite(tensor)
    if bad.any():
        place = bad.nonzero()[0].tolist()
        where = f"row {place[0]}" if place else "the value"
        where += f", column {place[1:]}" if len(place) > 1 else ""
        remedy = "drop such rows, or make the values parameters"
        condition = f"finite values in {name!r} ({where} is not; {remedy})"
        raise needs(who, "data", condition, tensor[tuple(place)].item())
    return tensor.to(dtype)


def _as_array(who: str, name: str, value: Any) -> NDArray[np.generic]:
    """Copy a column to an array of a dtype that torch knows; pandas may hold objects."""
    condition = f"numbers in {name!r}"
    try:
        array = np.array(value.to_numpy() if hasattr(value, "to_numpy") else value, order="C")
    except (TypeError, ValueError) as error:
        raise needs(who, "data", condition, value, TypeError) from error
    for entry in array.flat if array.dtype.kind in "OUT" else ():
        if isinstance(entry, str):
            remedy = "encode categories, as pandas.factorize(column)[0] does, or use 0/1 columns"
            condition = f"{condition} ({name!r} contains strings: {remedy})"
            raise needs(who, "data", condition, str(entry), TypeError)
    if array.dtype.kind == "M":
        condition += " (convert dates to numbers, such as days since the first)"
        raise needs(who, "data", condition, f"values of {array.dtype}", TypeError)
    if array.dtype == object:
        try:
            array = array.astype(np.float64)
        except (TypeError, ValueError) as error:
            first = next((each for each in array.flat if not isinstance(each, int | float)), None)
            raise needs(who, "data", condition, first, TypeError) from error
    if array.dtype.kind not in _KINDS:
        raise needs(who, "data", condition, f"values of {array.dtype}", TypeError)
    return array.astype(_KINDS[array.dtype.kind])


def arguments(
    x: Sequence[Any], names: Sequence[str] = ()
) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    """Return the positional and keyword arguments with which to call a module.

    Args:
        x: columns; or one dict, or one tuple of them.
        names: of the columns, in order; empty for positional arguments.
    """
    if len(x) == 1 and isinstance(x[0], Mapping):
        return (), dict(x[0])
    columns = tuple(x[0]) if len(x) == 1 and isinstance(x[0], tuple | list) else tuple(x)
    if not names:
        return columns, {}
    if len(columns) != len(names):
        condition = f"the inputs {list(names)}, as in the data before"
        raise needs("Posterior", "x", condition, f"{len(columns)} columns")
    return (), dict(zip(names, columns, strict=True))


def as_inputs(who: str, x: Any) -> tuple[tuple[Any, ...], tuple[str, ...]]:
    """Return inputs as columns and, if they are a dict, their sorted names."""
    if not isinstance(x, Mapping):
        return (tuple(x) if isinstance(x, tuple | list) else (x,)), ()
    if not x or not all(isinstance(name, str) for name in x):
        condition = "a dict of tensors by the names of the model's arguments"
        raise needs(who, "x", condition, list(x), TypeError)
    names = tuple(sorted(x))
    return tuple(x[name] for name in names), names


def rows(who: str, x: Any, start: int, stop: int) -> Any:
    """Return a slice of inputs, in the same form."""
    columns, names = as_inputs(who, x)
    if not columns or not all(isinstance(column, Tensor) for column in columns):
        condition = "a torch.Tensor of shape (n, ...), or a tuple or a dict of them"
        raise needs(who, "x", condition, [type(column).__name__ for column in columns], TypeError)
    lengths = [len(column) if column.ndim else 0 for column in columns]
    if min(lengths) == 0:
        shapes = [tuple(column.shape) for column in columns]
        raise needs(who, "x", "at least one row, shape (n, ...)", shapes)
    if len(set(lengths)) > 1:
        raise needs(who, "x", "the same number of rows in all inputs", lengths)
    parts = tuple(column[start:stop] for column in columns)
    if names:
        return dict(zip(names, parts, strict=True))
    return parts if isinstance(x, tuple | list) else parts[0]
