"""Data as statisticians have them, by position or by name, from torch, numpy or pandas: turned into the columns of a target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from langevin.checks import check_dense, needs

__all__ = ["named_columns"]


def named_columns(who: str, names: Sequence[str], data: Any, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Return the columns that a function's arguments stand for, all with the same number of rows.

    Args:
        who: the caller, for error messages.
        names: of the function's arguments; empty for one that takes any number.
        data: columns in their order, or a dict (a pandas DataFrame) by the names of the arguments.
        dtype: to which floating-point columns are cast; whole numbers become int64, so that they can be indices.
    """
    by_name = _by_name(who, names, data) if _is_table(data) else _by_place(who, names, data)
    columns = {name: _as_tensor(who, name, value, dtype) for name, value in by_name.items()}
    lengths = {name: len(column) if column.ndim else 0 for name, column in columns.items()}
    if min(lengths.values()) == 0 or len(set(lengths.values())) > 1:
        condition = "columns of the same length, one row per observation (a function closes over what is no column)"
        raise needs(who, "data", condition, ", ".join(f"{name}: {length} rows" for name, length in lengths.items()))
    return tuple(columns.values())


def _is_table(data: Any) -> bool:
    return isinstance(data, Mapping) or (hasattr(data, "to_numpy") and hasattr(data, "columns"))


def _by_name(who: str, names: Sequence[str], data: Any) -> dict[str, Any]:
    found = list(data.keys())
    if not names:
        raise needs(who, "data", "a tuple of columns, for a function whose arguments have no names", found)
    missing = [name for name in names if name not in found]
    unknown = [name for name in found if name not in names] if isinstance(data, Mapping) else []  # a DataFrame may have more
    if missing or unknown:
        raise needs(who, "data", f"the names of the function's arguments, {list(names)}", found)
    return {name: data[name] for name in names}


def _by_place(who: str, names: Sequence[str], data: Any) -> dict[str, Any]:
    columns = list(data) if isinstance(data, tuple | list) else [data]
    if not columns or (names and len(columns) != len(names)):
        wanted = f"{len(names)} columns, {list(names)}" if names else "at least one column"
        raise needs(who, "data", f"{wanted}, or a dict by these names", f"{len(columns)} columns")
    return dict(zip(names or [f"column {k}" for k in range(len(columns))], columns, strict=True))


def _as_tensor(who: str, name: str, value: Any, dtype: torch.dtype) -> Tensor:
    if isinstance(value, Tensor):
        tensor = check_dense(who, "data", value).detach()
    else:
        tensor = torch.from_numpy(_as_numbers(who, name, value))
    if tensor.is_complex():
        raise needs(who, "data", f"real numbers in {name!r}", tensor.dtype, TypeError)
    if tensor.is_floating_point():
        bad = ~torch.isfinite(tensor)
        if bad.any():
            place = bad.nonzero()[0].tolist()
            where = f"row {place[0]}" + (f", column {place[1:]}" if len(place) > 1 else "") if place else "the value"
            condition = f"finite values in {name!r} ({where} is not; leave such rows out, or make them parameters)"
            raise needs(who, "data", condition, tensor[tuple(place)].item())
        return tensor.to(dtype)
    return tensor if tensor.dtype == torch.bool else tensor.long()


def _as_numbers(who: str, name: str, value: Any) -> np.ndarray[Any, Any]:
    """Return a copy as an array of a kind that torch knows; pandas has missing values and mixed columns as objects."""
    try:
        array = np.array(value.to_numpy() if hasattr(value, "to_numpy") else value, order="C")
        if array.dtype == object:
            array = array.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise needs(who, "data", f"numbers in {name!r}", value, TypeError) from error
    kinds: dict[str, type] = {"f": np.float64, "i": np.int64, "u": np.int64, "b": np.bool_}
    if array.dtype.kind not in kinds:
        raise needs(who, "data", f"numbers in {name!r}", f"values of {array.dtype}", TypeError)
    return array.astype(kinds[array.dtype.kind])
