"""Outcomes of a kind of fault, and the page with all outcomes, measured by the run that wrote it."""

from __future__ import annotations

import os
import platform
import time
from collections import Counter
from collections.abc import Hashable, Sequence
from importlib import metadata
from pathlib import Path

__all__ = ["Section", "write"]


class Section:
    """Counts and failures of one kind of fault; failures with the same key are listed once."""

    def __init__(self, title: str, seed: int) -> None:
        """Start the clock."""
        self.title, self.seed, self.start, self.seconds = title, seed, time.perf_counter(), 0.0
        self.counts: Counter[str] = Counter()
        self.failures: dict[Hashable, tuple[str, int]] = {}
        self.notes: list[str] = []

    def count(self, what: str, times: int = 1) -> None:
        """Count an outcome and update the duration."""
        self.counts[what] += times
        self.seconds = time.perf_counter() - self.start

    def fail(self, kind: str, text: str, key: Hashable = None) -> None:
        """List a failure, once per key."""
        first, times = self.failures.get((kind, key or text), (f"{kind}: {text}", 0))
        self.failures[kind, key or text] = first, times + 1

    def text(self) -> str:
        """Return the failures, one line each, with their counts."""
        return "\n".join(f"[{times}] {first}" for first, times in self.failures.values())

    def markdown(self, about: str) -> str:
        """Return the section of the page."""
        rows = [f"| {what} | {times:,} |" for what, times in sorted(self.counts.items(), key=lambda item: -item[1])]
        verdict = f"**Failures: {sum(times for _, times in self.failures.values()):,}** ({len(self.failures)} distinct)"
        lines = [f"## {self.title}", "", about, "", "| outcome | times |", "| --- | ---: |", *rows, "", *self.notes]
        lines += [f"Seed {self.seed}, {self.seconds:.0f} s. " + (verdict if self.failures else "**No failure.**"), ""]
        if self.failures:
            lines += ["```text", *(f"[{times}] {first}" for first, times in list(self.failures.values())[:40]), "```", ""]
        return "\n".join(lines)


def _machine() -> str:
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line.partition(":")[2].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
        model = names[0] if names else model
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("torch", "numpy", "zarr", "safetensors"))
    cores = f"{os.cpu_count()} cores (load {os.getloadavg()[0]:.1f} at the end)"
    return f"{model}, {cores}, {platform.system()} {platform.release()}, Python {platform.python_version()}, {versions}"


def write(path: Path, sections: Sequence[tuple[Section, str]], command: str, seconds: float) -> str:
    """Write the page and return it."""
    failures = sum(len(section.failures) for section, _ in sections)
    table = [
        f"| {section.title} | {section.counts.total():,} | {len(section.failures)} | {section.seconds:.0f} |"
        for section, _ in sections
    ]
    lines = [
        "# Reliability: the faults tried",
        "",
        f"Written by `{command}` in {seconds:.0f} s; all numbers below were measured by that run. {_machine()}.",
        "",
        "| faults | outcomes counted | distinct failures | seconds |",
        "| --- | ---: | ---: | ---: |",
        *table,
        "",
        "No failure." if not failures else f"{failures} distinct failures, listed below.",
        "",
        *(section.markdown(about) for section, about in sections),
    ]
    page = "\n".join(lines).rstrip() + "\n"
    path.write_text(page)
    return page
