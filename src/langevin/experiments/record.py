"""Records: one JSON line for every (experiment, scale, method, seed), with all that a reader needs to trust or repeat it.

```
records/
  records.jsonl     a journal (`langevin.journal`): only ever appended to, a line that a kill cut short is ignored
  lock              held by the one process that writes
  arrays/*.npz      what figures need, float32, one file for each cell; written before the lines that name it
  work/<cell>/      checkpoints of unfinished cells
```
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import platform
import subprocess
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from langevin.journal import Journal, write_atomic

__all__ = ["Record", "Records", "fingerprint", "provenance", "read_records"]

FORMAT, VERSION = "langevin records", 1
PACKAGES = ("langevin", "torch", "numpy", "numba", "scipy", "matplotlib")


@dataclass(frozen=True)
class Record:
    """What became of one seed of a cell.

    Args:
        experiment: its name.
        scale: its name.
        method: its name.
        seed: which run.
        status: "done" or "failed".
        settings: all of them, as `Experiment.settings_of` gives them.
        results: numbers by name; None for what is not finite.
        arrays: the file in `arrays/`, if there is one.
        error: the traceback of a failed cell.
        notes: warnings raised while it ran.
        seconds: wall time of the cell, all its seeds together, without restarts before the last.
        cpu_seconds: processor time of the same.
        seeds: all seeds of the cell.
        finished: when, ISO 8601 with the offset of UTC.
        origin: commit, versions, machine.
    """

    experiment: str
    scale: str
    method: str
    seed: int
    status: str
    settings: Mapping[str, Any]
    results: Mapping[str, Any] = field(default_factory=dict)
    arrays: str | None = None
    error: str | None = None
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    seeds: tuple[int, ...] = ()
    finished: str = ""
    origin: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, str, str, int]:
        """What the record is about."""
        return self.experiment, self.scale, self.method, self.seed

    @property
    def is_done(self) -> bool:
        """Whether there are results."""
        return self.status == "done"


class _Lines:
    """The journal's lines added up: the last record of every key, and the last *done* one if a later attempt failed."""

    def __init__(self) -> None:
        self.records: dict[tuple[str, str, str, int], Record] = {}

    def apply(self, entry: dict[str, Any]) -> None:
        if entry["kind"] == "header":
            return
        fields = {name: value for name, value in entry.items() if name != "kind"}
        record = Record(**{**fields, "notes": tuple(fields["notes"]), "seeds": tuple(fields["seeds"])})
        before = self.records.get(record.key)
        if before is None or record.is_done or not before.is_done or before.settings != record.settings:
            self.records[record.key] = record


class Records:
    """A folder of records, open for writing.

    Args:
        folder: made when it is not there.

    Raises:
        RuntimeError: another process is writing to it.

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
        self._journal = _open(self.folder)
        self._journal.lock()

    def all(self) -> list[Record]:
        """Return the last record of every (experiment, scale, method, seed), sorted."""
        return _sorted(self._journal.state)

    def is_done(self, experiment: str, scale: str, method: str, seed: int, settings: Mapping[str, Any]) -> bool:
        """Whether this run is there, with these very settings."""
        record = self._journal.state.records.get((experiment, scale, method, seed))
        return record is not None and record.is_done and record.settings == settings

    def add(self, records: Iterable[Record]) -> None:
        """Append records: all of them are on the disk when this returns. Arrays among the results go to files of their own."""
        records = list(records)
        entries = [asdict(record) for record in self._stored(records)]
        with self._journal.writing():
            if not self._journal.path.exists() or self._journal.path.stat().st_size == 0:
                self._journal.begin()
            self._journal.append(*({"kind": "record", **entry} for entry in entries))

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
            file = f"{first.experiment}-{first.scale}-{first.method}-{first.seed}-{last.seed}.npz"
            (self.folder / "arrays").mkdir(exist_ok=True)
            write_atomic(self.folder / "arrays" / file, _packed(arrays))

        def plain(results: Mapping[str, Any]) -> dict[str, Any]:
            return {name: _plain(value) for name, value in results.items() if not isinstance(value, np.ndarray)}

        return [replace(record, results=plain(record.results), arrays=file) for record in records]


def read_records(folder: str | os.PathLike[str]) -> tuple[list[Record], dict[tuple[str, str, str, int], dict[str, NDArray[Any]]]]:
    """Read a folder, without a lock: its records, sorted, and the arrays of each by the record's key.

    Raises:
        FileNotFoundError: there are no records.
    """
    folder = Path(folder)
    if not (folder / "records.jsonl").exists():
        raise FileNotFoundError(f"{folder} has no records.jsonl: `langevin run` makes one")
    records = _sorted(_open(folder).state)
    files: dict[str, dict[str, NDArray[Any]]] = {}
    for file in sorted({record.arrays for record in records if record.arrays}):
        with np.load(folder / "arrays" / file) as stored:
            files[file] = {name: stored[name] for name in stored.files}
    arrays = {}
    for record in records:
        own = files.get(record.arrays or "", {})
        arrays[record.key] = {name.partition("/")[2]: value for name, value in own.items() if name.startswith(f"{record.seed}/")}
    return records, arrays


def fingerprint(settings: Mapping[str, Any]) -> str:
    """Return eight hexadecimal digits that change with the settings."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:8]


def provenance() -> dict[str, Any]:
    """Return what produced a result: commit, versions, machine."""
    versions = {name: metadata.version(name) for name in PACKAGES if _is_installed(name)}
    return {
        "commit": _commit(),
        "versions": {"python": platform.python_version(), **versions, "torch": torch.__version__},
        "machine": {"system": platform.system(), "processor": _processor(), "cores": os.cpu_count()},
    }


def _open(folder: Path) -> Journal[_Lines]:
    path = folder / "records.jsonl"
    if path.exists() and path.stat().st_size and not path.read_bytes().endswith(b"\n"):
        warnings.warn(f"{path}: the last line was cut short, by a kill or a full disk; it is ignored", stacklevel=3)
    return Journal(path, FORMAT, VERSION, _Lines)


def _sorted(state: _Lines) -> list[Record]:
    return [state.records[key] for key in sorted(state.records)]


def _plain(value: Any) -> Any:
    """Turn a result into JSON: numbers that are not finite become null, which JSON has."""
    if isinstance(value, (float, np.floating)):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, (int, str, bool)) or value is None:
        return value
    if isinstance(value, Mapping):
        return {str(name): _plain(entry) for name, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    raise TypeError(f"a result needs to be a number, text, list, mapping or NumPy array, got {type(value).__name__}")


def _packed(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    buffer = io.BytesIO()
    small = {name: value.astype(np.float32) if value.dtype == np.float64 else value for name, value in arrays.items()}
    np.savez_compressed(buffer, **small)  # type: ignore[arg-type]
    return buffer.getvalue()


def _is_installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def _commit() -> str | None:
    """Return the commit of the source, with a mark when the source has changes on top of it; None outside a repository."""
    here = Path(__file__).parents[1]

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=here, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        return git("rev-parse", "HEAD") + ("+changes" if git("status", "--porcelain", "--", ".") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
