"""Append-only journals of JSON lines, and atomic writes.

Each line is an object with a `kind`. Line 1 is the header: format, version and fields of the store.
A last line without a newline was cut off by a kill or a full disk: readers ignore it, and the next
append overwrites it. Readers need no lock and change nothing; the only writer holds the file `lock`
of the same folder (`folder.py`). Threads of the writer use the journal's `mutex`.

A store writes its files first (`write_atomic`) and then appends the line that refers to them. No
file is opened through a symbolic link (`safe_io.py`).
"""

import json
import os
import secrets
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from langevin.serialization import Json, digest
from langevin.storage.folder import FolderLock
from langevin.storage.safe_io import naming, open_regular, read_file

__all__ = ["Journal", "State", "remove_temporaries", "write_atomic"]

_START = b'{"kind": "'  # of every line

S = TypeVar("S", bound="State")


def write_atomic(
    path: Path,
    data: bytes | Iterable[bytes | memoryview],
    before_commit: Callable[[], None] | None = None,
) -> None:
    """Replace the content of a file; a kill or an error leaves either the old or the new file.

    Several writers of a file do not interfere: each uses its own temporary name, the last one wins.

    Args:
        path: The file.
        data: Its content, complete or in parts. An error in the iterator leaves the file unchanged.
        before_commit: Called after the content is on disk and before it gets its name. An error
            leaves the file unchanged.

    Raises:
        OSError: writing failed; the message names `path`.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    with naming(path):
        try:
            fd = open_regular(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            try:
                _write(fd, (data,) if isinstance(data, bytes) else data)
            finally:
                os.close(fd)
            if before_commit is not None:
                before_commit()
            os.replace(temporary, path)
        except BaseException:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
        _sync_folder(path.parent)


def remove_temporaries(folder: Path, pattern: str) -> None:
    """Remove temporary files of killed `write_atomic` calls; only the lock's holder may do so."""
    for temporary in folder.glob(f".{pattern}.*.tmp"):
        if temporary.is_symlink() or not temporary.is_dir():  # removes the link, not its target
            temporary.unlink(missing_ok=True)


class State(Protocol):
    """The state that the lines of a journal produce."""

    def apply(self, entry: Json) -> None:
        """Apply one line or the header; a ValueError, TypeError or KeyError rejects it."""


