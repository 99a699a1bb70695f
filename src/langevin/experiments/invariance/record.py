"""What the parts found, in one JSON file: each result with its seed, versions, commit and seconds, kept as soon as it is there."""

from __future__ import annotations

import datetime
import json
import os
import platform
import subprocess
import time
from collections.abc import Callable, Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from langevin.journal import write_atomic

__all__ = ["Record", "timed"]

_PACKAGES = ("torch", "numpy", "scipy", "arviz", "matplotlib")


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
                raise ValueError(f"{self.path} holds a {kinds[found['quick']]} run, this is a {kinds[quick]} one: give another --out")
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
    return {**found, "run": {"seed": seed, "seconds": round(time.perf_counter() - begin, 2), **_circumstances()}}


def _circumstances() -> dict[str, Any]:
    packages = {name: version(name) for name in _PACKAGES}
    return {
        "date": datetime.date.today().isoformat(),
        "commit": _commit(),
        "python": platform.python_version(),
        "packages": packages,
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
    }


def _commit() -> str:
    try:
        command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=10"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
