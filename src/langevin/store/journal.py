"""What a crash-safe folder is made of: files that are written whole, and a journal that says which of them count.

A journal is a file of JSON objects, one per line, each with a `kind`, only ever appended to. Line 1 is the header: format,
version, and what else the store wants there. A last line without its newline was cut short by a kill or a full disk: readers
ignore it, the next append overwrites it. Readers need no lock and change nothing; the one writer holds the file `lock` of the
same folder (`filelock`: a lock of the operating system, which takes it back when the process dies). The threads of that writer
take turns by the journal's `mutex`.

A store writes its files first (`write_atomic`) and appends the line that names them after that.
"""

import hashlib
import json
import os
import secrets
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

__all__ = ["Journal", "State", "remove_temporaries", "write_atomic"]

_START = b'{"kind": "'  # of every line

S = TypeVar("S", bound="State")


def write_atomic(path: Path, data: bytes | Iterable[bytes | memoryview]) -> None:
    """Make `data` the content of the file; after a kill or an error it is there whole, or the file is as it was.

    Writers of the same file do not disturb each other: each writes under a name of its own, the last one to finish wins.

    Args:
        path: The file.
        data: Its content, whole or in parts; an error raised by the parts leaves the file as it was.

    Raises:
        OSError: it could not be written; the message names `path`.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    with _named(path):
        try:
            _write(temporary, (data,) if isinstance(data, bytes) else data, 0)
            os.replace(temporary, path)
        except BaseException:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
        _sync_folder(path.parent)


def remove_temporaries(folder: Path, pattern: str) -> None:
    """Remove what kills have left of `write_atomic` to files whose names match the pattern; only for the lock's holder."""
    for temporary in folder.glob(f".{pattern}.*.tmp"):
        temporary.unlink(missing_ok=True)


class State(Protocol):
    """What the lines of a journal add up to."""

    def apply(self, entry: dict[str, Any]) -> None:
        """Take in one line, the header too; a ValueError, TypeError or KeyError says that it is not a line of this format."""


