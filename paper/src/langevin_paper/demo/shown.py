"""What a part of the tour hands back, and how its pictures look."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from langevin.diagnostics.plots import INK, decorate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["LeftOut", "Part", "Shown", "count", "legend", "panel"]


class LeftOut(Exception):
    """A part that cannot be shown here; its text says in one line what to install."""


@dataclass(frozen=True)
class Shown:
    """What a part has to show.

    Args:
        pictures: panels, side by side on a wide screen, below each other on a narrow one.
        sentences: two, made from what was measured.
        code: lines of Python that were run, for the page.
        printed: what the library printed.
    """

    pictures: tuple[Figure, ...]
    sentences: tuple[str, str]
    code: str = ""
    printed: str = ""


@dataclass(frozen=True)
class Part:
    """One part of the tour.

    Args:
        name: in a word or two, for the line of progress.
        title: on the page.
        run: does it; takes whether sizes are to be tiny.
    """

    name: str
    title: str
    run: Callable[[bool], Shown]


def panel(xlabel: str, ylabel: str, *, title: str = "") -> tuple[Figure, Axes]:
    """Return a figure of one panel, whose letters can be read where it is 350 pixels wide."""
    from matplotlib.figure import Figure  # without pyplot no window system is asked for

    figure = Figure(figsize=(4.4, 3.7), layout="constrained")
    axes = figure.add_subplot()
    decorate(axes, xlabel, ylabel)
    axes.tick_params(labelsize=10)
    for label in (axes.xaxis.label, axes.yaxis.label):
        label.set_fontsize(11)
    if title:
        figure.suptitle(title, fontsize=11.5, color=INK, x=0.02, ha="left")
    return figure, axes


def legend(axes: Axes, columns: int = 2, markersize: float | None = None, left: float = -0.02) -> None:
    """Say which is which above the panel, where no curve is; small points may be larger there.

    Beside long labels of the panel it begins further to the `left`, or it would be squeezed.
    """
    from matplotlib.lines import Line2D

    made = axes.legend(
        loc="lower left", bbox_to_anchor=(left, 1.0), ncols=columns, frameon=False, fontsize=10, handlelength=1.4,
        columnspacing=1.2, borderaxespad=0.2,
    )  # fmt: skip
    for handle in made.legend_handles:
        if markersize is not None and isinstance(handle, Line2D) and handle.get_linestyle() == "None":
            handle.set_markersize(markersize)


def count(number: int, what: str, many: str | None = None) -> str:
    """Return a number with its noun: ``count(1, "warning")`` is "1 warning"."""
    return f"{number:,} {what if number == 1 else many or what + 's'}"
