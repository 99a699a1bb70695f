"""Tables of numbers for regressions: the sets of the UCI repository, from files of one's own, checked by their content."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from langevin_paper.download import cache_folder
from langevin_paper.formats import bad, reading

__all__ = ["Regression", "load_regression"]

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Regression:
    """A table, its target, and the splits that come with it (none for some)."""

    x: Array = field(repr=False)  # (n, columns)
    y: Array = field(repr=False)  # (n,)
    splits: tuple[tuple[Array, Array], ...] = field(repr=False)  # rows of the training part and of the test part


def load_regression(name: str, sha256: str) -> Regression:
    """Read ``uci/NAME.npz`` from the folder LANGEVIN_DATA, or from the cache; there is no download.

    Args:
        name: of the file, which has arrays X, y, and train_0, test_0, train_1, ... (numbers of rows) where splits come with it.
        sha256: what `digest` of its content must be, however it was packed.

    Raises:
        FileNotFoundError: it is in neither place.
        ValueError: the file has other content.
    """
    places = [Path(given).expanduser()] if (given := os.environ.get("LANGEVIN_DATA")) else []
    paths = [place / "uci" / f"{name}.npz" for place in (*places, cache_folder())]
    path = next((path for path in paths if path.is_file()), None)
    if path is None:
        raise FileNotFoundError(
            f"load_regression({name!r}) found none of {', '.join(map(str, paths))}. Put the file, with arrays X, y and train_0, "
            "test_0, ..., into one of these folders, or set LANGEVIN_DATA to the folder that holds uci/."
        )
    with reading(path, "npz"), np.load(path, allow_pickle=False) as stored:
        arrays = {key: stored[key] for key in stored.files if key in ("X", "y") or key.startswith(("train_", "test_"))}
    found = digest(arrays)
    if found != sha256:
        raise bad(path, f"content with the sum {sha256}", found)
    count = sum(key.startswith("train_") for key in arrays)
    return Regression(arrays["X"], arrays["y"], tuple((arrays[f"train_{k}"], arrays[f"test_{k}"]) for k in range(count)))


def digest(arrays: dict[str, Array]) -> str:
    """Return the SHA-256 of arrays: the table and target as float64, rows of splits as int64, in the order of their names."""
    total = hashlib.sha256()
    for key in sorted(arrays):
        values = np.ascontiguousarray(arrays[key], "<f8" if key in ("X", "y") else "<i8")
        total.update(f"{key}{values.shape}".encode())
        total.update(values.data)
    return total.hexdigest()
