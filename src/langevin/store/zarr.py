"""Draws in a Zarr folder that survives being killed; `langevin.store.folder` says what is in it.

A checkpoint is written after the draws that belong before it; a kill between the two leaves draws that the resumed run writes
again, with the same bits. Readers need no lock: all files are replaced whole, and a checkpoint has digests of the draws that it
counts, so that a chunk that is missing, damaged or of another run is an error.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor
from typing_extensions import override

from langevin.checks import needs
from langevin.store.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from langevin.store.folder import check_new, lock_folder, new_draft
from langevin.store.journal import remove_temporaries
from langevin.store.layout import ARRAYS, Layout, array_specs
from langevin.store.manifest import DTYPES, read_manifest, write_manifest
from langevin.store.memory import Arrays, Store

if TYPE_CHECKING:
    import filelock

__all__ = ["DiskStore"]

BLOCKS = "blocks"  # the folder of checkpoints of blocks of chains
_CHUNK_ELEMENTS = 2**20
_BLOCK_ELEMENTS = 2**14  # at least, in a chunk of a block: with all of them, memory holds a chunk of each


class DiskStore(Store):
    """Draws in a Zarr folder, written while the chains run; memory holds a chunk. The one writer has a lock."""

    can_rewrite = False

    def __init__(
        self, path: Path, manifest: dict[str, Any], lock: filelock.BaseFileLock | None = None, block: int | None = None
    ) -> None:
        """Take a folder whose manifest is known, or a block of its chains with that one's; without its lock it is only read."""
        self.path, self.manifest, self.layout, self._lock = path, manifest, Layout.of(manifest, block), lock
        self.state_folder = path if block is None else path / BLOCKS / str(block)  # of the checkpoint
        self._chunk: dict[str, Tensor] = {}  # the chunk that is being filled, of each array
        self._digests: dict[str, list[bytes]] = {name: [] for name in ARRAYS}  # of the chunks on disk
        self._stop = 0  # how many draws were written
        self._flushed = 0  # how many of them are on disk

    @classmethod
    def create(
        cls,
        out: str | Path,
        manifest: dict[str, Any],
        event_shape: tuple[int, ...],
        checkpoint: Checkpoint,
        step_size_shape: tuple[int, ...] = (),
    ) -> Self:
        """Make the folder with its first checkpoint, under another name until it is complete; an existing one is left alone."""
        path, dtype = check_new(out), checkpoint.tensors["position"].dtype
        specs = array_specs(dtype, manifest["num_chains"], event_shape, step_size_shape)
        if specs["draws"].dtype not in DTYPES:
            raise needs("sample", "init", f"for a run on disk one of {', '.join(DTYPES)}", specs["draws"].dtype, TypeError)
        if 0 in event_shape:
            raise needs("sample", "keep", "for a run on disk results with at least one element", event_shape)
        arrays = {name: {"dtype": spec.dtype, "tail": list(spec.tail)} for name, spec in specs.items()}
        length = max(1, min(manifest["num_draws"], _chunk_elements(manifest) // math.prod(specs["draws"].tail)))
        draft, lock = new_draft(path)
        try:
            whole = write_manifest(draft, {**manifest, "arrays": arrays, "chunk": length})
            cls(draft, whole, lock).save(checkpoint)
            check_new(out)
            os.replace(draft, path)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            lock.release()
            raise
        return cls(path, whole, lock)

    @classmethod
    def open(cls, path: str | Path, *, write: bool = False) -> Self:
        """Open a folder to read it, or as its one writer: a RuntimeError says that there is one."""
        manifest = read_manifest(Path(path))
        return cls(Path(path), manifest, lock_folder(Path(path)) if write else None)

    @property
    def lock(self) -> filelock.BaseFileLock | None:
        """The writer's lock; None where the folder is only read."""
        return self._lock

    @override
    def __exit__(self, *error: object) -> None:
        if self._lock is not None:
            self._lock.release()

    @override
    def write(self, first: int, values: Mapping[str, Tensor]) -> None:
        """Take the next draws; whole chunks go to disk, the rest waits."""
        if first != self._stop:
            raise RuntimeError(f"{self.path}: draws are written in order, {self._stop} is next, got {first}")
        stop = first + len(values["draws"])
        while self._stop < stop:
            place = self._stop % self.layout.length
            count = min(self.layout.length - place, stop - self._stop)
            for name, value in values.items():
                self._filling(name)[place : place + count] = value[self._stop - first :][:count]
            self._stop += count
            if self._stop % self.layout.length == 0:
                self.flush(self._stop)

    def flush(self, stop: int) -> None:
        """Write what waits, up to draw `stop`: its chunk is on disk then, from its first draw on."""
        stop = min(stop, self.layout.num_draws)  # running moments have no draws
        if stop == self._flushed:
            return
        index = (stop - 1) // self.layout.length
        for name in ARRAYS:
            self._digests[name][index:] = [self.layout.write_chunk(self.path, name, index, self._filling(name), stop)]
        self._flushed = stop
        if stop % self.layout.length == 0:
            self._chunk = {}

    def _filling(self, name: str) -> Tensor:
        if name not in self._chunk:
            self._chunk[name] = self.layout.arrays[name].new(self.layout.length).fill_(torch.nan)
        return self._chunk[name]

    @override
    def save(self, checkpoint: Checkpoint) -> None:
        """Write all waiting draws, then the checkpoint: atomically, so that a kill leaves the one before."""
        self.flush(checkpoint.kept)
        self.state_folder.mkdir(parents=True, exist_ok=True)
        write_checkpoint(self.state_folder, checkpoint, self._digests)

    def load(self) -> Checkpoint:
        """Read the last checkpoint, and go on from there.

        All its values are checked, and that each chunk that it counts is there. What is in a chunk is checked when it is read: here
        only the last one, by the writer, if it is not full.
        """
        checkpoint, self._digests = read_checkpoint(self.state_folder, self.manifest)
        for name, digests in self._digests.items():
            for index in range(len(digests)):
                if not (file := self.layout.file(self.path, name, index)).is_file():
                    raise ValueError(f"{file} is missing: chunk {index} of {name}")
        self._stop = self._flushed = min(checkpoint.kept, self.layout.num_draws)
        self._chunk = {}
        if self._lock is None:
            return checkpoint
        data = (self.path / name for name in ARRAYS) if self.layout.block is None else ()
        for folder in (self.state_folder, *data):
            remove_temporaries(folder, "*")  # what a kill left
        if self._stop % self.layout.length:
            for name, digests in self._digests.items():
                last = self.layout.read_chunk(self.path, name, len(digests) - 1, self._stop, digests[-1])
                self._filling(name)[: len(last)] = last
        return checkpoint

    @override
    def last_checkpoint(self, now: Checkpoint) -> Checkpoint:
        return self.load()

    @override
    def read(self, kept: int) -> Arrays:
        digests = {name: tuple(found) for name, found in self._digests.items()}
        read = partial(self.layout.read, self.path, min(kept, self.layout.num_draws), digests)
        return Arrays(read, self.layout.arrays, self.path)


def _chunk_elements(manifest: dict[str, Any]) -> int:
    """Return how many elements of all chains the chunks of some draws have together."""
    if "block_size" not in manifest:
        return _CHUNK_ELEMENTS
    return max(_CHUNK_ELEMENTS, _BLOCK_ELEMENTS * manifest["num_chains"] // manifest["block_size"])
