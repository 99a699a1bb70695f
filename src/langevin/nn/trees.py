"""Batches and outputs of models: nested tuples, lists, dicts and objects with tensors."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

__all__ = ["Tree", "concatenate", "logits_of", "map_tensors", "num_rows", "take_rows", "tensors"]

Tree: TypeAlias = Any
"""Nested tuples, lists, dicts and objects whose attributes are tensors, as model outputs are."""


def map_tensors(tree: Tree, function: Callable[[Tensor], Tensor], *, objects: bool = True) -> Tree:
    """Return the tree with a function applied to its tensors; other values are kept.

    Attributes of objects count if `objects`, but not those of objects inside objects, which may be
    linked in a circle.
    """
    if isinstance(tree, Tensor):
        return function(tree)
    if isinstance(tree, tuple | list):
        parts = [map_tensors(part, function, objects=objects) for part in tree]
        return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)
    if isinstance(tree, Mapping):
        new: Tree = copy.copy(tree)  # keeps the class: some batches are dicts with attributes
        for key, value in tree.items():
            new[key] = map_tensors(value, function, objects=objects)
        return new
    if objects and _has_attributes(tree):
        new = copy.copy(tree)
        new.__dict__.update(map_tensors(vars(tree), function, objects=False))
        return new
    return tree


def tensors(tree: Tree, *, objects: bool = True) -> Iterator[Tensor]:
    """Yield the tensors of a tree in order, those that `map_tensors` changes."""
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, tuple | list | Mapping):
        for part in tree.values() if isinstance(tree, Mapping) else tree:
            yield from tensors(part, objects=objects)
    elif objects and _has_attributes(tree):
        yield from tensors(vars(tree), objects=False)


def _has_attributes(tree: Tree) -> bool:
    return hasattr(tree, "__dict__") and not isinstance(tree, type | nn.Module)


def num_rows(tree: Tree) -> int | None:
    """Return the length of the first tensor that has one."""
    return next((len(tensor) for tensor in tensors(tree) if tensor.ndim), None)


def take_rows(tree: Tree, rows: Tensor | slice | list[int]) -> Tree:
    """Return these rows of the tensors that have as many rows as the first one."""
    size = num_rows(tree)
    return map_tensors(tree, lambda t: t[rows] if t.ndim and len(t) == size else t)


def concatenate(parts: Sequence[Tree]) -> Tree:
    """Concatenate the rows of trees of one form, each tensor that has rows."""
    columns = zip(*map(tensors, parts), strict=True)
    joined = (torch.cat(column) if column[0].ndim else column[0] for column in columns)
    return map_tensors(parts[0], lambda _: next(joined))


def logits_of(output: Tree) -> Tensor | None:
    """Return the output if it is a tensor, or its `logits`, as Hugging Face models have them."""
    if isinstance(output, Tensor):
        return output
    found = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    return found if isinstance(found, Tensor) else None
