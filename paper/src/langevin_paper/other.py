"""Images of another kind than MNIST's, for which a network should be unsure: notMNIST."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from langevin_paper.download import cache_folder
from langevin_paper.formats import bad, reading

__all__ = ["FILE", "SHA256", "load_notmnist"]

FILE = "notmnist_test10k.npz"
SHA256 = "7b423f80fd5a6af4d2619bd89372c8cbcb699e7bd6e29babe0c17246f479bffe"
SHAPE = (10_000, 28, 28)


def load_notmnist(folder: str | os.PathLike[str] | None = None) -> Tensor:
    """Load 10,000 letters A to J in many typefaces (Y. Bulatov, 2011), uint8, (10000, 28, 28).

    They are a selection without a download: the file is looked for, and no other passes for it.

    Args:
        folder: where to look first; by default the environment variable LANGEVIN_DATA, if it is set. Then comes the cache.

    Raises:
        FileNotFoundError: it is nowhere; the message says what to put where.
        ValueError: the file is another one.
    """
    given = folder if folder is not None else os.environ.get("LANGEVIN_DATA") or None
    places = [*([Path(given).expanduser()] if given is not None else []), cache_folder()]
    path = next((place / FILE for place in places if (place / FILE).is_file()), None)
    if path is None:
        raise FileNotFoundError(
            f"load_notmnist() found no {FILE} in {' or '.join(map(str, places))}, and it has no download. Put it into one of these "
            f"folders, or into another named by load_notmnist(folder=...) or LANGEVIN_DATA: x_test {SHAPE} uint8, sha256 {SHA256}"
        )
    if (found := hashlib.sha256(path.read_bytes()).hexdigest()) != SHA256:
        raise bad(path, f"sha256 {SHA256}", found)
    with reading(path, "npz"), np.load(path, allow_pickle=False) as arrays:
        return torch.from_numpy(arrays["x_test"])
