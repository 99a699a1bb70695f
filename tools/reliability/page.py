"""What a kind of fault came to, and the page that says so."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Hashable

__all__ = ["Section"]


class Section:
    """Counts and failures of one kind of fault; a failure with a key seen before is counted and not listed again."""

    def __init__(self, title: str, seed: int) -> None:
        self.title, self.seed, self.start = title, seed, time.perf_counter()
        self.counts: Counter[str] = Counter()
        self.failures: dict[Hashable, list[str]] = {}
        self.notes: list[str] = []

    def count(self, what: str, times: int = 1) -> None:
        """Count an outcome."""
        self.counts[what] += times

    def fail(self, kind: str, text: str, key: Hashable = None) -> None:
        """List a failure, once per key."""
        self.failures.setdefault((kind, key or text), [f"{kind}: {text}"]).append("")

    def text(self) -> str:
        """Return the failures, a line each, with how often they came."""
        return "\n".join(f"[{len(entry) - 1}] {entry[0]}" for entry in self.failures.values())
