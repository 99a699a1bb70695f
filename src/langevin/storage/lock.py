"""The lock of a folder's only writer."""

import os
import weakref
from pathlib import Path
from typing import Any

from langevin.storage.safe_io import naming, open_regular

__all__ = ["FolderLock"]


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

    def __getstate__(self) -> dict[str, Any]:
        return {"folder": self.folder, "_fd": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
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
