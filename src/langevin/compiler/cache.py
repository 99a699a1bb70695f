"""Cache compiled programs: private, checked before use, limited in number and size.

Whoever can write to the folder can run code as its reader. So the folder belongs to the user alone
(mode 0700), or nothing is kept and each process compiles again.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import shutil
import stat
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

_MOST_PROGRAMS = 512
_MOST_BYTES = 256 << 20
_STALE_SECONDS = 3600.0  # longer than any compiler may take
_PREFIX = "langevin-build-"


@functools.cache
def private_folder() -> Path | None:
    """Return the private folder `langevin` in the user's cache folder, or None without one."""
    try:
        folder = place()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if found := trouble(folder):
            warnings.warn(
                f"compiled code is not kept: {folder} {found}; each process compiles again",
                stacklevel=2,
            )
            return None
        folder.chmod(0o700)
        return folder if os.access(folder, os.W_OK | os.X_OK) else None
    except (OSError, RuntimeError):  # a read-only disk; no home (RuntimeError)
        return None


def place() -> Path:
    """Return the path of that folder; RuntimeError without a home folder."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "langevin"


def trouble(folder: Path) -> str | None:
    """Return the reason not to trust a folder's contents, or None."""
    about, above = folder.lstat(), folder.parent.stat()
    if not stat.S_ISDIR(about.st_mode):
        return "is not a folder of its own"
    if not hasattr(os, "getuid"):  # Windows protects the user's cache folder by an access list
        return None
    if about.st_uid != os.getuid():
        return f"belongs to another user ({about.st_uid})"
    if about.st_mode & 0o022:
        return "can be written to by others: remove it"
    if above.st_mode & 0o022 and not above.st_mode & stat.S_ISVTX:
        return f"lies in {folder.parent}, which others can write to"
    return None


def folder() -> Path | None:
    """Return the private folder of compiled programs, or None if nothing can be kept.

    Example:
        >>> found = folder()
        >>> found is None or found.name == "programs"
        True
    """
    base = private_folder()
    if base is None:
        return None
    programs = base / "programs"
    try:
        programs.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = trouble(programs)
    except OSError:
        return None
    if found:
        warnings.warn(f"compiled code is not kept: {programs} {found}", stacklevel=3)
        return None
    return programs


def find(programs: Path, key: str) -> Path | None:
    """Return the intact program of a key, or None; damaged files are removed.

    The file name is `key-checksum`, so that a file cannot lose its checksum.
    """
    with contextlib.suppress(OSError), os.scandir(programs) as entries:
        for name in [entry.name for entry in entries if entry.name.startswith(f"{key}-")]:
            path = programs / name
            with contextlib.suppress(OSError):  # another process may remove it
                if path.stem == f"{key}-{_checksum(path)}":
                    os.utime(path)  # the least recently used are removed first
                    return path
                path.unlink()
    return None


def keep(programs: Path, key: str, made: Path) -> None:
    """Move a program into the folder under its key, if there is room, and clean up the folder."""
    with contextlib.suppress(OSError):
        made.chmod(0o600)
        made.replace(programs / f"{key}-{_checksum(made)}{made.suffix}")
        _tidy(programs)


def _checksum(path: Path) -> str | None:
    """Return the checksum of a regular file; None for a link or anything else."""
    about = path.lstat()
    if not stat.S_ISREG(about.st_mode) or about.st_size > _MOST_BYTES:
        return None
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:32]


@contextlib.contextmanager
def work_folder(root: Path) -> Iterator[Path]:
    """Make a private folder for one build, and remove it afterwards.

    `tempfile.TemporaryDirectory` would also remove it when a forked child exits.

    Raises:
        OSError: no folder can be made there, or others could replace it.
    """
    work = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=root))
    try:
        if found := trouble(work):
            raise OSError(f"{work} {found}")
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)  # Windows keeps a loaded library


def listed(programs: Path) -> list[tuple[float, int, Path]]:
    """Return time of last use, size and path of each program, the least recently used first."""
    found = []
    with os.scandir(programs) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                about = entry.stat(follow_symlinks=False)
                if stat.S_ISREG(about.st_mode):
                    found.append((about.st_mtime, about.st_size, Path(entry.path)))
    return sorted(found)


def _tidy(programs: Path) -> None:
    """Remove work folders of killed processes, and the programs beyond the limits."""
    for root in (programs, Path(tempfile.gettempdir())):
        for work in root.glob(f"{_PREFIX}*"):
            with contextlib.suppress(OSError):  # another process may clean up, too
                about = work.lstat()
                is_ours = not hasattr(os, "getuid") or about.st_uid == os.getuid()
                if is_ours and about.st_mtime < time.time() - _STALE_SECONDS:
                    shutil.rmtree(work)
    kept = listed(programs)
    total = sum(size for _, size, _ in kept)
    while len(kept) > 1 and (len(kept) > _MOST_PROGRAMS or total > _MOST_BYTES):
        _, size, path = kept.pop(0)
        total -= size
        with contextlib.suppress(OSError):
            path.unlink()
