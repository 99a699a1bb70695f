"""The arrays of a run, all with the draw axis first, and their checksummed chunks on disk."""

import functools
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from langevin.serialization import Json, digest
from langevin.storage.journal import write_atomic
from langevin.storage.safe_io import check_no_links, exists, read_file

__all__ = ["ARRAYS", "BLOCK_ELEMENTS", "CHUNK_ELEMENTS", "ArraySpec", "Layout", "array_specs"]

ARRAYS = ("draws", "energy", "gradient_norm", "step_size")
CHUNK_ELEMENTS = 2**20  # of all chains, in a chunk of more than one draw
BLOCK_ELEMENTS = 2**14  # of each block of chains: memory holds a chunk of every block
# Bytes per compressed byte: a Zstandard block has at least 4 bytes and encodes at most 2**17.
_MAX_COMPRESSION = 2**15


@functools.cache
def _zstd() -> Any:
    from numcodecs.zstd import Zstd  # type: ignore[import-untyped] # a run in memory needs none

    return Zstd(level=1, checksum=True)


class ArraySpec(NamedTuple):
    """Dtype and shape (draw, *tail) of an array."""

    dtype: str
    tail: tuple[int, ...]  # (chain, ...), or () for values that all chains share

    def new(self, draws: int, device: torch.device | None = None) -> Tensor:
        """Return an uninitialised array."""
        return torch.empty((draws, *self.tail), dtype=getattr(torch, self.dtype), device=device)


def array_specs(
    dtype: torch.dtype | str,
    num_chains: int,
    event_shape: tuple[int, ...],
    step_size_shape: tuple[int, ...] = (),
) -> dict[str, ArraySpec]:
    """Return the arrays of a run, from the dtype of positions and the shape of a chain's draw.

    `step_size_shape` is () if all chains share the step sizes, otherwise (num_chains,).
    """
    name = str(dtype).removeprefix("torch.")
    by_chain = ArraySpec(name, (num_chains,))
    return {
        "draws": ArraySpec(name, (num_chains, *event_shape)),
        "energy": by_chain,
        "gradient_norm": by_chain,
        "step_size": ArraySpec("float64", step_size_shape),
    }


@dataclass(frozen=True)
class Layout:
    """The arrays of a run on disk, in chunks along the draws."""

    arrays: Mapping[str, ArraySpec]
    num_draws: int
    length: int  # draws per chunk
    block_size: int | None = None  # chains per chunk; None for all
    block: int | None = None  # number of a block of chains, whose arrays these are

    @classmethod
    def of(cls, manifest: Json, block: int | None = None) -> Self:
        """Return the layout in a manifest, of the run or of a block of its chains."""
        arrays = {
            name: ArraySpec(spec["dtype"], tuple(spec["tail"]))
            for name, spec in manifest["arrays"].items()
        }
        sizes = manifest["num_draws"], manifest["chunk"], manifest.get("block_size")
        return cls(arrays, *sizes, block)

    @property
    def event_shape(self) -> tuple[int, ...]:
        """The shape of a draw of one chain."""
        return self.arrays["draws"].tail[1:]

    def document(self, name: str) -> Json:
        """Return the content of an array's `zarr.json`."""
        dtype, tail = self.arrays[name]
        width = tail[:1]
        if self.block_size is not None:
            width = (self.block_size if name != "step_size" else 1,)
        chunks = {"chunk_shape": [self.length, *width, *tail[1:]]}
        return {
            "zarr_format": 3,
            "node_type": "array",
            "shape": [self.num_draws, *tail],
            "data_type": dtype,
            "chunk_grid": {"name": "regular", "configuration": chunks},
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
        rest = ["0"] * len(self.arrays[name].tail)
        if self.block is not None:
            rest = [str(self.block), *rest[1:]]
        return folder / name / ".".join(["c", str(index), *rest])

    def write_chunk(self, folder: Path, name: str, index: int, chunk: Tensor, stop: int) -> bytes:
        """Write a chunk, padded to full length; return the digest of its draws before `stop`."""
        file = self.file(folder, name, index)
        check_no_links(file.parent, folder)
        write_atomic(file, _zstd().encode(chunk.numpy()))
        return _digest(chunk[: stop - index * self.length])

    def check_chunk(self, folder: Path, name: str, index: int) -> None:
        """Raise a ValueError if a chunk is missing or too small, before memory is allocated."""
        file, (dtype, tail) = self.file(folder, name, index), self.arrays[name]
        if not exists(file, folder):
            raise ValueError(f"{file} is missing: chunk {index} of {name}")
        size = file.lstat().st_size
        claimed = self.length * math.prod(tail) * getattr(torch, dtype).itemsize
        if claimed > size * _MAX_COMPRESSION:
            reason = f"{size} bytes cannot hold {claimed} bytes of draws"
            raise ValueError(f"{file} is damaged, chunk {index} of {name}: {reason}")

    def read_chunk(self, folder: Path, name: str, index: int, stop: int, expected: bytes) -> Tensor:
        """Read the draws of a chunk before `stop`; raise a ValueError if their digest differs."""
        self.check_chunk(folder, name, index)
        file, zstd = self.file(folder, name, index), _zstd()
        chunk, data = self.arrays[name].new(self.length), read_file(file, folder)
        try:
            zstd.decode(data, chunk.numpy())  # into a buffer of known size
        except Exception as error:
            raise ValueError(f"{file} is damaged, chunk {index} of {name}: {error}") from error
        values = chunk[: stop - index * self.length]
        if _digest(values) != expected:
            reason = "these are not the draws that were written"
            raise ValueError(f"{file} is damaged, chunk {index} of {name}: {reason}")
        return values

    def read(
        self,
        folder: Path,
        kept: int,
        digests: Mapping[str, Sequence[bytes]],
        name: str,
        every: int = 1,
        pick: Tensor | None = None,
    ) -> Tensor:
        """Read every `every`-th of the first `kept` draws, and elements `pick` of each."""
        dtype, tail = self.arrays[name]
        tail = tail if pick is None else (tail[0], len(pick))
        whole, done = ArraySpec(dtype, tail).new(-(-kept // every)), 0
        for index, expected in enumerate(digests[name]):
            values = self.read_chunk(folder, name, index, kept, expected)
            values = values[-(index * self.length) % every :: every]
            if pick is not None:
                values = values.reshape(len(values), tail[0], -1)[..., pick]
            whole[done : done + len(values)] = values
            done += len(values)
        return whole


def _digest(values: Tensor) -> bytes:
    return bytes.fromhex(digest(values.numpy().data))
