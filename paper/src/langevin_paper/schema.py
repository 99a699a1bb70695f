"""A record and its line: what a result carries, and the one place that decides whether a line is believed."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["FILE", "LARGEST", "Key", "Record", "digest", "from_line", "is_number", "to_line", "writable"]

LARGEST = 1e75  # a number beyond it is no result: means and tests would overflow
FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*-([0-9a-f]{16})\.npz")  # the name of an array file ends with its content's checksum
Key = tuple[str, str, str, int]


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
        amended: what was added to the record after its run, and when; "" for nothing.
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
    amended: str = ""

    @property
    def key(self) -> Key:
        """What the record is about."""
        return self.experiment, self.scale, self.method, self.seed

    @property
    def is_done(self) -> bool:
        """Whether there are results."""
        return self.status == "done"


def to_line(record: Record) -> dict[str, Any]:
    """Return a record as a line of the journal."""
    fields = asdict(record)
    return {"kind": "record", **fields, "sha256": digest(_canonical(fields))}


def from_line(entry: Any) -> Record:
    """Return the record of a line, or fail: this is the one place where a line is believed."""
    if not isinstance(entry, dict) or entry.get("kind") != "record":
        raise ValueError("it is no record")
    fields = {name: value for name, value in entry.items() if name not in ("kind", "sha256")}
    if set(fields) != set(_SCHEMA):
        raise ValueError(f"it has not the fields of a record: {sorted(set(fields) ^ set(_SCHEMA))[:5]}")
    if entry.get("sha256") != digest(_canonical(fields)):
        raise ValueError("its checksum is wrong: it was changed after it was written")
    for name, (what, holds) in _SCHEMA.items():
        if not holds(fields[name]):
            raise ValueError(f"{name} needs {what}, got {str(fields[name])[:50]!r}")
    if fields["status"] == "done" and fields["error"] is not None:
        raise ValueError("error needs null in a record that is done")
    if fields["seed"] not in fields["seeds"]:
        raise ValueError(f"seeds needs the seed {fields['seed']}, got {fields['seeds'][:5]}")
    return Record(**{**fields, "notes": tuple(fields["notes"]), "seeds": tuple(fields["seeds"])})


def is_number(value: Any) -> bool:
    """Whether a value read from JSON is a number that can be reckoned with."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= LARGEST


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(_is_plain(entry) for entry in value.values())
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (str, bool)) or is_number(value)


def _is_mapping(value: Any) -> bool:
    return isinstance(value, dict) and _is_plain(value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_origin(value: Any) -> bool:
    parts = ("versions", "machine")
    return _is_mapping(value) and all(isinstance(value.get(part, {}), dict) for part in parts)


def _is_seed(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**64


def _is_duration(value: Any) -> bool:
    return is_number(value) and value >= 0


_TEXT, _PLAIN, _DURATION = ("a text", _is_text), ("plain values by name", _is_mapping), ("seconds", _is_duration)
_SCHEMA: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "experiment": _TEXT, "scale": _TEXT, "method": _TEXT, "finished": _TEXT, "amended": _TEXT,
    "seed": ("an int >= 0", _is_seed),
    "seeds": ("ints >= 0", lambda value: isinstance(value, list) and bool(value) and all(map(_is_seed, value))),
    "status": ("done or failed", lambda value: value in ("done", "failed")),
    "settings": _PLAIN, "results": _PLAIN,
    "arrays": ("the name of a file, or null", lambda value: value is None or (_is_text(value) and bool(FILE.fullmatch(value)))),
    "error": ("a text or null", lambda value: value is None or _is_text(value)),
    "notes": ("texts", lambda value: isinstance(value, list) and all(map(_is_text, value))),
    "seconds": _DURATION, "cpu_seconds": _DURATION,
    "origin": ("commit, versions and machine", _is_origin),
}  # fmt: skip


def _canonical(fields: Mapping[str, Any]) -> bytes:
    """Return the bytes that a checksum is of: the same before and after JSON. Fails for text that is no Unicode."""
    return json.dumps(fields, sort_keys=True, ensure_ascii=False, allow_nan=False).encode()


def digest(data: bytes) -> str:
    """Return a checksum."""
    return hashlib.sha256(data).hexdigest()[:16]


def writable(text: str) -> str:
    """Return text that can be written: file names may hold what is no Unicode."""
    return text.encode(errors="backslashreplace").decode()
