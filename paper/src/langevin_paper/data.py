"""The data sets of the paper's section 5, as uint8 tensors: Landsat, MNIST, CIFAR-10 and CIFAR-100.

Landsat ships inside the package. The others are looked for in a folder of yours, then in the cache, then downloaded from their
official place. No file is ever run: arrays are read without pickles, idx files and CIFAR's binary version are plain bytes.

`landsat.npz` is Statlog (Landsat Satellite) by Ashwin Srinivasan, 1993, UCI Machine Learning Repository,
https://doi.org/10.24432/C55887, licence CC BY 4.0 (https://creativecommons.org/licenses/by/4.0/); the values, the order and the
split into train and test are the original ones, stored as arrays.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import tempfile
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from tqdm.auto import tqdm

from langevin.checks import needs
from langevin_paper.formats import BLOCK, KEYS, Arrays, bad, read_cifar, read_mnist, read_npz

__all__ = ["KNOWN", "DataSet", "Known", "cache_folder", "load"]

TIMEOUT = 60.0  # seconds without a byte from the server


@dataclass(frozen=True, eq=False)
class DataSet:
    """One data set in memory; use `load` to get one."""

    x_train: Tensor = field(repr=False)  # uint8: (N, 36) landsat, (N, 28, 28) mnist, (N, 3, 32, 32) cifar (colour, row, column)
    y_train: Tensor = field(repr=False)  # int64, (N,): 0 .. num_classes - 1
    x_test: Tensor = field(repr=False)
    y_test: Tensor = field(repr=False)
    name: str
    num_classes: int
    source: str  # the file or folder it was read from, or "package"
    sha256: str  # of the content as it is here, so the same whatever the file format was
    attribution: str


@dataclass(frozen=True)
class Known:
    """What a data set must be, and where its official files are."""

    rows: tuple[int, int]  # train, test
    shape: tuple[int, ...]  # of one row
    labels: tuple[int, ...]  # as they are stored; label k is handed out as its place in this tuple
    attribution: str
    url: str = ""  # where `files` are
    files: Mapping[str, str] = field(default_factory=dict)  # name: md5; MNIST in the order of KEYS
    read: Callable[[Path, Known], Arrays] | None = None  # (folder, known) -> arrays, from `files`


_CIFAR10 = Known(
    rows=(50_000, 10_000),
    shape=(3, 32, 32),
    labels=tuple(range(10)),
    attribution="CIFAR-10: A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009",
    url="https://www.cs.toronto.edu/~kriz/",
    files={"cifar-10-binary.tar.gz": "c32a1d4ab5d03f1284b67883e8d87530"},  # the python version holds pickles
    read=partial(
        read_cifar,
        train=tuple(f"cifar-10-batches-bin/data_batch_{i}.bin" for i in range(1, 6)),
        test="cifar-10-batches-bin/test_batch.bin",
        num_labels=1,
    ),
)
_CIFAR100 = Known(
    rows=(50_000, 10_000),
    shape=(3, 32, 32),
    labels=tuple(range(100)),
    attribution="CIFAR-100: A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009",
    url="https://www.cs.toronto.edu/~kriz/",
    files={"cifar-100-binary.tar.gz": "03b5dce01913d631647c71ecec9e9cb8"},
    read=partial(read_cifar, train=("cifar-100-binary/train.bin",), test="cifar-100-binary/test.bin", num_labels=2),
)

KNOWN = {
    "landsat": Known(
        rows=(4435, 2000),
        shape=(36,),
        labels=(1, 2, 3, 4, 5, 7),
        attribution="Statlog (Landsat Satellite): A. Srinivasan, 1993, UCI Machine Learning Repository, "
        "https://doi.org/10.24432/C55887, CC BY 4.0",
    ),
    "mnist": Known(
        rows=(60_000, 10_000),
        shape=(28, 28),
        labels=tuple(range(10)),
        attribution="MNIST: Y. LeCun, C. Cortes, C. J. C. Burges, The MNIST database of handwritten digits, 1998",
        url="https://ossci-datasets.s3.amazonaws.com/mnist/",  # torchvision's mirror, with the sums that it pins
        files={
            "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
            "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
            "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
        },
        read=read_mnist,
    ),
    "cifar10": _CIFAR10,
    "cifar100": _CIFAR100,
    "cifar10-12k": Known((10_000, 2000), _CIFAR10.shape, _CIFAR10.labels, _CIFAR10.attribution),
    "cifar100-12k": Known((10_000, 2000), _CIFAR100.shape, _CIFAR100.labels, _CIFAR100.attribution),
}
"""The data sets by name; the -12k ones are reduced sets without a download, used only when asked for by that name."""


def _labels(known: Known, key: str, values: NDArray[Any], path: object) -> Tensor:
    if values.dtype.kind not in "iu":
        raise bad(path, f"{key} to be integers", values.dtype)
    if outside := np.setdiff1d(values, known.labels).tolist():
        raise bad(path, f"{key} in {known.labels[0]}..{known.labels[-1]} ({len(known.labels)} labels)", outside[:5])
    if key == "y_train" and (absent := np.setdiff1d(known.labels, values).tolist()):
        raise bad(path, f"{key} to have every label", f"none of {absent[:5]}")
    return torch.from_numpy(np.searchsorted(known.labels, values).astype(np.int64))


def _check(name: str, known: Known, arrays: Arrays, path: object) -> DataSet:
    """Make a data set of arrays that are as `known` says, whatever they were read from."""
    tensors = {}
    digest = hashlib.sha256()
    for key in KEYS:
        values = arrays[key]
        rows = known.rows[key.endswith("test")]
        shape = (rows, *known.shape) if key[0] == "x" else (rows,)
        if len(shape) == 4 and values.shape == (rows, *known.shape[1:], known.shape[0]):
            values = np.moveaxis(values, -1, 1)  # colour last, as Keras stores it
        if values.shape != shape:
            raise bad(path, f"{key} of shape {shape}", values.shape)
        if key[0] == "x" and values.dtype != np.uint8:
            raise bad(path, f"{key} to be uint8", values.dtype)
        tensors[key] = torch.from_numpy(np.array(values, order="C")) if key[0] == "x" else _labels(known, key, values, path)
        digest.update(f"{key}{shape}".encode())
        digest.update(tensors[key].to(torch.uint8).numpy().data)
    return DataSet(
        **tensors,
        name=name,
        num_classes=len(known.labels),
        source=str(path),
        sha256=digest.hexdigest(),
        attribution=known.attribution,
    )


def cache_folder() -> Path:
    """Return the folder that downloads go to: ``langevin/data`` in XDG_CACHE_HOME, by default ``~/.cache``."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".cache") / "langevin" / "data"


