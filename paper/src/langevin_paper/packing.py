"""Results made storable: numbers as JSON has them, arrays of a cell in one file whose name ends with its checksum."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from langevin_paper.schema import FILE, LARGEST, digest, writable

__all__ = ["pack", "plain", "unpack"]


def plain(value: Any) -> Any:
    """Turn a result into JSON: numbers that are not finite, or as good as that, become null, which JSON has."""
    if isinstance(value, (float, np.floating)):
        return float(value) if abs(float(value)) <= LARGEST else None
    if isinstance(value, str):
        return writable(value)
    if isinstance(value, (int, bool)) or value is None:
        return value
    if isinstance(value, Mapping):
        return {str(name): plain(entry) for name, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(entry) for entry in value]
    raise TypeError(f"a result needs to be a number, text, list, mapping or NumPy array, got {type(value).__name__}")


def pack(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Return the content of an array file."""
    buffer = io.BytesIO()
    small = {name: value.astype(np.float32) if value.dtype == np.float64 else value for name, value in arrays.items()}
    np.savez_compressed(buffer, allow_pickle=False, **small)
    return buffer.getvalue()


def unpack(path: Path) -> dict[str, NDArray[Any]]:
    """Read an array file, whose name says what its content should be."""
    data, name = path.read_bytes(), FILE.fullmatch(path.name)
    if name is None or name[1] != digest(data):
        raise ValueError("its checksum is not the one in its name: it was changed after it was written")
    with np.load(io.BytesIO(data), allow_pickle=False) as stored:
        arrays = {name: stored[name] for name in stored.files}
    if bad := [name for name, value in arrays.items() if value.dtype.kind not in "fiub"]:
        raise ValueError(f"{bad[0]} needs numbers, got {arrays[bad[0]].dtype}")
    return arrays
