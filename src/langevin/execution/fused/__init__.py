"""Fused CPU code: a kernel's `update` as one pass over memory, with noise generated in cache.

`trace` records the formula with the compiler's recorder, `write` translates it to C, `generate`
compiles and calls it, `table` checks which tensors the loop may access, and `pointers` repeats
these checks faster in later steps.
"""

from langevin.execution.fused.generate import Extent, Fused, fuse
from langevin.execution.fused.pointers import PointerCache
from langevin.execution.fused.table import (
    Entry,
    Row,
    clashing_rows,
    misfit,
    table_of,
    table_row,
    wide_dtype,
)
from langevin.execution.fused.trace import UntraceableError

__all__ = [
    "Entry",
    "Extent",
    "Fused",
    "PointerCache",
    "Row",
    "UntraceableError",
    "clashing_rows",
    "fuse",
    "misfit",
    "table_of",
    "table_row",
    "wide_dtype",
]
