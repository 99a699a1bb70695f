"""Draws, axes (chain, draw, ...), with what happened to each chain: in memory, or in a Zarr folder that survives being killed.

`langevin.store.folder` says what is in the folder. A checkpoint is written after the draws that belong before it; a kill between the
two leaves draws that the resumed run writes again, with the same bits. Readers need no lock: all files are replaced whole, and a
checkpoint has digests of the draws that it counts, so that a chunk that is missing, damaged or of another run is an error.
"""

from __future__ import annotations

import math
import os
import shutil
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from langevin.checks import check_path, needs
from langevin.moments import Moments, no_moments, read_moments
from langevin.store.folder import (
    ARRAYS,
    DTYPES,
    STATE,
    Layout,
    check_new,
    digest_of,
    lock_folder,
    new_draft,
    read_manifest,
    read_state,
    write_manifest,
    write_state,
)
from langevin.store.journal import remove_temporaries

if TYPE_CHECKING:
    import arviz
    import filelock
    import pandas

__all__ = ["ChainStatus", "Checkpoint", "DiskStore", "MemoryStore", "Samples", "Stop", "load_samples"]

_CHUNK_ELEMENTS = 2**20


def _arviz() -> ModuleType:
    """Import ArviZ when it is needed: it takes seconds, and warns of its coming refactor once a day."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        import arviz
    return arviz


class ChainStatus(NamedTuple):
    """How a chain ended."""

    chain: int  # the chain's number
    steps: int  # steps taken
    draws: int  # draws kept
    reason: str | None  # None for a chain that ran to its end

    @property
    def is_healthy(self) -> bool:
        """Whether the chain ran to its end."""
        return self.reason is None

    def __str__(self) -> str:
        """Say it in a sentence."""
        if self.is_healthy:
            return f"chain {self.chain}: {self.steps} steps, {self.draws} draws"
        return f"chain {self.chain} stopped at step {self.steps}: {self.reason}; {self.draws} draws kept"


@dataclass(frozen=True)
class Samples:
    """The result of `sample`.

    Args:
        arrays: what was stored, by name. In a run on disk they are read when they are asked for, each time anew.
        status: one entry per chain.
        description: the sampler's SDE and law.
        seconds: wall time of the run.
        moments: running moments, with ``keep="moments"``.
        compiled: whether the run was compiled.
        kept: what `draws` are: "positions", "function" (what `keep` made of them) or "moments" (there are none).
    """

    arrays: Mapping[str, Tensor]
    status: tuple[ChainStatus, ...]
    description: str
    seconds: float
    moments: Moments | None = None
    compiled: bool = False
    kept: str = "positions"

    @property
    def draws(self) -> Tensor:
        """Positions (chain, draw, dim), or what `keep` made of each; a chain that stopped early has NaN after its last draw."""
        return self.arrays["draws"]

    @property
    def energy(self) -> Tensor:
        """U at each draw's predecessor, where the gradient was taken, (chain, draw)."""
        return self.arrays["energy"]

    @property
    def gradient_norm(self) -> Tensor:
        """Norm of that gradient, (chain, draw)."""
        return self.arrays["gradient_norm"]

    @property
    def step_size(self) -> Tensor:
        """Step size of the step that made the draw, (draw,)."""
        return self.arrays["step_size"]

    @property
    def _good(self) -> list[int]:
        return [k for k, status in enumerate(self.status) if status.is_healthy]

    @property
    def healthy(self) -> Tensor:
        """The draws of the chains that ran to their end, (healthy chains, draw, dim)."""
        return self.draws[self._good]

    def to_arviz(self) -> arviz.InferenceData:
        """Return the healthy chains as ArviZ data: variable `theta`; statistics `energy`, `gradient_norm`, `step_size`."""
        good = self._good
        if not good or not len(self.step_size):
            raise ValueError("to_arviz() needs a healthy chain with draws, got: " + "; ".join(map(str, self.status)))
        statistics = {
            "energy": self.energy[good],
            "gradient_norm": self.gradient_norm[good],
            "step_size": self.step_size.expand(len(good), -1),
        }
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "More chains")  # ArviZ fears swapped axes; ours are named
            return _arviz().from_dict(
                posterior={"theta": self.draws[good].cpu().numpy()},
                sample_stats={name: value.cpu().numpy() for name, value in statistics.items()},
            )

    def summary(self) -> pandas.DataFrame:
        """Return mean, sd, Monte Carlo error, effective sample size and R-hat of each element, by ArviZ."""
        return _arviz().summary(self.to_arviz(), var_names=["theta"], round_to="none")


