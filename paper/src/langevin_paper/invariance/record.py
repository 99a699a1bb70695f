"""What the parts found, in one JSON file: each result with its seed, versions, commit and seconds, kept as soon as it is there."""

from __future__ import annotations

import datetime
import json
import os
import time
from collections.abc import Callable, Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from langevin.store.journal import write_atomic
from langevin_paper.provenance import provenance

__all__ = ["Record", "timed"]


class Record:
    """The results in a folder, by part and unit (mostly a problem).

    Args:
        folder: where `results.json` is, or will be.
        quick: whether results are those of a short run; the file holds one kind only.
    """

    def __init__(self, folder: Path, quick: bool) -> None:
        """Read what is there."""
        self.path, self.quick = folder / "results.json", quick
        folder.mkdir(parents=True, exist_ok=True)
        self.parts: dict[str, dict[str, Any]] = {}
        if self.path.exists():
            found = json.loads(self.path.read_text())
            if found["quick"] != quick:
                kinds = ("full", "quick")
                raise ValueError(
                    f"{self.path} holds a {kinds[found['quick']]} run, this is a {kinds[quick]} one: give another --out"
                )
            self.parts = found["parts"]

    def has(self, part: str, unit: str) -> bool:
        """Say whether a unit is finished."""
        return unit in self.parts.get(part, {})

    def forget(self, parts: Iterable[str]) -> None:
        """Drop what parts found, to run them again."""
        self.parts = {part: units for part, units in self.parts.items() if part not in set(parts)}

    def add(self, part: str, unit: str, found: dict[str, Any]) -> None:
        """Keep what a unit found."""
        self.parts.setdefault(part, {})[unit] = found
        text = json.dumps({"quick": self.quick, "parts": self.parts}, indent=1, allow_nan=False)
        write_atomic(self.path, text.encode())


def timed(seed: int, run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Run a unit and add under which circumstances."""
    begin = time.perf_counter()
    found = run()
    origin = provenance()
    origin["versions"]["arviz"] = version("arviz")  # whose effective sample sizes these are
    when = {"date": datetime.date.today().isoformat(), "load": round(os.getloadavg()[0], 1)}
    return {**found, "run": {"seed": seed, "seconds": round(time.perf_counter() - begin, 2), **when, **origin}}
