"""Downloads of the data sets: into the user's cache, whole or not at all."""

from __future__ import annotations

import hashlib
import os
import tempfile
import urllib.request
from pathlib import Path

from tqdm.auto import tqdm

from langevin_paper.formats import BLOCK

__all__ = ["cache_folder", "fetch"]

TIMEOUT = 60.0  # seconds without a byte from the server


def cache_folder() -> Path:
    """Return the folder that downloads go to: ``langevin/data`` in XDG_CACHE_HOME, by default ``~/.cache``."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".cache") / "langevin" / "data"


def fetch(url: str, path: Path, md5: str) -> None:
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
