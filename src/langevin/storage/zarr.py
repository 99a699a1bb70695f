"""Draws in a Zarr folder that survives kills; `langevin.storage.folder` describes its files.

A checkpoint is written after its draws; a kill between the two leaves draws that the resumed run
writes again, with the same bits. Readers need no lock: every file is replaced atomically, and a
checkpoint has digests of its draws, so a chunk that is missing, damaged or of another run is an
error.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Self

import torch
from torch import Tensor
from typing_extensions import override

from langevin.checks import needs
from langevin.serialization import Json
from langevin.storage.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from langevin.storage.folder import FolderLock, check_new, lock_folder, new_draft
from langevin.storage.journal import remove_temporaries
from langevin.storage.layout import ARRAYS, CHUNK_ELEMENTS, Layout, array_specs
from langevin.storage.manifest import DTYPES, chunk_elements, read_manifest, write_manifest
from langevin.storage.memory import Arrays, Store
from langevin.storage.safe_io import check_no_links, make_folders, resolve_root

__all__ = ["DiskStore"]

BLOCKS = "blocks"  # folder of the checkpoints of blocks of chains
_CHUNK_ELEMENTS = CHUNK_ELEMENTS


class DiskStore(Store):
    """Draws in a Zarr folder, with one writer and one chunk in memory.

    Args:
        path: the folder.
        manifest: its manifest, or that of a block of its chains.
        lock: the writer's lock; None to read only.
        block: number of the block of chains; None for the whole run.
    """

    can_rewrite = False

    def __init__(
        self,
        path: Path,
        manifest: Json,
        lock: FolderLock | None = None,
        block: int | None = None,
    ) -> None:
        """See the class."""
        self.path, self.manifest, self.lock = path, manifest, lock
        self.layout = Layout.of(manifest, block)
        self.state_folder = path if block is None else path / BLOCKS / str(block)
        self._chunk: dict[str, Tensor] = {}  # the incomplete chunk of each array
        self._digests: dict[str, list[bytes]] = {name: [] for name in ARRAYS}  # of chunks on disk
        self._stop = 0  # draws written
        self._flushed = 0  # draws on disk

    @classmethod
    def create(
        cls,
        out: str | Path,
        manifest: Json,
        event_shape: tuple[int, ...],
        checkpoint: Checkpoint,
        step_size_shape: tuple[int, ...] = (),
    ) -> Self:
        """Create a new folder with its first checkpoint, under a draft's name until complete."""
        path, dtype = resolve_root(check_new(out)), checkpoint.tensors["position"].dtype
        specs = array_specs(dtype, manifest["num_chains"], event_shape, step_size_shape)
        if (found := specs["draws"].dtype) not in DTYPES:
            condition = f"for a run on disk one of {', '.join(DTYPES)}"
            raise needs("sample", "init", condition, found, TypeError)
        if 0 in event_shape:
            condition = "for a run on disk results with at least one element"
            raise needs("sample", "keep", condition, event_shape)
        size = chunk_elements(manifest, _CHUNK_ELEMENTS) // math.prod(specs["draws"].tail)
        manifest = {
            **manifest,
            "arrays": {name: spec._asdict() for name, spec in specs.items()},
            "chunk": max(1, min(manifest["num_draws"], size)),
        }
        draft, lock = new_draft(path)
        try:
            whole = write_manifest(draft, manifest)
            cls(draft, whole, lock).save(checkpoint)
            check_new(out)
            os.replace(draft, path)
            lock.folder = path
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            lock.release()
            raise
        return cls(path, whole, lock)

    @classmethod
    def open(cls, path: str | Path, *, write: bool = False) -> Self:
        """Open a folder to read it, or as its only writer (RuntimeError if there is one)."""
        root = resolve_root(Path(path))
        manifest = read_manifest(root)
        return cls(root, manifest, lock_folder(root) if write else None)

    @property
    @override
    def folder(self) -> Path:
        return self.path

    @override
    def __exit__(self, *error: object) -> None:
        if self.lock is not None:
            self.lock.release()

    @override
    def write(self, first: int, values: Mapping[str, Tensor]) -> None:
        """Take the next draws; complete chunks are written to disk."""
        if first != self._stop:
            order = f"draws are written in order, {self._stop} is next, got {first}"
            raise RuntimeError(f"{self.path}: {order}")
        stop = first + len(values["draws"])
        while self._stop < stop:
            start = self._stop % self.layout.length
            count = min(self.layout.length - start, stop - self._stop)
            for name, value in values.items():
                part = value[self._stop - first :][:count]
                self._current_chunk(name)[start : start + count] = part
            self._stop += count
            if self._stop % self.layout.length == 0:
                self.flush(self._stop)

    def flush(self, stop: int) -> None:
        """Write the last chunk up to draw `stop`."""
        stop = min(stop, self.layout.num_draws)  # running moments have no draws
        if stop == self._flushed:
            return
        self._check_lock()
        index = (stop - 1) // self.layout.length
        for name in ARRAYS:
            chunk = self._current_chunk(name)
            found = self.layout.write_chunk(self.path, name, index, chunk, stop)
            self._digests[name][index:] = [found]
        self._flushed = stop
        if stop % self.layout.length == 0:
            self._chunk = {}

    def _check_lock(self) -> None:
        if self.lock is not None:
            self.lock.check()

    def _current_chunk(self, name: str) -> Tensor:
        if name not in self._chunk:
            self._chunk[name] = self.layout.arrays[name].new(self.layout.length).fill_(torch.nan)
        return self._chunk[name]

    @override
    def save(self, checkpoint: Checkpoint) -> None:
        """Write all draws, then the checkpoint, atomically."""
        self.flush(checkpoint.kept)
        self._check_lock()
        make_folders(self.state_folder, self.path)
        write_checkpoint(
            self.state_folder, checkpoint, self._digests, self.manifest, self.layout.block
        )

    def load(self) -> Checkpoint:
        """Read the last checkpoint and continue from it.

        All its values are checked, and that its chunks exist. The content of a chunk is checked
        when it is read; the writer reads the last one here if it is incomplete.
        """
        check_no_links(self.state_folder, self.path)
        checkpoint, self._digests = read_checkpoint(
            self.state_folder, self.manifest, self.layout.block
        )
        for name, digests in self._digests.items():
            for index in range(len(digests)):
                self.layout.check_chunk(self.path, name, index)
        self._stop = self._flushed = min(checkpoint.kept, self.layout.num_draws)
        self._chunk = {}
        if self.lock is None:
            return checkpoint
        data = (self.path / name for name in ARRAYS) if self.layout.block is None else ()
        for folder in (self.state_folder, *data):
            check_no_links(folder, self.path)
            remove_temporaries(folder, "*")  # left by a kill
        if self._stop % self.layout.length:
            for name, digests in self._digests.items():
                index = len(digests) - 1
                last = self.layout.read_chunk(self.path, name, index, self._stop, digests[-1])
                self._current_chunk(name)[: len(last)] = last
        return checkpoint

    @override
    def last_checkpoint(self, now: Checkpoint) -> Checkpoint:
        return self.load()

    @override
    def read(self, kept: int) -> Arrays:
        digests = {name: tuple(found) for name, found in self._digests.items()}
        read = partial(self.layout.read, self.path, min(kept, self.layout.num_draws), digests)
        return Arrays(read, self.layout.arrays, self.path)
