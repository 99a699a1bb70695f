"""The data sets of section 5: what each must be, where its official files are, and the check that it is that."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from langevin_paper.formats import KEYS, Arrays, bad, read_cifar, read_mnist

__all__ = ["KNOWN", "DataSet", "Known", "checked"]


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
    "cifar10-12k": replace(_CIFAR10, rows=(10_000, 2000), url="", files={}, read=None),
    "cifar100-12k": replace(_CIFAR100, rows=(10_000, 2000), url="", files={}, read=None),
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


def checked(name: str, known: Known, arrays: Arrays, path: object) -> DataSet:
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
