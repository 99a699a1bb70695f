"""The report: one self-contained page made from records alone, with the published numbers beside ours.

The same records give the same page, byte for byte: it has no clock and no randomness of its own.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2

from langevin.experiments.compare import RULE, Summary, differs, summarise
from langevin.experiments.figures import FIGURES, View, overview, png
from langevin.experiments.record import Record, read_records
from langevin.experiments.registry import EXPERIMENTS
from langevin.experiments.spec import Column, Experiment, Listing, Method, Published, Scale, Table
from langevin.journal import write_atomic

__all__ = ["Section", "make_sections", "plain_tables", "write_report"]


@dataclass(frozen=True)
class Entry:
    """One quantity of one method."""

    ours: Summary | None
    published: Published | None
    differs: bool | None  # beyond chance; None for no test
    is_best: bool
    column: Column

    @property
    def text(self) -> str:
        """Ours, with its standard error."""
        return "–" if self.ours is None else _written(self.ours, self.column)

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
    temperature: str  # of its law for small steps, in words

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
    def has_published(self) -> bool:
        """Whether any row has a published number."""
        return any(entry.published for row in self.rows for entry in row.entries)


@dataclass(frozen=True)
class ListingView:
    """A listing with its rows: (method, label, ours by seed, published by run)."""

    listing: Listing
    rows: tuple[tuple[Method, str, tuple[str, ...], tuple[str, ...]], ...]
    width: int


@dataclass(frozen=True)
class Timing:
    """What a method cost, cell by cell."""

    method: Method
    seeds: str
    seconds: float
    cpu_seconds: float


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
    view: View

    @property
    def seconds(self) -> float:
        """Wall time of all its cells."""
        return sum(timing.seconds for timing in self.timings)


def write_report(
    records: str | os.PathLike[str], out: str | os.PathLike[str], scale: str | None = None
) -> tuple[Path, list[Section]]:
    """Write ``index.html`` and the pictures.

    Args:
        records: a folder that `langevin run` made.
        out: where the page goes.
        scale: show this scale only; by default the largest that each experiment has results of.

    Returns:
        The page's path, and what is on it.

    Raises:
        FileNotFoundError: no records.
        ValueError: none of that scale, or none of an experiment that is known.
    """
    sections = make_sections(records, scale)
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    for picture in (picture for section in sections for picture in section.pictures):
        write_atomic(folder / f"{picture.name}.png", picture.data)
    cover = overview({section.experiment.name: section.view for section in sections})
    if cover is not None:
        write_atomic(folder / "overview.png", png(cover))
    text = (resources.files(__package__) / "report.html.j2").read_text()
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined)
    environment.filters["setting"] = _setting
    page = environment.from_string(text).render(sections=sections, rule=RULE)
    write_atomic(folder / "index.html", page.encode())
    return folder / "index.html", sections


def make_sections(records: str | os.PathLike[str], scale: str | None = None) -> list[Section]:
    """Gather what the page shows, in the order of the paper."""
    found, arrays = read_records(records)
    sections = []
    for experiment in EXPERIMENTS.values():
        own = [record for record in found if record.experiment == experiment.name]
        for size in reversed(experiment.scales):
            chosen = tuple(record for record in own if record.scale == size.name and scale in (None, size.name))
            if chosen and (any(record.is_done for record in chosen) or size is experiment.scales[0]):
                sections.append(_section(View(experiment, chosen, arrays), size))
                break
    if not sections:
        raise ValueError(f"{records} has no records of a known experiment" + (f" at scale {scale}" if scale else ""))
    return sections


def plain_tables(sections: Sequence[Section]) -> str:
    """Return the tables as plain text, for a terminal."""
    lines = []
    for section in sections:
        for view in section.tables:
            lines += ["", f"{section.experiment.title} ({section.scale.name}): {view.table.title}"]
            heads = ["", "n", *(column.label for column in view.table.columns)]
            rows = [[row.method.label, str(row.n), *map(_plain, row.entries)] for row in view.rows]
            widths = [max(len(row[k]) for row in [heads, *rows]) for k in range(len(heads))]
            lines += [
                "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in [heads, *rows]
            ]
    return "\n".join(lines) + "\n"


def _plain(entry: Entry) -> str:
    return entry.text + (f" [paper {entry.published_text}]{entry.mark}" if entry.published else "")


def _section(view: View, scale: Scale) -> Section:
    experiment = view.experiment
    drawn = [(figure, figure.draw(view)) for figure in FIGURES.get(experiment.name, ())]
    pictures = tuple(Picture(figure.name, figure.caption, png(made)) for figure, made in drawn if made is not None)
    return Section(
        experiment,
        scale,
        tuple(_table(view, scale, table) for table in experiment.tables),
        tuple(_listing(view, listing) for listing in experiment.listings),
        pictures,
        _timings(view),
        tuple(record for record in view.records if not record.is_done),
        tuple(dict.fromkeys(f"{record.method}: {note}" for record in view.records for note in record.notes)),
        tuple(sorted({_origin(record) for record in view.records})),
        view,
    )


def _table(view: View, scale: Scale, table: Table) -> TableView:
    by_method = {method.name: _done(view, method) for method in view.experiment.methods}
    present = [method for method in view.experiment.methods if by_method[method.name]]
    columns = [_column(column, {m.name: by_method[m.name] for m in present}, scale.is_paper) for column in table.columns]
    rows = [
        Row(
            method,
            len(by_method[method.name]),
            tuple(entries[method.name] for entries in columns),
            _temperature(by_method[method.name][0]),
        )
        for method in present
    ]
    return TableView(table, tuple(rows))


def _column(column: Column, records: dict[str, list[Record]], is_paper: bool) -> dict[str, Entry]:
    ours = {name: summarise([record.results.get(column.key) for record in own]) for name, own in records.items()}
    means = [summary.mean for summary in ours.values() if summary]
    best = None if not column.better or not means else (max if column.better == "high" else min)(means)
    entries = {}
    for name, summary in ours.items():
        published = column.published.get(name)
        mark = differs(summary, published, is_count=column.is_count) if is_paper and summary and published else None
        entries[name] = Entry(summary, published, mark, summary is not None and summary.mean == best, column)
    return entries


def _listing(view: View, listing: Listing) -> ListingView:
    rows = []
    for method in view.experiment.methods:
        own = _done(view, method)
        for key, label in listing.keys.items() if own else ():
            ours = tuple(_number(record.results.get(key), listing.digits) for record in own)
            theirs = tuple(_number(value, listing.digits) for value in listing.published.get(method.name, {}).get(key, ()))
            rows.append((method, label, ours, theirs))
    return ListingView(listing, tuple(rows), max((max(len(row[2]), len(row[3])) for row in rows), default=0))


def _done(view: View, method: Method) -> list[Record]:
    return [record for record in view.records if record.method == method.name and record.is_done]


def _timings(view: View) -> tuple[Timing, ...]:
    """Return one line for each cell; its records share seconds and seeds."""
    lines = []
    for method in view.experiment.methods:
        own = [record for record in view.records if record.method == method.name]
        cells = {(record.seeds, record.finished): record for record in own}
        lines += [Timing(method, _seeds(cell.seeds), cell.seconds, cell.cpu_seconds) for _, cell in sorted(cells.items())]
    return tuple(lines)


def _seeds(seeds: Sequence[int]) -> str:
    return str(seeds[0]) if len(seeds) == 1 else f"{seeds[0]}–{seeds[-1]}"


def _temperature(record: Record) -> str:
    value = record.results.get("law_temperature")
    if value is None:  # ASGLD's law has no single temperature; what is no sampler has none at all
        return "colder, by direction" if record.settings["sampler"] == "asgld" else "–"
    return f"{value:.3g}"


def _origin(record: Record) -> str:
    origin = record.origin
    versions = ", ".join(f"{name} {version}" for name, version in origin.get("versions", {}).items())
    machine = origin.get("machine", {})
    return f"commit {origin.get('commit') or 'unknown'}; {versions}; {machine.get('processor')}, {machine.get('cores')} cores"


def _number(value: Any, digits: int) -> str:
    return "–" if value is None else f"{value:,.{digits}f}".replace("-", "−")


def _written(value: Summary | Published, column: Column) -> str:
    if column.is_count:
        return f"{round(value.mean * value.n)} of {value.n}"
    has_error = value.error is not None and column.digits > 0
    return _number(value.mean, column.digits) + (f" ± {_number(value.error, column.digits)}" if has_error else "")


def _setting(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_setting(entry)}" for name, entry in value.items())
    if isinstance(value, tuple):
        return f"({', '.join(map(_setting, value))})"
    return f"{value:g}" if isinstance(value, float) else str(value)
