"""The paper's figures, from records: functions that draw into Matplotlib axes, and the list of them for each experiment."""

from __future__ import annotations

import functools
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from langevin.diagnostics.panels import INK, decorate
from langevin.experiments.paper.mixture import HALF_WIDTH
from langevin.experiments.paper.ravine import TRUTH
from langevin.experiments.record import Record
from langevin.experiments.spec import Experiment, Method
from langevin.targets import Target, gaussian, mixture, ravine, ravine_data
from langevin.targets.base import Batch

__all__ = ["FIGURES", "Drawn", "View", "overview", "png"]

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


def _grid(rows: int, columns: int, width: float, height: float, **options: Any) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    figure.get_layout_engine().set(h_pad=0.1, w_pad=0.06)  # type: ignore[union-attr,call-arg]
    return figure, list(np.atleast_1d(figure.subplots(rows, columns, **options)).ravel())


def _legend(panel: Axes, **options: Any) -> None:
    panel.legend(frameon=False, fontsize=8, labelcolor=INK, handlelength=2.2, **options)


def _title(panel: Axes, text: str) -> None:
    panel.set_title(text, fontsize=10, color=INK, loc="left")


# Figure 1: Gaussian.


def draw_errors(panel: Axes, view: View) -> None:
    """Draw the covariance error along iterations: of the paper's rows one run and the middle 80 percent, of ours the mean."""
    for method in view.methods("curve"):
        curves, style = np.stack(list(view.of(method, "curve").values())), view.style(method)
        at = next(iter(view.of(method, "iterations").values()))
        if "*" in method.ours:
            panel.plot(at, curves.mean(0), label=f"{method.label} (mean)", linewidth=1.3, **style)
            continue
        low, high = np.quantile(curves, (0.1, 0.9), axis=0)
        panel.fill_between(at, low, high, color=style["color"], alpha=0.09, linewidth=0)
        panel.plot(at, curves[0], label=method.label, linewidth=1.9, alpha=0.9, **style)
    panel.set(xscale="log", yscale="log")
    decorate(panel, "iteration", "average absolute error of the covariance")
    _legend(panel)


def _draw_scatter(panel: Axes, view: View, method: Method) -> None:
    draws = next(iter(view.of(method, "scatter").values()))
    panel.scatter(draws[:, 0], draws[:, 1], s=6, alpha=0.55, linewidths=0, color=view.style(method)["color"])
    target = gaussian([[1.0, 0.9], [0.9, 1.0]])
    # A Gaussian in the plane has probability p within energy -log(1 - p) of its mode.
    levels = [-np.log(1 - p) for p in (0.5, 0.9, 0.99)]
    _contour(panel, target, 4.0, levels, colors=INK, linewidths=0.8)
    _title(panel, f"{method.label}, first {len(draws):,} iterations")
    panel.set(aspect="equal", xlim=(-4, 4), ylim=(-4, 4))
    decorate(panel, "θ₁", "θ₂")


def gaussian_figure(view: View) -> Figure | None:
    """Draw figure 1."""
    scattered = [method for method in view.methods("scatter") if method.name in ("asgld", "msgld")]
    if not view.methods("curve") or not scattered:
        return None
    figure = Figure(figsize=(11.5, 3.9), layout="constrained")
    panels = figure.subplots(1, 1 + len(scattered), width_ratios=[1.5] + [1] * len(scattered))
    draw_errors(panels[0], view)
    for panel, method in zip(panels[1:], scattered, strict=True):
        _draw_scatter(panel, view, method)
    return figure


# Figure 2: mixture.

_ENERGIES = np.arange(1.5, 8.01, 0.5)  # the deepest point of the target has energy 2.3


def _contour(panel: Axes, target: Target, half_width: float, levels: Any, **style: Any) -> None:
    axis = torch.linspace(-half_width, half_width, 161, dtype=torch.float64)
    energy = target.evaluate(torch.cartesian_prod(axis, axis)).energy.reshape(161, 161)
    panel.contour(axis, axis, energy.T, levels=sorted(levels), **style)


def _draw_true(panel: Axes) -> None:
    axis = torch.linspace(-HALF_WIDTH, HALF_WIDTH, 161, dtype=torch.float64)
    energy = mixture().evaluate(torch.cartesian_prod(axis, axis)).energy.reshape(161, 161)
    panel.contourf(axis, axis, energy.T, levels=_ENERGIES, cmap="viridis", extend="min")
    _frame(panel, "true energy")