def _find(name: str, known: Known, folder: Path) -> DataSet | None:
    """Read the set from a folder, from the npz rather than the official files; None when it has neither."""
    path = folder / f"{name}.npz"
    if path.is_file():
        with path.open("rb") as stream:
            return _check(name, known, read_npz(stream, path), path)
    if known.read and all((folder / file).is_file() for file in known.files):
        source = folder / next(iter(known.files)) if len(known.files) == 1 else folder
        return _check(name, known, known.read(folder, known), source)
    return None


def _fetch(url: str, path: Path, md5: str) -> None:
    """Download one file; it gets its name only when it is whole and its checksum is right."""
    digest = hashlib.md5(usedforsecurity=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        request = urllib.request.Request(url, headers={"User-Agent": "langevin"})
        with os.fdopen(handle, "wb") as out, urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
            total = int(answer.headers.get("Content-Length", 0)) or None
            with tqdm(total=total, desc=path.name, unit="B", unit_scale=True, disable=None) as bar:
                while block := answer.read(BLOCK):
                    digest.update(block)
                    out.write(block)
                    bar.update(len(block))
        if digest.hexdigest() != md5:
            raise ValueError(f"{path.name} from {url} needs md5 {md5}, got {digest.hexdigest()}; it was removed")
        os.replace(temporary, path)
    finally:
        Path(temporary).unlink(missing_ok=True)


def _absent(name: str, known: Known, places: list[Path], reason: str) -> FileNotFoundError:
    files = f", or {', '.join(known.files)} from {known.url}" if known.files else ""
    return FileNotFoundError(
        f"load({name!r}) found no data in {' or '.join(map(str, places))}, and {reason}. Put into one of these folders, or into "
        f"another named by load(folder=...) or LANGEVIN_DATA: {name}.npz with the arrays {', '.join(KEYS)}{files}"
    )


def load(name: str, *, folder: str | os.PathLike[str] | None = None) -> DataSet:
    """Load a data set, from the first place that has it: the package (landsat only), `folder`, the cache, the official download.

    A folder may hold ``<name>.npz`` with the arrays x_train, y_train, x_test and y_test (uint8 images, colour first or last), or
    the official files: MNIST's four ``idx*-ubyte.gz``, ``cifar-10-binary.tar.gz``, ``cifar-100-binary.tar.gz``. CIFAR's python
    version is not read: it holds pickles, which can run code.

    Args:
        name: landsat, mnist, cifar10, cifar100, cifar10-12k or cifar100-12k (reduced sets; no download).
        folder: where to look first; by default the environment variable LANGEVIN_DATA, if it is set.

    Returns:
        The whole set, checked: sizes, types, labels.

    Raises:
        FileNotFoundError: it is nowhere and cannot be downloaded; the message says what to put where.
        ValueError: no such name, or a file is not what it should be; the message names the file.

    Example:
        >>> landsat = load("landsat")
        >>> landsat.x_train.shape, landsat.num_classes, landsat.source
        (torch.Size([4435, 36]), 6, 'package')
    """
    if name not in KNOWN:
        raise needs("load", "name", f"one of {', '.join(KNOWN)}", name)
    known = KNOWN[name]
    if name == "landsat":
        with (resources.files(__package__) / "landsat.npz").open("rb") as stream:
            return _check(name, known, read_npz(stream, "package"), "package")
    given = folder if folder is not None else os.environ.get("LANGEVIN_DATA") or None
    cache = cache_folder()
    places = [cache]
    if given is not None:
        places.insert(0, Path(given).expanduser())
        if not places[0].is_dir():
            who = "LANGEVIN_DATA" if folder is None else "load(folder=...)"
            raise FileNotFoundError(f"{who} needs a folder that exists, got {str(given)!r}")
    for place in places:
        if found := _find(name, known, place):
            return found
    if not known.files:
        raise _absent(name, known, places, "it has no download")
    try:
        for file, md5 in known.files.items():
            if not (cache / file).is_file():
                _fetch(known.url + file, cache / file, md5)
    except (OSError, http.client.HTTPException) as error:
        raise _absent(name, known, places, f"the download failed ({error})") from error
    found = _find(name, known, cache)
    if found is None:
        raise _absent(name, known, places, "the download was removed meanwhile")
    return found
