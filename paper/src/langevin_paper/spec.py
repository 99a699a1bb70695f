"""What an experiment is: methods, scales, tables with the published numbers, and one function that runs a cell.

An experiment is data. A *cell* is what is run at once: one method at one scale, with seeds that share a compiled run. The runner
knows nothing of what a cell computes, the report nothing of how.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from langevin.checks import needs
from langevin.kernels import Kernel
from langevin.kernels.samplers import SAMPLERS
from langevin.kernels.schedules import Schedule, constant, cyclical, polynomial, step_decay

__all__ = ["Column", "Experiment", "Listing", "Method", "Progress", "Published", "Results", "Run", "Scale", "Setting", "Table"]

SCHEDULES: dict[str, Callable[..., Schedule]] = {
    "constant": constant,
    "cyclical": cyclical,
    "polynomial": polynomial,
    "step_decay": step_decay,
}

Progress = Callable[[float], None]
"""Takes the share of a cell that is done, 0 to 1."""

Results = dict[int, dict[str, Any]]
"""What a cell gives: for every seed, numbers, texts and lists by name; NumPy arrays, for figures, are stored apart."""


class Run(Protocol):
    """Runs a cell. `folder` is its own: it keeps checkpoints there, goes on from them, and never cleans up."""

    def __call__(self, method: Method, scale: Scale, seeds: range, folder: Path, progress: Progress) -> Results:
        """Return the results of every seed."""
        ...


@dataclass(frozen=True)
class Method:
    """A row of a table: a sampler with its settings.

    Args:
        name: for the command line and the records.
        label: for people.
        sampler: a key of `SAMPLERS`, or what the experiment's `run` makes of it.
        settings: plain numbers, as the sampler takes them; a step size may be a mapping such as
            ``{"kind": "step_decay", "initial": 1e-4, "factor": 0.5, "every": 3000}``, one of `langevin.kernels.schedules`.
        ours: names of those settings that the paper does not give; ("*",) for a row that it does not have at all.
        note: what a reader of the row should know.
    """

    name: str
    label: str
    sampler: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    ours: tuple[str, ...] = ()
    note: str = ""

    def kernel(self, **more: Any) -> Kernel:
        """Make the sampler."""
        settings = {**self.settings, **more}
        if isinstance(settings.get("step_size"), Mapping):
            words = dict(settings["step_size"])
            settings["step_size"] = SCHEDULES[words.pop("kind")](**words)
        return SAMPLERS[self.sampler](**settings)


@dataclass(frozen=True)
class Scale:
    """How much is run.

    Args:
        name: quick, short, paper; long, where there is one, lies between the last two.
        settings: plain values that the experiment's `run` reads: every number that a result depends on stands here or in the
            method's settings, so that records hold it.
        num_seeds: seeds 0, 1, ... that are run by default.
        seconds: what a cell takes, about, on one quiet core with compiling; for `langevin-paper list` and the time left.
        is_paper: whether the numbers may be held against the published ones.
    """

    name: str
    settings: Mapping[str, Any]
    num_seeds: int
    seconds: float
    is_paper: bool = False


@dataclass(frozen=True)
class Published:
    """A number of the paper: mean, standard error (None where it gives none), and over how many runs."""

    mean: float
    error: float | None
    n: int


@dataclass(frozen=True)
class Column:
    """One quantity, over seeds.

    Args:
        key: its name in the results; ``"a/b"`` is b of the mapping a.
        label: its heading.
        digits: after the point.
        published: by method name.
        better: "high" or "low" for the best row to be set in bold, "" for neither.
        is_count: whether each run gives 1 or 0; then it is shown as "3 of 5", and Fisher's exact test compares.
        aside: name of a number that is shown in brackets after it, such as what chance alone would give; "" for none.
    """

    key: str
    label: str
    digits: int = 2
    published: Mapping[str, Published] = field(default_factory=dict)
    better: str = ""
    is_count: bool = False
    aside: str = ""


@dataclass(frozen=True)
class Table:
    """Methods in rows, quantities in columns: n, mean and standard error over seeds."""

    title: str
    columns: tuple[Column, ...]
    note: str = ""


@dataclass(frozen=True)
class Listing:
    """Single runs, as in the paper's table 1: methods and keys in rows, seeds in columns; numbers or texts.

    `runs` shows the first so many only, under `heads` where those are given.
    """

    title: str
    keys: Mapping[str, str]  # name in the results: label
    digits: int = 2
    published: Mapping[str, Mapping[str, tuple[float, ...]]] = field(default_factory=dict)  # method: key: one number per run
    note: str = ""
    runs: int | None = None
    heads: tuple[str, ...] = ()


@dataclass(frozen=True)
class Setting:
    """A setting common to all methods, for the page; `source` is "paper" or "ours"."""

    name: str
    value: str
    source: str
    note: str = ""


@dataclass(frozen=True)
class Experiment:
    """One section of the paper.

    Args:
        name: for the command line and the records.
        title: for people.
        section: of the paper, with its tables and figures.
        about: two or three sentences.
        methods: the rows.
        scales: from small to large.
        run: see `Run`.
        tables: for the report.
        listings: for the report.
        settings: for the report.
        seeds_together: whether the seeds of a method are chains of one run, so one cell; otherwise each is a cell of its own.
    """

    name: str
    title: str
    section: str
    about: str
    methods: tuple[Method, ...]
    scales: tuple[Scale, ...]
    run: Run
    tables: tuple[Table, ...] = ()
    listings: tuple[Listing, ...] = ()
    settings: tuple[Setting, ...] = ()
    seeds_together: bool = True

    def method(self, name: str) -> Method:
        """Return the method of that name."""
        return _find("method", name, {method.name: method for method in self.methods})

    def scale(self, name: str) -> Scale:
        """Return the scale of that name."""
        return _find("scale", name, {scale.name: scale for scale in self.scales})

    def settings_of(self, method: Method, scale: Scale) -> dict[str, Any]:
        """Return all settings of a cell as they come back from JSON: what a record carries, and what makes it this cell's."""
        plain = {"sampler": method.sampler, "method": dict(method.settings), "scale": dict(scale.settings)}
        return json.loads(json.dumps(plain))


def _find(what: str, name: str, known: Mapping[str, Any]) -> Any:
    if name not in known:
        raise needs("Experiment", what, f"one of {', '.join(known)}", name)
    return known[name]
