"""Draws of a run in blocks of chains, each with its own checkpoints, and their common result.

All blocks have the same size, so that their steps are the same program; in the last block, indices
without a chain count as stopped from the start. On disk, a block has a column of chunks in the Zarr
array of all chains, and a checkpoint. The result consists of the draws that all blocks have.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Self

import torch
from torch import Tensor
from typing_extensions import override

from langevin.diagnostics.running import no_heat, no_moments
from langevin.serialization import Json
from langevin.storage.checkpoint import STATE, Checkpoint, Stop
from langevin.storage.layout import ArraySpec, array_specs
from langevin.storage.memory import Arrays, MemoryStore
from langevin.storage.safe_io import exists
from langevin.storage.zarr import DiskStore

__all__ = ["Blocks", "DiskBlocks", "MemoryBlocks", "block_ranges", "merged", "start_of"]

_NO_CHAIN = Stop(0, 0, "an index without a chain")


def block_ranges(chains: range, block_size: int) -> list[range]:
    """Return the chain numbers of each block, including indices without a chain in the last."""
    starts = range(chains.start, chains.stop, block_size)
    return [range(first, first + block_size) for first in starts]


def start_of(whole: Checkpoint, block: int, block_size: int) -> Checkpoint:
    """Return the first checkpoint of a block; indices without a chain repeat the last chain."""
    num_chains = len(whole.tensors["position"])
    indices = torch.arange(block * block_size, (block + 1) * block_size)
    rows = indices.clamp(max=num_chains - 1)
    shared = ("heat_", "moments_", "scale_", "noise_")
    tensors = {
        name: tensor if name.startswith(shared) else tensor[rows]
        for name, tensor in whole.tensors.items()
    }
    tensors |= no_heat(tensors["position"])
    if "moments_mean" in tensors:
        tensors |= no_moments(tensors["position"])
    stopped = {k: _NO_CHAIN for k in range(block_size) if int(indices[k]) >= num_chains}
    return dataclasses.replace(whole, tensors=tensors, stopped=stopped)


class Blocks(ABC):
    """Stores the draws of a run in blocks.

    Args:
        num_chains: chains in the run.
        block_size: chains per block.
        path: the run's folder; None in memory.
    """

    def __init__(self, num_chains: int, block_size: int, path: Path | None = None) -> None:
        """See the class."""
        self.num_chains, self.block_size, self.path = num_chains, block_size, path

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Release resources."""
        return

    def __len__(self) -> int:
        """Return the number of blocks."""
        return -(-self.num_chains // self.block_size)

    @abstractmethod
    def write(
        self, block: int, first: int, values: Mapping[str, Tensor], checkpoint: Checkpoint
    ) -> None:
        """Write a block's draws from `first` on, if any, then their checkpoint."""

    @abstractmethod
    def _load(self, block: int) -> Checkpoint | None:
        """Return a block's last checkpoint, or None if there is none."""

    @abstractmethod
    def _read(self, checkpoints: Sequence[Checkpoint], kept: int) -> Arrays:
        """Return the first `kept` draws of all chains, from blocks with these checkpoints."""

    def load(self, start: Checkpoint) -> list[Checkpoint]:
        """Return the last checkpoint of every block, or its part of `start` if there is none."""
        blocks = range(len(self))
        return [self._load(block) or start_of(start, block, self.block_size) for block in blocks]

    def result(self, checkpoints: Sequence[Checkpoint]) -> tuple[Arrays, Checkpoint]:
        """Return the draws that all blocks have, and their checkpoint."""
        checkpoint = merged(checkpoints, self.num_chains)
        return self._read(checkpoints, checkpoint.kept), checkpoint


class MemoryBlocks(Blocks):
    """Draws in memory."""

    def __init__(self, whole: MemoryStore, num_chains: int, block_size: int) -> None:
        """Write to the store of all chains."""
        super().__init__(num_chains, block_size)
        self._store = whole

    @override
    def write(
        self, block: int, first: int, values: Mapping[str, Tensor], checkpoint: Checkpoint
    ) -> None:
        start = block * self.block_size
        stop = min(start + self.block_size, self.num_chains)
        values = {
            name: value[:, : stop - start] if value.ndim > 1 else value
            for name, value in values.items()
        }
        self._store.write(first, values, slice(start, stop))

    @override
    def _load(self, block: int) -> Checkpoint | None:
        return None

    @override
    def _read(self, checkpoints: Sequence[Checkpoint], kept: int) -> Arrays:
        return self._store.read(kept)


class DiskBlocks(Blocks):
    """Draws in the folder of a run.

    Args:
        whole: the run's store, created with a `block_size` in its manifest.
    """

    def __init__(self, whole: DiskStore) -> None:
        """Read nothing yet."""
        super().__init__(whole.manifest["num_chains"], whole.manifest["block_size"], whole.path)
        manifest = _manifest_of_a_block(whole.manifest)
        self._whole = whole
        self._stores = [
            DiskStore(whole.path, manifest, whole.lock, block) for block in range(len(self))
        ]

    @override
    def __exit__(self, *error: object) -> None:
        self._whole.__exit__(*error)

    @override
    def write(
        self, block: int, first: int, values: Mapping[str, Tensor], checkpoint: Checkpoint
    ) -> None:
        if values:
            self._stores[block].write(first, values)
        self._stores[block].save(checkpoint)

    @override
    def _load(self, block: int) -> Checkpoint | None:
        store = self._stores[block]
        return store.load() if exists(store.state_folder / STATE, store.path) else None

    @override
    def _read(self, checkpoints: Sequence[Checkpoint], kept: int) -> Arrays:
        counts = [checkpoint.kept for checkpoint in checkpoints]
        parts = [store.read(count) for store, count in zip(self._stores, counts, strict=True)]
        draws = self._whole.layout.arrays["draws"]
        specs = array_specs(draws.dtype, self.num_chains, draws.tail[1:])
        longest = parts[counts.index(max(counts))]
        kept = min(kept, self._whole.layout.num_draws)  # running moments have no draws
        read = partial(_read, parts, specs, self.block_size, longest, kept)
        return Arrays(read, specs, self.path)


def _read(
    parts: Sequence[Arrays],
    specs: Mapping[str, ArraySpec],
    size: int,
    longest: Arrays,
    kept: int,
    name: str,
    every: int = 1,
    pick: Tensor | None = None,
) -> Tensor:
    """Read the first `kept` draws of an array from all blocks; NaN where a block has fewer."""
    count, (dtype, tail) = -(-kept // every), specs[name]
    if not tail:  # shared by all chains
        return longest.stored(name, every, pick)[:count]
    tail = tail if pick is None else (tail[0], len(pick))
    whole = ArraySpec(dtype, tail).new(count).fill_(torch.nan)
    for block, part in enumerate(parts):
        values = part.stored(name, every, pick)[:count]
        rows = whole[: len(values), block * size : (block + 1) * size]
        rows[:] = values[:, : rows.shape[1]]
    return whole


def _manifest_of_a_block(manifest: Json) -> Json:
    """Return the manifest of a block, as if it were a separate run."""
    size, draws = manifest["block_size"], manifest["arrays"]["draws"]
    specs = array_specs(draws["dtype"], size, tuple(draws["tail"][1:]))
    own = {name: spec._asdict() for name, spec in specs.items()}
    return {**manifest, "num_chains": size, "arrays": own}


def merged(checkpoints: Sequence[Checkpoint], num_chains: int) -> Checkpoint:
    """Return the common progress of all blocks; seconds are summed over workers.

    Sums for the temperature are of steps that all chains took: none before all blocks are done.
    """
    size = len(checkpoints[0].tensors["position"])
    active = [each for each in checkpoints if len(each.stopped) < size]
    active = active or [max(checkpoints, key=lambda each: each.step)]
    step, kept, judged = (
        min(getattr(each, name) for each in active) for name in ("step", "kept", "judged")
    )
    stopped = {
        block * size + index: stop._replace(draws=min(stop.draws, kept))
        for block, each in enumerate(checkpoints)
        for index, stop in each.stopped.items()
        if block * size + index < num_chains
    }
    axes = {"position": 0}
    axes |= {name: 0 for name in checkpoints[0].tensors if name.startswith("moments_")}
    tensors: dict[str, Tensor] = {}
    if len({each.step for each in active}) == 1:  # blocks that stopped early have no good chain
        found = active[0].tensors
        tensors |= {name: found[name] for name in found if name.startswith("heat_")}
        axes |= {"heat_centre": 0, "heat_sums": 2, "heat_residuals": 1}
    for name, axis in axes.items():
        whole = torch.cat([each.tensors[name] for each in checkpoints], axis)
        tensors[name] = whole.narrow(axis, 0, num_chains)
    seconds = sum(each.seconds for each in checkpoints)
    is_compiled = all(each.compiled for each in checkpoints)
    return Checkpoint(tensors, step, kept, judged, stopped, is_compiled, seconds)
