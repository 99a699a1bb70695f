"""Where compiled code is kept: place, owner, permissions, size, and whether it can be used."""

from __future__ import annotations

import importlib.util
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from langevin.doctor.finding import BROKEN, OK, SLOW, Finding

__all__ = ["caches", "look_at"]


def caches() -> Iterator[Finding]:
    """Look at the library's own cache, at numba's where one is named, and at that of torch.compile."""
    if importlib.util.find_spec("numba") is not None:
        from langevin.cpu.code_cache import place  # it needs numba

        try:
            yield look_at("langevin", place(), "set XDG_CACHE_HOME to a folder of your own; until then each process compiles again")
        except RuntimeError:
            yield Finding(
                "langevin", "no home", SLOW, "set XDG_CACHE_HOME to a folder of your own; until then each process compiles again"
            )
    if named := os.environ.get("NUMBA_CACHE_DIR"):
        yield look_at("numba", Path(named), "unset NUMBA_CACHE_DIR, or name a folder of your own")
    else:
        yield Finding("numba", "NUMBA_CACHE_DIR is not set, and need not be: the folder above is used")
    given = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    if given is None and importlib.util.find_spec("torch._inductor") is not None:
        from torch._inductor.runtime.cache_dir_utils import default_cache_dir

        given = default_cache_dir()
    folder = Path(given) if given else Path(tempfile.gettempdir()) / "torchinductor"
    yield look_at("torch.compile", folder, "set TORCHINDUCTOR_CACHE_DIR to a folder of your own; until then compiling is not kept")


def look_at(name: str, folder: Path, advice: str) -> Finding:
    """Say what is at a place: whoever can write there can run code as its reader, so it must be its owner's alone."""
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        return Finding(name, f"{folder} is no folder", BROKEN, f"remove it, or {advice}")
    if not folder.exists():
        above = next(parent for parent in folder.parents if parent.exists())
        if above.is_dir() and os.access(above, os.W_OK | os.X_OK):
            return Finding(name, f"{folder}, not made yet")
        return Finding(name, f"{folder} cannot be made: {above} cannot be written to", SLOW, advice)
    about = folder.stat()
    text = f"{folder}, {_owner(about.st_uid)}, mode {stat.S_IMODE(about.st_mode):04o}, {_size(folder)}"
    if hasattr(os, "getuid") and about.st_uid != os.getuid():
        return Finding(name, f"{text}: it belongs to another user", BROKEN, f"remove it, or {advice}")
    if hasattr(os, "getuid") and about.st_mode & 0o022:
        return Finding(
            name, f"{text}: others can write to it", BROKEN, f"chmod go-w {folder}, after a look at what lies there, or remove it"
        )
    if not os.access(folder, os.W_OK | os.X_OK):
        return Finding(name, f"{text}: it cannot be written to", SLOW, advice)
    return Finding(name, text, OK)


def _owner(number: int) -> str:
    try:
        import pwd  # not on Windows

        return pwd.getpwuid(number).pw_name
    except (ImportError, KeyError):
        return f"user {number}"


def _size(folder: Path) -> str:
    """Return the size of all files below; some may go while we look."""
    total = 0
    for base, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(base, name)).st_size
            except OSError:
                continue
    return f"{total / 1e6:.1f} MB"
