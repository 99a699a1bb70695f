"""A run in blocks of chains, each with draws and checkpoints like those of a run of its own, and one result.

Blocks are all of one size, so that their steps are the same program; the last one may have places without a chain, which count as
stopped before they start. On disk a block has a column of chunks, in the one Zarr array of all chains, and a checkpoint.
The result is what all blocks have: those that are ahead keep for later what they have more.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor
from typing_extensions import override

from langevin.moments import no_moments
from langevin.store.checkpoint import STATE, Checkpoint, Stop
from langevin.store.layout import ArraySpec, array_specs
from langevin.store.memory import Arrays, MemoryStore
from langevin.store.zarr import DiskStore
from langevin.trust import no_heat

__all__ = ["Blocks", "DiskBlocks", "MemoryBlocks", "block_ranges", "merged", "start_of"]

_NO_CHAIN = Stop(0, 0, "a place without a chain")


def block_ranges(chains: range, block_size: int) -> list[range]:
    """Return the numbers of the chains of each block, with those of places without a chain in the last."""
    return [range(first, first + block_size) for first in range(chains.start, chains.stop, block_size)]


def start_of(whole: Checkpoint, block: int, block_size: int) -> Checkpoint:
    """Return where a block starts: its chains of the start of all of them; places without a chain have the last one's."""
    num_chains = len(whole.tensors["position"])
    places = torch.arange(block * block_size, (block + 1) * block_size)
    rows = places.clamp(max=num_chains - 1)
    shared = ("heat_", "moments_", "scale_", "noise_")
    tensors = {name: tensor if name.startswith(shared) else tensor[rows] for name, tensor in whole.tensors.items()}
    tensors |= no_heat(tensors["position"])
    if "moments_mean" in tensors:
        tensors |= no_moments(tensors["position"])
    stopped = {place: _NO_CHAIN for place in range(block_size) if int(places[place]) >= num_chains}
    return dataclasses.replace(whole, tensors=tensors, stopped=stopped)


class Blocks(ABC):
    """A place for the draws of a run in blocks.

    Args:
        num_chains: of the run.
        block_size: chains in a block.
    """

    def __init__(self, num_chains: int, block_size: int) -> None:
        """Take the sizes."""
        self.num_chains, self.block_size = num_chains, block_size

    @property
    def path(self) -> Path | None:
        """The run's folder; None in memory."""
        return None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Give back what the place holds."""
        return  # nothing, if it does not say otherwise

    def __len__(self) -> int:
        """How many blocks there are."""
        return -(-self.num_chains // self.block_size)

    @abstractmethod
    def write(self, block: int, first: int, values: Mapping[str, Tensor], checkpoint: Checkpoint) -> None:
        """Keep a block's draws from `first` on, if there are any, then the checkpoint that counts them."""

    @abstractmethod
    def _load(self, block: int) -> Checkpoint | None:
        """Return a block's last checkpoint, or None where it has not begun."""

    @abstractmethod
    def _read(self, checkpoints: Sequence[Checkpoint], kept: int) -> Arrays:
        """Return the first `kept` draws of all chains, of blocks with these checkpoints."""

    def load(self, start: Checkpoint) -> list[Checkpoint]:
        """Return the last checkpoint of every block; those that have not begun are at the start of all chains."""
        return [self._load(block) or start_of(start, block, self.block_size) for block in range(len(self))]

    def result(self, checkpoints: Sequence[Checkpoint]) -> tuple[Arrays, Checkpoint]:
        """Return what all blocks have, and the checkpoint that counts it."""
        checkpoint = merged(checkpoints, self.num_chains)
        return self._read(checkpoints, checkpoint.kept), checkpoint


class MemoryBlocks(Blocks):
    """Draws in memory."""

    def __init__(self, event_shape: tuple[int, ...], num_chains: int, num_draws: int, like: Tensor, block_size: int) -> None:
        """Make room."""
        super().__init__(num_chains, block_size)
        self._store = MemoryStore(event_shape, num_chains, num_draws, like)

    @override
    def write(self, block: int, first: int, values: Mapping[str, Tensor], checkpoint: Checkpoint) -> None:
        rows = slice(block * self.block_size, min((block + 1) * self.block_size, self.num_chains))
        chains = rows.stop - rows.start
        self._store.write(first, {name: value[:, :chains] if value.ndim > 1 else value for name, value in values.items()}, rows)

    @override
    def _load(self, block: int) -> Checkpoint | None:
        return None

    @override
    def _read(self, checkpoints: Sequence[Checkpoint], kept: int) -> Arrays:
        return self._store.read(kept)


