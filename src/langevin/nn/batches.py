"""Inputs of a model in batches.

The inputs of one call are a tensor, `model(x)`; a tuple or list, `model(*x)`; or a dict,
`model(**x)`. A loader yields the same batches each time it is read; of a batch that is a tuple or
list the first entry is the inputs, and the rest (labels) is ignored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import chain

import torch
from torch import Tensor, nn

from langevin.checks import check_integer, needs
from langevin.diagnostics.arrays import evenly_spaced
from langevin.nn.tensor_bytes import crc
from langevin.nn.trees import Tree, concatenate, map_tensors, take_rows, tensors
from langevin.targets.data import arguments

__all__ = ["Batches", "call", "check_loader", "evaluation_mode", "inputs_of", "lengths_of"]

_KINDS = "a tensor, a tuple or dict of tensors, or a loader of them"


class Batches:
    """Inputs that are read once per draw, batch by batch.

    Args:
        who: the caller, for errors.
        x: the inputs of one call (a tensor, a tuple, a list of tensors, or a dict), or a loader.
        batch_size: rows at a time; None keeps batches as they are.
    """

    def __init__(self, who: str, x: Tree, batch_size: int | None) -> None:
        """Check the arguments; nothing is read yet."""
        if batch_size is not None:
            check_integer(who, "batch_size", batch_size, 1)
        check_loader(who, "x", x)
        self._who, self._x, self._batch_size = who, x, batch_size
        self._is_loader = not isinstance(x, Tensor | Mapping | tuple) and not (
            isinstance(x, list) and x and all(isinstance(value, Tensor) for value in x)
        )
        self._checksums: list[int] | None = None  # of each batch, once all have been read

    @property
    def first(self) -> Tree:
        """The inputs of the first batch."""
        return next(self._read())[1]

    def some(self, num: int) -> Tree:
        """Return at most `num` evenly spaced rows as the inputs of one call."""
        lengths = [lengths_of(inputs)[:1] for _, inputs in self]
        if [] in lengths:
            raise needs(self._who, "x", "tensors with rows", type(self._x), TypeError)
        chosen = evenly_spaced(sum(length[0] for length in lengths), num)
        picked, start = [], 0
        for _, inputs in self:  # a second pass, so that one batch is held at a time
            stop = start + lengths_of(inputs)[0]
            picked.append(take_rows(inputs, chosen[(chosen >= start) & (chosen < stop)] - start))
            start = stop
        return concatenate(picked)

    def __iter__(self) -> Iterator[tuple[int, Tree]]:
        """Yield number and inputs of each batch; fail if they differ from the previous pass."""
        seen: list[int] = []
        for number, (checksum, inputs) in enumerate(self._read()):
            seen.append(checksum)
            if self._checksums is not None and self._checksums[number : number + 1] != [checksum]:
                raise self._differs()
            yield number, inputs
        if self._checksums is not None and len(seen) != len(self._checksums):
            raise self._differs()
        self._checksums = seen

    def check_again(self) -> None:
        """Compare a loader's first batch again: a single pass does not detect shuffling."""
        if self._is_loader and self._checksums and next(self._read())[0] != self._checksums[0]:
            raise self._differs()

    def _read(self) -> Iterator[tuple[int, Tree]]:
        batches = 0
        for batch in self._x if self._is_loader else [self._x]:
            batches += 1
            inputs = inputs_of(self._who, "x", batch, self._is_loader)
            checksum = 0
            if self._is_loader:
                for tensor in tensors(inputs):
                    checksum = crc(tensor, checksum) if tensor.layout == torch.strided else checksum
            for part in self._split(inputs):
                yield checksum, part
        if not batches:
            raise needs(self._who, "x", "at least one batch", self._x)

    def _split(self, inputs: Tree) -> Iterator[Tree]:
        rows = lengths_of(inputs)
        if rows and max(rows) == 0:
            shapes = [tuple(tensor.shape) for tensor in tensors(inputs)]
            raise needs(self._who, "x", "at least one row", shapes)
        if self._batch_size is None or not rows:
            yield inputs
            return
        if len(set(rows)) > 1:
            raise needs(self._who, "x", "tensors with as many rows each", rows)
        layouts = {tensor.layout for tensor in tensors(inputs)} - {torch.strided}
        if layouts:
            raise needs(
                self._who, "x", "dense tensors, or batch_size=None", layouts.pop(), TypeError
            )
        for start in range(0, rows[0], self._batch_size):
            yield take_rows(inputs, slice(start, start + self._batch_size))

    def _differs(self) -> Exception:
        condition = "the same batches in the same order each time it is read (shuffle=False)"
        return needs(self._who, "x", condition, type(self._x))


def check_loader(who: str, argument: str, loader: object) -> None:
    """Fail for what cannot be read, or only once."""
    if isinstance(loader, Iterator):
        raise needs(who, argument, "to be read once per draw, no iterator", loader, TypeError)
    readable = hasattr(loader, "__iter__") or hasattr(loader, "__getitem__")
    # an array of one element has __iter__
    is_number = not isinstance(loader, Tensor) and getattr(loader, "ndim", 1) == 0
    if isinstance(loader, type) or not readable or is_number:
        raise needs(who, argument, _KINDS, loader, TypeError)


def inputs_of(who: str, argument: str, batch: Tree, is_loaded: bool = True) -> Tree:
    """Return the inputs of a loader's batch, or of one call, with values in every tensor."""
    inputs = batch
    if is_loaded:
        inputs = batch[0] if isinstance(batch, tuple | list) and batch else batch
        if not isinstance(inputs, Tensor | Mapping | tuple | list):
            raise needs(who, argument, _KINDS, type(inputs), TypeError)
    for tensor in tensors(inputs):
        if tensor.is_meta:
            found = f"one of shape {tuple(tensor.shape)} on the meta device"
            raise needs(who, argument, "tensors with values", found, TypeError)
    return inputs


@contextmanager
def evaluation_mode(*roots: object, but: tuple[type[nn.Module], ...] = ()) -> Iterator[None]:
    """Put modules into evaluation mode for a while, except those of some classes."""
    modules = [part for root in roots if isinstance(root, nn.Module) for part in root.modules()]
    training = [part for part in modules if part.training and not isinstance(part, but)]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True


def call(module: nn.Module, inputs: Tree) -> Tree:
    """Call a module, on the device of its first parameter or buffer."""
    device = next((tensor.device for tensor in chain(module.parameters(), module.buffers())), None)
    if device is not None:
        inputs = map_tensors(inputs, lambda tensor: tensor.to(device))
    args, kwargs = arguments((inputs,))
    return module(*args, **kwargs)


def lengths_of(inputs: Tree) -> list[int]:
    """Return the number of rows of each tensor of the inputs of a call."""
    return [len(tensor) for tensor in tensors(inputs) if tensor.ndim]
