"""Which tensors generated code may update, in which batches, and the addresses of elements."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from langevin.execution.fused.table import Entry, is_plain, overlapping, wide_dtype
from langevin.execution.shards import Runs

__all__ = ["DEVICES", "SMALL", "addresses", "first_address", "sort", "takes"]

DEVICES = {"cuda", "mps", "xpu"}  # tests and benchmarks add the CPU, where fused code is faster
SMALL = 2**16  # elements, below which copies should cost less than a launch (no GPU to measure)


def takes(entry: Entry) -> bool:
    """Return whether tensors are plain, dense, of one shape, and on one of `DEVICES`."""
    position, wide = entry.position, wide_dtype(entry.position.dtype)
    if position.device.type not in DEVICES or wide not in (torch.float32, torch.float64):
        return False
    wanted = [
        (position, position.dtype),
        (entry.gradient, position.dtype),
        *((tensor, wide) for tensor in entry.state),
    ]
    shape, device = position.shape, position.device
    return all(is_plain(tensor, shape, dtype, device) for tensor, dtype in wanted)


def sort(entries: Sequence[Entry]) -> tuple[list[Entry], list[Entry], list[Entry]]:
    """Return the entries to update one by one, together, and by plain torch."""
    alone: list[Entry] = []
    parts: list[Entry] = []
    for entry in entries:
        is_in_order = (entry.runs is None or len(entry.runs.begins) == 1) and all(
            tensor.is_contiguous()
            and tensor.storage_offset() == 0  # the compiler recompiles for views of a buffer
            for tensor in (entry.position, *entry.state)
        )
        (alone if is_in_order and entry.position.numel() >= SMALL else parts).append(entry)
    clashing = _clashing(parts)
    left = [entry for number, entry in enumerate(parts) if number in clashing]
    parts = [entry for number, entry in enumerate(parts) if number not in clashing]
    if sum(entry.position.numel() for entry in parts) == 1:  # would be recompiled for this size
        left, parts = left + parts, []
    return alone, parts, left


def _clashing(entries: Sequence[Entry]) -> set[int]:
    """Return the entries that overlap in memory, whose update depends on the order."""
    return overlapping(
        [
            (tensor.data_ptr(), tensor.data_ptr() + tensor.itemsize * _extent(tensor), number)
            for number, entry in enumerate(entries)
            for tensor in (entry.position, entry.gradient, *entry.state)
        ]
    )


def _extent(tensor: Tensor) -> int:
    """Return the number of elements between the first and the last, both included."""
    if tensor.is_contiguous():
        return tensor.numel()
    return 1 + sum(
        (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )


def first_address(entry: Entry) -> int:
    """Return the address of a tensor's first element."""
    return entry.offset + (0 if entry.runs is None else int(entry.runs.begins[0]))


@dataclass(frozen=True)
class _Range:
    offset: int
    size: int
    runs: Runs | None

    def __hash__(self) -> int:
        return hash((self.offset, self.size, id(self.runs)))

    def __eq__(self, other: object) -> bool:
        # Arrays are compared by identity; this keeps them alive.
        return (
            isinstance(other, _Range)
            and (self.offset, self.size) == (other.offset, other.size)
            and self.runs is other.runs
        )


def addresses(entries: Sequence[Entry]) -> Tensor:
    """Return the address of every element of these tensors, concatenated; cached."""
    ranges = tuple(_Range(entry.offset, entry.position.numel(), entry.runs) for entry in entries)
    return _addresses(ranges, entries[0].position.device)


@functools.lru_cache(maxsize=64)
def _addresses(ranges: tuple[_Range, ...], device: torch.device) -> Tensor:
    parts = []
    for offset, size, runs in ((entry.offset, entry.size, entry.runs) for entry in ranges):
        pairs = [(0, size)] if runs is None else zip(runs.begins, runs.lengths, strict=True)
        parts += [np.arange(offset + begin, offset + begin + n) for begin, n in pairs]
    return torch.from_numpy(np.concatenate(parts)).to(device)
