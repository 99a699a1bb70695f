"""Pictures of chains, by Matplotlib: functions that draw into axes and hand them back. Nothing is shown or saved for you."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from langevin.checks import check_number, check_tensor, needs
from langevin.diagnostics.arrays import evaluate_fully
from langevin.diagnostics.convergence import autocorrelation
from langevin.diagnostics.panels import (
    FAINT,
    INK,
    check_elements,
    colour_of,
    decorate,
    draw_chains,
    finish,
    line_style,
    make_panels,
    name_of,
    range_of,
)
from langevin.store import Samples
from langevin.targets import Target
from langevin.targets.base import check_target
from langevin.trust import evenly_spaced

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["autocorrelation_plot", "pair", "running_mean", "trace"]

MAX_POINTS = 20_000  # points in a scatter
GOLDEN = 0.6180339887498949  # its multiples, modulo 1, spread evenly
GRID = 200  # points per axis of a density
REGIONS = (0.95, 0.8, 0.5)  # probability inside the contours


def trace(samples: Samples, *, elements: Sequence[int] | None = None, axes: Sequence[Axes] | None = None) -> list[Axes]:
    """Draw each chain's path against the number of the draw; a cross marks where a chain stopped.

    The scale is that of the healthy chains: a chain that blows up leaves the picture, with its cross on the border.

    Args:
        samples: the result of `langevin.sample`.
        elements: elements of theta, one panel each; the first four by default.
        axes: where to draw, one for each element; new ones by default.

    Returns:
        The axes, one for each element.

    Example:
        >>> import langevin as lv
        >>> samples = lv.sample(lv.sgld(0.1), lv.targets.gaussian(torch.eye(2)), torch.zeros(4, 2), num_steps=200)
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
    r"""Draw the mean of each chain's first 1, 2, ... draws, which should settle at one value for all chains.

    Args:
        samples: the result of `langevin.sample`.
        reference: the true mean, (dim,), drawn as a dashed line.
        elements: elements of theta, one panel each; the first four by default.
        axes: where to draw, one for each element; new ones by default.

    Returns:
        The axes, one for each element.

    Example:
        >>> import langevin as lv
        >>> samples = lv.sample(lv.sgld(0.1), lv.targets.gaussian(torch.eye(2)), torch.zeros(4, 2), num_steps=200)
        >>> axes = running_mean(samples, reference=[0.0, 0.0], elements=[1])
        >>> axes[0].get_ylabel()
        'mean of $\\theta_{1}$'
        >>> import matplotlib.pyplot
        >>> matplotlib.pyplot.close(axes[0].figure)
    """
    names = check_elements("running_mean", samples, elements)
    true = None if reference is None else check_tensor("running_mean", "reference", reference, *samples.draws.shape[2:])
    panels = make_panels("running_mean", names, axes)
    counts = torch.arange(1, samples.draws.shape[1] + 1, dtype=torch.float64)
    for panel, element in zip(panels, names, strict=True):
        if true is not None:
            panel.axhline(float(true[element]), color=INK, linewidth=1.0, linestyle=(0, (4, 3)), label="true mean", zorder=1)
        draw_chains(panel, samples, samples.draws[..., element].double().cumsum(1) / counts, first=1, width=1.2)
        panel.set_ylabel(f"mean of {name_of(element)}")
    finish(panels, samples, "draws")
    return panels


