"""New inputs, in batches: whole, or from a loader that must give the same batches each time."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from langevin.checks import check_integer, needs
from langevin.store.bank.batches import check_loader, each_tensor, inputs_of, tensors_of, with_values
from langevin.store.bank.files import bytes_of, pieces
from langevin.trust import evenly_spaced

__all__ = ["Rows", "rows_of"]


class Rows:
    """Inputs that are read once for every draw, batch by batch.

    Args:
        who: the caller, for errors.
        x: the inputs of one call: a tensor; a tuple, or a list of tensors; a dict. Or a loader of such (and labels).
        batch_size: rows at a time; None leaves whole what is given.
    """

    def __init__(self, who: str, x: Any, batch_size: int | None) -> None:
        """See the class."""
        if batch_size is not None:
            check_integer(who, "batch_size", batch_size, 1)
        check_loader(who, "x", x)
        self._who, self._x, self._batch_size = who, x, batch_size
        self._is_loader = not isinstance(x, Tensor | Mapping | tuple) and not (
            isinstance(x, list) and x and all(isinstance(value, Tensor) for value in x)
        )
        self._marks: list[int] | None = None  # the checksum of each batch, once all have been read

    @property
    def first(self) -> Any:
        """The inputs of the first batch."""
        return next(self._read())[1]

    def some(self, num: int) -> Any:
        """Return at most so many rows, evenly spaced, as the inputs of one call."""
        lengths = [rows_of(inputs)[:1] for _, inputs in self]
        if [] in lengths:
            raise needs(self._who, "x", "tensors with rows", type(self._x), TypeError)
        chosen = evenly_spaced(sum(length[0] for length in lengths), num)
        picked, start = [], 0
        for _, inputs in self:  # once more, so that not all are held at once
            stop = start + rows_of(inputs)[0]
            here = chosen[(chosen >= start) & (chosen < stop)] - start
            picked.append(each_tensor(inputs, lambda tensor: tensor[here.to(tensor.device)] if tensor.ndim else tensor))  # noqa: B023
            start = stop
        return _joined(picked)

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        """Yield number and inputs of each batch, or fail when they are not those of the time before."""
        seen: list[int] = []
        for number, (mark, inputs) in enumerate(self._read()):
            seen.append(mark)
            if self._marks is not None and self._marks[number : number + 1] != [mark]:
                raise self._differs()
            yield number, inputs
        if self._marks is not None and len(seen) != len(self._marks):
            raise self._differs()
        self._marks = seen

    def check_again(self) -> None:
        """Look at a loader's first batch once more: for a few draws it is read once, and one that shuffles would not be caught."""
        if self._is_loader and self._marks is not None and next(self._read())[0] != self._marks[0]:
            raise self._differs()

    def _read(self) -> Iterator[tuple[int, Any]]:
        batches = 0
        for batch in self._x if self._is_loader else [self._x]:
            batches += 1
            inputs = with_values(self._who, "x", inputs_of(self._who, "x", batch) if self._is_loader else batch)
            mark = _checksum(inputs) if self._is_loader else 0
            for part in self._split(inputs):
                yield mark, part
        if not batches:
            raise needs(self._who, "x", "at least one batch", self._x)

    def _split(self, inputs: Any) -> Iterator[Any]:
        rows = rows_of(inputs)
        if rows and max(rows) == 0:
            raise needs(self._who, "x", "at least one row", [tuple(tensor.shape) for tensor in tensors_of(inputs)])
        if self._batch_size is None or not rows:
            yield inputs
            return
        if len(set(rows)) > 1:
            raise needs(self._who, "x", "tensors with as many rows each", rows)
        for start in range(0, rows[0], self._batch_size):
            here = slice(start, start + self._batch_size)
            yield each_tensor(inputs, lambda tensor: tensor[here] if tensor.ndim else tensor)  # noqa: B023 - used at once

    def _differs(self) -> Exception:
        condition = "the same batches in the same order each time it is read (shuffle=False)"
        return needs(self._who, "x", condition, type(self._x))


def _joined(parts: list[Any]) -> Any:
    """Put the rows of several calls behind each other."""
    first = parts[0]
    if isinstance(first, Tensor):
        return torch.cat(parts) if first.ndim else first
    if isinstance(first, Mapping):
        return {name: _joined([part[name] for part in parts]) if isinstance(first[name], Tensor) else first[name] for name in first}
    return tuple(_joined(list(values)) if isinstance(values[0], Tensor) else values[0] for values in zip(*parts, strict=True))


def rows_of(inputs: Any) -> list[int]:
    """Return the number of rows of each tensor among the inputs of a call."""
    return [len(tensor) for tensor in tensors_of(inputs) if tensor.ndim]


def _checksum(inputs: Any) -> int:
    """Tell batches of different content apart; a loader that shuffles would average the outputs of different rows."""
    mark = 0
    for tensor in tensors_of(inputs):
        if tensor.layout == torch.strided:
            for piece in pieces(tensor.detach()):
                mark = zlib.crc32(bytes_of(piece), mark)
    return mark