class Stop(NamedTuple):
    """Where a chain ended before its time."""

    steps: int  # good steps
    draws: int  # draws that count
    reason: str


@dataclass
class Checkpoint:
    """How far a run has come: everything that its next step depends on."""

    tensors: dict[str, Tensor]  # position, memory, moments
    step: int = 0
    kept: int = 0  # draws written
    judged: int = 0  # steps whose positions are known to be good or bad; that of the last step may not be
    stopped: dict[int, Stop] = field(default_factory=dict)  # by index of the chain
    compiled: bool = False
    seconds: float = 0.0


class MemoryStore:
    """Draws in tensors whose first axis is the draw, in the order in which they come; they are read with the chain first."""

    def __init__(self, event_shape: tuple[int, ...], num_chains: int, num_draws: int, like: Tensor) -> None:
        """Make room for all draws."""
        shape = (num_draws, num_chains)
        self.arrays = {
            "draws": like.new_empty((*shape, *event_shape)),
            "energy": like.new_empty(shape),
            "gradient_norm": like.new_empty(shape),
            "step_size": torch.empty(num_draws, dtype=torch.float64),
        }

    def write(self, first: int, values: dict[str, Tensor]) -> None:
        """Write draws `first`, `first + 1`, ...; the draw axis is the first of `step_size` and the second of the others."""
        for name, value in values.items():
            by_draw = value if name == "step_size" else value.transpose(0, 1)
            self.arrays[name][first : first + len(by_draw)] = by_draw

    def read(self, kept: int) -> dict[str, Tensor]:
        """Return the first `kept` draws."""
        kept_arrays = {name: array[:kept] for name, array in self.arrays.items()}
        return {name: array if name == "step_size" else array.transpose(0, 1) for name, array in kept_arrays.items()}

    def flush(self, stop: int) -> None:
        """Do nothing: nothing waits."""

    def save(self, checkpoint: Checkpoint) -> None:
        """Do nothing: memory does not outlive the process."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Do nothing: there is no lock."""


