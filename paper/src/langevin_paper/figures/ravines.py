"""Figure 3: the ravine, its regression, the paths, and the search."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from langevin.diagnostics.plots import INK, decorate
from langevin.targets import ravine, ravine_data
from langevin.targets.base import Batch
from langevin_paper.experiments.ravine import TRUTH
from langevin_paper.figures.base import COLOURS, View, panel_grid, put_legend, put_title
from langevin_paper.spec import Method

__all__ = ["draw_path", "ravine_figure", "ravine_grid", "regression_figure", "search_figure"]

# Figure 3: ravine.


def regression_figure(view: View) -> Figure:
    """Draw figure 3a: the regression function, its global pattern, and 100 data."""
    x, y = ravine_data(100, truth=TRUTH, seed=0)
    figure, (panel,) = panel_grid(1, 1, 7.5, 3.4)
    at = np.linspace(-2, 4, 1200)
    pattern = (at - 1) ** 2
    wiggle = 2 * np.sin(TRUTH[0] * at) + TRUTH[0] / 30 + np.cos(TRUTH[1] * at - 1) - TRUTH[1] / 20
    panel.plot(at, pattern + wiggle, color=COLOURS["sgld"], linewidth=1.0, label="f(x) at θ = (20, 10)")
    panel.plot(at, pattern, color=INK, linewidth=1.2, linestyle="--", label="(x − 1)²")
    panel.scatter(x, y, s=9, color=COLOURS["msgld"], linewidths=0, label="100 data", zorder=3)
    decorate(panel, "x", "y")
    put_legend(panel)
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
    put_title(panel, method.label)


@functools.cache
def ravine_grid() -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Return both axes and the energy over them."""
    first, second = np.linspace(-32, 32, 161), np.linspace(-22, 22, 121)
    return first, second, ravine_energy(first, second)


def ravine_figure(view: View) -> Figure | None:
    """Draw figure 3b."""
    methods = view.methods("path")
    if not methods:
        return None
    grid = ravine_grid()
    figure, panels = panel_grid(-(-len(methods) // 3), min(3, len(methods)), 3.7, 2.9, sharex=True, sharey=True, squeeze=False)
    for panel, method in zip(panels, methods, strict=False):
        draw_path(panel, view, method, grid)
    for panel in panels[len(methods) :]:
        panel.set_axis_off()
    return figure


def search_figure(view: View) -> Figure | None:
    """Draw how often each method of the search found the truth: on fresh data sets a bar, in the search a ring."""
    found = {method.name: view.results(method) for method in view.experiment.methods}
    methods = [method for method in reversed(view.experiment.methods) if found[method.name]]
    if not methods:
        return None
    figure, (panel,) = panel_grid(1, 1, 7.2, 0.9 + 0.36 * len(methods))
    shares = [float(np.mean([result["near"] for result in found[method.name]])) for method in methods]
    errors = [math.sqrt(share * (1 - share) / len(found[method.name])) for share, method in zip(shares, methods, strict=True)]
    alphas = [0.9 if method.name == method.sampler else 0.6 for method in methods]
    bars = panel.barh(
        range(len(methods)), shares, xerr=errors, height=0.62, ecolor=INK, error_kw={"linewidth": 1.0, "capsize": 2.5}
    )
    for bar, method, alpha in zip(bars, methods, alphas, strict=True):
        bar.set(facecolor=view.style(method)["color"], alpha=alpha)
    searched = [(place, found[method.name][0].get("search_share")) for place, method in enumerate(methods)]
    rings = [(share, place) for place, share in searched if share is not None]
    if rings:
        panel.plot(
            *zip(*rings, strict=True), "o", color="white", markeredgecolor=INK, markersize=5, zorder=4, label="in the search"
        )
        panel.legend(frameon=False, fontsize=8, labelcolor=INK, loc="lower right", bbox_to_anchor=(1, 1), borderaxespad=0.2)
    panel.set_yticks(range(len(methods)), [method.label for method in methods])
    panel.set_xlim(0, 1.02)
    decorate(panel, "share of data sets in which the truth was found", "")
    return figure
