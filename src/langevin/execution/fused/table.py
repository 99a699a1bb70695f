"""The memory that generated code may access: each tensor is checked as it enters the table."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, UntypedStorage, nn

from langevin.checks import lacks_memory
from langevin.execution.shards import Runs
from langevin.kernels import StepInputs
from langevin.targets.priors import Prior

__all__ = ["DTYPES", "POINTERS", "Entry", "Row", "clashing_rows", "misfit", "table_of"]
__all__ += ["is_plain", "overlapping", "table_row", "wide_dtype", "widths_of"]

POINTERS = 4  # columns of a row before its pointers: size, offset, channels, spatial
MAX_SLAB = 2**16  # elements of an output channel, of channels-last weights, with noise in memory


DTYPES = (torch.float32, torch.float64, torch.bfloat16)
_CPU = torch.device("cpu")
_WIDE = {torch.bfloat16: torch.float32, torch.float16: torch.float32}


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of state and arithmetic: averages in half precision would not change."""
    return _WIDE.get(dtype, dtype)


def widths_of(dtype: torch.dtype, num_tensors: int) -> NDArray[np.int64]:
    """Return the bytes per element of a row's tensors: position, gradient, and states."""
    wide = wide_dtype(dtype).itemsize
    return np.array([dtype.itemsize] * 2 + [wide] * (num_tensors - 2))


class Row(NamedTuple):
    """A parameter, its gradient and its state, as the loop sees them.

    The caller keeps the row alive during the call. The tensors alone are not enough: another thread
    may give them other storages.

    Channels and spatial size are nonzero for channels-last weights only: memory has the channel
    innermost there, addresses do not.
    """

    numbers: list[int]  # size, offset, channels, spatial, then the pointers
    storages: list[tuple[int, int]]  # of each tensor, first byte and the one after the last
    held: list[UntypedStorage]  # keeps the memory behind the pointers alive
    runs: Runs | None = None  # of a shard: which elements of the whole it holds


class Entry(NamedTuple):
    """A parameter that has a gradient; of a sharded one, this rank's part."""

    parameter: Tensor
    position: Tensor
    gradient: Tensor
    state: list[Tensor]
    offset: int  # address of its first element, in elements of its dtype
    runs: Runs | None  # of a shard: which elements of the whole it holds
    inputs: StepInputs
    prior: Prior | None
    row: Row | None  # None if fused code cannot update these tensors
    rounded: Tensor | None = None  # the parameter, if `position` is its float32 copy


def _is_channels_last(tensor: Tensor) -> bool:
    return (tensor.ndim == 4 and tensor.is_contiguous(memory_format=torch.channels_last)) or (
        tensor.ndim == 5 and tensor.is_contiguous(memory_format=torch.channels_last_3d)
    )


def is_plain(tensor: Tensor, shape: torch.Size, dtype: torch.dtype, device: torch.device) -> bool:
    """Return whether a tensor is dense, without flags, and of this shape, dtype and device."""
    return (
        (type(tensor) is Tensor or type(tensor) is nn.Parameter)
        and tensor.dtype is dtype
        and tensor.device == device
        and tensor.layout is torch.strided
        and tensor.shape == shape
        and not tensor.is_neg()  # the sign, or the zeros, are in a flag and not in memory
        and not tensor._is_zerotensor()
    )


def table_row(
    position: Tensor,
    gradient: Tensor,
    state: Sequence[Tensor],
    offset: int,
    runs: Runs | None = None,
) -> Row | None:
    """Return the row of tensors that the loop may access, or None: `misfit` gives the reason."""
    dtype, shape, wide = position.dtype, position.shape, wide_dtype(position.dtype)
    if dtype not in DTYPES:
        return None
    channels = spatial = 0
    if len(shape) > 3 and not position.is_contiguous() and _is_channels_last(position):
        channels, spatial = shape[1], shape[2:].numel()
        if channels * spatial > MAX_SLAB or (runs is not None and len(runs.begins) > 1):
            return None
    size = position.numel()
    numbers, storages, held = [size, offset, channels, spatial], [], []
    for number, tensor in enumerate((position, gradient, *state)):
        wanted = dtype if number < 2 else wide
        if not is_plain(tensor, shape, wanted, _CPU) or not (
            _is_channels_last(tensor) if channels else tensor.is_contiguous()
        ):
            return None
        storage = tensor.untyped_storage()
        begin, pointer = storage.data_ptr(), tensor.data_ptr()
        end = begin + storage.nbytes()
        if size and not begin <= pointer <= end - size * wanted.itemsize:  # memory freed or cut
            return None
        numbers.append(pointer)
        storages.append((begin, end))
        held.append(storage)
    return Row(numbers, storages, held, runs)


def table_of(rows: Sequence[Row], dtype: torch.dtype) -> NDArray[np.int64]:
    """Return the table of the loop: a line for each row, or for each run of a shard."""
    if all(row.runs is None for row in rows):
        return np.array([row.numbers for row in rows], dtype=np.int64)
    width = widths_of(dtype, len(rows[0].numbers) - POINTERS)
    return np.concatenate([_lines(row, width) for row in rows])


def _lines(row: Row, width: NDArray[np.int64]) -> NDArray[np.int64]:
    numbers, runs = np.array([row.numbers], dtype=np.int64), row.runs
    if runs is None:
        return numbers
    if int(runs.lengths.sum()) != row.numbers[0]:  # only checked memory is accessed
        total = int(runs.lengths.sum())
        raise ValueError(f"a shard of {row.numbers[0]} elements has runs of {total} elements")
    lines = np.repeat(numbers, len(runs.begins), axis=0)
    lines[:, 0] = runs.lengths
    lines[:, 1] += runs.begins
    lines[:, POINTERS:] += runs.starts[:, None] * width
    return lines


def misfit(position: Tensor, gradient: Tensor, state: Sequence[Tensor]) -> str:
    """Return the reason why there is no row for these tensors."""
    if position.dtype not in DTYPES:
        return f"the parameter is {position.dtype}"
    wide = wide_dtype(position.dtype)
    tensors = [
        ("parameter", position, position.dtype),
        ("gradient", gradient, position.dtype),
        *(("state", t, wide) for t in state),
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
    """Return the rows that overlap in memory: threads would write there in any order."""
    storages = sorted(storage for row in rows for storage in row.storages)
    if all(before[1] <= after[0] for before, after in itertools.pairwise(storages)):
        return []
    # For example views of one buffer: compare the tensors themselves.
    spans = []
    for owner, row in enumerate(rows):
        size, pointers = row.numbers[0], row.numbers[POINTERS:]
        widths = widths_of(dtype, len(pointers)).tolist()
        spans += [(at, at + size * w, owner) for at, w in zip(pointers, widths, strict=True)]
    return sorted(overlapping(spans))


def overlapping(spans: Sequence[tuple[int, int, int]]) -> set[int]:
    """Return the owners of spans (begin, end, owner) that overlap another one."""
    found, last, before = set[int](), 0, 0  # the end that reaches furthest, and its owner
    for begin, end, owner in sorted(spans):
        if begin < last:
            found |= {owner, before}
        if end > last:
            last, before = end, owner
    return found