class Journal(Generic[S]):
    """An append-only file of JSON lines with one writer and any number of readers.

    Threads may share an object. A forked or pickled copy in another process has no lock.

    Args:
        path: The file; it need not exist. The lock is the file `lock` beside it.
        format: The name of the format, for the header.
        version: Its version; others are rejected.
        new_state: Returns an empty state; called whenever the file is read from the start.
        sealed: Add to every line a checksum over itself and all lines before it, which detects
            edited, missing and swapped lines. Not for stores whose lines have their own.

    Attributes:
        state: The state after all lines so far.
        in_step: Whether the lock is held and the state agrees with the file, since the last
            `writing` had no error.
        mutex: Held while locking, unlocking or writing; hold it to combine these.

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

    def __init__(
        self,
        path: Path,
        format: str,
        version: int,
        new_state: Callable[[], S],
        *,
        sealed: bool = True,
    ) -> None:
        """Read the file, if it exists; a ValueError names a line that is damaged or foreign."""
        self._sealed, self._seal = sealed, ""  # seal of the last complete line
        self._lock = FolderLock(path.parent)
        self._has_leftovers = True  # of a failed append: the file may extend past `_end`
        self.mutex = threading.RLock()
        self.path, self.format, self.version, self._new_state = path, format, version, new_state
        self.in_step = False
        self._read()
        _JOURNALS.add(self)

    def lock(self) -> bool:
        """Take the lock if needed; return whether it is new. RuntimeError if it is held."""
        with self.mutex:
            if self._lock.is_held:
                return False
            with naming(self.path.parent):
                self.path.parent.mkdir(parents=True, exist_ok=True)
            if not self._lock.acquire():
                raise RuntimeError(f"{self.path.parent}: another writer holds the lock")
            try:
                self._read()  # others may have written
            except BaseException:
                self._lock.release()
                raise
            self.in_step, self._has_leftovers = False, True
            return True

    def unlock(self) -> None:
        """Release the lock if this object holds it."""
        with self.mutex:
            self.in_step = False
            self._lock.release()

    def check_lock(self) -> None:
        """Raise a RuntimeError unless the lock is held and its file is unchanged."""
        self._lock.check()

    @contextmanager
    def writing(self) -> Iterator[bool]:
        """Take and keep the lock to append; yield True if leftovers of a failure are possible."""
        with self.mutex:
            self.lock()
            self.check_lock()
            unsure, self.in_step = not self.in_step, False
            if unsure:
                self._read(self._end)  # without leftovers of a failed append
            yield unsure
            self.in_step = True

    def begin(self, **fields: object) -> None:
        """Append the header with fields of the store."""
        self.append({"kind": "header", "format": self.format, "version": self.version, **fields})

    def append(self, *entries: Json) -> None:
        """Write lines to disk, then apply them to the state; only inside `writing`."""
        if not self._lock.is_held:
            hint = "use it inside `with journal.writing()`"
            raise RuntimeError(f"{self.path}: append needs the lock, {hint}")
        lines, parsed, seal = [], [], self._seal
        for number, entry in enumerate(entries):
            sealed, after = self._with_seal(entry, seal)
            lines.append(json.dumps(sealed).encode() + b"\n")
            parsed.append(self._parse(lines[-1], self._end == number == 0, seal))
            seal = after
        data = b"".join(lines)
        self.check_lock()
        with naming(self.path):
            self._append(data)
            if not self._end:  # a new file
                _sync_folder(self.path.parent)
        self._end += len(data)
        self._seal = seal
        for entry in parsed:
            self.state.apply(entry)

    def _append(self, data: bytes) -> None:
        """Write after the last complete line, replacing leftovers of our own failed append."""
        fd = open_regular(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            if os.fstat(fd).st_size != self._end:
                if not self._has_leftovers:
                    self.unlock()
                    reason = "changed by another writer: nothing was written"
                    raise RuntimeError(f"{self.path} was {reason}, open the folder again")
                os.ftruncate(fd, self._end)
            self._has_leftovers = True
            _write(fd, (data,))
            self._has_leftovers = False
        finally:
            os.close(fd)

    def _read(self, limit: int | None = None) -> None:
        try:
            data = read_file(self.path)[:limit]
        except FileNotFoundError:
            data = b""
        state = self._new_state()
        end, seal = data.rfind(b"\n") + 1, ""  # end of the last complete line
        if data[end : end + len(_START)] != _START[: len(data) - end]:
            reason = f"damaged, or no {self.format}"
            raise ValueError(f"{self.path}: its last line is not the start of a line: {reason}")
        for number, line in enumerate(data[:end].split(b"\n")[:-1], 1):
            try:
                entry = self._parse(line, number == 1, seal)
                seal = entry.get("seal", "")
                state.apply(entry)
            except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
                reason = str(error)
                if not isinstance(error, ValueError):
                    reason = f"not a line of a {self.format}: {error!r}"
                raise ValueError(f"{self.path} line {number}: {reason}") from error
        self.state, self._end, self._seal = state, end, seal

    def _with_seal(self, entry: Json, before: str) -> tuple[Json, str]:
        """Return a line with its seal (over the line and the seal before it), and the seal."""
        if not self._sealed:
            return entry, ""
        bare = {name: value for name, value in entry.items() if name != "seal"}
        seal = digest(f"{before} {json.dumps(bare)}".encode())[:32]
        return {**bare, "seal": seal}, seal

    def _parse(self, line: bytes, first: bool, before: str) -> Json:
        found: Any = json.loads(line)
        if not isinstance(found, dict) or not isinstance(found.get("kind"), str):
            raise ValueError(f"expected an object with a kind, found {found!r:.100}")
        entry: Json = found
        if first != (entry["kind"] == "header"):
            expected = f"a {self.format} header on line 1 and only there"
            raise ValueError(f"expected {expected}, found {entry['kind']!r}")
        if first and (entry.get("format"), entry.get("version")) != (self.format, self.version):
            other = f"{entry.get('format')} version {entry.get('version')}"
            raise ValueError(f"expected {self.format} version {self.version}, found {other}")
        if self._sealed and entry != self._with_seal(entry, before)[0]:
            reason = "is not that of its content and of the lines before it"
            raise ValueError(f"its checksum {reason}: edited, or damaged")
        return entry

    def __getstate__(self) -> Json:
        state = {**self.__dict__, "in_step": False}
        del state["mutex"]
        return state

    def __setstate__(self, state: Json) -> None:
        self.__dict__.update(state, mutex=threading.RLock())
        _JOURNALS.add(self)


def _write(fd: int, parts: Iterable[bytes | memoryview]) -> None:
    """Write the parts and wait for the disk."""
    for part in parts:
        rest = memoryview(part)
        while rest:
            rest = rest[os.write(fd, rest) :]
    os.fsync(fd)


def _sync_folder(path: Path) -> None:
    if not hasattr(os, "O_DIRECTORY"):  # Windows cannot open folders
        return
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


# A forked child (a DataLoader worker) must not write, nor wait for threads of its parent.
_JOURNALS: weakref.WeakSet[Journal[Any]] = weakref.WeakSet()


def _reset_after_fork() -> None:
    for journal in list(_JOURNALS):
        journal.mutex = threading.RLock()
        journal.unlock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)