class DiskStore:
    """Draws in a Zarr folder, written while the chains run; memory holds a chunk. The one writer has a lock until it is closed."""

    def __init__(self, path: Path, manifest: dict[str, Any], lock: filelock.BaseFileLock | None = None) -> None:
        """Take a folder whose manifest is known; without its lock it is only read."""
        self.path, self.manifest, self.layout, self._lock = path, manifest, Layout.of(manifest), lock
        self._chunk: dict[str, Tensor] = {}  # the chunk that is being filled, of each array
        self._digests: dict[str, list[bytes]] = {name: [] for name in ARRAYS}  # of the chunks on disk
        self._stop = 0  # how many draws were written
        self._flushed = 0  # how many of them are on disk

    @classmethod
    def create(cls, out: str | Path, manifest: dict[str, Any], event_shape: tuple[int, ...], checkpoint: Checkpoint) -> DiskStore:
        """Make the folder with its first checkpoint, under another name until it is complete; an existing one is left alone."""
        path, dtype = check_new(out), str(checkpoint.tensors["position"].dtype).removeprefix("torch.")
        if dtype not in DTYPES:
            raise needs("sample", "init", f"for a run on disk one of {', '.join(DTYPES)}", dtype, TypeError)
        if 0 in event_shape:
            raise needs("sample", "keep", "for a run on disk results with at least one element", event_shape)
        per_draw = manifest["num_chains"] * math.prod(event_shape)
        length = max(1, min(manifest["num_draws"], _CHUNK_ELEMENTS // per_draw))
        draft, lock = new_draft(path)
        try:
            whole = write_manifest(draft, {**manifest, "event_shape": list(event_shape), "dtype": dtype, "chunk": length})
            cls(draft, whole, lock).save(checkpoint)
            check_new(out)
            os.replace(draft, path)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            lock.release()
            raise
        return cls(path, whole, lock)

    @classmethod
    def open(cls, path: str | Path, *, write: bool = False) -> DiskStore:
        """Open a folder to read it, or as its one writer: a RuntimeError says that there is one."""
        manifest = read_manifest(Path(path))
        return cls(Path(path), manifest, lock_folder(Path(path)) if write else None)

    def close(self) -> None:
        """Give the lock back."""
        if self._lock is not None:
            self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def write(self, first: int, values: dict[str, Tensor]) -> None:
        """Take the next draws; whole chunks go to disk, the rest waits."""
        if first != self._stop:
            raise RuntimeError(f"{self.path}: draws are written in order, {self._stop} is next, got {first}")
        stop = first + len(values["step_size"])
        while self._stop < stop:
            place = self._stop % self.layout.length
            count = min(self.layout.length - place, stop - self._stop)
            for name, value in values.items():
                axis = self.layout.axis(name)
                self._filling(name).narrow(axis, place, count).copy_(value.narrow(axis, self._stop - first, count))
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
            chunk = self._filling(name)
            self.layout.write(self.path, name, index, chunk.numpy())
            count = stop - index * self.layout.length
            self._digests[name][index:] = [digest_of(chunk.narrow(self.layout.axis(name), 0, count).numpy())]
        self._flushed = stop
        if stop % self.layout.length == 0:
            self._chunk = {}

    def _filling(self, name: str) -> Tensor:
        if name not in self._chunk:
            shape, dtype = self.layout.shape(name, self.layout.length), getattr(torch, self.layout.dtype_of(name))
            self._chunk[name] = torch.full(shape, torch.nan, dtype=dtype)
        return self._chunk[name]

    def save(self, checkpoint: Checkpoint) -> None:
        """Write all waiting draws, then the checkpoint: atomically, so that a kill leaves the one before."""
        self.flush(checkpoint.kept)
        words = {name: value for name, value in asdict(checkpoint).items() if name != "tensors"}
        digests = np.frombuffer(b"".join(b"".join(self._digests[name]) for name in ARRAYS), dtype=np.uint8)
        write_state(self.path, {**checkpoint.tensors, "digests": torch.tensor(digests.reshape(len(ARRAYS), -1, 32))}, words)

    def load(self) -> Checkpoint:
        """Read the last checkpoint, and go on from there.

        All its values are checked, and that each chunk that it counts is there. What is in a chunk is checked when it is read: here
        only the last one, by the writer, if it is not full.
        """
        tensors, words = read_state(self.path)
        try:
            checkpoint, digests = _checkpoint(tensors, words, self.manifest)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"{self.path / STATE} is damaged or was edited: {error}") from error
        for name, found in zip(ARRAYS, digests, strict=True):
            for index in range(len(found)):
                if not (file := self.layout.file(self.path, name, index)).is_file():
                    raise ValueError(f"{file} is missing: chunk {index} of {name}")
            self._digests[name] = [bytes(digest) for digest in found]
        self._stop = self._flushed = min(checkpoint.kept, self.layout.num_draws)
        self._chunk = {}
        if self._lock is not None:  # what a kill left
            for folder in (self.path, *(self.path / name for name in ARRAYS)):
                remove_temporaries(folder, "*")
        if self._lock is not None and self._stop % self.layout.length:
            for name in ARRAYS:
                last = self.layout.read(self.path, name, len(digests[0]) - 1, self._stop, self._digests[name][-1])
                axis = self.layout.axis(name)
                self._filling(name).narrow(axis, 0, last.shape[axis]).copy_(torch.from_numpy(last))
        return checkpoint

    def read(self, kept: int) -> Mapping[str, Tensor]:
        """Return the first `kept` draws, to be read when they are asked for."""
        digests = {name: tuple(found) for name, found in self._digests.items()}
        return _Stored(self.path, self.layout, min(kept, self.layout.num_draws), digests)


@dataclass(frozen=True)
class _Stored(Mapping[str, Tensor]):
    """The first draws of a run on disk."""

    path: Path
    layout: Layout
    kept: int
    digests: Mapping[str, tuple[bytes, ...]] = field(repr=False)

    def __getitem__(self, name: str) -> Tensor:
        if name not in ARRAYS:
            raise KeyError(name)
        whole = torch.empty(self.layout.shape(name, self.kept), dtype=getattr(torch, self.layout.dtype_of(name)))
        axis, length = self.layout.axis(name), self.layout.length
        for index, digest in enumerate(self.digests[name]):
            stop = min(self.kept, (index + 1) * length)
            values = torch.from_numpy(self.layout.read(self.path, name, index, stop, digest))
            whole.narrow(axis, index * length, stop - index * length).copy_(values)
        return whole

    def __iter__(self) -> Iterator[str]:
        return iter(ARRAYS)

    def __len__(self) -> int:
        return len(ARRAYS)


def _checkpoint(
    tensors: dict[str, Tensor], words: dict[str, Any], manifest: dict[str, Any]
) -> tuple[Checkpoint, NDArray[np.uint8]]:
    """Return the checkpoint and the chunks' digests in a file; an error says which value no checkpoint of the run has."""

    def check(what: str, holds: bool, got: Any) -> None:
        if not holds:
            raise ValueError(f"it needs {what}, got {got!r}")

    names = {entry.name for entry in fields(Checkpoint)} - {"tensors"}
    check(f"the fields {sorted(names)}", words.keys() == names, sorted(words))
    stopped = {int(index): Stop(*stop) for index, stop in words["stopped"].items()}
    checkpoint = Checkpoint(tensors, **{**words, "stopped": stopped})
    chains, dim, last = (manifest[name] for name in ("num_chains", "dim", "num_steps"))
    most = last if manifest["keep"] == "moments" else manifest["num_draws"]
    numbers = [("step", checkpoint.step, last), ("kept", checkpoint.kept, most), ("judged", checkpoint.judged, checkpoint.step)]
    for index, stop in stopped.items():
        numbers += [
            ("stopped", index, manifest["num_chains"] - 1),
            ("steps", stop.steps, last),
            ("draws", stop.draws, checkpoint.kept),
        ]
        check("a reason", isinstance(stop.reason, str), stop.reason)
    for name, value, limit in numbers:
        check(f"{name} in [0, {limit}]", type(value) is int and 0 <= value <= limit, value)
    check("compiled True or False", type(checkpoint.compiled) is bool, checkpoint.compiled)
    seconds = checkpoint.seconds
    check("seconds >= 0", type(seconds) in (int, float) and 0 <= seconds < math.inf, seconds)

    chunks = -(-min(checkpoint.kept, manifest["num_draws"]) // manifest["chunk"])
    expected = {
        "position": ((chains, dim), getattr(torch, manifest["dtype"])),
        "digests": ((len(ARRAYS), chunks, 32), torch.uint8),
    }
    if manifest["keep"] == "moments":
        empty = no_moments(torch.empty(chains, dim, device="meta"))
        expected |= {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in empty.items()}
    memories = sorted(tensors.keys() - expected.keys())
    check("memories from 0 on", memories == sorted(f"memory_{k}" for k in range(len(memories))), memories)
    for name in memories:  # what follows the chains is the kernel's
        expected[name] = ((chains, *tensors[name].shape[1:]), getattr(torch, manifest["dtype"]))
    for name, (shape, dtype) in expected.items():
        found = (tuple(tensors[name].shape), tensors[name].dtype) if name in tensors else None
        check(f"{name} of shape {shape} and {dtype}", found == (shape, dtype), found)
    alive = [index for index in range(chains) if index not in stopped]
    check("finite positions", bool(tensors["position"][alive].isfinite().all()), "others")
    return checkpoint, tensors.pop("digests").numpy()


@dataclass(frozen=True)
class _Counted(Mapping[str, Tensor]):
    """Arrays in which a chain that stopped has NaN after its last draw that counts."""

    arrays: Mapping[str, Tensor]
    draws: Mapping[int, int]  # of the chains that stopped, by index

    def __getitem__(self, name: str) -> Tensor:
        array = self.arrays[name]
        if name != "step_size":
            for index, count in self.draws.items():
                array[index, count:] = torch.nan  # in place: it was read for this call, or is the store's, where nobody else looks
        return array

    def __iter__(self) -> Iterator[str]:
        return iter(self.arrays)

    def __len__(self) -> int:
        return len(self.arrays)


def make_samples(arrays: Mapping[str, Tensor], checkpoint: Checkpoint, chains: range, description: str, kept: str) -> Samples:
    """Put a result together from what was stored."""
    stopped = {index: Stop(*stop) for index, stop in checkpoint.stopped.items()}
    whole = checkpoint.step, checkpoint.kept, None
    status = [ChainStatus(chain, *stopped.get(index, whole)) for index, chain in enumerate(chains)]
    counted = _Counted(arrays, {index: stop.draws for index, stop in stopped.items()}) if stopped else arrays
    moments = read_moments(checkpoint.tensors)
    return Samples(counted, tuple(status), description, checkpoint.seconds, moments, checkpoint.compiled, kept)


def load_samples(path: str | Path) -> Samples:
    """Read a run from its folder, also while it goes on: the draws up to its last checkpoint.

    Args:
        path: the folder given to ``sample(out=...)``.

    Returns:
        Samples, as `sample` returns them.
    """
    store = DiskStore.open(check_path("open", "path", path, "the folder given to sample(out=...)"))
    checkpoint, manifest = store.load(), store.manifest
    chains = range(manifest["first_chain"], manifest["first_chain"] + manifest["num_chains"])
    return make_samples(store.read(checkpoint.kept), checkpoint, chains, manifest["description"], manifest["keep"])
