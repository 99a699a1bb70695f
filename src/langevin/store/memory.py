"""What the driver of chains asks of a store, what it reads from one, and the plainest store: draws in memory."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import ClassVar, Protocol, Self

import torch
from torch import Tensor
from typing_extensions import override

from langevin.store.checkpoint import Checkpoint
from langevin.store.layout import ArraySpec, array_specs

__all__ = ["Arrays", "MemoryStore", "Store"]


@dataclass(frozen=True)
class Arrays(Mapping[str, Tensor]):
    """The first draws of a store, by name: (chain, draw, ...), or (draw,) where all chains share a value.

    Stores have the draw first and know no chain; here, and nowhere else, the axes are swapped.
    """

    stored: Callable[..., Tensor] = field(repr=False)  # an array as it is stored, (draw, ...); (name, every, pick) gives a part
    specs: Mapping[str, ArraySpec]
    path: Path | None = None  # None for draws in memory
    counts: Mapping[int, int] = field(default_factory=dict)  # draws that count of chains that stopped, by index: NaN after them
    stride: int = 1  # every so many-th chain is read: the first of each group whose chains have different temperatures

    def __getitem__(self, name: str) -> Tensor:
        if not self.specs[name].tail:
            return self.stored(name)
        array = self.stored(name).transpose(0, 1)
        for index, count in self.counts.items():
            array[index, count:] = torch.nan  # in place: it was read for this call, or is the store's, where nobody else looks
        return array[:: self.stride]

    def some(self, name: str, every: int, pick: Tensor | None = None) -> Tensor:
        """Return `every` so many-th draw of an array, and the elements `pick` of it, (chain, draw, element): little memory.

        The draws of chains that stopped are whatever they are.
        """
        array = self.stored(name, every, pick)
        return array.transpose(0, 1)[:: self.stride] if self.specs[name].tail else array

    def __iter__(self) -> Iterator[str]:
        return iter(self.specs)

    def __len__(self) -> int:
        return len(self.specs)


class Store(Protocol):
    """A place for draws, until the end of its `with`."""

    can_rewrite: ClassVar[bool]
    """Whether draws may be written a second time, so that an interrupted write can be repeated; else the last checkpoint stands."""

    def write(self, first: int, values: Mapping[str, Tensor]) -> None:
        """Write draws `first`, `first + 1`, ...: the draw is the first axis of every array."""

    def save(self, checkpoint: Checkpoint) -> None:
        """Make the draws so far, and the checkpoint that counts them, outlive the process, where the store does."""
        return

    def last_checkpoint(self, now: Checkpoint) -> Checkpoint:
        """Return the checkpoint that counts the draws that can be read: the last one saved, or `now` in memory."""
        return now

    def read(self, kept: int) -> Arrays:
        """Return the first `kept` draws; on disk they are read when they are asked for."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Give back what the store holds."""
        return  # nothing, if it does not say otherwise


class MemoryStore(Store):
    """Draws in tensors with room for all of them, on the device of the positions; a checkpoint needs no place."""

    can_rewrite = True

    def __init__(
        self, event_shape: tuple[int, ...], num_chains: int, num_draws: int, like: Tensor, step_size_shape: tuple[int, ...] = ()
    ) -> None:
        """Make room; positions are like `like`, shapes are those of `array_specs`."""
        self._specs = array_specs(like.dtype, num_chains, event_shape, step_size_shape)
        self._arrays = {name: spec.new(num_draws, like.device) for name, spec in self._specs.items()}

    @override
    def write(self, first: int, values: Mapping[str, Tensor], rows: slice = slice(None)) -> None:
        for name, value in values.items():
            place = self._arrays[name][first : first + len(value)]
            place[(slice(None), rows)[: place.ndim]] = value  # what all chains share has no rows

    @override
    def read(self, kept: int) -> Arrays:
        return Arrays(partial(self._first, kept), self._specs)

    def _first(self, kept: int, name: str, every: int = 1, pick: Tensor | None = None) -> Tensor:
        array = self._arrays[name][:kept:every]
        return array if pick is None else array.reshape(*array.shape[:2], math.prod(array.shape[2:]))[..., pick.to(array.device)]
