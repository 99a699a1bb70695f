"""Plots of chains with Matplotlib: functions draw into axes and return them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from langevin.checks import check_integer, check_number, check_tensor, import_extra, needs
from langevin.diagnostics.arrays import check_samples, evaluate_fully, evenly_spaced
from langevin.diagnostics.convergence import autocorrelation
from langevin.targets import Target
from langevin.targets.base import check_target

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from langevin.storage import Samples

__all__ = [
    "FAINT",
    "INK",
    "PALETTE",
    "autocorrelation_plot",
    "check_elements",
    "colour_of",
    "decorate",
    "draw_chains",
    "finish",
    "line_style",
    "make_panel",
    "make_panels",
    "name_of",
    "pair",
    "range_of",
    "running_mean",
    "trace",
]


MAX_POINTS = 20_000  # points in a scatter
GOLDEN = 0.6180339887498949  # its multiples, modulo 1, spread evenly
GRID = 200  # points per axis of a density
REGIONS = (0.95, 0.8, 0.5)  # probability inside the contours


def trace(
    samples: Samples, *, elements: Sequence[int] | None = None, axes: Sequence[Axes] | None = None
) -> list[Axes]:
    """Plot each chain against the number of the draw; a cross marks where a chain stopped.

    The limits are those of the healthy chains: the cross of a chain that diverged is on the border.

    Args:
        samples: the result of `langevin.sample`.
        elements: elements of theta, one panel each; the first four by default.
        axes: where to draw, one for each element; new ones by default.

    Returns:
        The axes, one for each element.

    Example:
        >>> import langevin as lv
        >>> target, init = lv.targets.gaussian(torch.eye(2)), torch.zeros(4, 2)
        >>> samples = lv.sample(target, sampler=lv.sgld(0.1), init=init, num_steps=200)
        >>> axes = trace(samples)
        >>> len(axes), len(axes[0].lines)
        (2, 4)
        >>> import matplotlib.pyplot
        >>> matplotlib.pyplot.close(axes[0].figure)
    """
    names = check_elements("trace", samples, elements)
    panels = make_panels("trace", names, axes)
    for panel, element in zip(panels, names, strict=True):
        draw_chains(panel, samples, samples.draws[..., element])
        panel.set_ylabel(name_of(element))
    finish(panels, samples, "draw")
    return panels


def running_mean(
    samples: Samples,
    *,
    reference: Tensor | Sequence[float] | None = None,
    elements: Sequence[int] | None = None,
    axes: Sequence[Axes] | None = None,
) -> list[Axes]:
    r"""Plot the mean of each chain's first 1, 2, ... draws; the chains should converge.

    Args:
        samples: the result of `langevin.sample`.
        reference: the true mean, (dim,), drawn as a dashed line.
        elements: elements of theta, one panel each; the first four by default.
        axes: where to draw, one for each element; new ones by default.

    Returns:
        The axes, one for each element.

    Example:
        >>> import langevin as lv
        >>> target, init = lv.targets.gaussian(torch.eye(2)), torch.zeros(4, 2)
        >>> samples = lv.sample(target, sampler=lv.sgld(0.1), init=init, num_steps=200)
        >>> axes = running_mean(samples, reference=[0.0, 0.0], elements=[1])
        >>> axes[0].get_ylabel()
        'mean of $\\theta_{1}$'
        >>> import matplotlib.pyplot
        >>> matplotlib.pyplot.close(axes[0].figure)
    """
    names = check_elements("running_mean", samples, elements)
    true = None
    if reference is not None:
        true = check_tensor("running_mean", "reference", reference, *samples.draws.shape[2:])
    panels = make_panels("running_mean", names, axes)
    counts = torch.arange(1, samples.draws.shape[1] + 1, dtype=torch.float64)
    for panel, element in zip(panels, names, strict=True):
        if true is not None:
            style: dict[str, Any] = {"color": INK, "linewidth": 1.0, "linestyle": (0, (4, 3))}
            panel.axhline(float(true[element]), label="true mean", zorder=1, **style)
        means = samples.draws[..., element].double().cumsum(1) / counts
        draw_chains(panel, samples, means, first=1, width=1.2)
        panel.set_ylabel(f"mean of {name_of(element)}")
    finish(panels, samples, "draws")
    return panels


def autocorrelation_plot(
    samples: Samples,
    *,
    max_lag: int = 100,
    elements: Sequence[int] | None = None,
    axes: Sequence[Axes] | None = None,
) -> list[Axes]:
    """Plot the autocorrelation of each healthy chain against the lag.

    The band +- 1.96 / sqrt(draws) contains 95 percent of the values of independent draws.

    Args:
        samples: the result of `langevin.sample`.
        max_lag: the last lag.
        elements: elements of theta, one panel each; the first four by default.
        axes: where to draw, one for each element; new ones by default.

    Returns:
        The axes, one for each element.

    Example:
        >>> import langevin as lv
        >>> target, init = lv.targets.gaussian(torch.eye(2)), torch.zeros(4, 2)
        >>> samples = lv.sample(target, sampler=lv.sgld(0.1), init=init, num_steps=200)
        >>> axes = autocorrelation_plot(samples, max_lag=20, elements=[0])
        >>> axes[0].get_xlabel()
        'lag (draws)'
        >>> import matplotlib.pyplot
        >>> matplotlib.pyplot.close(axes[0].figure)
    """
    names = check_elements("autocorrelation_plot", samples, elements)
    healthy = [k for k, status in enumerate(samples.status) if status.is_healthy]
    if not healthy:
        found = "; ".join(map(str, samples.status))
        raise needs("autocorrelation_plot", "samples", "a healthy chain", found)
    values = autocorrelation(samples.healthy[..., names], max_lag)
    panels = make_panels("autocorrelation_plot", names, axes)
    band = 1.96 / samples.draws.shape[1] ** 0.5
    for panel, element, column in zip(panels, names, values.unbind(-1), strict=True):
        panel.axhspan(-band, band, color=FAINT, alpha=0.6, linewidth=0, zorder=0)
        panel.axhline(0.0, color=INK, linewidth=0.8, zorder=1)
        for k, chain in zip(healthy, column, strict=True):
            style = line_style(k, len(samples.status), 1.2)
            panel.plot(chain.numpy(), label=f"chain {samples.status[k].chain}", **style)
        panel.set_ylim(min(-0.1, 1.1 * float(column.nan_to_num(0.0).min())), 1.05)
        panel.set_ylabel(f"autocorr. of {name_of(element)}")
    finish(panels, samples, "lag (draws)")
    return panels


def pair(
    samples: Samples,
    target: Target | None = None,
    *,
    data: Sequence[Tensor] | Tensor | None = None,
    elements: tuple[int, int] = (0, 1),
    temperature: float = 1.0,
    axes: Axes | None = None,
) -> Axes:
    """Plot two elements against each other, with contours of a target in the plane.

    The contours contain 50, 80 and 95 percent of ``exp(-U / temperature)`` within the limits, and
    should contain these shares of the draws.

    Args:
        samples: the result of `langevin.sample`, including the draws of stopped chains.
        target: a target in the plane, for the contours.
        data: its data set, if it has one.
        elements: the elements on the horizontal and on the vertical axis.
        temperature: tau of the contours.
        axes: where to draw; new ones by default.

    Returns:
        The axes.

    Example:
        >>> import langevin as lv
        >>> target, init = lv.targets.mixture(), torch.zeros(4, 2)
        >>> samples = lv.sample(target, sampler=lv.sgld(0.05), init=init, num_steps=500)
        >>> axes = pair(samples, target)
        >>> import matplotlib.pyplot
        >>> matplotlib.pyplot.close(axes.figure)
    """
    names = check_elements("pair", samples, elements)
    if elements is None or len(names) != 2:
        raise needs("pair", "elements", "two elements", elements)
    first, second = names
    temperature = check_number("pair", "temperature", temperature, "> 0", lambda v: v > 0)
    if target is not None:
        check_target("pair", target, data)
        if samples.kept != "positions":
            what = "None if draws are the results of a function `keep`"
            raise needs("pair", "target", what, type(target).__name__)
        if samples.draws.shape[-1] != 2 or (first, second) != (0, 1):
            found = (tuple(samples.draws.shape), (first, second))
            raise needs("pair", "target", "draws of two elements, in their order", found)
    (panel,) = make_panels("pair", [first], None if axes is None else [axes], size=(4.6, 4.4))

    draws = samples.draws[..., [first, second]].detach().cpu().double()
    points = draws.flatten(0, 1)
    chain = torch.arange(len(draws)).repeat_interleave(draws.shape[1])
    shown = torch.isfinite(points).all(-1).nonzero()[:, 0]
    shown = shown[evenly_spaced(len(shown), MAX_POINTS)]
    order = np.argsort(np.arange(len(shown)) * GOLDEN % 1.0)  # so that no chain lies on top
    shown = shown[torch.from_numpy(order)]
    colours = [colour_of(k, len(draws)) for k in chain[shown].tolist()]
    alpha = float(np.clip(30 / max(len(shown), 1) ** 0.5, 0.12, 0.8))
    x, y = points[shown].unbind(-1)
    panel.scatter(x, y, s=7, c=colours, alpha=alpha, linewidths=0, rasterized=True, zorder=2)
    box = [range_of(samples, draws[..., axis]) for axis in (0, 1)]
    if target is not None:
        box = _contours(panel, target, data, temperature, box)
    panel.set_xlim(box[0])
    panel.set_ylim(box[1])
    decorate(panel, name_of(first), name_of(second))
    return panel


def _contours(
    panel: Axes,
    target: Target,
    data: Sequence[Tensor] | Tensor | None,
    temperature: float,
    box: list[tuple[float, float]],
) -> list[tuple[float, float]]:
    """Draw contours of highest-density regions; return the limits, widened by known moments."""
    from matplotlib.lines import Line2D

    if (moments := target.moments()) is not None:  # so that missed modes are visible
        mean, covariance = moments
        reach = 3 * (temperature * covariance.diagonal()) ** 0.5
        edges = zip((mean - reach).tolist(), (mean + reach).tolist(), strict=True)
        box = [
            (min(low, left), max(high, right))
            for (low, high), (left, right) in zip(box, edges, strict=True)
        ]
    x, y = (torch.linspace(low, high, GRID, dtype=torch.float64) for low, high in box)
    energy = evaluate_fully("pair", target, torch.cartesian_prod(x, y), data).energy
    density = (-(energy - energy.min()) / temperature).exp()
    ordered = density.sort(descending=True).values
    inside = ordered.cumsum(0) / ordered.sum()
    last = [min(int((inside < share).sum()), len(ordered) - 1) for share in REGIONS]
    levels = sorted({float(ordered[k]) for k in last})
    heights, widths = density.reshape(GRID, GRID).T.numpy(), (0.8, 1.0, 1.3)
    style: dict[str, Any] = {"colors": INK, "linewidths": widths, "zorder": 3}
    panel.contour(x.numpy(), y.numpy(), heights, levels=levels, **style)
    handle = Line2D([], [], color=INK, linewidth=1.0, label="target: 50, 80, 95 %")
    panel.legend(handles=[handle], **LEGEND)
    return box


PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
"""Colours for any colour vision (Okabe and Ito 2008, without yellow and black)."""
INK, FAINT, STOP = "#333333", "#D9D9D9", "#B2182B"
LEGEND: dict[str, Any] = {
    "loc": "lower right", "bbox_to_anchor": (1.0, 1.0), "frameon": False, "fontsize": 8,
    "labelcolor": INK,
}  # fmt: skip
MAX_PANELS = 4  # elements by default
MAX_LINE = 4000  # points in a line, evenly spaced: more than the pixels of a screen


def draw_chains(
    panel: Axes, samples: Samples, values: Tensor, first: int = 0, width: float = 0.8
) -> None:
    """Draw a line for each chain (chain, draw), and a cross where it stopped."""
    values = values.detach().cpu().double()
    at = evenly_spaced(values.shape[1], MAX_LINE)
    for k, status in enumerate(samples.status):
        style = line_style(k, len(samples.status), width)
        label = f"chain {status.chain}"
        panel.plot((at + first).numpy(), values[k, at].numpy(), label=label, **style)
    if all(status.is_healthy for status in samples.status):
        return
    low, high = range_of(samples, values)
    panel.set_ylim(low, high)
    ends = {
        k: status.draws - 1
        for k, status in enumerate(samples.status)
        if not status.is_healthy and status.draws > 0
    }
    heights = [min(max(float(values[k, last]), low), high) for k, last in ends.items()]
    numbers = [last + first for last in ends.values()]
    style = {"color": STOP, "markersize": 7, "markeredgewidth": 1.8, "zorder": 4}
    panel.plot(numbers, heights, "x", label="stopped", clip_on=False, **style)


def range_of(samples: Samples, values: Tensor) -> tuple[float, float]:
    """Return the limits of the healthy chains (chain, draw), or else of the middle 90 percent."""
    healthy = [k for k, status in enumerate(samples.status) if status.is_healthy]
    pool = values[healthy] if healthy else values
    pool = pool[torch.isfinite(pool)]
    if len(pool) == 0:
        return 0.0, 1.0
    low, high = np.quantile(pool.numpy(), (0.0, 1.0) if healthy else (0.05, 0.95))
    margin = 0.06 * (high - low) or 0.5
    return float(low - margin), float(high + margin)


def line_style(chain: int, num_chains: int, width: float) -> dict[str, Any]:
    """Return the style of a chain's line, which is faint for many chains."""
    few = num_chains <= len(PALETTE)
    alpha = 0.85 if few else max(0.08, 0.85 * len(PALETTE) / num_chains)
    return {
        "color": colour_of(chain, num_chains),
        "linewidth": width,
        "alpha": alpha,
        "solid_joinstyle": "round",
        "zorder": 2,
    }


