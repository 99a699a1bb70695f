"""Files of the data sets, read without executing code: npz without pickles, idx and CIFAR's binary records by hand."""

from __future__ import annotations

import gzip
import io
import math
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from langevin_paper.data import Known

__all__ = ["BLOCK", "KEYS", "Arrays", "bad", "read_cifar", "read_idx", "read_mnist", "read_npz", "reading"]

Arrays = dict[str, NDArray[Any]]
KEYS = ("x_train", "y_train", "x_test", "y_test")
BLOCK = 1 << 20  # bytes read at a time


def bad(path: object, condition: str, got: object) -> ValueError:
    """Build the error for a file that is not what it should be."""
    return ValueError(f"{path} needs {condition}, got {got}")


@contextmanager
def reading(path: object, kind: str) -> Iterator[None]:
    """Say which file it was when a decoder fails."""
    try:
        yield
    except (OSError, EOFError, RuntimeError, zlib.error, tarfile.TarError, zipfile.BadZipFile) as error:
        raise bad(path, f"to be a readable {kind} file", f"{type(error).__name__}: {error}") from error


def read_npz(stream: IO[bytes], path: object) -> Arrays:
    """Read the four arrays of an npz file; `path` is its name in errors."""
    with reading(path, "npz"), zipfile.ZipFile(stream) as members:
        missing = [key for key in KEYS if f"{key}.npy" not in members.namelist()]
        if missing:
            raise bad(path, f"the arrays {', '.join(KEYS)}", f"no {', '.join(missing)}")
        arrays = {}
        for key in KEYS:
            raw = io.BytesIO(members.read(f"{key}.npy"))  # whole, so that zip checks its sum
            try:
                arrays[key] = np.lib.format.read_array(raw, allow_pickle=False)
            except Exception as error:  # numpy's parser of the header lets many kinds through
                raise bad(path, f"a plain array {key}", f"{type(error).__name__}: {error}") from error
        return arrays


def read_idx(path: Path, shape: tuple[int, ...]) -> NDArray[Any]:
    """Read a gzipped idx file: 0, 0, type (8 is uint8), number of axes, big-endian lengths, values."""
    start = 4 + 4 * len(shape)
    size = start + math.prod(shape)
    with reading(path, "gzip"), gzip.open(path) as stream:
        raw = stream.read(size + 1)  # one more than there should be: reaches the end, where gzip checks its sum
    magic = bytes([0, 0, 8, len(shape)])
    if raw[:4] != magic:
        raise bad(path, f"the magic number {magic.hex()}", raw[:4].hex() or "nothing")
    if len(raw) < start or struct.unpack(f">{len(shape)}I", raw[4:start]) != shape:
        raise bad(path, f"the header of shape {shape}", raw[4:start].hex())
    if len(raw) != size:
        raise bad(path, f"{size} bytes", "more" if len(raw) > size else len(raw))
    return np.frombuffer(raw, np.uint8, offset=start).reshape(shape)


def read_mnist(folder: Path, known: Known) -> Arrays:
    """Read the four idx files of MNIST."""
    shapes = [(known.rows[0], *known.shape), known.rows[:1], (known.rows[1], *known.shape), known.rows[1:]]
    return {key: read_idx(folder / file, shape) for key, file, shape in zip(KEYS, known.files, shapes, strict=True)}


def read_cifar(folder: Path, known: Known, *, train: tuple[str, ...], test: str, num_labels: int) -> Arrays:
    """Read CIFAR's binary version: records of `num_labels` bytes, the last of them the (fine) label, and the pixels."""
    (file,) = known.files
    path = folder / file
    record = num_labels + math.prod(known.shape)
    sizes = {**{name: known.rows[0] // len(train) * record for name in train}, test: known.rows[1] * record}
    parts = {}
    with reading(path, "tar.gz"), gzip.open(path) as stream:
        with tarfile.open(fileobj=stream, mode="r:") as archive:
            for member in archive:  # read in memory, nothing is extracted
                if member.name not in sizes:
                    continue
                if not member.isreg() or member.size != sizes[member.name]:
                    raise bad(path, f"a file {member.name} of {sizes[member.name]} bytes", f"type {member.type!r} of {member.size}")
                content = archive.extractfile(member)
                parts[member.name] = np.frombuffer(content.read() if content else b"", np.uint8).reshape(-1, record)
        while stream.read(BLOCK):  # to the end, where gzip checks its sum
            pass
    if missing := [name for name in sizes if name not in parts]:
        raise bad(path, f"the members {', '.join(sizes)}", f"no {', '.join(missing)}")
    arrays = {}
    for split, names in (("train", train), ("test", (test,))):
        records = np.concatenate([parts[name] for name in names])
        arrays[f"x_{split}"] = records[:, num_labels:].reshape(-1, *known.shape)
        arrays[f"y_{split}"] = records[:, num_labels - 1]
    return arrays
