"""Where compiled code is kept between processes: a folder that only its owner can write to, or nowhere.

numba keeps machine code beside an index that is a pickle: whoever can write to the folder can run code as its reader. So the folder
is ours alone (mode 0700, own owner), or nothing is kept and each process compiles again, which takes seconds.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import stat
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numba

__all__ = ["cached", "cached_njit", "place", "private_folder", "trouble"]


@functools.cache
def private_folder() -> Path | None:
    """Return the folder `langevin` in the user's cache folder, made private; None where there is none to be had."""
    try:
        folder = place()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if found := trouble(folder):
            warnings.warn(f"compiled code is not kept: {folder} {found}; each process compiles again", stacklevel=2)
            return None
        folder.chmod(0o700)
        return folder if os.access(folder, os.W_OK | os.X_OK) else None
    except (OSError, RuntimeError):  # a read-only disk; no home (RuntimeError)
        return None


def place() -> Path:
    """Return where the folder would be; without a home there is none (RuntimeError)."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "langevin"


def trouble(folder: Path) -> str | None:
    """Say why what lies in a folder cannot be trusted."""
    about, above = folder.lstat(), folder.parent.stat()
    if not stat.S_ISDIR(about.st_mode):
        return "is not a folder of its own"
    if not hasattr(os, "getuid"):  # Windows: the user's cache folder is the user's by its access list
        return None
    if about.st_uid != os.getuid():
        return f"belongs to another user ({about.st_uid})"
    if about.st_mode & 0o022:
        return "can be written to by others: remove it"
    if above.st_mode & 0o022 and not above.st_mode & stat.S_ISVTX:
        return f"lies in {folder.parent}, which others can write to"
    return None


@contextlib.contextmanager
def _numba_keeps_code_in(folder: Path) -> Iterator[None]:
    """Numba asks for the folder while it decorates; its own choice would be one that others may share."""
    before = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = str(folder)
    try:
        yield
    finally:
        numba.config.CACHE_DIR = before


def cached_njit(function: Callable[..., Any], *sources: str | Path, **options: Any) -> Any:
    """Return `numba.njit(**options)(function)`, whose machine code is kept; see `cached`."""
    return cached(functools.partial(numba.njit, **options), function, *sources)


def cached(decorator: Callable[..., Any], function: Callable[..., Any], *sources: str | Path) -> Any:
    """Return a function compiled by numba, whose machine code is kept in the private folder where there is one.

    Args:
        decorator: takes `cache=` and returns a decorator, as `numba.njit` does.
        function: of a source file that exists.
        sources: files and texts that the machine code depends on; numba itself looks at the function's own file only.
    """
    folder = private_folder()
    if folder is None:
        return decorator(cache=False)(function)
    texts = [source.read_text() if isinstance(source, Path) else source for source in sources]
    digest = hashlib.sha256("\n".join([numba.__version__, *texts]).encode()).hexdigest()[:16]
    try:
        with _numba_keeps_code_in(folder / digest):
            return decorator(cache=True)(function)
    except RuntimeError:  # numba found no place after all: the folder has become read-only
        return decorator(cache=False)(function)