class DiskBlocks(Blocks):
    """Draws in the folder of a run, whose one writer has its lock, or which is read.

    Args:
        whole: the folder, made with a `block_size` in its manifest.
    """

    def __init__(self, whole: DiskStore) -> None:
        """Nothing is read yet."""
        super().__init__(whole.manifest["num_chains"], whole.manifest["block_size"])
        manifest = _manifest_of_a_block(whole.manifest)
        self._whole = whole
        self._stores = [DiskStore(whole.path, manifest, whole.lock, block) for block in range(len(self))]

    @property
    @override
    def path(self) -> Path:
        return self._whole.path

    @override
    def __exit__(self, *error: object) -> None:
        self._whole.__exit__(*error)

    @override
    def write(self, block: int, first: int, values: Mapping[str, Tensor], checkpoint: Checkpoint) -> None:
        if values:
            self._stores[block].write(first, values)
        self._stores[block].save(checkpoint)

    @override
    def _load(self, block: int) -> Checkpoint | None:
        store = self._stores[block]
        return store.load() if (store.state_folder / STATE).is_file() else None

    @override
    def _read(self, checkpoints: Sequence[Checkpoint], kept: int) -> Arrays:
        parts = [store.read(checkpoint.kept) for store, checkpoint in zip(self._stores, checkpoints, strict=True)]
        draws = self._whole.layout.arrays["draws"]
        specs = array_specs(draws.dtype, self.num_chains, draws.tail[1:])
        longest = max(range(len(parts)), key=lambda block: checkpoints[block].kept)
        kept = min(kept, self._whole.layout.num_draws)  # running moments have no draws
        return Arrays(partial(_read, parts, specs, self.block_size, longest, kept), specs, self._whole.path)


def _read(
    parts: Sequence[Arrays],
    specs: Mapping[str, ArraySpec],
    size: int,
    longest: int,
    kept: int,
    name: str,
    every: int = 1,
    pick: Tensor | None = None,
) -> Tensor:
    """Read the first `kept` draws of an array from those of the blocks; NaN where a block has fewer."""
    count, (dtype, tail) = -(-kept // every), specs[name]
    if not tail:  # the same for all chains
        return parts[longest].stored(name, every, pick)[:count]
    whole = ArraySpec(dtype, tail if pick is None else (tail[0], len(pick))).new(count).fill_(torch.nan)
    for block, part in enumerate(parts):
        values = part.stored(name, every, pick)[:count]
        rows = whole[: len(values), block * size : (block + 1) * size]
        rows[:] = values[:, : rows.shape[1]]
    return whole


def _manifest_of_a_block(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return the manifest that a block's checkpoint and chunks go by: as if it were a run of its own."""
    size, arrays = manifest["block_size"], manifest["arrays"]
    specs = array_specs(arrays["draws"]["dtype"], size, tuple(arrays["draws"]["tail"][1:]))
    own = {name: {"dtype": spec.dtype, "tail": list(spec.tail)} for name, spec in specs.items()}
    return {**manifest, "num_chains": size, "arrays": own}


def merged(checkpoints: Sequence[Checkpoint], num_chains: int) -> Checkpoint:
    """Return how far all blocks have come: what they all have. Seconds are those of all workers together.

    The sums that tell the temperature are those of steps that all chains took alike: none before all blocks are done.
    """
    size = len(checkpoints[0].tensors["position"])
    going = [each for each in checkpoints if len(each.stopped) < size] or [max(checkpoints, key=lambda each: each.step)]
    step, kept, judged = (min(getattr(each, name) for each in going) for name in ("step", "kept", "judged"))
    stopped = {
        block * size + place: Stop(stop.steps, min(stop.draws, kept), stop.reason)
        for block, each in enumerate(checkpoints)
        for place, stop in each.stopped.items()
        if block * size + place < num_chains
    }
    names = ["position", *(name for name in checkpoints[0].tensors if name.startswith("moments_"))]
    tensors = {name: torch.cat([each.tensors[name] for each in checkpoints])[:num_chains] for name in names}
    if len({each.step for each in going}) == 1:
        tensors |= _merged_heat(checkpoints, going[0], num_chains)
    seconds = sum(each.seconds for each in checkpoints)
    return Checkpoint(tensors, step, kept, judged, stopped, all(each.compiled for each in checkpoints), seconds)


_CHAIN_AXIS = {"heat_centre": 0, "heat_sums": 2, "heat_residuals": 1}


def _merged_heat(checkpoints: Sequence[Checkpoint], like: Checkpoint, num_chains: int) -> dict[str, Tensor]:
    """Join the sums of all chains; blocks that stopped early have no chain that counts."""
    found = {name: tensor for name, tensor in like.tensors.items() if name.startswith("heat_")}
    for name, axis in _CHAIN_AXIS.items():
        whole = torch.cat([each.tensors[name] for each in checkpoints], axis)
        found[name] = whole.narrow(axis, 0, num_chains)
    return found