def autocorrelation_plot(
    samples: Samples, *, max_lag: int = 100, elements: Sequence[int] | None = None, axes: Sequence[Axes] | None = None
) -> list[Axes]:
    """Draw the autocorrelation of each healthy chain against the lag, with the band that independent draws would stay in.

    The band is +- 1.96 / sqrt(draws), where 95 percent of the values of independent draws lie.

    Args:
        samples: the result of `langevin.sample`.
        max_lag: the last lag.
        elements: elements of theta, one panel each; the first four by default.
        axes: where to draw, one for each element; new ones by default.

    Returns:
        The axes, one for each element.

    Example:
        >>> import langevin as lv
        >>> samples = lv.sample(lv.sgld(0.1), lv.targets.gaussian(torch.eye(2)), torch.zeros(4, 2), num_steps=200)
        >>> axes = autocorrelation_plot(samples, max_lag=20, elements=[0])
        >>> axes[0].get_xlabel()
        'lag (draws)'
        >>> import matplotlib.pyplot
        >>> matplotlib.pyplot.close(axes[0].figure)
    """
    names = check_elements("autocorrelation_plot", samples, elements)
    healthy = [k for k, status in enumerate(samples.status) if status.is_healthy]
    if not healthy:
        raise needs("autocorrelation_plot", "samples", "a healthy chain", "; ".join(map(str, samples.status)))
    values = autocorrelation(samples.healthy[..., names], max_lag)
    panels = make_panels("autocorrelation_plot", names, axes)
    band = 1.96 / samples.draws.shape[1] ** 0.5
    for panel, element, column in zip(panels, names, values.unbind(-1), strict=True):
        panel.axhspan(-band, band, color=FAINT, alpha=0.6, linewidth=0, zorder=0)
        panel.axhline(0.0, color=INK, linewidth=0.8, zorder=1)
        for k, chain in zip(healthy, column, strict=True):
            panel.plot(chain.numpy(), label=f"chain {samples.status[k].chain}", **line_style(k, len(samples.status), 1.2))
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
    """Draw two elements against each other, over the target's density when theta has just these two.

    The contours hold 50, 80 and 95 percent of ``exp(-U / temperature)`` in the picture: so much of the draws should lie in them.

    Args:
        samples: the result of `langevin.sample`; the draws that stopped chains kept are shown too.
        target: a target in the plane, for the contours.
        data: its data set, if it has one.
        elements: the elements on the horizontal and on the vertical axis.
        temperature: tau of the contours.
        axes: where to draw; new ones by default.

    Returns:
        The axes.

    Example:
        >>> import langevin as lv
        >>> target = lv.targets.mixture()
        >>> samples = lv.sample(lv.sgld(0.05), target, torch.zeros(4, 2), num_steps=500)
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
            raise needs("pair", "target", "None where draws are what a function `keep` made of positions", type(target).__name__)
        if samples.draws.shape[-1] != 2 or (first, second) != (0, 1):
            raise needs("pair", "target", "draws of two elements, in their order", (tuple(samples.draws.shape), (first, second)))
    (panel,) = make_panels("pair", [first], None if axes is None else [axes], size=(4.6, 4.4))

    draws = samples.draws[..., [first, second]].detach().cpu().double()
    points = draws.flatten(0, 1)
    chain = torch.arange(len(draws)).repeat_interleave(draws.shape[1])
    shown = torch.isfinite(points).all(-1).nonzero()[:, 0]
    shown = shown[evenly_spaced(len(shown), MAX_POINTS)]
    shown = shown[torch.from_numpy(np.argsort(np.arange(len(shown)) * GOLDEN % 1.0))]  # so that no chain lies on top
    colours = [colour_of(k, len(draws)) for k in chain[shown].tolist()]
    alpha = float(np.clip(30 / max(len(shown), 1) ** 0.5, 0.12, 0.8))
    panel.scatter(points[shown, 0], points[shown, 1], s=7, c=colours, alpha=alpha, linewidths=0, rasterized=True, zorder=2)
    box = [range_of(samples, draws[..., axis]) for axis in (0, 1)]
    if target is not None:
        box = _contours(panel, target, data, temperature, box)
    panel.set_xlim(box[0])
    panel.set_ylim(box[1])
    decorate(panel, name_of(first), name_of(second))
    return panel


def _contours(
    panel: Axes, target: Target, data: Sequence[Tensor] | Tensor | None, temperature: float, box: list[tuple[float, float]]
) -> list[tuple[float, float]]:
    """Draw the borders of the highest-density regions; return the box, widened to hold a target whose moments are known."""
    from matplotlib.lines import Line2D

    if (moments := target.moments()) is not None:  # draws that miss a mode should be seen to miss it
        mean, covariance = moments
        reach = 3 * (temperature * covariance.diagonal()) ** 0.5
        edges = zip((mean - reach).tolist(), (mean + reach).tolist(), strict=True)
        box = [(min(low, left), max(high, right)) for (low, high), (left, right) in zip(box, edges, strict=True)]
    x, y = (torch.linspace(low, high, GRID, dtype=torch.float64) for low, high in box)
    energy = evaluate_fully("pair", target, torch.cartesian_prod(x, y), data).energy
    density = (-(energy - energy.min()) / temperature).exp()
    ordered = density.sort(descending=True).values
    inside = ordered.cumsum(0) / ordered.sum()
    levels = sorted({float(ordered[min(int((inside < share).sum()), len(ordered) - 1)]) for share in REGIONS})
    panel.contour(
        x.numpy(), y.numpy(), density.reshape(GRID, GRID).T.numpy(), levels=levels, colors=INK, linewidths=(0.8, 1.0, 1.3), zorder=3
    )
    handle = Line2D([], [], color=INK, linewidth=1.0, label="target: 50, 80, 95 %")
    panel.legend(handles=[handle], loc="lower right", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=8, labelcolor=INK)
    return box