class Journal(Generic[S]):
    """An append-only file of JSON lines with one writer and any number of readers.

    Its threads may share one object: they write one after the other. A copy in another process, forked or pickled, does not have
    the lock.

    Args:
        path: The file; it need not exist. The lock is the file `lock` beside it.
        format: The name of the format, for the header.
        version: Its version; another one is refused.
        new_state: Makes an empty state; called whenever the file is read from the start.
        sealed: Give every line a checksum over itself and all lines before it, so that an edited, missing or swapped line is
            noticed; not for a store whose lines have their own.

    Attributes:
        state: A new state to which the lines so far were applied.
        in_step: The lock is held and the state agrees with the file: there was no error in the last `writing`.
        mutex: Held by the thread that locks, unlocks or writes; hold it to do more than one of these without another in between.

    Example:
        >>> import tempfile
        >>> class Total:
        ...     value = 0
        ...     def apply(self, entry):
        ...         self.value += entry.get("value", 0)
        >>> path = Path(tempfile.mkdtemp()) / "totals.jsonl"
        >>> journal = Journal(path, "totals", 1, Total)
        >>> with journal.writing():
        ...     journal.begin()
        ...     journal.append({"kind": "add", "value": 2}, {"kind": "add", "value": 3})
        >>> Journal(path, "totals", 1, Total).state.value
        5
    """

    def __init__(self, path: Path, format: str, version: int, new_state: Callable[[], S], *, sealed: bool = True) -> None:
        """Read the file, if there is one; a ValueError names the path and the line that is damaged or of another format."""
        self._sealed, self._seal = sealed, ""  # of the last whole line
        self._fd: int | None = None  # of the lock file, while this object holds the lock
        self.mutex = threading.RLock()
        self.path, self.format, self.version, self._new_state = path, format, version, new_state
        self.in_step = False
        self._read()
        _JOURNALS.add(self)

    def lock(self) -> bool:
        """Take the lock unless this object has it; returns whether it was taken now. RuntimeError if another writer has it."""
        from filelock import lock_descriptor

        with self.mutex:
            if self._fd is not None:
                return False
            with _named(self.path.parent):
                self.path.parent.mkdir(parents=True, exist_ok=True)
            place = self.path.with_name("lock")
            fd = os.open(place, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                with _named(place):
                    taken = lock_descriptor(fd, blocking=False)
                if not taken:
                    raise RuntimeError(f"{self.path.parent}: another writer holds the lock")
                self._read()  # others may have written since
            except BaseException:
                os.close(fd)
                raise
            self._fd, self.in_step = fd, False
            return True

    def unlock(self) -> None:
        """Give the lock back, if this object has it."""
        with self.mutex:
            fd, self._fd, self.in_step = self._fd, None, False
            if fd is not None:
                os.close(fd)  # never an explicit unlock: in a forked child that would take the lock from the parent

    @contextmanager
    def writing(self) -> Iterator[bool]:
        """Take the lock, and keep it, to append; gives True where leftovers are possible: just locked, or the last time failed."""
        with self.mutex:
            self.lock()
            unsure, self.in_step = not self.in_step, False
            if unsure:
                self._read(self._end)  # without what a failed append left behind
            yield unsure
            self.in_step = True

    def begin(self, **fields: Any) -> None:
        """Append the header, with the store's own fields."""
        self.append({"kind": "header", "format": self.format, "version": self.version, **fields})

    def append(self, *entries: dict[str, Any]) -> None:
        """Write the lines, wait for the disk and apply them to the state; only inside `writing`. An OSError names the file."""
        if self._fd is None:
            raise RuntimeError(f"{self.path}: append needs the lock, use it inside `with journal.writing()`")
        lines, parsed, seal = [], [], self._seal
        for number, entry in enumerate(entries):
            sealed, after = self._with_seal(entry, seal)
            lines.append(json.dumps(sealed).encode() + b"\n")
            parsed.append(self._parse(lines[-1], self._end == number == 0, seal))
            seal = after
        data = b"".join(lines)
        with _named(self.path):
            _write(self.path, (data,), self._end)
            if not self._end:  # a new file
                _sync_folder(self.path.parent)
        self._end += len(data)
        self._seal = seal
        for entry in parsed:
            self.state.apply(entry)

    def _read(self, limit: int | None = None) -> None:
        state, data = self._new_state(), self.path.read_bytes()[:limit] if self.path.exists() else b""
        end, seal = data.rfind(b"\n") + 1, ""  # where the last whole line ends
        if data[end : end + len(_START)] != _START[: len(data) - end]:
            raise ValueError(f"{self.path}: after its last whole line comes no beginning of one: damaged, or no {self.format}")
        for number, line in enumerate(data[:end].split(b"\n")[:-1], 1):
            try:
                entry = self._parse(line, number == 1, seal)
                seal = entry.get("seal", "")
                state.apply(entry)
            except (KeyError, TypeError, AttributeError, ValueError) as error:
                reason = error if isinstance(error, ValueError) else f"not a line of a {self.format}: {error!r}"
                raise ValueError(f"{self.path} line {number}: {reason}") from error
        self.state, self._end, self._seal = state, end, seal

    def _with_seal(self, entry: dict[str, Any], before: str) -> tuple[dict[str, Any], str]:
        """Return a line with its seal, which is over the line and the seal `before` it, and that seal."""
        if not self._sealed:
            return entry, ""
        bare = {name: value for name, value in entry.items() if name != "seal"}
        seal = hashlib.sha256(f"{before} {json.dumps(bare)}".encode()).hexdigest()[:32]
        return {**bare, "seal": seal}, seal

    def _parse(self, line: bytes, first: bool, before: str) -> dict[str, Any]:
        entry: dict[str, Any] = json.loads(line)
        if first != (entry["kind"] == "header"):
            raise ValueError(f"expected a {self.format} header on line 1 and only there, found {entry['kind']!r}")
        if first and (entry["format"], entry["version"]) != (self.format, self.version):
            found = f"{entry['format']} version {entry['version']}"
            raise ValueError(f"expected {self.format} version {self.version}, found {found}")
        if self._sealed and entry != self._with_seal(entry, before)[0]:
            raise ValueError("its checksum is not that of its content and of the lines before it: edited, or damaged")
        return entry

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "mutex"} | {"_fd": None, "in_step": False}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, mutex=threading.RLock())
        _JOURNALS.add(self)

    def __del__(self) -> None:
        if getattr(self, "_fd", None) is not None:
            self.unlock()


def _write(path: Path, parts: Iterable[bytes | memoryview], start: int) -> None:
    """Put the parts after the file's first `start` bytes, in place of whatever is there, and wait for the disk."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0), 0o644)
    try:
        os.ftruncate(fd, start)
        for part in parts:
            rest = memoryview(part)
            while rest:
                rest = rest[os.write(fd, rest) :]
        os.fsync(fd)
    finally:
        os.close(fd)


def _sync_folder(path: Path) -> None:
    if not hasattr(os, "O_DIRECTORY"):  # Windows opens no folders
        return
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextmanager
def _named(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


# A forked child (a DataLoader worker) must neither write as its parent, nor keep the lock when the parent dies, nor wait for a
# thread that it does not have.
_JOURNALS: weakref.WeakSet[Journal[Any]] = weakref.WeakSet()


def _start_anew() -> None:
    for journal in list(_JOURNALS):
        journal.mutex = threading.RLock()
        journal.unlock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_anew)
