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
import weakref
from contextlib import suppress
from pathlib import Path

from langevin.checks import check_path, needs
from langevin.storage.safe_io import naming, open_regular

__all__ = ["FolderLock", "check_new", "lock_folder", "new_draft"]


class FolderLock:
    """An exclusive operating-system lock on the file `lock` in a folder.

    The system releases it when the process dies. Forked children and unpickled copies do not hold
    it. If the file is deleted, a second writer can lock the folder: call `check` before each write.

    Attributes:
        folder: The folder; set it when the folder is renamed.

    Example:
        >>> import tempfile
        >>> first, second = (FolderLock(folder) for folder in [Path(tempfile.mkdtemp())] * 2)
        >>> first.acquire(), second.acquire()
        (True, False)
        >>> first.release()
        >>> second.acquire()
        True
        >>> second.release()
    """

    def __init__(self, folder: Path) -> None:
        """Open nothing yet."""
        self.folder = folder
        self._fd: int | None = None
        _LOCKS.add(self)

    @property
    def is_held(self) -> bool:
        """Whether this object holds the lock."""
        return self._fd is not None

    def acquire(self) -> bool:
        """Take the lock without waiting; return False if another writer holds it."""
        from filelock import lock_descriptor  # not needed for runs in memory

        file = self.folder / "lock"
        with naming(file):
            fd = open_regular(file, os.O_RDWR | os.O_CREAT)
        try:
            with naming(file):
                is_taken = lock_descriptor(fd, blocking=False)
        except BaseException:
            os.close(fd)
            raise
        if not is_taken:
            os.close(fd)
            return False
        self._fd = fd
        self.check()  # the file may have been deleted in between
        return True

    def check(self) -> None:
        """Raise a RuntimeError unless the lock is held and its file is unchanged."""
        file = self.folder / "lock"
        if self._fd is None:
            raise RuntimeError(f"{self.folder} can only be written while its lock is held")
        try:
            is_same = os.path.samestat(os.fstat(self._fd), os.lstat(file))
        except FileNotFoundError:
            is_same = False
        if not is_same:
            self.release()
            raise RuntimeError(
                f"{file} was deleted or replaced while this process had the lock: another writer "
                "may be active. Earlier writes are complete, and nothing more was written. Open "
                "the folder again, with one writer"
            )

    def release(self) -> None:
        """Release the lock if this object holds it."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)  # unlocking in a forked child would release the parent's lock

    def __getstate__(self) -> dict[str, object]:
        return {"folder": self.folder, "_fd": None}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        _LOCKS.add(self)

    def __del__(self) -> None:
        if getattr(self, "_fd", None) is not None:
            self.release()


_LOCKS: weakref.WeakSet[FolderLock] = weakref.WeakSet()


def _release_all() -> None:
    for lock in list(_LOCKS):
        lock.release()


if hasattr(os, "register_at_fork"):
    # A child must not keep the lock after its parent dies.
    os.register_at_fork(after_in_child=_release_all)


def lock_folder(folder: Path) -> FolderLock:
    """Take the writer's lock of a folder, or raise a RuntimeError if it is held."""
    lock = FolderLock(folder)
    if not lock.acquire():
        owner = "another process, thread or call of sample or resume has its lock"
        raise RuntimeError(f"{folder} is being written: {owner}")
    return lock


def check_new(out: object) -> Path:
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
