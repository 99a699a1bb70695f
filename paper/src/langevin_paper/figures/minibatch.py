"""The bias atlas under minibatches: error against draws per epoch, a panel for each problem and batch size; and all as a map."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from langevin.diagnostics.plots import FAINT, INK, decorate
from langevin_paper.experiments.minibatch.problems import TITLES
from langevin_paper.figures.base import View, panel_grid
from langevin_paper.spec import Method

__all__ = ["atlas_figure", "parts", "race_figure"]

# Colours say what is done about the noise (Okabe and Ito 2008), markers the sampler; white minibatches are hollow.
COLOURS = {"uncorrected": "#7F7F7F", "centred": "#56B4E9", "corrected": "#D55E00", "both": "#0072B2", "diagonal": "#CC79A7"}
MARKERS = {"sgld": "o", "psgld": "v", "sghmc": "D", "msgld": "s", "asgld": "^", "nasgld": "P", "default": "*"}
RUNGS = ("0.5", "0.05", "0.005", "tuned")
LOW, HIGH, LEAST, MOST = 0.5, 3000.0, 5e-4, 1000.0
COLUMNS, MAP_COLUMNS = 4, 6
Parts = dict[tuple[str, str], dict[str, Mapping[str, Any]]]


def parts(view: View) -> Parts:
    """Return what was found for every problem and batch size, by method: of the first seed."""
    found: Parts = {}
    for method in view.experiment.methods:
        for results in view.results(method)[:1]:
            for name in (name for name in TITLES if name in results):
                for size, own in results[name].items():
                    found.setdefault((name, size), {})[method.name] = own
    order = list(TITLES)
    return dict(sorted(found.items(), key=lambda item: (order.index(item[0][0]), int(item[0][1]))))


def kind_of(method: Method) -> str:
    """Return what a method does about the noise of its gradients."""
    own = method.settings
    if own["noise"] == "diagonal":
        return "diagonal"
    if own["noise"] is None:
        return "centred" if own["centred"] else "uncorrected"
    return "both" if own["centred"] else "corrected"


def race_figure(view: View) -> Figure | None:
    """Draw the mean error of the variances against draws per epoch, all settings; those that absorb the noise stand out."""
    found = parts(view)
    if not found:
        return None
    rows = -(-(len(found) + 1) // COLUMNS)
    figure, panels = panel_grid(rows, COLUMNS, 2.9, 2.8)
    for place, (panel, ((name, size), methods)) in enumerate(zip(panels, found.items(), strict=False)):
        for method in view.experiment.methods:
            if method.name in methods:
                _draw_method(panel, method, methods[method.name]["rungs"])
        panel.axvline(1.0, color=INK, linewidth=0.8, linestyle=(0, (4, 3)))
        panel.axhspan(LOW / 2, 10, color=FAINT, alpha=0.4, zorder=0, linewidth=0)
        decorate(
            panel,
            "draws per epoch" if place >= len(found) - COLUMNS else "",
            "mean variance error, %" if place % COLUMNS == 0 else "",
        )
        panel.set(xscale="log", yscale="log", xlim=(LEAST / 2, MOST), ylim=(LOW / 1.5, 1.5 * HIGH))
        panel.set_title(f"{TITLES[name]}, n = {size}", fontsize=8.5, color=INK, loc="left")
    for panel in panels[len(found) :]:
        panel.axis("off")
    _legend(panels[-1], view, {name for methods in found.values() for name in methods})
    return figure


def _draw_method(panel: Axes, method: Method, rungs: Mapping[str, Mapping[str, Any]]) -> None:
    points = sorted((rung["draws"], rung["mean"]) for rung in rungs.values() if rung["draws"] is not None)
    if not points:
        return
    x, y = zip(*((min(MOST, max(LEAST, draws)), min(HIGH, max(LOW, error))) for draws, error in points), strict=True)
    panel.plot(x, y, linewidth=0.7, zorder=2, **_style(method))


def _style(method: Method) -> dict[str, Any]:
    kind = kind_of(method)
    colour, stands_out = COLOURS[kind], kind in ("corrected", "both")
    is_hollow = method.settings["batches"] == "white" and kind == "uncorrected"
    return {
        "color": colour, "marker": MARKERS[method.settings["family"]], "markersize": 7 if stands_out else 4,
        "markerfacecolor": "white" if is_hollow else colour, "markeredgecolor": colour,
    }  # fmt: skip


def _legend(panel: Axes, view: View, shown: set[str]) -> None:
    handles = [
        Line2D([], [], linewidth=0.7, label=method.label, **_style(method))
        for method in view.experiment.methods
        if method.name in shown
    ]
    handles.append(Line2D([], [], color=INK, linewidth=0.8, linestyle=(0, (4, 3)), label="one draw per epoch"))
    panel.legend(handles=handles, loc="center", frameon=False, fontsize=7, labelcolor=INK, ncol=1)


def atlas_figure(view: View) -> Figure | None:
    """Draw the worst error of a variance of every sampler, step and batch size as a map, with the numbers in it."""
    found = parts(view)
    if not found:
        return None
    shown = [method for method in view.experiment.methods if any(method.name in methods for methods in found.values())]
    rows = -(-len(found) // MAP_COLUMNS)
    figure, panels = panel_grid(rows, MAP_COLUMNS, 1.9, 0.6 + 0.22 * len(shown))
    for panel in panels[len(found) :]:
        panel.axis("off")
    for place, (panel, ((name, size), methods)) in enumerate(zip(panels, found.items(), strict=False)):
        heights = [[_height(value) for _, value in _row(methods, method)] for method in shown]
        panel.imshow(heights, cmap="YlOrRd", vmin=0, vmax=3, aspect="auto")
        for y, method in enumerate(shown):
            for x, (text, value) in enumerate(_row(methods, method)):
                dark = value is not None and value > 100
                panel.text(x, y, text, ha="center", va="center", fontsize=5.5, color="white" if dark else INK)
        panel.set_yticks(range(len(shown)), [method.label for method in shown] if place % MAP_COLUMNS == 0 else [""] * len(shown))
        panel.set_xticks(range(len(RUNGS)), RUNGS)
        panel.tick_params(labelsize=6.5, length=0, colors=INK)
        panel.set_title(f"{TITLES[name].replace(' (exact laws)', '')}\nn = {size}", fontsize=6.5, color=INK)
    return figure


def _row(methods: Mapping[str, Mapping[str, Any]], method: Method) -> Iterator[tuple[str, float | None]]:
    """Yield the worst error of each rung, in words and as a number."""
    rungs = methods.get(method.name, {}).get("rungs", {})
    for name in RUNGS:
        rung = rungs.get(name) or (rungs.get("found") if name == "tuned" else None)
        if rung is None:
            yield "", None
        elif rung["worst"] is None:
            yield "unstable", math.inf
        else:
            by_law = rung.get("is_slow") and rung["law_worst"] is not None
            worst = rung["law_worst"] if by_law else rung["worst"]
            yield (f"{worst:.0f}" if worst < 1e4 else f"{worst:.0e}") + (" *" if by_law else ""), worst


def _height(value: float | None) -> float:
    return math.nan if value is None else 3.0 if math.isinf(value) else math.log10(max(1.0, value))
