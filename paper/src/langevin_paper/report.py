"""The report: one self-contained page made from records alone, with the published numbers beside ours.

The same records give the same page, byte for byte: it has no clock and no randomness of its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
from matplotlib.figure import Figure

from langevin.storage.journal import write_atomic
from langevin_paper.compare import RULE, differs, summarise
from langevin_paper.contents import Entry, ListingView, Page, Picture, Row, Section, TableView, Timing, is_lost, number, value_of
from langevin_paper.figures import FIGURES, View, overview, png
from langevin_paper.findings import FINDINGS
from langevin_paper.record import Found, Problem, Record, read_records
from langevin_paper.registry import EXPERIMENTS
from langevin_paper.schema import is_number
from langevin_paper.spec import Column, Listing, Method, Scale, Table

__all__ = ["make_page", "plain_tables", "write_report"]


def write_report(records: str | os.PathLike[str], out: str | os.PathLike[str], scale: str | None = None) -> tuple[Path, Page]:
    """Write ``index.html``, the same in Markdown as ``report.md``, and the pictures.

    Args:
        records: a folder that `langevin-paper run` made.
        out: where the page goes.
        scale: show this scale only; by default the largest that each experiment has, and smaller ones that add rows.

    Returns:
        The path of the first, and what is on it.

    Raises:
        FileNotFoundError: no records.
        ValueError: none that can be shown; the message says why.
    """
    page = make_page(records, scale)
    problems: list[Problem] = []
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    for picture in (picture for section in page.sections for picture in section.pictures):
        write_atomic(folder / f"{picture.name}.png", picture.data)
    cover = _drawn("overview", lambda: overview(page.cover), problems)
    if cover is not None:
        write_atomic(folder / "overview.png", cover)
    page = replace(page, problems=(*page.problems, *problems))
    for name, template in (("index.html", "report.html.j2"), ("report.md", "report.md.j2")):
        environment = jinja2.Environment(
            autoescape=name.endswith("html"), trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined,
            keep_trailing_newline=True,
        )  # fmt: skip
        environment.filters["setting"] = _setting
        text = environment.from_string((resources.files(__package__) / template).read_text())
        write_atomic(folder / name, text.render(sections=page.sections, problems=page.problems, rule=RULE).encode())
    return folder / "index.html", page


def make_page(records: str | os.PathLike[str], scale: str | None = None) -> Page:
    """Gather what the page shows, in the paper's order: of each experiment the largest scale, and smaller ones that add rows.

    A record that is damaged, or not of this version's experiments and settings, is left out and named.
    """
    found = read_records(records)
    problems, good = list(found.problems), []
    for record in found.records:
        fault = _fault(record)
        if fault is None:
            good.append(record)
        else:
            problems.append(Problem(f"{records}, {' '.join(map(str, record.key))}", fault))
    sections = _sections(replace(found, records=good), scale, problems)
    if not sections:
        reasons = "".join(f"\n  {problem}" for problem in problems)
        raise ValueError(f"{records} has no records to show" + (f" at scale {scale}" if scale else "") + reasons)
    return Page(tuple(sections), tuple(problems))


def _fault(record: Record) -> str | None:
    """Say why a record cannot stand on the page; None when it can."""
    experiment = EXPERIMENTS.get(record.experiment)
    if experiment is None:
        return f"there is no experiment {record.experiment!r} in this version"
    try:
        settings = experiment.settings_of(experiment.method(record.method), experiment.scale(record.scale))
    except ValueError as error:
        return str(error)
    if record.settings != settings:
        return f"it was run with other settings than this version's: {_difference(record.settings, settings)}"
    if not record.is_done:
        return None
    columns = [column for table in experiment.tables for column in table.columns]
    numbers = {"law_temperature", *(key for column in columns for key in (column.key, column.aside) if key)}
    for name in numbers | {key for listing in experiment.listings for key in listing.keys}:
        value = value_of(record.results, name)
        if isinstance(value, str) and name not in numbers:
            continue
        if value is not None and not is_number(value):
            return f"its result {name} needs to be a number, got {str(value)[:50]!r}"
    if bad := [c.key for c in columns if c.is_count and value_of(record.results, c.key) not in (None, 0, 1)]:
        return f"its result {bad[0]} needs to be 0 or 1, got {value_of(record.results, bad[0])}"
    return None


def _difference(found: Any, wanted: Any, path: str = "") -> str:
    """Name the first setting in which two records differ."""
    if isinstance(found, Mapping) and isinstance(wanted, Mapping):
        for name in sorted({*found, *wanted}):
            if found.get(name) != wanted.get(name):
                return _difference(found.get(name), wanted.get(name), f"{path}.{name}" if path else name)
    return f"{path} is {str(found)[:60]}, here {str(wanted)[:60]}"


def _sections(found: Found, scale: str | None, problems: list[Problem]) -> list[Section]:
    sections = []
    for experiment in EXPERIMENTS.values():
        own = [record for record in found.records if record.experiment == experiment.name]
        shown: set[str] = set()
        for size in reversed(experiment.scales):
            chosen = tuple(record for record in own if record.scale == size.name and scale in (None, size.name))
            done = {record.method for record in chosen if record.is_done}
            if done - shown or (chosen and not shown and size is experiment.scales[0]):
                suffix = f"-{size.name}" if shown else ""
                sections.append(_section(View(experiment, chosen, found.arrays), size, suffix, problems))
                shown |= done
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


def _drawn(name: str, draw: Callable[[], Figure | None], problems: list[Problem]) -> bytes | None:
    """Return a picture, None without what it needs; arrays of the wrong shape must not cost the page."""
    try:
        figure = draw()
        return None if figure is None else png(figure)
    except Exception as error:
        problems.append(Problem(f"picture {name}", f"it could not be drawn: {type(error).__name__}: {error}"))
        return None


def _section(view: View, scale: Scale, suffix: str, problems: list[Problem]) -> Section:
    experiment = view.experiment
    figures = FIGURES.get(experiment.name, ())
    drawn = [(figure, _drawn(figure.name + suffix, partial(figure.draw, view), problems)) for figure in figures]
    pictures = tuple(Picture(figure.name + suffix, figure.caption, made) for figure, made in drawn if made is not None)
    return Section(
        experiment,
        scale,
        tuple(table for table in (_table(view, scale, table) for table in experiment.tables) if not table.is_empty),
        tuple(_listing(view, listing) for listing in experiment.listings),
        pictures,
        _timings(view),
        tuple(record for record in view.records if not record.is_done),
        tuple(dict.fromkeys(f"{record.method}: {note}" for record in view.records for note in record.notes)),
        tuple(sorted({_origin(record) for record in view.records})),
        tuple(sorted({record.amended for record in view.records if record.amended})),
        tuple(FINDINGS[experiment.name](view)) if experiment.name in FINDINGS else (),
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
    ours, asides = (
        {name: summarise([value_of(record.results, key) for record in own]) for name, own in records.items()}
        for key in (column.key, column.aside)
    )
    # A mean of those runs alone that came through flatters, so it is held against nothing.
    # Of counts, a run without one was not asked.
    lost = {
        name: 0 if column.is_count else sum(is_lost(record.results, column.key) for record in own) for name, own in records.items()
    }
    means = [summary.mean for name, summary in ours.items() if summary and not lost[name]]
    best = None if not column.better or not means else (max if column.better == "high" else min)(means)
    entries = {}
    for name, summary in ours.items():
        published = column.published.get(name)
        whole = summary if not lost[name] else None
        mark = differs(whole, published, is_count=column.is_count) if is_paper and whole and published else None
        entries[name] = Entry(summary, published, mark, whole is not None and whole.mean == best, column, asides[name], lost[name])
    return entries


def _listing(view: View, listing: Listing) -> ListingView:
    rows = []
    for method in view.experiment.methods:
        own = _done(view, method)
        for key, label in listing.keys.items() if own else ():
            ours = tuple(number(record.results.get(key), listing.digits) for record in own[: listing.runs])
            theirs = tuple(number(value, listing.digits) for value in listing.published.get(method.name, {}).get(key, ()))
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
        lines += [
            Timing(method, _seeds(cell.seeds), cell.seconds, cell.cpu_seconds, cell.finished[:10])
            for _, cell in sorted(cells.items())
        ]
    return tuple(lines)


def _seeds(seeds: Sequence[int]) -> str:
    return str(seeds[0]) if len(seeds) == 1 else f"{seeds[0]}–{seeds[-1]}"


def _temperature(record: Record) -> str:
    if "law_temperature" not in record.results:
        return ""
    value = record.results["law_temperature"]
    if value is None:  # ASGLD's law has no single temperature; what is no sampler has none at all
        return "colder, by direction" if record.settings["sampler"] == "asgld" else "–"
    return f"{value:.3g}"


def _origin(record: Record) -> str:
    origin = record.origin
    versions = ", ".join(f"{name} {version}" for name, version in origin.get("versions", {}).items())
    machine = origin.get("machine", {})
    return f"commit {origin.get('commit') or 'unknown'}; {versions}; {machine.get('processor')}, {machine.get('cores')} cores"


def _setting(value: Any) -> str:
    if isinstance(value, Mapping):
        entries = {name: f"({_setting(entry)})" if isinstance(entry, Mapping) else _setting(entry) for name, entry in value.items()}
        return ", ".join(f"{name} {entry}" for name, entry in entries.items())
    if isinstance(value, tuple):
        return f"({', '.join(map(_setting, value))})"
    return f"{value:g}" if isinstance(value, float) else str(value)
