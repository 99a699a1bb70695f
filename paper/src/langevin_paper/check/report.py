"""What a check hands back: a table of rows, a verdict, a record, a picture."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Report", "Row"]


@dataclass(frozen=True)
class Row:
    """One thing that was tested.

    Example:
        >>> Row("noise doubled", {"z": 31.0}, passed=False, must_fail=True).verdict
        'refused, as it must be'
    """

    name: str
    numbers: Mapping[str, float | int | str]
    passed: bool  # whether the test accepts the sampler
    must_fail: bool = False  # whether it is a sampler broken on purpose, which the test must refuse

    @property
    def is_right(self) -> bool:
        """Whether the test said what it had to."""
        return self.passed != self.must_fail

    @property
    def verdict(self) -> str:
        """The outcome in words."""
        if self.must_fail:
            return "refused, as it must be" if self.is_right else "NOT REFUSED"
        return "ok" if self.is_right else "FAILED"


@dataclass(frozen=True)
class Report:
    """The outcome of one part of `langevin-paper check`.

    Args:
        part: its name.
        about: what was tested, at which level, in a sentence.
        seed: of everything random.
        rows: what was tested; all of them have the same numbers.
        notes: what was left out, and why.
        picture: draws the outcome into a figure.

    Example:
        >>> rows = (Row("sgld", {"z": 0.4}, passed=True), Row("sgld, noise doubled", {"z": 31.0}, passed=False, must_fail=True))
        >>> print(Report("law", "exact laws against runs", 0, rows).text)
        law: exact laws against runs
                               z
        sgld                 0.4  ok
        sgld, noise doubled   31  refused, as it must be
        law: passed: 1 accepted, 1 broken on purpose and refused
    """

    part: str
    about: str
    seed: int
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    picture: Callable[[Figure], None] | None = None

    @property
    def passed(self) -> bool:
        """Whether every sampler was accepted and every broken one refused."""
        return bool(self.rows) and all(row.is_right for row in self.rows)

    @property
    def text(self) -> str:
        """The table, the notes and the verdict."""
        header = ["", *self.rows[0].numbers, ""]
        lines = [[row.name, *map(_cell, row.numbers.values()), row.verdict] for row in self.rows]
        widths = [max(map(len, column)) for column in zip(header, *lines, strict=True)]
        last = len(widths) - 1
        table = [
            "  ".join(
                cell.ljust(width) if k in (0, last) else cell.rjust(width)
                for k, (cell, width) in enumerate(zip(line, widths, strict=True))
            )
            for line in (header, *lines)
        ]
        wrong = [row.name for row in self.rows if not row.is_right]
        twins = sum(row.must_fail for row in self.rows)
        good = f"{len(self.rows) - twins} accepted, {twins} broken on purpose and refused"
        verdict = f"{self.part}: " + (f"FAILED: {'; '.join(wrong)}" if wrong else f"passed: {good}")
        return "\n".join([f"{self.part}: {self.about}", *(line.rstrip() for line in table), *self.notes, verdict])

    def write(self, folder: Path) -> None:
        """Write `<part>.json` and `<part>.png`; the same seed writes the same bytes of the former."""
        folder.mkdir(parents=True, exist_ok=True)
        rows = [
            {"name": row.name, **row.numbers, "passed": row.passed, "must_fail": row.must_fail, "is_right": row.is_right}
            for row in self.rows
        ]
        record = {
            "part": self.part,
            "about": self.about,
            "seed": self.seed,
            "passed": self.passed,
            "rows": rows,
            "notes": self.notes,
        }
        (folder / f"{self.part}.json").write_text(json.dumps(record, indent=1) + "\n")
        if self.picture is not None:
            from matplotlib.figure import Figure  # a second to import; without pyplot no window system is asked for

            figure = Figure(figsize=(9, 6), layout="constrained")
            self.picture(figure)
            figure.savefig(folder / f"{self.part}.png", dpi=120)


def _cell(value: float | int | str) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
