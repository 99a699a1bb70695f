"""Pointers of a table whose tensors mostly have not moved since the last step."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Sequence
from itertools import chain
from operator import attrgetter, itemgetter

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, UntypedStorage, nn

from langevin.execution.fused.table import POINTERS, Row

__all__ = ["PointerCache"]

_PLAIN = {Tensor, nn.Parameter}
_dtype, _shape, _is_cpu = attrgetter("dtype"), attrgetter("shape"), attrgetter("is_cpu")
_pointer = itemgetter(0)
_FEW = 48  # gradients; NumPy is slower for so few


class PointerCache:
    """The checks of `table_row` for all tensors at once, which must be contiguous.

    Args:
        columns: the tensors: positions, gradients, then each state; a tensor for each row.
        rows: what `table_row` returned for them; `accepts` all of them.
    """

    @staticmethod
    def accepts(row: Row | None) -> bool:
        """Return whether a row is that of a whole tensor, contiguous, not empty."""
        return row is not None and row.runs is None and row.numbers[0] > 0 and row.numbers[2] == 0

    def __init__(self, columns: Sequence[Sequence[Tensor]], rows: Sequence[Row]) -> None:
        """Store dtypes, shapes and sizes."""
        tensors = list(chain.from_iterable(columns))
        self._dtypes, self._shapes = list(map(_dtype, tensors)), list(map(_shape, tensors))
        widths = [dtype.itemsize for dtype in self._dtypes]
        self._numbers = np.array([row.numbers for row in rows], dtype=np.int64)
        self._bytes = np.array(widths, dtype=np.int64) * np.tile(self._numbers[:, 0], len(columns))
        self._gradient_bytes = self._bytes[len(rows) : 2 * len(rows)].tolist()
        self._fixed: _Fixed | None = None

    def table(
        self, columns: Sequence[Sequence[Tensor]]
    ) -> tuple[NDArray[np.int64], list[UntypedStorage]] | None:
        """Return the table and the storages behind its pointers, or None: call `table_row` then.

        None means that a tensor differs from the cached one, or shares memory with another. The
        caller holds the storages during the call: another thread may assign ``parameter.data``,
        which would free the memory.

        Every check is repeated, memory included, except two: sparse tensors have no storage, and
        tensors with the flag of zeros have one at address 0. Positions and states rarely move:
        their storages are held between steps, so an equal pointer points into the same memory, and
        only gradients are compared with it.
        """
        tensors = list(chain.from_iterable(columns))
        try:
            if not (
                set(map(type, tensors)) <= _PLAIN
                and list(map(_dtype, tensors)) == self._dtypes
                and all(map(_is_cpu, tensors))
                and list(map(_shape, tensors)) == self._shapes
                and all(map(Tensor.is_contiguous, tensors))
                and not any(map(Tensor.is_neg, tensors))
            ):
                return None
            fixed = self._fixed
            if fixed is not None:
                again = fixed.again(columns, self._gradient_bytes)
                if again is not None:
                    return again
            storages = list(map(Tensor.untyped_storage, tensors))
            begins = np.array(list(map(UntypedStorage.data_ptr, storages)), dtype=np.int64)
            lengths = np.array(list(map(UntypedStorage.nbytes, storages)), dtype=np.int64)
            pointers = np.array(list(map(Tensor.data_ptr, tensors)), dtype=np.int64)
        except RuntimeError:  # a tensor without storage
            return None
        ends = pointers + self._bytes
        order = np.argsort(pointers)
        is_inside = (begins <= pointers).all() and (ends <= begins + lengths).all()
        if not begins.all() or not is_inside or (pointers[order[1:]] < ends[order[:-1]]).any():
            return None
        table = self._numbers.copy()
        table[:, POINTERS:] = pointers.reshape(len(columns), -1).T
        self._fixed = _Fixed(table, storages, pointers, ends)
        return table, storages


class _Fixed:
    """Checked positions and states, with their storages held; gradients are not held.

    Args:
        table: of the step.
        storages: positions, gradients, then each state.
        pointers: likewise.
        ends: likewise, the byte after the last.
    """

    def __init__(
        self,
        table: NDArray[np.int64],
        storages: list[UntypedStorage],
        pointers: NDArray[np.int64],
        ends: NDArray[np.int64],
    ) -> None:
        """Sort their memory ranges."""
        rows = len(table)
        kept = np.r_[0:rows, 2 * rows : len(pointers)]
        self._table, self._storages = table.copy(), [storages[number] for number in kept]
        self._pointers = pointers[kept].tolist()
        order = np.argsort(pointers[kept])
        self._begins, self._ends = pointers[kept][order], ends[kept][order]
        self._lists = self._begins.tolist(), self._ends.tolist()

    def again(
        self, columns: Sequence[Sequence[Tensor]], widths: list[int]
    ) -> tuple[NDArray[np.int64], list[UntypedStorage]] | None:
        """Return the table and the storages; None if something moved or gradients overlap."""
        positions, gradients, *states = columns
        if list(map(Tensor.data_ptr, chain(positions, *states))) != self._pointers:
            return None
        storages = list(map(Tensor.untyped_storage, gradients))
        pointers = list(map(Tensor.data_ptr, gradients))
        are_disjoint = self._few_are_disjoint if len(pointers) <= _FEW else self._many_are_disjoint
        if not are_disjoint(pointers, widths, storages):
            return None
        table = self._table.copy()
        table[:, POINTERS + 1] = pointers
        return table, [*self._storages, *storages]

    def _few_are_disjoint(
        self, pointers: list[int], widths: list[int], storages: list[UntypedStorage]
    ) -> bool:
        """Return whether gradients are inside their storages and disjoint from all tensors."""
        before = 0  # end of the previous gradient in memory
        (begins, ends), last = self._lists, len(self._begins)
        for pointer, width, storage in sorted(
            zip(pointers, widths, storages, strict=True), key=_pointer
        ):
            begin, end = storage.data_ptr(), pointer + width
            place = bisect(begins, pointer)
            if (
                not 0 < begin <= pointer
                or end > begin + storage.nbytes()
                or pointer < before
                or (place and ends[place - 1] > pointer)
                or (place < last and begins[place] < end)
            ):
                return False
            before = end
        return True

    def _many_are_disjoint(
        self, pointers: list[int], widths: list[int], storages: list[UntypedStorage]
    ) -> bool:
        """Vectorized `_few_are_disjoint`."""
        begins = np.array(list(map(UntypedStorage.data_ptr, storages)), dtype=np.int64)
        lengths = np.array(list(map(UntypedStorage.nbytes, storages)), dtype=np.int64)
        starts = np.array(pointers, dtype=np.int64)
        ends = starts + np.array(widths, dtype=np.int64)
        order = np.argsort(starts)
        starts_in_order, ends_in_order = starts[order], ends[order]
        place = np.searchsorted(self._begins, starts, side="right")
        befores = np.r_[0, self._ends][place]
        nexts = np.r_[self._begins, np.iinfo(np.int64).max][place]
        is_inside = begins.all() and (begins <= starts).all() and (ends <= begins + lengths).all()
        is_disjoint = (
            (starts_in_order[1:] >= ends_in_order[:-1]).all()
            and (befores <= starts).all()
            and (nexts >= ends).all()
        )
        return bool(is_inside and is_disjoint)
