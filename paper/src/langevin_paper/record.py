"""Records: one JSON line for every (experiment, scale, method, seed), with all that a reader needs to trust or repeat it.

```
records/
  records.jsonl     a journal (`langevin.storage.journal`): only ever appended to, a line that a kill cut short is ignored
  lock              held by the one process that writes
  arrays/*.npz      what figures need, float32, one file for each cell; written before the lines that name it
  work/<cell>/      checkpoints of unfinished cells
```

Every line has a checksum, and the name of an array file ends with that of its content. `read_records` leaves out what is damaged or
not a record at all, and says so; whoever writes is refused a damaged journal.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from langevin.storage.journal import Journal, write_atomic
from langevin_paper.packing import pack, plain, unpack
from langevin_paper.schema import Key, Record, digest, from_line, to_line, writable

__all__ = ["Found", "Problem", "Record", "Records", "fingerprint", "read_records"]

FORMAT, VERSION = "langevin records", 2
CUT_SHORT = "the last line was cut short, by a kill or a full disk; it is ignored"


class _Lines:
    """The journal's lines added up: the last record of every key, and the last *done* one if a later attempt failed."""

    def __init__(self) -> None:
        self.records: dict[Key, Record] = {}

    def apply(self, entry: dict[str, Any]) -> None:
        if entry["kind"] != "header":
            self.add(from_line(entry))

    def add(self, record: Record) -> None:
        before = self.records.get(record.key)
        if before is None or record.is_done or not before.is_done or before.settings != record.settings:
            self.records[record.key] = record


class Records:
    """A folder of records, open for writing.

    Args:
        folder: made when it is not there.

    Raises:
        RuntimeError: another process is writing to it.
        ValueError: its journal is damaged, or of another format; the message names the line.

    Example:
        >>> import tempfile
        >>> records = Records(tempfile.mkdtemp())
        >>> records.add([Record("toy", "quick", "sgld", 0, "done", {}, {"error": 0.5})])
        >>> [record.results for record in records.all()]
        [{'error': 0.5}]
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        """Take the lock and read what is there."""
        self.folder = Path(folder)
        path = self.folder / "records.jsonl"
        try:
            self._journal = Journal(path, FORMAT, VERSION, _Lines, sealed=False)
        except ValueError as error:
            raise ValueError(f"{error}. To go on, remove that line, or move {path} away") from error
        if path.exists() and (data := path.read_bytes()) and not data.endswith(b"\n"):
            warnings.warn(f"{path}: {CUT_SHORT}", stacklevel=2)
        self._journal.lock()

    def all(self) -> list[Record]:
        """Return the last record of every (experiment, scale, method, seed), sorted."""
        found = self._journal.state.records
        return [found[key] for key in sorted(found)]

    def is_done(self, experiment: str, scale: str, method: str, seed: int, settings: Mapping[str, Any]) -> bool:
        """Whether this run is there, with these very settings."""
        record = self._journal.state.records.get((experiment, scale, method, seed))
        return record is not None and record.is_done and record.settings == settings

    def add(self, records: Iterable[Record]) -> None:
        """Append records: all of them are on the disk when this returns. Arrays among the results go to files of their own."""
        records = list(records)
        entries = [to_line(record) for record in self._stored(records)]
        for entry in entries:  # nothing is written that would not be read
            from_line(json.loads(json.dumps(entry)))
        with self._journal.writing():
            if not self._journal.path.exists() or self._journal.path.stat().st_size == 0:
                self._journal.begin()
            self._journal.append(*entries)

    def work_folder(self, name: str) -> Path:
        """Return the folder of an unfinished cell."""
        path = self.folder / "work" / name
        path.mkdir(parents=True, exist_ok=True)
        return path

    def close(self) -> None:
        """Give the lock back."""
        self._journal.unlock()

    def _stored(self, records: list[Record]) -> list[Record]:
        """Put all arrays of a cell into one file; return the records without them, and with its name."""
        arrays = {
            f"{record.seed}/{name}": value
            for record in records
            for name, value in record.results.items()
            if isinstance(value, np.ndarray)
        }
        file = None
        if arrays:
            first, last = records[0], records[-1]
            packed = pack(arrays)
            file = f"{first.experiment}-{first.scale}-{first.method}-{first.seed}-{last.seed}-{digest(packed)}.npz"
            (self.folder / "arrays").mkdir(exist_ok=True)
            write_atomic(self.folder / "arrays" / file, packed)

        return [
            replace(
                record,
                results={name: plain(value) for name, value in record.results.items() if not isinstance(value, np.ndarray)},
                arrays=file,
                seeds=record.seeds or (record.seed,),
                error=None if record.error is None else writable(record.error),
                notes=tuple(map(writable, record.notes)),
            )
            for record in records
        ]


class Problem(NamedTuple):
    """Something that was left out."""

    where: str
    reason: str

    def __str__(self) -> str:
        return f"{self.where}: {self.reason}"


@dataclass(frozen=True)
class Found:
    """What a folder of records holds."""

    records: list[Record]  # the last of every (experiment, scale, method, seed), sorted
    arrays: dict[Key, dict[str, NDArray[Any]]]  # by the record's key
    problems: list[Problem]  # what is damaged, and left out of the above


def read_records(folder: str | os.PathLike[str]) -> Found:
    """Read a folder, without a lock: its records, their arrays, and what had to be left out.

    Raises:
        FileNotFoundError: there are no records.
        ValueError: they are of another format or version.
    """
    path = Path(folder) / "records.jsonl"
    if not path.exists():
        raise FileNotFoundError(f"{folder} has no records.jsonl: `langevin-paper run` makes one")
    *whole, rest = path.read_bytes().split(b"\n")
    lines, problems = _Lines(), [Problem(str(path), CUT_SHORT)] if rest else []
    for number, line in enumerate(whole, 1):
        try:
            entry = json.loads(line.decode(), parse_constant=_refuse)
            is_header = number == 1 and entry["kind"] == "header"
            if not is_header:
                lines.add(from_line(entry))
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            problems.append(Problem(f"{path} line {number}", _reason(error)))
            continue
        if is_header and (entry.get("format"), entry.get("version")) != (FORMAT, VERSION):
            raise ValueError(f"{path} needs {FORMAT} version {VERSION}, got {entry.get('format')} version {entry.get('version')}")
    records = [lines.records[key] for key in sorted(lines.records)]
    arrays: dict[Key, dict[str, NDArray[Any]]] = {record.key: {} for record in records}
    for file in sorted({record.arrays for record in records if record.arrays}):
        stored = path.parent / "arrays" / file
        try:
            content = unpack(stored)
        except Exception as error:  # NumPy's and zip's readers let many kinds through
            problems.append(Problem(str(stored), _reason(error)))
            continue
        for record in records:
            if record.arrays == file:
                start = f"{record.seed}/"
                arrays[record.key] = {name[len(start) :]: value for name, value in content.items() if name.startswith(start)}
    return Found(records, arrays, problems)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _reason(error: Exception) -> str:
    """Return an error on one line, in characters that every terminal has."""
    text = str(error) if isinstance(error, ValueError) and str(error) else f"{type(error).__name__}: {error}"
    return writable(" ".join(text.split()))[:300]


def fingerprint(settings: Mapping[str, Any]) -> str:
    """Return eight hexadecimal digits that change with the settings."""
    return digest(json.dumps(settings, sort_keys=True).encode())[:8]