def draw_energy(panel: Axes, view: View, method: Method) -> None:
    """Draw the energy that the draws of the first seed say, -log of their smoothed histogram, under contours of the true one."""
    from scipy.ndimage import gaussian_filter  # type: ignore[import-untyped]

    density = next(iter(view.of(method, "density").values())).astype(float)
    half = HALF_WIDTH * (1 - 1 / len(density))
    axis = np.linspace(-half, half, len(density))
    with np.errstate(divide="ignore"):
        energy = -np.log(gaussian_filter(density, 1.0))
    panel.contourf(axis, axis, np.ma.masked_invalid(energy).T, levels=_ENERGIES, cmap="viridis", extend="min")
    _contour(panel, mixture(), HALF_WIDTH, _ENERGIES[[2, 5, 9]], colors="white", linewidths=0.6, alpha=0.9)
    _frame(panel, method.label)


def _frame(panel: Axes, title: str) -> None:
    panel.set(aspect="equal", xlim=(-HALF_WIDTH, HALF_WIDTH), ylim=(-HALF_WIDTH, HALF_WIDTH), xticks=(-3, 0, 3), yticks=(-3, 0, 3))
    decorate(panel, "", "")
    _title(panel, title)


def mixture_figure(view: View) -> Figure | None:
    """Draw figure 2."""
    methods = view.methods("density")
    if not methods:
        return None
    columns = 3 if len(methods) > 1 else 2
    figure, panels = _grid(-(-(1 + len(methods)) // columns), columns, 3.3, 3.4)
    _draw_true(panels[0])
    for panel, method in zip(panels[1:], methods, strict=False):
        draw_energy(panel, view, method)
    for panel in panels[1 + len(methods) :]:
        panel.set_axis_off()
    return figure


# Figure 3: ravine.


def regression_figure(view: View) -> Figure:
    """Draw figure 3a: the regression function, its global pattern, and 100 data."""
    x, y = ravine_data(100, truth=TRUTH, seed=0)
    figure, (panel,) = _grid(1, 1, 7.5, 3.4)
    at = np.linspace(-2, 4, 1200)
    pattern = (at - 1) ** 2
    wiggle = 2 * np.sin(TRUTH[0] * at) + TRUTH[0] / 30 + np.cos(TRUTH[1] * at - 1) - TRUTH[1] / 20
    panel.plot(at, pattern + wiggle, color=COLOURS["sgld"], linewidth=1.0, label="f(x) at θ = (20, 10)")
    panel.plot(at, pattern, color=INK, linewidth=1.2, linestyle="--", label="(x − 1)²")
    panel.scatter(x, y, s=9, color=COLOURS["msgld"], linewidths=0, label="100 data", zorder=3)
    decorate(panel, "x", "y")
    _legend(panel)
    return figure


def ravine_energy(first: NDArray[Any], second: NDArray[Any], every: int = 20) -> NDArray[Any]:
    """Return U of data set 0 on a grid, (second, first), from every 20th datum, scaled up."""
    x, y = (column[::every] for column in ravine_data(truth=TRUTH, seed=0))
    points = torch.cartesian_prod(torch.from_numpy(second), torch.from_numpy(first)).flip(-1)
    batch = Batch((x, y), len(x) * every, per_chain=False)
    parts = [ravine().evaluate(chunk, batch).energy for chunk in points.split(2048)]
    return torch.cat(parts).reshape(len(second), len(first)).numpy()


def draw_path(panel: Axes, view: View, method: Method, grid: tuple[NDArray[Any], NDArray[Any], NDArray[Any]]) -> None:
    """Draw a sample path over the energy of its data set."""
    first, second, energy = grid
    panel.contourf(first, second, energy, levels=14, cmap="Greys_r", alpha=0.75)
    path = next(iter(view.of(method, "path").values()))
    panel.plot(*path.T, color=view.style(method)["color"], linewidth=0.7, alpha=0.85, marker=".", markersize=2.2)
    panel.plot(*path[0], "o", color="white", markeredgecolor=INK, markersize=5)
    panel.plot(*TRUTH, "*", color="#F0E442", markeredgecolor=INK, markersize=12, zorder=5)
    panel.set(xlim=(first[0], first[-1]), ylim=(second[0], second[-1]))
    decorate(panel, "θ₁", "θ₂")
    _title(panel, method.label)


@functools.cache
def _ravine_grid() -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    first, second = np.linspace(-32, 32, 161), np.linspace(-22, 22, 121)
    return first, second, ravine_energy(first, second)


def ravine_figure(view: View) -> Figure | None:
    """Draw figure 3b."""
    methods = view.methods("path")
    if not methods:
        return None
    grid = _ravine_grid()
    figure, panels = _grid(-(-len(methods) // 3), min(3, len(methods)), 3.7, 2.9, sharex=True, sharey=True, squeeze=False)
    for panel, method in zip(panels, methods, strict=False):
        draw_path(panel, view, method, grid)
    for panel in panels[len(methods) :]:
        panel.set_axis_off()
    return figure


# Figure 4: Landsat.


def draw_accuracy(panel: Axes, view: View, name: str, label: str) -> None:
    """Draw errors along epochs: the mean over seeds, with the range of the seeds as a band."""
    lowest = 100.0
    for method in view.methods(name):
        curves, style = np.stack(list(view.of(method, name).values())), view.style(method)
        epoch = np.arange(1, curves.shape[1] + 1) * view.records[0].results["thin"] * 50 / 4435
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
    figure, panels = _grid(1, 2, 6.0, 3.9)
    draw_accuracy(panels[0], view, "train_error", "training error, percent")
    draw_accuracy(panels[1], view, "test_error", "test error, percent")
    _legend(panels[1], loc="upper left", bbox_to_anchor=(1.0, 1.0))
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
    figure, panels = _grid(1, 2, 5.6, 3.9)
    for panel, name, label in zip(panels, ("test_error", "ratio"), ("test error, percent", "sparsity ratio, percent"), strict=True):
        draw_epochs(panel, view, name, label)
        panel.set_yscale("log")
    _legend(panels[0])
    return figure


def cifar_figure(view: View) -> Figure | None:
    """Draw the test error along the epochs."""
    if not view.methods("test_error"):
        return None
    figure, panels = _grid(1, 1, 7.2, 4.2)
    draw_epochs(panels[0], view, "test_error", "test error, percent")
    _legend(panels[0])
    return figure


FIGURES: dict[str, Sequence[Drawn]] = {
    "gaussian": (
        Drawn(
            "figure-1",
            "Figure 1. Left: error of the covariance along iterations, one run as a line and the middle 80 percent of all runs as "
            "a band; of the rows of ours the mean. Right: the first 1000 iterations over contours that hold 50, 90 and 99 percent.",
            gaussian_figure,
        ),
    ),
    "mixture": (
        Drawn(
            "figure-2",
            "Figure 2. The true energy, and what the draws of one run say it is: −log of their histogram, smoothed by a fifth of a "
            "unit; white where there was no draw. White lines are contours of the true energy.",
            mixture_figure,
        ),
    ),
    "ravine": (
        Drawn("figure-3a", "Figure 3a. The regression, its global pattern, and 100 data.", regression_figure),
        Drawn(
            "figure-3b",
            "Figure 3b. Sample paths on data set 0, thinned by 50, over the energy (dark is low). The circle is the first point of "
            "the path, the star the truth.",
            ravine_figure,
        ),
    ),
    "landsat": (
        Drawn(
            "figure-4",
            "Figure 4. Training (left) and test error along the run: mean over seeds, with their range as a band.",
            landsat_figure,
        ),
    ),
    "mnist": (
        Drawn(
            "mnist", "Test error and sparsity ratio after every epoch: mean over seeds, with their range as a band.", mnist_figure
        ),
    ),
    "cifar10": (Drawn("cifar10", "Test error after every epoch: mean over seeds, with their range as a band.", cifar_figure),),
    "cifar100": (Drawn("cifar100", "Test error after every epoch: mean over seeds, with their range as a band.", cifar_figure),),
}


def overview(views: Mapping[str, View]) -> Figure | None:
    """Draw one panel of each of the four experiments, for the README; None unless all are there."""
    needed = {"gaussian": "curve", "mixture": "density", "ravine": "path", "landsat": "test_error"}
    if not all(name in views and views[name].methods(array) for name, array in needed.items()):
        return None
    figure, panels = _grid(2, 2, 5.6, 3.9)
    draw_errors(panels[0], views["gaussian"])
    _title(panels[0], "Gaussian: error of the covariance")
    draw_accuracy(panels[1], views["landsat"], "test_error", "test error, percent")
    _legend(panels[1], loc="upper left", bbox_to_anchor=(1.0, 1.0))
    _title(panels[1], "Landsat: test error")
    mixed, ravined = views["mixture"], views["ravine"]
    draw_energy(panels[2], mixed, _prefer(mixed.methods("density"), "msgld-invariant"))
    panels[2].set_title("Five modes: " + panels[2].get_title(loc="left"), fontsize=10, color=INK, loc="left")
    draw_path(panels[3], ravined, _prefer(ravined.methods("path"), "msgld"), _ravine_grid())
    panels[3].set_title("Ravine: " + panels[3].get_title(loc="left"), fontsize=10, color=INK, loc="left")
    return figure


def _prefer(methods: Sequence[Method], name: str) -> Method:
    return next((method for method in methods if method.name == name), methods[0])
