"""The folder of a run: its files, the writer's lock, and creation under a temporary name.

```
run.zarr/                       a Zarr 3 group
  zarr.json                     manifest: settings, arrays, fingerprints, sha256 (`manifest.py`)
  draws/ energy/ ...            Zarr arrays (draw, ...) in chunks c.0.0.0, ... (`layout.py`)
  state.safetensors             last checkpoint: positions, sampler state, progress, digests of
                                chunks (`checkpoint.py`)
  blocks/0/state.safetensors    last checkpoint of each block of chains, for runs in blocks; the
                                one above is then the start (`blocks.py`)
  lock                          locked by the only writer while it runs
```

Files are never reached through a symbolic link (`safe_io.py`); the folder itself may be one. A
checkpoint contains the manifest's checksum, which covers a random id of the run.

Every file is written atomically; only chunks and checkpoints are replaced. Reading executes no code
from the folder: the manifest determines the arrays, and differing metadata is an error.
"""

from __future__ import annotations

import glob
import os
import shutil
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

from langevin.checks import check_path, needs
from langevin.storage.lock import FolderLock

__all__ = ["check_new", "lock_folder", "new_draft"]


def lock_folder(folder: Path) -> FolderLock:
    """Take the writer's lock of a folder, or raise a RuntimeError if it is held."""
    lock = FolderLock(folder)
    if not lock.acquire():
        owner = "another process, thread or call of sample or resume has its lock"
        raise RuntimeError(f"{folder} is being written: {owner}")
    return lock


def check_new(out: Any) -> Path:
    """Return `out` as a path where a new folder can be created."""
    path = check_path("sample", "out", out, "None or the path of a new folder")
    if os.path.lexists(path):
        what = "a symlink" if path.is_symlink() else "a folder" if path.is_dir() else "a file"
        raise FileExistsError(
            f"sample(out=...) needs a new folder, got {str(out)!r}, which is {what}: continue a "
            f"run by langevin.resume({str(out)!r}, ...), or give another folder, or remove this one"
        )
    parent = next(folder for folder in path.absolute().parents if os.path.lexists(folder))
    if not parent.is_dir():
        condition = "a path in a directory"
        raise NotADirectoryError(f"{needs('sample', 'out', condition, str(out))}: {parent} is none")
    if not os.access(parent, os.W_OK | os.X_OK):
        condition = "a path in a writable directory"
        raise needs("sample", "out", condition, str(out), PermissionError)
    return path


def new_draft(path: Path) -> tuple[Path, FolderLock]:
    """Create and lock a draft of a new folder; remove drafts that killed processes left."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        text = needs("sample", "out", "a path that can be created", str(path))
        raise OSError(error.errno, f"{text}: {error}") from error
    for leftover in path.parent.glob(f".{glob.escape(path.name)}.*.new"):
        # Ignored: its owner is alive or removed it, or its lock is a symbolic link.
        with suppress(RuntimeError, OSError, ValueError):
            if leftover.is_symlink():
                continue
            lock = lock_folder(leftover)
            shutil.rmtree(leftover, ignore_errors=True)
            lock.release()
    while True:
        draft = path.with_name(f".{path.name}.{os.getpid()}.{uuid.uuid4().hex}.new")
        draft.mkdir()
        # Another process may remove it as a leftover before it is locked.
        with suppress(RuntimeError, FileNotFoundError):
            return draft, lock_folder(draft)
