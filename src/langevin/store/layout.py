"""The arrays of a run, all with the draw axis first, and their chunks on disk, each checked before it is believed."""

import functools
import hashlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from langevin.store.journal import write_atomic

__all__ = ["ARRAYS", "ArraySpec", "Layout", "array_specs", "read_file"]

ARRAYS = ("draws", "energy", "gradient_norm", "step_size")


@functools.cache
def _zstd() -> Any:
    from numcodecs.zstd import Zstd  # type: ignore[import-untyped] # a run in memory does not need it

    return Zstd(level=1, checksum=True)


class ArraySpec(NamedTuple):
    """What an array looks like: its shape is (draw, *tail)."""

    dtype: str
    tail: tuple[int, ...]  # (chain, ...), or () for what all chains share

    def new(self, draws: int, device: torch.device | None = None) -> Tensor:
        """Return room for so many draws."""
        return torch.empty((draws, *self.tail), dtype=getattr(torch, self.dtype), device=device)


def array_specs(
    dtype: torch.dtype | str, num_chains: int, event_shape: tuple[int, ...], step_size_shape: tuple[int, ...] = ()
) -> dict[str, ArraySpec]:
    """Describe the arrays of a run, with the dtype of positions and the shape of a chain's draw.

    `step_size_shape` is () where all chains share the step sizes, or (num_chains,).
    """
    name = str(dtype).removeprefix("torch.")
    by_chain, draws = ArraySpec(name, (num_chains,)), ArraySpec(name, (num_chains, *event_shape))
    return {"draws": draws, "energy": by_chain, "gradient_norm": by_chain, "step_size": ArraySpec("float64", step_size_shape)}


@dataclass(frozen=True)
class Layout:
    """The arrays of a run on disk, and how they are cut into chunks along the draws."""

    arrays: Mapping[str, ArraySpec]
    num_draws: int
    length: int  # draws in a chunk
    block_size: int | None = None  # chains in a chunk, where not all are
    block: int | None = None  # which block of chains these arrays are; they are like those of a run of its own then

    @classmethod
    def of(cls, manifest: dict[str, Any], block: int | None = None) -> Self:
        """Return what a manifest says, or that of a block of its chains (`blocks.manifest_of`)."""
        arrays = {name: ArraySpec(spec["dtype"], tuple(spec["tail"])) for name, spec in manifest["arrays"].items()}
        return cls(arrays, manifest["num_draws"], manifest["chunk"], manifest.get("block_size"), block)

    @property
    def event_shape(self) -> tuple[int, ...]:
        """The shape of a draw of one chain."""
        return self.arrays["draws"].tail[1:]

    def document(self, name: str) -> dict[str, Any]:
        """Return the content of an array's `zarr.json`."""
        dtype, tail = self.arrays[name]
        width = tail[:1] if self.block_size is None else (self.block_size if name != "step_size" else 1,)
        return {
            "zarr_format": 3,
            "node_type": "array",
            "shape": [self.num_draws, *tail],
            "data_type": dtype,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [self.length, *width, *tail[1:]]}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "."}},
            "fill_value": "NaN",
            "codecs": [
                {"name": "bytes", "configuration": {"endian": sys.byteorder}},
                {"name": "zstd", "configuration": {"level": 1, "checksum": True}},
            ],
            "attributes": {},
        }

    def file(self, folder: Path, name: str, index: int) -> Path:
        """Return the path of a chunk."""
        tail = self.arrays[name].tail
        places = [*"0" * len(tail)] if self.block is None else [str(self.block), *"0" * len(tail[1:])]
        return folder / name / ".".join(["c", str(index), *places])

    def write_chunk(self, folder: Path, name: str, index: int, chunk: Tensor, stop: int) -> bytes:
        """Write a chunk, padded to its full length; return the digest of its draws below draw `stop`."""
        write_atomic(self.file(folder, name, index), _zstd().encode(chunk.numpy()))
        return _digest(chunk[: stop - index * self.length])

    def read_chunk(self, folder: Path, name: str, index: int, stop: int, digest: bytes) -> Tensor:
        """Read the draws of a chunk below draw `stop`; a ValueError names the file when they are not those with the digest."""
        file, chunk, zstd = self.file(folder, name, index), self.arrays[name].new(self.length), _zstd()
        try:
            zstd.decode(read_file(file), chunk.numpy())  # into memory of the right size, whatever size the file claims
        except FileNotFoundError as error:
            raise ValueError(f"{file} is missing: chunk {index} of {name}") from error
        except Exception as error:
            raise ValueError(f"{file} is damaged, chunk {index} of {name}: {error}") from error
        values = chunk[: stop - index * self.length]
        if _digest(values) != digest:
            raise ValueError(f"{file} is damaged, chunk {index} of {name}: these are not the draws that were written")
        return values

    def read(
        self, folder: Path, kept: int, digests: Mapping[str, Sequence[bytes]], name: str, every: int = 1, pick: Tensor | None = None
    ) -> Tensor:
        """Read the first `kept` draws of an array, whose chunks have these digests: of every so many draws one, elements `pick`."""
        dtype, tail = self.arrays[name]
        whole = ArraySpec(dtype, tail if pick is None else (tail[0], len(pick))).new(-(-kept // every))
        done = 0
        for index, digest in enumerate(digests[name]):
            values = self.read_chunk(folder, name, index, kept, digest)[-(index * self.length) % every :: every]
            whole[done : done + len(values)] = values if pick is None else values.reshape(len(values), tail[0], -1)[..., pick]
            done += len(values)
        return whole


def _digest(values: Tensor) -> bytes:
    return hashlib.sha256(values.numpy().data).digest()


def read_file(path: Path) -> bytes:
    """Return a file's content; a FileNotFoundError where there is none, also where there is something else (a pipe would hang)."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing, or no file")
    return path.read_bytes()
