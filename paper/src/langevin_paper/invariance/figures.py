"""The figures, from saved results only: small multiples, one panel per problem."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from langevin.diagnostics.panels import FAINT, INK, decorate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw_efficiency", "draw_integrator", "draw_law"]

# Colours say the form, strokes the bias (Okabe and Ito 2008: told apart with any colour vision).
COLOURS = {"published": "#D55E00", "corrected": "#E69F00", "annealed": "#CC79A7", "invariant": "#0072B2"}
STROKES: dict[str, Any] = {"MSGLD": "-", "ASGLD": (0, (4, 1.6)), "AdaMax": (0, (1, 1.2))}
MARKERS = {"MSGLD": "o", "ASGLD": "s", "AdaMax": "^"}
LOW, HIGH = 0.2, 500.0  # percent; errors below are drawn at the lower edge, those above leave the picture
TITLES = {
    "gaussian": "Gaussian, correlation 0.9", "mixture": "mixture of five", "banana": "banana",
    "wide": "50-D Gaussian, badly scaled", "logistic": "logistic, minibatches",
}  # fmt: skip


def draw_law(part: dict[str, Any], out: Path, *, factor: float | None) -> None:
    """Draw the error against the bias factor, or, with a `factor`, against the step size at that bias factor."""
    problems = list(dict.fromkeys(unit.split("/")[0] for unit in part))
    figure, panels, spare = _panels(len(problems))
    for panel, name in zip(panels, problems, strict=True):
        curves = {unit.split("/")[1]: found["points"] for unit, found in part.items() if unit.split("/")[0] == name}
        # The bias factor varies at the problem's step, which is the first point of every form.
        step = curves["SGLD"][0]["step"]
        for form, points in curves.items():
            if form == "SGLD":
                chosen = [point for point in points if factor is not None or point["step"] == step]
            else:
                chosen = [point for point in points if (point["step"] == step if factor is None else point["factor"] == factor)]
            chosen = sorted(chosen, key=lambda point: point["step"] if factor is not None else point["factor"])
            x = [point["step"] if factor is not None else point["factor"] for point in chosen]
            _curve(panel, form, x, chosen)
        decorate(panel, "", "")
        _log_axes(panel, (0.1, 1, 10) if factor is None else (0.01, 0.03, 0.1, 0.3, 1), TITLES[name])
    _outer_labels(panels, "bias factor a" if factor is None else "step size × curvature", "error of the variance, %")
    _law_legend(spare, factor)
    figure.savefig(out, dpi=150)


def _curve(panel: Axes, form: str, x: list[float], points: list[dict[str, Any]]) -> None:
    stable = [(at, max(LOW, 100 * point["error"])) for at, point in zip(x, points, strict=True) if point["error"] is not None]
    if form == "SGLD":
        if len(x) == 1 and points[0]["error"] is not None:
            panel.axhline(100 * points[0]["error"], color=INK, linewidth=0.9, zorder=1.5)
        elif len(x) > 1:
            panel.plot(*zip(*stable, strict=True), color=INK, linewidth=0.9, zorder=1.5)
        return
    family, kind = form.split()
    colour = COLOURS[kind] if family != "AdaMax" else "#009E73"
    if not stable:
        return
    panel.plot(
        *zip(*stable, strict=True), color=colour, linestyle=STROKES[family], marker=MARKERS[family], markersize=2.8, linewidth=1.3,
        zorder=3 if kind == "invariant" else 2,
    )  # fmt: skip
    if len(stable) < len(x):  # the last stable point of a curve that ends
        panel.plot(*stable[-1], marker="x", color=colour, markersize=7, markeredgewidth=1.4, zorder=4)
    if form == "MSGLD invariant":
        band = [(at, 200 * point["chance"]) for at, point in zip(x, points, strict=True) if point["chance"] is not None]
        places, heights = zip(*band, strict=True)
        panel.fill_between(places, 1e-9, heights, color=FAINT, linewidth=0, zorder=0)


def _law_legend(spare: Axes, factor: float | None) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    entries: list[Any] = [Line2D([], [], color=INK, linewidth=0.9, label="SGLD, no bias")]
    entries += [Line2D([], [], color=colour, label=kind, linewidth=2.4) for kind, colour in COLOURS.items()]
    entries += [
        Line2D([], [], color="#666666", linestyle=STROKES[f], marker=MARKERS[f], markersize=3, label=f) for f in ("MSGLD", "ASGLD")
    ]
    entries.append(
        Line2D([], [], color="#009E73", linestyle=STROKES["AdaMax"], marker="^", markersize=3, label="AdaMax, invariant")
    )
    entries.append(Patch(color=FAINT, label="chance (of MSGLD, invariant)"))
    entries.append(Line2D([], [], color="#666666", marker="x", linestyle="", label="unstable beyond"))
    if factor is not None:
        spare.set_title(f"bias factor a = {factor:g}", fontsize=9, color=INK, loc="left")
    spare.legend(handles=entries, loc="upper left", frameon=False, fontsize=8, labelcolor=INK, borderaxespad=0, handlelength=2.6)


def draw_integrator(part: dict[str, Any], out: Path) -> None:
    """Draw the error of E x^2 against the step size, one panel per setting; faint error bars of two standard errors."""
    figure, panels, _ = _panels(len(part), columns=3, spare=False)
    colours = {"SGLD": INK, "simple": "#D55E00", "BAOAB": "#0072B2"}
    for panel, (setting, found) in zip(panels, part.items(), strict=True):
        for form, colour in colours.items():
            points = [point for point in found["points"] if point["form"] == form]
            x, y = [point["step"] for point in points], [max(0.02, 100 * abs(point["bias"])) for point in points]
            panel.plot(x, y, color=colour, marker="o", markersize=3.5, linewidth=1.4, label=form)
            if form == "BAOAB":
                panel.fill_between(x, 1e-9, [200 * point["spread"] for point in points], color=FAINT, linewidth=0, zorder=0)
        decorate(panel, "", "")
        _log_axes(panel, x, setting.replace("beta", "β"), low=0.02)
    panels[0].legend(frameon=False, fontsize=8, labelcolor=INK, loc="upper left")
    _outer_labels(panels, "step size ε", "error of E x², %")
    figure.savefig(out, dpi=150)


def draw_efficiency(part: dict[str, Any], out: Path) -> None:
    """Draw independent draws per 1000 gradients: a dot for the median of the fresh seeds, a line from the least to the most."""
    problems = list(dict.fromkeys(unit.split("/")[0] for unit in part))
    methods = list(dict.fromkeys(unit.split("/")[1] for unit in part))
    figure, panels, spare = _panels(len(problems))
    for k, (panel, name) in enumerate(zip(panels, problems, strict=True)):
        for row, method in enumerate(reversed(methods)):
            found = part[f"{name}/{method}"]
            values = sorted(report["per_1000"] for report in found["reports"] if report["per_1000"] is not None)
            colour = "#0072B2" if "invariant" in method else "#666666"
            if values:
                is_off = found["pooled"] is None or found["pooled"]["excess"] > found["plan"]["bound"]
                panel.plot([values[0], values[-1]], [row, row], color=colour, linewidth=1.4)
                panel.plot(
                    values[len(values) // 2], row, "o", color="white" if is_off else colour, markeredgecolor=colour, markersize=6
                )
            else:
                panel.text(
                    0.03,
                    row,
                    "no setting near enough",
                    fontsize=7,
                    color=colour,
                    va="center",
                    transform=panel.get_yaxis_transform(),
                )
        decorate(panel, "", "")
        panel.set(xscale="log", xlim=(0.1, 300), ylim=(-0.6, len(methods) - 0.4), title=TITLES[name])
        panel.set_xticks([0.1, 1, 10, 100], ["0.1", "1", "10", "100"])
        panel.set_xticks([], minor=True)
        panel.title.set(fontsize=9, color=INK)
        labels = [method.replace(" invariant", " inv.") for method in reversed(methods)]
        panel.set_yticks(range(len(methods)), labels if k % 3 == 0 else [""] * len(methods))
        panel.grid(axis="y", color="#EEEEEE", linewidth=0.8)
        panel.set_axisbelow(True)
    _outer_labels(panels, "independent draws per 1000 gradients", "")
    if spare is not None:
        lines = (
            "dot: median of the fresh seeds",
            "line: least to most",
            "blue: invariant forms",
            "hollow: off by more than the bound,",
            "or unstable, on fresh seeds",
        )
        text = "\n".join(lines)
        spare.text(0, 1, text, va="top", fontsize=8, color=INK, linespacing=1.6, transform=spare.transAxes)
    figure.savefig(out, dpi=150)


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


def _panels(number: int, *, columns: int = 3, spare: bool = True) -> tuple[Figure, list[Axes], Any]:
    """Return a figure with a panel for each problem, and the place that is left over for the legend."""
    from matplotlib.figure import Figure

    rows = -(-(number + spare) // columns)
    figure = Figure(figsize=(8, 2.5 * rows + 0.3), layout="constrained")
    cells = list(figure.subplots(rows, columns, squeeze=False).flat)
    for cell in cells[number:]:
        cell.axis("off")
    return figure, cells[:number], cells[-1] if spare else None


def _outer_labels(panels: Iterable[Axes], xlabel: str, ylabel: str) -> None:
    """Label the axes at the rim only: all panels have the same."""
    for k, panel in enumerate(panels):
        panel.set_xlabel(xlabel, fontsize=8.5, color=INK)
        if k % 3 == 0:
            panel.set_ylabel(ylabel, fontsize=8.5, color=INK)