def colour_of(chain: int, num_chains: int) -> str:
    """Return a colour for each of few chains, or one for all of many."""
    return PALETTE[chain] if num_chains <= len(PALETTE) else PALETTE[0]


def name_of(element: int) -> str:
    """Return the element's name for a label."""
    return rf"$\theta_{{{element}}}$"


def check_elements(who: str, samples: Any, elements: Sequence[int] | None) -> list[int]:
    """Return the elements to draw."""
    dim = check_samples(who, samples).draws.shape[-1]
    if samples.draws.shape[1] == 0:
        raise needs(who, "samples", "at least one draw", tuple(samples.draws.shape))
    if not (elements is None or isinstance(elements, Sequence)):
        raise needs(who, "elements", "a sequence of ints", elements, TypeError)
    names = list(range(min(dim, MAX_PANELS))) if elements is None else list(elements)
    if not names:
        raise needs(who, "elements", "at least one element", elements)
    for element in names:
        if check_integer(who, "elements", element, 0) >= dim:
            raise needs(who, "elements", f"elements below dim = {dim}", element)
    return names


def make_panels(
    who: str, names: list[int], axes: Sequence[Axes] | None, size: tuple[float, float] | None = None
) -> list[Axes]:
    """Return `axes` as a list with one per element, or new axes below each other."""
    if axes is not None:
        from matplotlib.axes import Axes

        is_array = isinstance(axes, np.ndarray) and axes.ndim == 1
        panels = list(axes) if isinstance(axes, Sequence) or is_array else [axes]
        if not all(isinstance(panel, Axes) for panel in panels):
            raise needs(who, "axes", "axes of Matplotlib, one for each element", axes, TypeError)
        if len(panels) != len(names):
            raise needs(who, "axes", f"{len(names)} axes, one for each element", len(panels))
        return panels
    plt = import_extra(f"{who}()", "matplotlib.pyplot", "plots")
    height = 2.6 if len(names) == 1 else 1.7 * len(names) + 0.5
    figure: dict[str, Any] = {"figsize": size or (7.0, height), "layout": "constrained"}
    _, grid = plt.subplots(len(names), 1, sharex=True, squeeze=False, **figure)
    return list(grid[:, 0])


