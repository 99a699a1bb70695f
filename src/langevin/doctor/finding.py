"""One thing that the doctor looked at."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["BROKEN", "OK", "SLOW", "Finding"]

OK, SLOW, BROKEN = "ok", "slow", "BROKEN"
"""Fine; works, but slower than it could; does not do what it should."""


class Finding(NamedTuple):
    """One thing that was looked at."""

    name: str
    value: str
    state: str = OK
    advice: str = ""  # what to do

    def __str__(self) -> str:
        """Return a line, and what to do on a second one."""
        mark = "" if self.state == OK else f"  [{self.state}]"
        return f"  {self.name:<16}  {self.value}{mark}" + (f"\n  {'':<16}  -> {self.advice}" if self.advice else "")
