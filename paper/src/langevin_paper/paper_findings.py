"""What records say of the paper's claims: which of its rankings come out, and which reading of its settings gives its tables."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from langevin_paper.compare import differs, interval, summarise
from langevin_paper.contents import value_of
from langevin_paper.figures import View
from langevin_paper.spec import Published

__all__ = ["landsat_reading_findings", "ranking_findings", "ravine_reading_findings"]

RANKINGS = (("msgld", "sghmc"), ("sghmc", "sgld"), ("msgld", "sgld"), ("asgld", "adam"))
"""Section 5.3: MSGLD over SGHMC over SGLD, ASGLD over Adam."""

FEWEST = 3
"""Pairs of seeds below which a ranking stays open, whatever the interval."""


def ranking_findings(view: View) -> list[str]:
    """Say which of table 4's rankings are supported, contradicted or open: seeds share start and batches, so they are paired."""
    found: dict[str, dict[int, float]] = {}
    for record in view.records:
        if record.is_done:
            found.setdefault(record.method, {})[record.seed] = record.results["test_accuracy"]
    label = {method.name: method.label for method in view.experiment.methods}
    (published,) = (c.published for table in view.experiment.tables for c in table.columns if c.key == "test_accuracy")
    sentences = []
    for above, below in RANKINGS:
        seeds = sorted(found.get(above, {}).keys() & found.get(below, {}).keys())
        ends = interval([found[above][seed] - found[below][seed] for seed in seeds])
        if ends is None:
            continue
        low, high = ends
        is_open = len(seeds) < FEWEST or low <= 0 <= high
        verdict = "open" if is_open else "supported" if low > 0 else "contradicted"
        sentences.append(
            f"{label[above]} over {label[below]}, test accuracy: {verdict} at this scale, {_signed((low + high) / 2)} points, 95 % "
            f"interval [{_signed(low)}, {_signed(high)}], {len(seeds)} seeds in pairs; "
            f"in the paper {_published_difference(published, above, below)}."
        )
    if sentences:
        sentences.append("Student's intervals, each for itself: of twenty such, chance alone misses one.")
    return sentences


def _published_difference(published: Mapping[str, Published], above: str, below: str) -> str:
    one, other = published[above], published[below]
    error = math.hypot(one.error or 0.0, other.error or 0.0)
    return f"{_signed(one.mean - other.mean)} ± {error:.2f} (standard error, {one.n} and {other.n} runs)"


def _number(readings: Mapping[str, Any]) -> str:
    return f"{len(readings)} reading{'s' if len(readings) > 1 else ''}"


def _signed(value: float) -> str:
    return f"{value:+.2f}".replace("-", "−")


def ravine_reading_findings(view: View) -> list[str]:
    """Say which reading gives the counts of table 1, and how often each sampler finds the truth at best."""
    counts: dict[str, dict[str, tuple[int, int]]] = {}
    stayed: dict[str, tuple[int, int]] = {}  # where runs start at the truth: no reading, for no one would
    for method in view.experiment.methods:
        if results := view.results(method):
            own = {name: (round(sum(r[name]["near"] for r in results)), len(results)) for name in results[0]}
            if method.settings["start_at_truth"]:
                stayed = own
            else:
                counts[method.label] = own
    if not counts:
        return []
    columns = view.experiment.tables[0].columns
    stated = {column.key.partition("/")[0]: next(iter(column.published.values())) for column in columns}
    same = [
        label
        for label, own in counts.items()
        if all(count == round(stated[name].mean * stated[name].n) for name, (count, _) in own.items())
    ]
    labels = {column.key.partition("/")[0]: column.label for column in columns}
    best = []
    for name, shown in labels.items():
        most = max(own[name] for own in counts.values())
        where = [label for label, own in counts.items() if own[name] == most]
        in_words = f"“{where[0]}”" + (f" and {len(where) - 1} more" if len(where) > 1 else "")
        best.append(f"{shown} {most[0]} of {most[1]}" + (f" ({in_words})" if most[0] else ""))
    sentences = [
        f"{_number(counts)}. With the paper's counts in all five columns: {'; '.join(same) or 'none'}.",
        f"The most that a sampler reaches by any of them: {', '.join(best)}.",
    ]
    if stayed:
        shown = ", ".join(f"{labels[name]} {count} of {n}" for name, (count, n) in stayed.items())
        sentences.append(f"Started at the truth, with the settings to the letter, runs whose mean is near it: {shown}.")
    return sentences


def landsat_reading_findings(view: View) -> list[str]:
    """Say which reading is within chance of the published row, in both columns."""
    near, offsets, diverged = [], {}, []
    columns = view.experiment.tables[0].columns
    for method in view.experiment.methods:
        if not (results := view.results(method)):
            continue
        values = [[value_of(result, column.key) for result in results] for column in columns]
        if lost := sum(None in seed for seed in zip(*values, strict=True)):
            diverged.append(f"“{method.label}” ({lost} of {len(results)} runs)")
            continue
        pairs = [
            (summary, column.published[method.name])
            for column, found in zip(columns, values, strict=True)
            if (summary := summarise(found)) is not None
        ]
        offsets[method.label] = max(abs(ours.mean - theirs.mean) for ours, theirs in pairs)
        if all(differs(ours, theirs) is False for ours, theirs in pairs):
            near.append(method.label)
    sentences = []
    if offsets:
        least = min(offsets, key=lambda label: offsets[label])
        within = "; ".join(f"“{label}”" for label in near) or "none"
        sentences.append(
            f"{_number(offsets)}. Within chance of the published row in both columns (Welch's test, p ≥ 0.01): {within}. Nearest: "
            f"“{least}”, off by at most {offsets[least]:.3f} points."
        )
    if diverged:
        sentences.append(f"Left out, for chains ran off to infinity: {'; '.join(diverged)}.")
    return sentences
