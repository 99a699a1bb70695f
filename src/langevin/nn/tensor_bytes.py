"""The memory of tensors, in pieces that take little beside the tensor."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

__all__ = ["bytes_of", "crc", "pieces"]

PIECE = 2**20  # bytes to copy, check and write at a time


def pieces(tensor: Tensor) -> Iterator[Tensor]:
    """Cut a tensor in element order into contiguous CPU tensors of at most PIECE bytes."""
    if tensor.nbytes <= PIECE:
        yield tensor.cpu().resolve_conj().resolve_neg().contiguous()
        return
    whole = tensor.view(-1) if tensor.is_contiguous() else tensor
    rows = PIECE * len(whole) // whole.nbytes
    for part in whole.split(rows) if rows else whole.unbind():
        yield from pieces(part)


def crc(tensor: Tensor, start: int = 0) -> int:
    """Return the CRC of a tensor's elements, continuing that of another."""
    for piece in pieces(tensor.detach()):
        start = zlib.crc32(bytes_of(piece), start)
    return start


def bytes_of(tensor: Tensor) -> Any:
    """Return the memory of a contiguous CPU tensor as a NumPy array of bytes."""
    if sys.byteorder != "little":
        raise NotImplementedError(
            "a bank needs a little-endian machine: the bytes of safetensors files are little-endian"
        )
    # a single element may have any stride
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8).numpy()
