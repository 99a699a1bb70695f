"""Which tensors generated code may touch, how they are put together, and the addresses of their elements."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from langevin.shards import Runs

__all__ = ["DEVICES", "SMALL", "WIDE", "AnyEntry", "Entry", "addresses", "first_address", "sort", "takes"]

DEVICES = {"cuda", "mps", "xpu"}  # whose tensors are taken; tests and benchmarks add the CPU, which has a faster engine
SMALL = 2**16  # elements: below, a launch is taken to cost more than copies to and fro (not measured: no GPU here)
WIDE = {torch.float32: torch.float32, torch.float64: torch.float64, torch.bfloat16: torch.float32, torch.float16: torch.float32}


class Entry(Protocol):
    """A parameter with its gradient and memory, and where its elements stand."""

    @property
    def position(self) -> Tensor: ...  # noqa: D102
    @property
    def gradient(self) -> Tensor: ...  # noqa: D102
    @property
    def memory(self) -> list[Tensor]: ...  # noqa: D102
    @property
    def offset(self) -> int: ...  # noqa: D102
    @property
    def runs(self) -> Runs | None: ...  # noqa: D102


AnyEntry = TypeVar("AnyEntry", bound=Entry)


def takes(entry: Entry) -> bool:
    """Say whether generated code may touch these tensors: plain, dense, of one shape, on a device of `DEVICES`."""
    position, wide = entry.position, WIDE.get(entry.position.dtype)
    if position.device.type not in DEVICES or wide is None:
        return False
    wanted = [(position, position.dtype), (entry.gradient, position.dtype), *((tensor, wide) for tensor in entry.memory)]
    return all(
        (type(tensor) is Tensor or type(tensor) is nn.Parameter)
        and tensor.dtype is dtype
        and tensor.device == position.device
        and tensor.layout is torch.strided
        and tensor.shape == position.shape
        and not tensor.is_neg()  # the sign, or the zeros, are in a flag and not in memory
        and not tensor._is_zerotensor()
        for tensor, dtype in wanted
    )


def sort(entries: Sequence[AnyEntry]) -> tuple[list[AnyEntry], list[AnyEntry], list[AnyEntry]]:
    """Return the entries to be moved one by one, those to be moved together, and those that are left to plain torch."""
    alone: list[AnyEntry] = []
    parts: list[AnyEntry] = []
    for entry in entries:
        is_in_order = (entry.runs is None or len(entry.runs.begins) == 1) and all(
            tensor.is_contiguous() and tensor.storage_offset() == 0  # the compiler writes other code for views of a buffer
            for tensor in (entry.position, *entry.memory)
        )
        (alone if is_in_order and entry.position.numel() >= SMALL else parts).append(entry)
    clashing = _clashing(parts)
    left = [entry for number, entry in enumerate(parts) if number in clashing]
    parts = [entry for number, entry in enumerate(parts) if number not in clashing]
    if sum(entry.position.numel() for entry in parts) == 1:  # the compiler would write code for this size alone
        left, parts = left + parts, []
    return alone, parts, left


def _clashing(entries: Sequence[Entry]) -> set[int]:
    """Return the entries of which a tensor reaches into another: one after the other, the second would see the first moved."""
    spans = sorted(
        (tensor.data_ptr(), tensor.data_ptr() + tensor.itemsize * _reach(tensor), number)
        for number, entry in enumerate(entries)
        for tensor in (entry.position, entry.gradient, *entry.memory)
    )
    found, end, owner = set[int](), 0, 0
    for begin, until, number in spans:
        if begin < end:
            found |= {number, owner}
        if until > end:
            end, owner = until, number
    return found


def _reach(tensor: Tensor) -> int:
    """Return the distance in memory from the first to after the last element."""
    if tensor.is_contiguous():
        return tensor.numel()
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def first_address(entry: Entry) -> int:
    """Return the address of a tensor's first element."""
    return entry.offset + (0 if entry.runs is None else int(entry.runs.begins[0]))


@dataclass(frozen=True)
class _Place:
    offset: int
    size: int
    runs: Runs | None

    def __hash__(self) -> int:
        return hash((self.offset, self.size, id(self.runs)))

    def __eq__(self, other: object) -> bool:
        # Arrays are told apart by the object, which lives as long as this.
        return isinstance(other, _Place) and (self.offset, self.size) == (other.offset, other.size) and self.runs is other.runs


def addresses(entries: Sequence[Entry]) -> Tensor:
    """Return the address of every element of these tensors, end to end; made once, since steps have the same tensors."""
    places = tuple(_Place(entry.offset, entry.position.numel(), entry.runs) for entry in entries)
    return _addresses(places, entries[0].position.device)


@functools.lru_cache(maxsize=64)
def _addresses(places: tuple[_Place, ...], device: torch.device) -> Tensor:
    stretches = []
    for offset, size, runs in ((place.offset, place.size, place.runs) for place in places):
        begins, lengths = ([0], [size]) if runs is None else (runs.begins.tolist(), runs.lengths.tolist())
        stretches += [np.arange(offset + begin, offset + begin + n) for begin, n in zip(begins, lengths, strict=True)]
    return torch.from_numpy(np.concatenate(stretches)).to(device)
