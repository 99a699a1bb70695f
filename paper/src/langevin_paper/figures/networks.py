"""Figure 4, and the networks of section 5 along their epochs."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from langevin.diagnostics.plots import decorate
from langevin_paper.figures.base import View, panel_grid, put_legend

__all__ = ["cifar_figure", "draw_accuracy", "landsat_figure", "mnist_figure"]

# Figure 4: Landsat.


def draw_accuracy(panel: Axes, view: View, name: str, label: str) -> None:
    """Draw errors along epochs: the mean over seeds, with the range of the seeds as a band."""
    lowest = 100.0
    for method in view.methods(name):
        curves, style = np.stack(list(view.of(method, name).values())), view.style(method)
        given = view.settings(method)
        epoch = np.arange(1, curves.shape[1] + 1) * given["thin"] * given["batch_size"] / given["num_data"]
        curves, epoch = _smoothed(curves, epoch)
        panel.fill_between(epoch, curves.min(0), curves.max(0), color=style["color"], alpha=0.12, linewidth=0)
        panel.plot(epoch, curves.mean(0), label=method.label, linewidth=1.4, **style)
        lowest = min(lowest, float(curves.min()))
    panel.set_ylim(lowest - 0.7, max(lowest + 6, 25.0))  # the start, and a method that fails, are beyond the picture
    decorate(panel, "epoch", label)


def _smoothed(curves: NDArray[Any], at: NDArray[Any], points: int = 66) -> tuple[NDArray[Any], NDArray[Any]]:
    """Average neighbouring draws, for lines that can be told apart."""
    size = max(1, curves.shape[1] // points)
    count = curves.shape[1] // size * size
    return curves[:, :count].reshape(len(curves), -1, size).mean(-1), at[:count].reshape(-1, size).mean(-1)


def landsat_figure(view: View) -> Figure | None:
    """Draw figure 4."""
    if not view.methods("test_error"):
        return None
    figure, panels = panel_grid(1, 2, 6.0, 3.9)
    draw_accuracy(panels[0], view, "train_error", "training error, percent")
    draw_accuracy(panels[1], view, "test_error", "test error, percent")
    put_legend(panels[1], loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


# No figure of the paper: the networks along their epochs.


def draw_epochs(panel: Axes, view: View, name: str, label: str) -> None:
    """Draw a quantity after every epoch: the mean over seeds, with their range as a band."""
    for method in view.methods(name):
        curves, style = np.stack(list(view.of(method, name).values())), view.style(method)
        epoch = np.arange(1, curves.shape[1] + 1)
        panel.fill_between(epoch, curves.min(0), curves.max(0), color=style["color"], alpha=0.12, linewidth=0)
        panel.plot(epoch, curves.mean(0), label=method.label, linewidth=1.4, **style)
    decorate(panel, "epoch", label)


def mnist_figure(view: View) -> Figure | None:
    """Draw test error and sparsity ratio along the two stages."""
    if not view.methods("test_error"):
        return None
    figure, panels = panel_grid(1, 2, 5.6, 3.9)
    for panel, name, label in zip(panels, ("test_error", "ratio"), ("test error, percent", "sparsity ratio, percent"), strict=True):
        draw_epochs(panel, view, name, label)
        panel.set_yscale("log")
    put_legend(panels[0])
    return figure


def cifar_figure(view: View) -> Figure | None:
    """Draw the test error along the epochs."""
    if not view.methods("test_error"):
        return None
    figure, panels = panel_grid(1, 1, 7.2, 4.2)
    draw_epochs(panels[0], view, "test_error", "test error, percent")
    put_legend(panels[0])
    return figure
