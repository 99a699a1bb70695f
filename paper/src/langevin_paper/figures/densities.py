"""Figures 1 and 2: the Gaussian and the mixture."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from langevin.diagnostics.plots import INK, decorate
from langevin.targets import Target, gaussian, mixture
from langevin_paper.experiments.mixture import HALF_WIDTH
from langevin_paper.figures.base import View, panel_grid, put_legend, put_title
from langevin_paper.spec import Method

__all__ = ["draw_energy", "draw_errors", "gaussian_figure", "mixture_figure"]

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
    put_legend(panel)


def _draw_scatter(panel: Axes, view: View, method: Method) -> None:
    draws = next(iter(view.of(method, "scatter").values()))
    panel.scatter(draws[:, 0], draws[:, 1], s=6, alpha=0.55, linewidths=0, color=view.style(method)["color"])
    target = gaussian([[1.0, 0.9], [0.9, 1.0]])
    # A Gaussian in the plane has probability p within energy -log(1 - p) of its mode.
    levels = [-np.log(1 - p) for p in (0.5, 0.9, 0.99)]
    _contour(panel, target, 4.0, levels, colors=INK, linewidths=0.8)
    put_title(panel, f"{method.label}, first {len(draws):,} iterations")
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
    frame(panel, "true energy")


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
    frame(panel, method.label)


def frame(panel: Axes, title: str) -> None:
    panel.set(aspect="equal", xlim=(-HALF_WIDTH, HALF_WIDTH), ylim=(-HALF_WIDTH, HALF_WIDTH), xticks=(-3, 0, 3), yticks=(-3, 0, 3))
    decorate(panel, "", "")
    put_title(panel, title)


def mixture_figure(view: View) -> Figure | None:
    """Draw figure 2."""
    methods = view.methods("density")
    if not methods:
        return None
    columns = 3 if len(methods) > 1 else 2
    figure, panels = panel_grid(-(-(1 + len(methods)) // columns), columns, 3.3, 3.4)
    _draw_true(panels[0])
    for panel, method in zip(panels[1:], methods, strict=False):
        draw_energy(panel, view, method)
    for panel in panels[1 + len(methods) :]:
        panel.set_axis_off()
    return figure
