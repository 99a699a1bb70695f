"""Draws, axes (chain, draw, ...), with what happened to each chain: in memory, or in a Zarr folder that survives being killed.

```
run.zarr/
  zarr.json                   the manifest, as attributes: version, settings, fingerprints of sampler, target and data
  draws/  energy/  ...        Zarr arrays (chain, draw, ...), compressed, each chunk with a checksum
  state.safetensors           the last checkpoint: positions, memories, and how far the run had come
```

Chunks and checkpoints are each written to a temporary file and renamed. A checkpoint is written after the draws that belong before
it; a kill between the two leaves draws that the resumed run writes again, with the same bits.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from langevin.journal import write_atomic
from langevin.moments import Moments, read_moments

if TYPE_CHECKING:
    import arviz
    import pandas

__all__ = ["ChainStatus", "Checkpoint", "DiskStore", "MemoryStore", "Samples", "open_samples"]

VERSION = 1
ARRAYS = ("draws", "energy", "gradient_norm", "step_size")
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
        compiled_from: the step from which on the run was compiled; None for never.
        kept: what `draws` are: "positions", "function" (what `keep` made of them) or "moments" (there are none).
    """

    arrays: Mapping[str, Tensor]
    status: tuple[ChainStatus, ...]
    description: str
    seconds: float
    moments: Moments | None = None
    compiled_from: int | None = None
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


@dataclass
class Checkpoint:
    """How far a run has come: everything that its next step depends on."""

    tensors: dict[str, Tensor]  # position, memory, alive, moments
    step: int = 0
    kept: int = 0
    stopped: dict[int, int] | None = None  # index of a chain -> the step at which it went non-finite
    compiled_from: int | None = None
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


