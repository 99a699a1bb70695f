"""File access that follows no symbolic links inside a run folder, bank or checkpoint folder.

Such a folder may come from somebody else, and a link in it could make this library read, overwrite
or delete a file elsewhere. The folder itself may be a link: `resolve_root` resolves it once. Paths
below it are checked before use. Not covered: a process that replaces a folder by a link between the
check and the use.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = [
    "check_no_links",
    "exists",
    "make_folders",
    "naming",
    "open_regular",
    "read_file",
    "resolve_root",
]

# O_NONBLOCK: opening a pipe does not hang. Not every system has all flags.
_FLAGS = sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"))


def resolve_root(path: Path) -> Path:
    """Return the absolute path of a folder without symbolic links; it need not exist.

    Example:
        >>> resolve_root(Path("draws")).is_absolute()
        True
    """
    return Path(os.path.realpath(path))


def check_no_links(path: Path, root: Path) -> None:
    """Raise a ValueError if `path`, or a folder between it and `root`, is a symbolic link.

    Example:
        >>> check_no_links(Path("run.zarr/draws"), Path("run.zarr"))
    """
    current = root
    for part in path.relative_to(root).parts:
        current = current / part
        if current.is_symlink():
            reason = "a symbolic link, which is never followed inside this folder"
            raise ValueError(f"{current} is {reason}: replace it by a copy")


def open_regular(path: Path, flags: int, root: Path | None = None) -> int:
    """Open a regular file, or create it with O_CREAT; no link, folder, pipe or device.

    Args:
        path: The file.
        flags: As for `os.open`.
        root: The folder below which no link is followed; by default the parent of the file.

    Example:
        >>> import tempfile
        >>> os.close(open_regular(Path(tempfile.mkdtemp()) / "file", os.O_RDWR | os.O_CREAT))
    """
    check_no_links(path, path.parent if root is None else root)
    if os.path.lexists(path) and not stat.S_ISREG(os.lstat(path).st_mode):
        raise ValueError(f"{path} is not a regular file")
    return os.open(path, flags | _FLAGS, 0o644)


def read_file(path: Path, root: Path | None = None) -> bytes:
    """Return the content of a regular file; arguments as in `open_regular`.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "file"
        >>> _ = path.write_bytes(b"content")
        >>> read_file(path)
        b'content'
    """
    with os.fdopen(open_regular(path, os.O_RDONLY, root), "rb") as file:
        try:
            return file.read()
        except MemoryError as error:
            size = os.fstat(file.fileno()).st_size
            raise ValueError(f"{path} has {size} bytes, more than memory can hold") from error


def exists(path: Path, root: Path) -> bool:
    """Whether `path` exists; a ValueError if it is reached through a link below `root`.

    Example:
        >>> exists(Path("no such folder/file"), Path("no such folder"))
        False
    """
    check_no_links(path, root)
    return os.path.lexists(path)


def make_folders(path: Path, root: Path) -> None:
    """Create a folder below `root` and its parents; none may be a symbolic link.

    Example:
        >>> import tempfile
        >>> root = Path(tempfile.mkdtemp())
        >>> make_folders(root / "blocks" / "0", root)
        >>> exists(root / "blocks" / "0", root)
        True
    """
    check_no_links(path, root)
    path.mkdir(parents=True, exist_ok=True)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Add a path to an OSError raised in the block.

    Example:
        >>> with naming(Path("draws")):
        ...     raise OSError(28, "No space left on device")
        Traceback (most recent call last):
        OSError: [Errno 28] No space left on device: 'draws'
    """
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
