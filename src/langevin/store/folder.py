"""The folder of a run, from the outside: where one can be made, under a draft's name first, and the lock of its one writer.

```
run.zarr/                     a Zarr 3 group
  zarr.json                   the manifest, as attributes: version, settings, arrays, fingerprints, sha256 (`manifest.py`)
  draws/  energy/  ...        Zarr arrays (draw, ...): `zarr.json`, and the chunks `c.0.0.0`, `c.1.0.0`, ... (`layout.py`)
  state.safetensors           the last checkpoint: positions, memories, how far the run is, digests of chunks (`checkpoint.py`)
  blocks/0/state.safetensors  in a run in blocks of chains: the last checkpoint of each; the one above is the start (`blocks.py`)
  lock                        held by the one writer, until it is done or dies
```

Every file is written whole (`write_atomic`), and only the chunks and the checkpoint are ever written again. Reading runs no code of
the folder's: what an array looks like follows from the manifest, and an array that says otherwise of itself is refused.
"""

from __future__ import annotations

import glob
import os
import shutil
import uuid
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from langevin.checks import check_path

if TYPE_CHECKING:
    import filelock

__all__ = ["check_new", "lock_folder", "new_draft"]


def lock_folder(folder: Path) -> filelock.BaseFileLock:
    """Take the writer's lock of a folder at once, or fail; the system takes it back when the process dies."""
    import filelock  # a run in memory does not need it

    lock = filelock.FileLock(folder / "lock", timeout=0, thread_local=False)
    try:
        lock.acquire()
    except filelock.Timeout as error:
        raise RuntimeError(
            f"{folder} is being written: another process, thread or call of sample or resume has its lock"
        ) from error
    return lock


def check_new(out: Any) -> Path:
    """Return `out` as a path at which a run can be made, or fail."""
    path = check_path("sample", "out", out, "None or the path of a new folder")
    if os.path.lexists(path):
        what = "a symlink" if path.is_symlink() else "a folder" if path.is_dir() else "a file"
        raise FileExistsError(
            f"sample(out=...) needs a new folder, got {str(out)!r}, which is {what}: a run there? resume it, or remove it"
        )
    above = next(folder for folder in path.absolute().parents if os.path.lexists(folder))  # missing ones are made
    if not above.is_dir():
        raise NotADirectoryError(f"sample(out=...) needs a place in a folder, got {str(out)!r}: {above} is none")
    if not os.access(above, os.W_OK | os.X_OK):
        raise PermissionError(f"sample(out=...) needs a folder in a folder that can be written to, got {str(out)!r}")
    return path


def new_draft(path: Path) -> tuple[Path, filelock.BaseFileLock]:
    """Make and lock a folder in which a run is put together before it gets its name; remove what killed creations have left."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(error.errno, f"sample(out=...) needs a folder that can be made, got {str(path)!r}: {error}") from error
    for leftover in path.parent.glob(f".{glob.escape(path.name)}.*.new"):
        with suppress(RuntimeError, OSError):  # its owner lives, or was faster
            lock = lock_folder(leftover)
            shutil.rmtree(leftover, ignore_errors=True)
            lock.release()
    while True:
        draft = path.with_name(f".{path.name}.{os.getpid()}.{uuid.uuid4().hex}.new")
        draft.mkdir()
        with suppress(RuntimeError, FileNotFoundError):  # another creation took it for a leftover before it was locked
            return draft, lock_folder(draft)