def make_panel(who: str, axes: Axes | None, size: tuple[float, float]) -> Axes:
    """Return `axes`, or new ones of this size."""
    return make_panels(who, [0], None if axes is None else [axes], size)[0]


def finish(panels: list[Axes], samples: Samples, xlabel: str) -> None:
    """Label the axes, with a legend of few chains on the first one."""
    for panel in panels:
        own = panel is panels[-1] or panel.get_shared_x_axes().get_siblings(panel) == [panel]
        decorate(panel, xlabel if own else "", panel.get_ylabel())
        panel.margins(x=0.01)
    handles, labels = panels[0].get_legend_handles_labels()
    entries = dict(zip(labels, handles, strict=True))
    of_chains = {label: entries[label] for label in labels if label.startswith("chain ")}
    others = {label: entries[label] for label in labels if label not in of_chains}
    chosen = others if len(samples.status) > len(PALETTE) else {**of_chains, **others}
    if len(samples.status) > 1 and chosen:
        spacing = {"handlelength": 1.2, "columnspacing": 1.2, "borderaxespad": 0.2}
        style = {"ncols": len(chosen), **spacing, **LEGEND}
        panels[0].legend(chosen.values(), chosen.keys(), **style)


def decorate(panel: Axes, xlabel: str, ylabel: str) -> None:
    """Label the axes and remove the top and right spines."""
    panel.set_xlabel(xlabel, color=INK)
    panel.set_ylabel(ylabel, color=INK)
    panel.spines[["top", "right"]].set_visible(False)
    panel.spines[["left", "bottom"]].set_color("#999999")
    panel.tick_params(colors=INK, labelsize=8, length=3, color="#999999")
