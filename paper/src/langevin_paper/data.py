"""The data sets of the paper's section 5, as uint8 tensors: Landsat, MNIST, CIFAR-10 and CIFAR-100.

Landsat ships inside the package. The others are looked for in a folder of yours, then in the cache, then downloaded from their
official place. No file is ever run: arrays are read without pickles, idx files and CIFAR's binary version are plain bytes.

`landsat.npz` is Statlog (Landsat Satellite) by Ashwin Srinivasan, 1993, UCI Machine Learning Repository,
https://doi.org/10.24432/C55887, licence CC BY 4.0 (https://creativecommons.org/licenses/by/4.0/); the values, the order and the
split into train and test are the original ones, stored as arrays.
"""

from __future__ import annotations

import http.client
import os
from importlib import resources
from pathlib import Path

from langevin.checks import needs
from langevin_paper.download import cache_folder, fetch
from langevin_paper.formats import KEYS, read_npz
from langevin_paper.sets import KNOWN, DataSet, Known, checked

__all__ = ["KNOWN", "DataSet", "Known", "cache_folder", "load"]


def _find(name: str, known: Known, folder: Path) -> DataSet | None:
    """Read the set from a folder, from the npz rather than the official files; None when it has neither."""
    path = folder / f"{name}.npz"
    if path.is_file():
        with path.open("rb") as stream:
            return checked(name, known, read_npz(stream, path), path)
    if known.read and all((folder / file).is_file() for file in known.files):
        source = folder / next(iter(known.files)) if len(known.files) == 1 else folder
        return checked(name, known, known.read(folder, known), source)
    return None


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
            return checked(name, known, read_npz(stream, "package"), "package")
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
                fetch(known.url + file, cache / file, md5)
    except (OSError, http.client.HTTPException) as error:
        raise _absent(name, known, places, f"the download failed ({error})") from error
    found = _find(name, known, cache)
    if found is None:
        raise _absent(name, known, places, "the download was removed meanwhile")
    return found
