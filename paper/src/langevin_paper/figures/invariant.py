"""The study of the invariant forms: small multiples, one panel per problem."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import median
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from langevin.diagnostics.plots import FAINT, INK, decorate
from langevin_paper.experiments.invariant.problems import TITLES
from langevin_paper.figures.base import View, panel_grid, put_legend

__all__ = ["efficiency_figure", "factor_figure", "integrator_figure", "step_figure"]

# Colours say the form, strokes the bias (Okabe and Ito 2008: told apart with any colour vision).
COLOURS = {"published": "#D55E00", "corrected": "#E69F00", "annealed": "#CC79A7", "invariant": "#0072B2"}
ADAMAX = "#009E73"
STROKES: dict[str, Any] = {"MSGLD": "-", "ASGLD": (0, (4, 1.6)), "AdaMax": (0, (1, 1.2))}
MARKERS = {"MSGLD": "o", "ASGLD": "s", "AdaMax": "^"}
LOW, HIGH = 0.2, 500.0  # percent; errors below are drawn at the lower edge, those above leave the picture
Points = Mapping[str, Mapping[str, Any]]  # by bias factor or step size


def factor_figure(view: View) -> Figure | None:
    """Draw the error against the bias factor."""
    return _law_figure(view, None)


def step_figure(view: View) -> Figure | None:
    """Draw the error against the step size, at bias factor 10."""
    return _law_figure(view, "10")


def _law_figure(view: View, factor: str | None) -> Figure | None:
    found = view.by_label()
    if not found:
        return None
    figure, panels, spare = _panels(problems := _problems(found))
    for panel, name in zip(panels, problems, strict=True):
        for label, (results, *_) in found.items():
            own = results[name]
            _draw_curve(panel, label, own["factors"] if factor is None else own["steps"][factor], is_flat=factor is None)
        decorate(panel, "", "")
        _log_axes(panel, (0.1, 1, 10) if factor is None else (0.01, 0.03, 0.1, 0.3, 1), TITLES[name])
    _outer_labels(panels, "bias factor a" if factor is None else "step size × curvature", "error of the variance, %")
    _law_legend(spare)
    return figure


def _draw_curve(panel: Axes, label: str, points: Points, *, is_flat: bool) -> None:
    stable = [(float(at), max(LOW, point["error"])) for at, point in points.items() if point["error"] is not None]
    if not stable:
        return
    if label == "SGLD":
        if is_flat:
            panel.axhline(stable[0][1], color=INK, linewidth=0.9, zorder=1.5)
        else:
            panel.plot(*zip(*stable, strict=True), color=INK, linewidth=0.9, zorder=1.5)
        return
    family, kind = label.split()
    colour = ADAMAX if family == "AdaMax" else COLOURS[kind]
    panel.plot(
        *zip(*stable, strict=True), color=colour, linestyle=STROKES[family], marker=MARKERS[family], markersize=2.8, linewidth=1.3,
        zorder=3 if kind == "invariant" else 2,
    )  # fmt: skip
    if len(stable) < len(points):  # the last stable point of a curve that ends
        panel.plot(*stable[-1], marker="x", color=colour, markersize=7, markeredgewidth=1.4, zorder=4)
    if label == "MSGLD invariant":
        band = [(float(at), 2 * point["chance"]) for at, point in points.items() if point["chance"] is not None]
        places, heights = zip(*band, strict=True)
        panel.fill_between(places, 1e-9, heights, color=FAINT, linewidth=0, zorder=0)


def _law_legend(spare: Axes) -> None:
    entries: list[Any] = [Line2D([], [], color=INK, linewidth=0.9, label="SGLD, no bias")]
    entries += [Line2D([], [], color=colour, label=kind, linewidth=2.4) for kind, colour in COLOURS.items()]
    for family, colour, label in (
        ("MSGLD", "#666666", "MSGLD"),
        ("ASGLD", "#666666", "ASGLD"),
        ("AdaMax", ADAMAX, "AdaMax, invariant"),
    ):
        entries.append(Line2D([], [], color=colour, linestyle=STROKES[family], marker=MARKERS[family], markersize=3, label=label))
    entries.append(Patch(color=FAINT, label="twice chance (of MSGLD, invariant)"))
    entries.append(Line2D([], [], color="#666666", marker="x", linestyle="", label="unstable beyond"))
    spare.legend(handles=entries, loc="upper left", frameon=False, fontsize=8, labelcolor=INK, borderaxespad=0, handlelength=2.6)


def integrator_figure(view: View) -> Figure | None:
    """Draw the error of E x^2 against the step size, one panel per bias factor and beta; the band is two standard errors."""
    found = {label: results[0]["steps"] for label, results in view.by_label().items()}
    settings = [label.removeprefix("BAOAB, ") for label in found if label.startswith("BAOAB")]
    if not settings:
        return None
    figure, panels = panel_grid(1, len(settings), 2.7, 2.8)
    for panel, setting in zip(panels, settings, strict=True):
        lines = {"SGLD": ("SGLD", INK), "simple": (f"simple, {setting}", "#D55E00"), "BAOAB": (f"BAOAB, {setting}", "#0072B2")}
        for name, (label, colour) in lines.items():
            points = found.get(label, {})
            x = [float(step) for step in points]
            y = [max(0.02, abs(point["error"])) for point in points.values()]
            panel.plot(x, y, color=colour, marker="o", markersize=3.5, linewidth=1.4, label=name)
            if name == "BAOAB":
                panel.fill_between(x, 1e-9, [2 * point["spread"] for point in points.values()], color=FAINT, linewidth=0, zorder=0)
        decorate(panel, "", "")
        _log_axes(panel, x, setting, low=0.02)
    put_legend(panels[0], loc="upper left")
    _outer_labels(panels, "step size ε", "error of E x², %")
    return figure


def efficiency_figure(view: View) -> Figure | None:
    """Draw independent draws per 1000 gradients: a dot for the median of the fresh seeds, a line from the least to the most."""
    found = view.by_label()
    if not found:
        return None
    bound = view.records[0].settings["scale"]["bound"]
    figure, panels, _ = _panels(problems := _problems(found))
    labels = list(reversed(found))
    for k, (panel, name) in enumerate(zip(panels, problems, strict=True)):
        for row, label in enumerate(labels):
            _draw_range(panel, row, label, [results[name] for results in found[label]], bound)
        decorate(panel, "", "")
        panel.set(xscale="log", xlim=(0.1, 300), ylim=(-0.6, len(labels) - 0.4), title=TITLES[name])
        panel.set_xticks([0.1, 1, 10, 100], ["0.1", "1", "10", "100"])
        panel.set_xticks([], minor=True)
        panel.title.set(fontsize=9, color=INK)
        panel.set_yticks(range(len(labels)), [label.replace(" invariant", " inv.") if k % 3 == 0 else "" for label in labels])
        panel.grid(axis="y", color="#EEEEEE", linewidth=0.8)
        panel.set_axisbelow(True)
    _outer_labels(panels, "independent draws per 1000 gradients", "")
    return figure


def _draw_range(panel: Axes, row: int, label: str, reports: list[Mapping[str, Any]], bound: float) -> None:
    values = [report["per_1000"] for report in reports if report.get("per_1000") is not None]
    colour = "#0072B2" if "invariant" in label else "#666666"
    if not values:
        place = panel.get_yaxis_transform()
        panel.text(0.03, row, "no setting near enough", fontsize=7, color=colour, va="center", transform=place)
        return
    pooled = reports[0]["pooled"]
    is_off = pooled is None or pooled["excess"] > bound
    panel.plot([min(values), max(values)], [row, row], color=colour, linewidth=1.4)
    panel.plot(median(values), row, "o", color="white" if is_off else colour, markeredgecolor=colour, markersize=6)


def _problems(found: Mapping[str, list[Mapping[str, Any]]]) -> list[str]:
    return [name for name in TITLES if all(name in results[0] for results in found.values())]


def _log_axes(panel: Axes, ticks: Iterable[float], title: str, low: float = LOW) -> None:
    """Set logarithmic axes with plain numbers on them."""
    panel.set(xscale="log", yscale="log", ylim=(0.9 * low, HIGH))
    panel.set_title(title, fontsize=9, color=INK)
    first, last = panel.get_xlim()
    shown = [tick for tick in ticks if first <= tick <= last]
    panel.set_xticks(shown, [f"{tick:g}" for tick in shown])
    panel.set_xticks([], minor=True)
    heights = [height for height in (0.1, 1, 10, 100) if height >= low]
    panel.set_yticks(heights, [f"{height:g}" for height in heights])
    panel.set_yticks([], minor=True)


def _panels(problems: list[str]) -> tuple[Figure, list[Axes], Axes]:
    """Return a figure with a panel for each problem, and the place that is left over for the legend."""
    rows = -(-(len(problems) + 1) // 3)
    figure, cells = panel_grid(rows, 3, 2.7, 2.6)
    for cell in cells[len(problems) :]:
        cell.axis("off")
    return figure, cells[: len(problems)], cells[-1]


def _outer_labels(panels: Iterable[Axes], xlabel: str, ylabel: str) -> None:
    """Label the axes at the rim only: all panels have the same."""
    for k, panel in enumerate(panels):
        panel.set_xlabel(xlabel, fontsize=8.5, color=INK)
        if k % 3 == 0:
            panel.set_ylabel(ylabel, fontsize=8.5, color=INK)
