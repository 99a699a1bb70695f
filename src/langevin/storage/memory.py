"""The interface of a store of draws, its arrays, and the store in memory."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import ClassVar, Protocol, Self

import torch
from torch import Tensor
from typing_extensions import override

from langevin.storage.checkpoint import Checkpoint
from langevin.storage.layout import ArraySpec, array_specs

__all__ = ["Arrays", "MemoryStore", "Store", "pick_elements"]


def pick_elements(array: Tensor, pick: Tensor | None) -> Tensor:
    """Return elements `pick` of each draw, (., ., element); all elements for None."""
    if pick is None:
        return array
    flat = array.reshape(*array.shape[:2], math.prod(array.shape[2:]))
    return flat[..., pick.to(array.device)]


@dataclass(frozen=True)
class Arrays(Mapping[str, Tensor]):
    """The first draws of a store, by name: (chain, draw, ...), or (draw,) if chains share a value.

    Stores have the draw axis first; only this class swaps axes.
    """

    # (name, every, pick) -> (draw, ...): every `every`-th draw, and elements `pick` of it.
    stored: Callable[..., Tensor] = field(repr=False)
    specs: Mapping[str, ArraySpec]
    path: Path | None = None  # None for draws in memory
    counts: Mapping[int, int] = field(default_factory=dict)  # draws of stopped chains, by index
    stride: int = 1  # read every `stride`-th chain: the first of each group (replica exchange)

    def __getitem__(self, name: str) -> Tensor:
        if not self.specs[name].tail:
            return self.stored(name)
        array = self.stored(name).transpose(0, 1)
        for index, count in self.counts.items():
            array[index, count:] = torch.nan  # in place: no caller has seen these draws
        return array[:: self.stride]

    def some(self, name: str, every: int, pick: Tensor | None = None) -> Tensor:
        """Return every `every`-th draw and elements `pick`, (chain, draw, element).

        Draws of stopped chains are not replaced by NaN.
        """
        array = self.stored(name, every, pick)
        return array.transpose(0, 1)[:: self.stride] if self.specs[name].tail else array

    def __iter__(self) -> Iterator[str]:
        return iter(self.specs)

    def __len__(self) -> int:
        return len(self.specs)


class Store(Protocol):
    """Stores draws; a context manager."""

    can_rewrite: ClassVar[bool]
    """Whether draws may be written twice, so that an interrupted write can be repeated."""

    @property
    def folder(self) -> Path | None:
        """The folder of draws, or None in memory."""
        return None

    def write(self, first: int, values: Mapping[str, Tensor]) -> None:
        """Write draws `first`, `first + 1`, ...: the first axis of every array."""

    def save(self, checkpoint: Checkpoint) -> None:
        """Make the draws so far and their checkpoint persistent, if the store is."""
        return

    def last_checkpoint(self, now: Checkpoint) -> Checkpoint:
        """Return the checkpoint of the readable draws: the last saved one, or `now` in memory."""
        return now

    def read(self, kept: int) -> Arrays:
        """Return the first `kept` draws; on disk they are read on access."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Release resources."""
        return


class MemoryStore(Store):
    """Draws in preallocated tensors on the device of the positions."""

    can_rewrite = True

    def __init__(
        self,
        event_shape: tuple[int, ...],
        num_chains: int,
        num_draws: int,
        like: Tensor,
        step_size_shape: tuple[int, ...] = (),
    ) -> None:
        """Allocate; `like` gives dtype and device, shapes are those of `array_specs`."""
        self._specs = array_specs(like.dtype, num_chains, event_shape, step_size_shape)
        self._arrays = {
            name: spec.new(num_draws, like.device) for name, spec in self._specs.items()
        }

    @override
    def write(self, first: int, values: Mapping[str, Tensor], chains: slice = slice(None)) -> None:
        for name, value in values.items():
            array = self._arrays[name][first : first + len(value)]
            array[(slice(None), chains)[: array.ndim]] = value  # shared values have no chain axis

    @override
    def read(self, kept: int) -> Arrays:
        return Arrays(partial(self._first, kept), self._specs)

    def _first(self, kept: int, name: str, every: int = 1, pick: Tensor | None = None) -> Tensor:
        return pick_elements(self._arrays[name][:kept:every], pick)
