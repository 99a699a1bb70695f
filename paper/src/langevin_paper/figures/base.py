"""What the figures share: what was recorded, colours, panels."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from langevin.diagnostics.plots import INK
from langevin_paper.record import Record
from langevin_paper.spec import Experiment, Method

__all__ = ["COLOURS", "Drawn", "View", "panel_grid", "png", "put_legend", "put_title"]

COLOURS = {"sgld": "#0072B2", "psgld": "#CC79A7", "sghmc": "#56B4E9", "asgld": "#009E73", "msgld": "#D55E00", "ngvi": "#7F7F7F"}
"""By sampler (Okabe and Ito 2008); a second row of the same sampler is dashed, a third dotted."""
LINES = ("-", "--", ":", "-.")
Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class View:
    """What was recorded of one experiment at one scale."""

    experiment: Experiment
    records: tuple[Record, ...]
    arrays: Mapping[tuple[str, str, str, int], Arrays]

    def of(self, method: Method, name: str) -> dict[int, NDArray[Any]]:
        """Return an array of every seed that has it."""
        own = [record for record in self.records if record.method == method.name and record.is_done]
        found = {record.seed: self.arrays.get(record.key, {}).get(name) for record in own}
        return {seed: array for seed, array in sorted(found.items()) if array is not None}

    def methods(self, name: str) -> list[Method]:
        """Return the methods that have this array."""
        return [method for method in self.experiment.methods if self.of(method, name)]

    def results(self, method: Method) -> list[Mapping[str, Any]]:
        """Return what was found for every seed that is done."""
        return [record.results for record in self.records if record.method == method.name and record.is_done]

    def by_label(self) -> dict[str, list[Mapping[str, Any]]]:
        """Return the same for every method that is done, by its label."""
        return {method.label: found for method in self.experiment.methods if (found := self.results(method))}

    def settings(self, method: Method) -> Mapping[str, Any]:
        """Return the scale's settings as the method was run with them."""
        settings = next(record.settings for record in self.records if record.method == method.name and record.is_done)
        return settings["scale"]

    def style(self, method: Method) -> dict[str, Any]:
        """Return colour and dashes of a method."""
        same = [other.name for other in self.experiment.methods if other.sampler == method.sampler]
        return {"color": COLOURS.get(method.sampler, "#333333"), "linestyle": LINES[same.index(method.name) % len(LINES)]}


@dataclass(frozen=True)
class Drawn:
    """A figure of the report: `draw` returns None when the records lack what it needs."""

    name: str
    caption: str
    draw: Callable[[View], Figure | None]


def png(figure: Figure) -> bytes:
    """Return the figure as PNG; the same figure gives the same bytes."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=140, metadata={"Software": None})
    return buffer.getvalue()


def panel_grid(rows: int, columns: int, width: float, height: float, **options: Any) -> tuple[Figure, list[Axes]]:
    """Make a figure of panels, each of that size in inches."""
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    figure.get_layout_engine().set(h_pad=0.1, w_pad=0.06)  # type: ignore[union-attr,call-arg]
    return figure, list(np.atleast_1d(figure.subplots(rows, columns, **options)).ravel())


def put_legend(panel: Axes, **options: Any) -> None:
    """Add a plain legend."""
    panel.legend(frameon=False, fontsize=8, labelcolor=INK, handlelength=2.2, **options)


def put_title(panel: Axes, text: str) -> None:
    """Add a small title on the left."""
    panel.set_title(text, fontsize=10, color=INK, loc="left")
