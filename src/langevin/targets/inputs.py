"""What a module is called with: one tensor, a tuple of them or a dict, which travel as columns of the data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from langevin.checks import needs

__all__ = ["Arguments", "arguments", "as_inputs", "rows"]

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
"""Those by place and those by name."""


def arguments(x: Sequence[Any], names: Sequence[str] = ()) -> Arguments:
    """Return what to call a module with.

    Args:
        x: columns; or a single dict, or a single tuple of them.
        names: of the columns, in their order; none where they have places only.
    """
    if len(x) == 1 and isinstance(x[0], Mapping):
        return (), dict(x[0])
    columns = tuple(x[0]) if len(x) == 1 and isinstance(x[0], tuple | list) else tuple(x)
    if not names:
        return columns, {}
    if len(columns) != len(names):
        raise needs("Posterior", "x", f"the inputs {list(names)}, as in the data before", f"{len(columns)} columns")
    return (), dict(zip(names, columns, strict=True))


def as_inputs(who: str, x: Any) -> tuple[tuple[Any, ...], tuple[str, ...]]:
    """Return inputs as columns, and their names, sorted, where they are a dict."""
    if isinstance(x, Mapping):
        if not x or not all(isinstance(name, str) for name in x):
            raise needs(who, "x", "a dict of tensors by the names of the model's arguments", list(x), TypeError)
        names = tuple(sorted(x))
        return tuple(x[name] for name in names), names
    columns = tuple(x) if isinstance(x, tuple | list) else (x,)
    return columns, ()


def rows(who: str, x: Any, start: int, stop: int) -> Any:
    """Return some rows of inputs, in the form that they have."""
    columns, names = as_inputs(who, x)
    if not columns or not all(isinstance(column, Tensor) for column in columns):
        kinds = [type(column).__name__ for column in columns]
        raise needs(who, "x", "a torch.Tensor of shape (n, ...), or a tuple or a dict of them", kinds, TypeError)
    lengths = [len(column) if column.ndim else 0 for column in columns]
    if min(lengths) == 0:
        raise needs(who, "x", "at least one row, shape (n, ...)", [tuple(column.shape) for column in columns])
    if len(set(lengths)) > 1:
        raise needs(who, "x", "the same number of rows in all inputs", lengths)
    parts = [column[start:stop] for column in columns]
    if names:
        return dict(zip(names, parts, strict=True))
    return tuple(parts) if isinstance(x, tuple | list) else parts[0]
