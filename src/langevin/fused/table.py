"""Which memory the generated loop may touch: every tensor is checked here, where its pointer enters the table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from langevin.checks import lacks_memory

__all__ = ["FORMATS", "POINTERS", "Format", "clashing_rows", "misfit", "table_row"]

POINTERS = 4  # columns of a row before its pointers: size, offset, channels, spatial
MAX_SLAB = 2**16  # elements of an output channel whose noise is kept at a time for channels-last weights


class Format(NamedTuple):
    """How a dtype lies in memory, and what its elements are computed and remembered in."""

    stored: type[np.generic]
    real: type[np.floating[Any]]
    wide: torch.dtype


FORMATS = {
    torch.float32: Format(np.float32, np.float32, torch.float32),
    torch.float64: Format(np.float64, np.float64, torch.float64),
    torch.bfloat16: Format(np.uint16, np.float32, torch.float32),
}


def _is_channels_last(tensor: Tensor) -> bool:
    return (tensor.ndim == 4 and tensor.is_contiguous(memory_format=torch.channels_last)) or (
        tensor.ndim == 5 and tensor.is_contiguous(memory_format=torch.channels_last_3d)
    )


def _misfit_of_one(tensor: Tensor, shape: torch.Size, dtype: torch.dtype, channels_last: bool) -> str | None:
    if type(tensor) is not Tensor and type(tensor) is not nn.Parameter:
        return f"is a {type(tensor).__name__}, not a plain tensor"
    if tensor.layout is not torch.strided or not tensor.is_cpu:
        return f"is {tensor.layout} on {tensor.device}, not dense on the CPU"
    if tensor.dtype != dtype:
        return f"is {tensor.dtype}, not {dtype}"
    if tensor.shape != shape:
        return f"has shape {tuple(tensor.shape)}, not {tuple(shape)}"
    if tensor.is_neg() or tensor._is_zerotensor():
        return "has its sign or its zeros in a flag, not in memory"
    if not (_is_channels_last(tensor) if channels_last else tensor.is_contiguous()):
        return f"has strides {tensor.stride()} that are not the parameter's"
    if lacks_memory(tensor):
        return "has less memory than elements"
    return None


def _is_laid_out_by_channels(position: Tensor) -> bool:
    return not position.is_contiguous() and _is_channels_last(position)


def misfit(position: Tensor, gradient: Tensor, memory: Sequence[Tensor]) -> str | None:
    """Say why the loop must not touch these tensors; None where it may."""
    if position.dtype not in FORMATS:
        return f"the parameter is {position.dtype}"
    by_channels = type(position) in (Tensor, nn.Parameter) and _is_laid_out_by_channels(position)
    if by_channels and position[0].numel() > MAX_SLAB:
        return f"the parameter is channels-last with more than {MAX_SLAB} elements per output channel"
    wide = FORMATS[position.dtype].wide
    named: Iterator[tuple[str, Tensor, torch.dtype]] = iter(
        [
            ("parameter", position, position.dtype),
            ("gradient", gradient, position.dtype),
            *(("memory", tensor, wide) for tensor in memory),
        ]
    )
    for name, tensor, dtype in named:
        if trouble := _misfit_of_one(tensor, position.shape, dtype, by_channels):
            return f"the {name} {trouble}"
    return None


def table_row(position: Tensor, gradient: Tensor, memory: Sequence[Tensor], offset: int) -> list[int]:
    """Describe tensors without a `misfit` to `Fused`; the caller keeps them alive during the call.

    Channels and spatial size are zero but for channels-last weights: memory has the channel innermost there, addresses do not.
    """
    channels, spatial = (position.shape[1], position[0, 0].numel()) if _is_laid_out_by_channels(position) else (0, 0)
    return [position.numel(), offset, channels, spatial, *(tensor.data_ptr() for tensor in (position, gradient, *memory))]


def clashing_rows(table: NDArray[np.int64], dtype: torch.dtype) -> set[int]:
    """Return the rows of which some memory is also another tensor's: threads would write there in any order."""
    stored, real, _ = FORMATS[dtype]
    pointers = table[:, POINTERS:]
    width = np.full(pointers.shape[1], real(0).itemsize)
    width[:2] = stored(0).itemsize
    ends = (pointers + table[:, :1] * width).ravel()
    order = np.argsort(pointers, axis=None, kind="stable")
    reached = np.maximum.accumulate(ends[order])
    clash = np.flatnonzero(pointers.ravel()[order][1:] < reached[:-1])
    if not len(clash):
        return set()
    # Rare: whoever begins before an earlier one ends, and that earlier one.
    rows, starts = order // pointers.shape[1], pointers.ravel()[order]
    return {int(rows[i]) for k in clash for i in range(k + 2) if i == k + 1 or ends[order[i]] > starts[k + 1]}
