"""Batches as nested tuples, lists and dicts of tensors: their rows, taken and repeated."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

__all__ = ["differ", "map_tensors", "num_rows", "repeated", "taken", "tensors", "tolerance"]


def map_tensors(tree: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """Return the tree with a function applied to its tensors; whatever else is in it stays."""
    if isinstance(tree, Tensor):
        return function(tree)
    if isinstance(tree, tuple | list):
        parts = [map_tensors(part, function) for part in tree]
        return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)
    if isinstance(tree, Mapping):
        new: Any = copy.copy(tree)  # keeps the class: some batches are dicts with attributes
        for key, value in tree.items():
            new[key] = map_tensors(value, function)
        return new
    if hasattr(tree, "__dict__") and not isinstance(tree, type | torch.nn.Module):  # outputs with attributes, distributions
        new = copy.copy(tree)
        new.__dict__.update({name: map_tensors(value, function) for name, value in vars(tree).items()})
        return new
    return tree


def tensors(tree: Any) -> Iterator[Tensor]:
    """Yield the tensors of a tree in order."""
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, tuple | list):
        for part in tree:
            yield from tensors(part)
    elif isinstance(tree, Mapping):
        for part in tree.values():
            yield from tensors(part)
    elif hasattr(tree, "__dict__") and not isinstance(tree, type | torch.nn.Module):
        yield from tensors(vars(tree))


def num_rows(batch: Any) -> int | None:
    """Return the length of the first tensor that has one."""
    return next((len(tensor) for tensor in tensors(batch) if tensor.ndim), None)


def _on_rows(batch: Any, function: Callable[[Tensor], Tensor]) -> Any:
    size = num_rows(batch)
    return map_tensors(batch, lambda tensor: function(tensor) if tensor.ndim and len(tensor) == size else tensor)


def repeated(batch: Any, times: int) -> Any:
    """Return the batch with all its rows so many times, one copy after the other."""
    return _on_rows(batch, lambda tensor: torch.cat([tensor] * times))


def taken(batch: Any, rows: list[int]) -> Any:
    """Return these rows of a batch."""
    return _on_rows(batch, lambda tensor: tensor[torch.tensor(rows, device=tensor.device)])


def tolerance(*values: Any) -> float:
    """Return the relative error that is taken for rounding: the root of the coarsest machine epsilon among the tensors."""
    dtypes = {tensor.dtype for tensor in tensors(values) if tensor.is_floating_point()}
    return max((torch.finfo(dtype).eps for dtype in dtypes), default=torch.finfo(torch.float64).eps) ** 0.5


def differ(one: Any, other: Any) -> float:
    """Return the largest difference between the floating-point tensors of two trees of the same shapes, relative to their size."""
    worst = 0.0
    for a, b in zip(tensors(one), tensors(other), strict=False):
        if a.is_floating_point() and a.shape == b.shape and a.numel():
            size = float(torch.maximum(a.abs(), b.abs()).max())
            worst = max(worst, float((a - b).abs().max()) / size if size > 0 else 0.0)
    return worst
