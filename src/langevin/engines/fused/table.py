"""Which memory the generated loop may touch: every tensor is checked here, where its pointer enters the table."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from langevin.checks import lacks_memory
from langevin.shards import Runs

__all__ = ["FORMATS", "POINTERS", "Format", "Row", "clashing_rows", "misfit", "table_of", "table_row"]

POINTERS = 4  # columns of a row before its pointers: size, offset, channels, spatial
MAX_SLAB = 2**16  # elements of an output channel whose noise is kept at a time for channels-last weights


class Format(NamedTuple):
    """How a dtype lies in memory, and what its elements are computed and remembered in."""

    stored: type[np.generic]
    stored_width: int  # bytes
    real: type[np.floating[Any]]
    real_width: int
    wide: torch.dtype


FORMATS = {
    torch.float32: Format(np.float32, 4, np.float32, 4, torch.float32),
    torch.float64: Format(np.float64, 8, np.float64, 8, torch.float64),
    torch.bfloat16: Format(np.uint16, 2, np.float32, 4, torch.float32),
}


class Row(NamedTuple):
    """A parameter, its gradient and its memory, as the loop sees them; the caller keeps the tensors alive during the call.

    Channels and spatial size are zero but for channels-last weights: memory has the channel innermost there, addresses do not.
    """

    numbers: list[int]  # size, offset, channels, spatial, then the pointers
    storages: list[tuple[int, int]]  # first byte and the one after the last of what each tensor lies in
    runs: Runs | None = None  # where the tensors are a shard: which elements of the whole they hold


def _is_channels_last(tensor: Tensor) -> bool:
    return (tensor.ndim == 4 and tensor.is_contiguous(memory_format=torch.channels_last)) or (
        tensor.ndim == 5 and tensor.is_contiguous(memory_format=torch.channels_last_3d)
    )


def _fits(tensor: Tensor, shape: torch.Size, dtype: torch.dtype, channels_last: bool) -> bool:
    return (
        (type(tensor) is Tensor or type(tensor) is nn.Parameter)
        and tensor.dtype is dtype
        and tensor.is_cpu
        and tensor.layout is torch.strided
        and tensor.shape == shape
        and (_is_channels_last(tensor) if channels_last else tensor.is_contiguous())
        and not tensor.is_neg()  # the sign, or the zeros, are in a flag and not in memory
        and not tensor._is_zerotensor()
    )


def table_row(position: Tensor, gradient: Tensor, memory: Sequence[Tensor], offset: int, runs: Runs | None = None) -> Row | None:
    """Return the row of tensors that the loop may touch, or None: `misfit` then says why not."""
    dtype, shape = position.dtype, position.shape
    form = FORMATS.get(dtype)
    if form is None:
        return None
    channels = spatial = 0
    if len(shape) > 3 and not position.is_contiguous() and _is_channels_last(position):
        channels, spatial = shape[1], shape[2:].numel()
        if channels * spatial > MAX_SLAB or (runs is not None and len(runs.begins) > 1):
            return None
    size = position.numel()
    numbers, storages = [size, offset, channels, spatial], []
    for tensors, wanted, width in (((position, gradient), dtype, form.stored_width), (memory, form.wide, form.real_width)):
        for tensor in tensors:
            if not _fits(tensor, shape, wanted, channels > 0):
                return None
            pointer, storage = tensor.data_ptr(), tensor.untyped_storage()
            begin = storage.data_ptr()
            end = begin + storage.nbytes()
            if pointer + size * width > end:  # its memory was freed or cut
                return None
            numbers.append(pointer)
            storages.append((begin, end))
    return Row(numbers, storages, runs)


def table_of(rows: Sequence[Row], dtype: torch.dtype) -> NDArray[np.int64]:
    """Return the table of the loop: a line for each row, or for each stretch of a shard, whose elements have addresses apart."""
    if all(row.runs is None for row in rows):
        return np.array([row.numbers for row in rows], dtype=np.int64)
    width = np.full(len(rows[0].numbers) - POINTERS, FORMATS[dtype].real_width)
    width[:2] = FORMATS[dtype].stored_width
    return np.concatenate([_lines(row, width) for row in rows])


def _lines(row: Row, width: NDArray[np.int64]) -> NDArray[np.int64]:
    numbers, runs = np.array([row.numbers], dtype=np.int64), row.runs
    if runs is None:
        return numbers
    if int(runs.lengths.sum()) != row.numbers[0]:  # no memory is touched that was not checked
        raise ValueError(f"a shard of {row.numbers[0]} elements is said to hold {int(runs.lengths.sum())} of the whole")
    lines = np.repeat(numbers, len(runs.begins), axis=0)
    lines[:, 0] = runs.lengths
    lines[:, 1] += runs.begins
    lines[:, POINTERS:] += runs.starts[:, None] * width
    return lines


def misfit(position: Tensor, gradient: Tensor, memory: Sequence[Tensor]) -> str:
    """Say why there is no row for these tensors."""
    if position.dtype not in FORMATS:
        return f"the parameter is {position.dtype}"
    wide = FORMATS[position.dtype].wide
    tensors = [
        ("parameter", position, position.dtype),
        ("gradient", gradient, position.dtype),
        *(("memory", t, wide) for t in memory),
    ]
    for name, tensor, dtype in tensors:
        if type(tensor) is not Tensor and type(tensor) is not nn.Parameter:
            return f"the {name} is a {type(tensor).__name__}, not a plain tensor"
        if tensor.layout is not torch.strided or not tensor.is_cpu:
            return f"the {name} is {tensor.layout} on {tensor.device}, not dense on the CPU"
        if tensor.dtype != dtype:
            return f"the {name} is {tensor.dtype}, not {dtype}"
        if tensor.shape != position.shape:
            return f"the {name} has shape {tuple(tensor.shape)}, not {tuple(position.shape)}"
        if tensor.is_neg() or tensor._is_zerotensor():
            return f"the {name} has its sign or its zeros in a flag, not in memory"
        if lacks_memory(tensor):
            return f"the {name} has less memory than elements"
    return f"the strides are {[tensor.stride() for _, tensor, _ in tensors]}"


def clashing_rows(rows: Sequence[Row], dtype: torch.dtype) -> list[int]:
    """Return the rows of which some memory is also another tensor's: threads would write there in any order."""
    storages = sorted(storage for row in rows for storage in row.storages)
    if all(before[1] <= after[0] for before, after in itertools.pairwise(storages)):
        return []
    # Parameters that are views of one buffer, say: look at the tensors themselves.
    table = np.array([row.numbers for row in rows], dtype=np.int64)
    pointers = table[:, POINTERS:]
    width = np.full(pointers.shape[1], FORMATS[dtype].real_width)
    width[:2] = FORMATS[dtype].stored_width
    order = np.argsort(pointers, axis=None, kind="stable")
    starts, ends = pointers.ravel()[order], (pointers + table[:, :1] * width).ravel()[order]
    owners = order // pointers.shape[1]
    late = np.flatnonzero(starts[1:] < np.maximum.accumulate(ends)[:-1]) + 1  # begin before an earlier one ends
    return sorted({int(owners[i]) for k in late for i in range(k + 1) if i == k or ends[i] > starts[k]})