class DiskStore:
    """Draws in a Zarr folder, written while the chains run; memory holds a chunk at most."""

    def __init__(self, path: str | Path, manifest: dict[str, Any], mode: Literal["r", "r+"] = "r+") -> None:
        """Open the arrays of a folder whose manifest is known, to write or only to read."""
        import zarr

        self.path, self.manifest = Path(path), manifest
        self._arrays: Any = zarr.open_group(str(path), mode=mode)
        self._waiting: dict[str, list[Tensor]] = {}
        self._first = 0  # number of the first draw that waits

    @classmethod
    def create(cls, path: str | Path, manifest: dict[str, Any], event_shape: tuple[int, ...], checkpoint: Checkpoint) -> DiskStore:
        """Make the folder with its first checkpoint, under another name until it is complete; an existing one is left alone."""
        import zarr
        from zarr.codecs import ZstdCodec

        if Path(path).exists():
            raise FileExistsError(f"sample(out=...) needs a new folder, got {str(path)!r}: resume it, or remove it")
        draft = Path(path).with_name(f".{Path(path).name}.{os.getpid()}.new")
        group = zarr.open_group(str(draft), mode="w", attributes={"langevin": {"version": VERSION, **manifest}})
        chains, draws = manifest["num_chains"], manifest["num_draws"]
        per_draw = chains * int(torch.Size(event_shape).numel())
        length = max(1, min(draws, _CHUNK_ELEMENTS // per_draw))
        real = str(checkpoint.tensors["position"].dtype).removeprefix("torch.")
        shapes = {
            "draws": (chains, draws, *event_shape),
            "energy": (chains, draws),
            "gradient_norm": (chains, draws),
            "step_size": (draws,),
        }
        for name, shape in shapes.items():
            chunks = (length,) if name == "step_size" else (chains, length, *shape[2:])
            group.create_array(
                name,
                shape=shape,
                chunks=chunks,
                dtype="float64" if name == "step_size" else real,
                fill_value=float("nan"),
                compressors=[ZstdCodec(level=1, checksum=True)],
            )
        cls(draft, manifest).save(checkpoint)
        os.replace(draft, path)
        return cls(path, manifest)

    def write(self, first: int, values: dict[str, Tensor]) -> None:
        """Take draws; whole chunks go to disk, the rest waits."""
        if not self._waiting:
            self._first = first
        for name, value in values.items():
            self._waiting.setdefault(name, []).append(value)
        length = self._arrays["draws"].chunks[1]
        waiting = sum(len(value) for value in self._waiting["step_size"])
        if (self._first + waiting) // length > self._first // length:
            self.flush((self._first + waiting) // length * length)

    def flush(self, stop: int) -> None:
        """Write what waits up to draw `stop`."""
        count = stop - self._first
        if not self._waiting or count <= 0:
            return
        for name, parts in self._waiting.items():
            axis = 0 if name == "step_size" else 1
            whole = torch.cat(parts, axis)
            ready, rest = whole.narrow(axis, 0, count).cpu().numpy(), whole.narrow(axis, count, whole.shape[axis] - count)
            if axis == 0:
                self._arrays[name][self._first : stop] = ready
            else:
                self._arrays[name][:, self._first : stop] = ready
            self._waiting[name] = [rest.clone()]
        self._first = stop
        if not len(self._waiting["step_size"][0]):
            self._waiting = {}

    def save(self, checkpoint: Checkpoint) -> None:
        """Write all waiting draws, then the checkpoint: atomically, so that a kill leaves the one before."""
        self.flush(checkpoint.kept)
        words = {name: value for name, value in asdict(checkpoint).items() if name != "tensors"}
        tensors = {name: tensor.contiguous() for name, tensor in checkpoint.tensors.items()}
        write_atomic(self.path / "state.safetensors", safetensors.torch.save(tensors, {"langevin": json.dumps(words)}))

    def load(self) -> Checkpoint:
        """Read the last checkpoint."""
        path = self.path / "state.safetensors"
        try:
            with safetensors.safe_open(str(path), framework="pt") as file:
                words = json.loads(file.metadata()["langevin"])
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
        except FileNotFoundError:
            raise
        except Exception as error:
            raise ValueError(f"{path} is damaged or foreign: {error}") from error
        stopped = {int(index): step for index, step in (words.pop("stopped") or {}).items()}
        return Checkpoint(tensors, stopped=stopped, **words)

    def read(self, kept: int) -> Mapping[str, Tensor]:
        """Return the first `kept` draws, to be read when they are asked for."""
        return _Stored(self.path, self._arrays, kept)


@dataclass(frozen=True)
class _Stored(Mapping[str, Tensor]):
    """The first draws of a run on disk."""

    path: Path
    group: Any
    kept: int

    def __getitem__(self, name: str) -> Tensor:
        if name not in ARRAYS:
            raise KeyError(name)
        try:
            array = self.group[name]
            return torch.from_numpy(array[: self.kept] if name == "step_size" else array[:, : self.kept])
        except Exception as error:
            raise ValueError(f"{self.path / name} has a damaged or missing chunk: {error}") from error

    def __iter__(self) -> Iterator[str]:
        return iter(ARRAYS)

    def __len__(self) -> int:
        return len(ARRAYS)


def read_manifest(path: str | Path) -> dict[str, Any]:
    """Return the manifest of a run's folder, or fail when it is none or of another version."""
    import zarr

    if not Path(path).exists():
        raise FileNotFoundError(f"no run at {str(path)!r}")
    try:
        manifest: dict[str, Any] = dict(zarr.open_group(str(path), mode="r").attrs["langevin"])  # type: ignore[arg-type]
    except Exception as error:
        raise ValueError(f"{path} is not a run of langevin.sample: {error}") from error
    if manifest.get("version") != VERSION:
        raise ValueError(f"{path} is a run of format version {manifest.get('version')}, this library reads version {VERSION}")
    return manifest


def make_samples(arrays: Mapping[str, Tensor], checkpoint: Checkpoint, chains: range, description: str, kept: str) -> Samples:
    """Put a result together from what was stored."""
    stopped = checkpoint.stopped or {}
    energy = arrays["energy"] if stopped else torch.empty(0)

    def status(index: int, chain: int) -> ChainStatus:
        if index not in stopped:
            return ChainStatus(chain, checkpoint.step, checkpoint.kept, None)
        kept = int((~torch.isnan(energy[index])).sum()) if energy.numel() else 0
        return ChainStatus(chain, stopped[index], kept, "the position became non-finite")

    return Samples(
        arrays,
        tuple(status(index, chain) for index, chain in enumerate(chains)),
        description,
        checkpoint.seconds,
        read_moments(checkpoint.tensors),
        checkpoint.compiled_from,
        kept,
    )


def open_samples(path: str | Path) -> Samples:
    """Read a run from its folder, also while it goes on: the draws up to its last checkpoint.

    Args:
        path: the folder given to ``sample(out=...)``.

    Returns:
        Samples, as `sample` returns them.
    """
    manifest = read_manifest(path)
    store = DiskStore(path, manifest, "r")
    checkpoint = store.load()
    chains = range(manifest["first_chain"], manifest["first_chain"] + manifest["num_chains"])
    return make_samples(store.read(checkpoint.kept), checkpoint, chains, manifest["description"], manifest["keep"])
