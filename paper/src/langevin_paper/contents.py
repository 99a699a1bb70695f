"""What the report shows: tables, listings, pictures, and their numbers in words."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from langevin_paper.compare import Summary
from langevin_paper.figures import View
from langevin_paper.record import Problem, Record
from langevin_paper.spec import Column, Experiment, Listing, Method, Published, Scale, Table

__all__ = ["Entry", "ListingView", "Page", "Picture", "Row", "Section", "TableView", "Timing", "is_lost", "number", "value_of"]


@dataclass(frozen=True)
class Entry:
    """One quantity of one method."""

    ours: Summary | None
    published: Published | None
    differs: bool | None  # beyond chance; None for no test
    is_best: bool
    column: Column
    aside: Summary | None = None
    lost: int = 0  # runs without such a number, for they ran off to infinity

    @property
    def text(self) -> str:
        """Ours, with its standard error, and what stands beside it."""
        if self.ours is None:
            return "–"
        beside = f" ({number(self.aside.mean, self.column.digits)})" if self.aside else ""
        return _written(self.ours, self.column) + beside + (f" (without {self.lost} that ran off)" if self.lost else "")

    @property
    def published_text(self) -> str:
        """The paper's, with its standard error."""
        return "" if self.published is None else _written(self.published, self.column)

    @property
    def mark(self) -> str:
        """Sign of the comparison."""
        return {None: "", True: "≠", False: "≈"}[self.differs]


@dataclass(frozen=True)
class Row:
    """A method in a table."""

    method: Method
    n: int
    entries: tuple[Entry, ...]
    temperature: str  # of its law for small steps, in words; "" where that is not asked

    @property
    def is_ours(self) -> bool:
        """Whether the paper has no such row."""
        return "*" in self.method.ours


@dataclass(frozen=True)
class TableView:
    """A table with its rows."""

    table: Table
    rows: tuple[Row, ...]

    @property
    def is_empty(self) -> bool:
        """Whether there is no number of ours in it."""
        return not any(entry.ours for row in self.rows for entry in row.entries)

    @property
    def has_temperature(self) -> bool:
        """Whether any row has a law's temperature."""
        return any(row.temperature for row in self.rows)

    @property
    def has_published(self) -> bool:
        """Whether any row has a published number."""
        return any(entry.published for row in self.rows for entry in row.entries)


@dataclass(frozen=True)
class ListingView:
    """A listing with its rows: (method, label, ours by seed, published by run)."""

    listing: Listing
    rows: tuple[tuple[Method, str, tuple[str, ...], tuple[str, ...]], ...]
    width: int

    @property
    def heads(self) -> tuple[str, ...]:
        """Headings of the runs."""
        return self.listing.heads or tuple(f"run {k + 1}" for k in range(self.width))


@dataclass(frozen=True)
class Timing:
    """What a method cost, cell by cell."""

    method: Method
    seeds: str
    seconds: float
    cpu_seconds: float
    date: str  # of its end


@dataclass(frozen=True)
class Picture:
    """A figure of the page."""

    name: str
    caption: str
    data: bytes

    @property
    def uri(self) -> str:
        """The picture as text."""
        return "data:image/png;base64," + base64.b64encode(self.data).decode()


@dataclass(frozen=True)
class Section:
    """An experiment on the page."""

    experiment: Experiment
    scale: Scale
    tables: tuple[TableView, ...]
    listings: tuple[ListingView, ...]
    pictures: tuple[Picture, ...]
    timings: tuple[Timing, ...]
    failures: tuple[Record, ...]
    notes: tuple[str, ...]
    origins: tuple[str, ...]
    amendments: tuple[str, ...]  # what was added to records after their runs
    findings: tuple[str, ...]  # sentences made from the records
    view: View

    @property
    def has_published(self) -> bool:
        """Whether a number of the paper stands beside ours."""
        return any(view.has_published for view in self.tables) or any(row[3] for view in self.listings for row in view.rows)

    @property
    def dates(self) -> str:
        """The day on which it was run, or the first and the last."""
        days = sorted({timing.date for timing in self.timings})
        return " to ".join(dict.fromkeys((days[0], days[-1]))) if days else ""

    @property
    def seconds(self) -> float:
        """Wall time of all its cells."""
        return sum(timing.seconds for timing in self.timings)


@dataclass(frozen=True)
class Page:
    """All that the page shows."""

    sections: tuple[Section, ...]
    problems: tuple[Problem, ...]  # records and pictures that were left out

    @property
    def cover(self) -> dict[str, View]:
        """The experiments for the picture of the README: of one that is there at two scales the larger, which comes first."""
        return {section.experiment.name: section.view for section in reversed(self.sections)}


def value_of(results: Mapping[str, Any], key: str) -> Any:
    """Return what stands under a column's key; None where there is nothing."""
    found: Any = results
    for name in key.split("/"):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def is_lost(results: Mapping[str, Any], key: str) -> bool:
    """Whether a run has a place for the number, and nothing finite in it; facts of a whole cell have a place in one run only."""
    *path, last = key.split("/")
    parent = value_of(results, "/".join(path)) if path else results
    return isinstance(parent, Mapping) and last in parent and parent[last] is None


def number(value: Any, digits: int) -> str:
    """Write a number; a text is left as it is, and nothing is a dash."""
    if isinstance(value, str):
        return value
    return "–" if value is None else f"{round(value, digits) + 0.0:,.{digits}f}".replace("-", "−")  # no minus zero


def _written(value: Summary | Published, column: Column) -> str:
    if column.is_count:
        return f"{round(value.mean * value.n)} of {value.n}"
    has_error = value.error is not None and column.digits > 0
    return number(value.mean, column.digits) + (f" ± {number(value.error, column.digits)}" if has_error else "")
