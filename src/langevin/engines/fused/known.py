"""The checks of `table_row`, for all tensors of a table at once: at later steps most are what they were."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, UntypedStorage, nn

from langevin.engines.fused.table import FORMATS, POINTERS, Row

__all__ = ["Known"]

_PLAIN = {Tensor, nn.Parameter}
_dtype, _shape, _is_cpu = attrgetter("dtype"), attrgetter("shape"), attrgetter("is_cpu")


class Known:
    """Rows that `table_row` gave for contiguous tensors.

    Args:
        columns: the tensors: positions, gradients, then each memory; a tensor for each row.
        rows: what `table_row` returned for them, without runs and without channels.
    """

    @staticmethod
    def takes(row: Row | None) -> bool:
        """Say whether a row can be known: of a whole tensor, contiguous, not empty."""
        return row is not None and row.runs is None and row.numbers[0] > 0 and row.numbers[2] == 0

    def __init__(self, columns: Sequence[Sequence[Tensor]], rows: Sequence[Row]) -> None:
        """Note what the tensors are like."""
        tensors = list(chain.from_iterable(columns))
        self._dtypes, self._shapes = list(map(_dtype, tensors)), list(map(_shape, tensors))
        forms = [FORMATS[position.dtype] for position in columns[0]]
        widths = [form.stored_width if k < 2 else form.real_width for k in range(len(columns)) for form in forms]
        self._numbers = np.array([row.numbers for row in rows], dtype=np.int64)
        self._bytes = np.array(widths, dtype=np.int64) * np.tile(self._numbers[:, 0], len(columns))

    def table(self, columns: Sequence[Sequence[Tensor]]) -> NDArray[np.int64] | None:
        """Return the table of tensors that are like the known ones; None where one is not, or shares memory: ask `table_row` then.

        Every check is made anew, memory included; only the layout is not asked for, nor the flag of zeros: sparse tensors have no
        storage, and zeros in a flag one that begins nowhere.
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
            storages = list(map(Tensor.untyped_storage, tensors))
            begins = np.array(list(map(UntypedStorage.data_ptr, storages)), dtype=np.int64)
            lengths = np.array(list(map(UntypedStorage.nbytes, storages)), dtype=np.int64)
            pointers = np.array(list(map(Tensor.data_ptr, tensors)), dtype=np.int64)
        except RuntimeError:  # a tensor without storage
            return None
        ends = pointers + self._bytes
        order = np.argsort(pointers)
        if not begins.all() or (ends > begins + lengths).any() or (pointers[order[1:]] < ends[order[:-1]]).any():
            return None
        table = self._numbers.copy()
        table[:, POINTERS:] = pointers.reshape(len(columns), -1).T
        return table
