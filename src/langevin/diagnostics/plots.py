"""Pictures of chains, by Matplotlib: functions that draw into axes and hand them back. Nothing is shown or saved for you."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from langevin.checks import check_integer, check_number, needs
from langevin.diagnostics.arrays import check_samples, check_target, evaluate_fully, evenly_spaced
from langevin.diagnostics.convergence import autocorrelation
from langevin.store import Samples
from langevin.targets import Gaussian, Mixture, Target

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["autocorrelation_plot", "pair", "running_mean", "trace"]

PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
"""Colours that people with any colour vision can tell apart (Okabe and Ito 2008, without yellow and black)."""
INK, FAINT, STOP = "#333333", "#D9D9D9", "#B2182B"
MAX_PANELS = 4  # elements drawn when none are named
MAX_LINE = 4000  # points in a line, evenly spaced: more than a screen has pixels
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
    names = _check_elements("trace", samples, elements)
    panels = _panels("trace", names, axes)
    for panel, element in zip(panels, names, strict=True):
        _draw_chains(panel, samples, samples.draws[..., element])
        panel.set_ylabel(_label(element))
    _finish(panels, samples, "draw")
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
    names = _check_elements("running_mean", samples, elements)
    true = None if reference is None else torch.as_tensor(reference, dtype=torch.float64)
    if true is not None and true.shape != samples.draws.shape[2:]:
        raise needs("running_mean", "reference", f"shape {tuple(samples.draws.shape[2:])}", tuple(true.shape))
    panels = _panels("running_mean", names, axes)
    counts = torch.arange(1, samples.draws.shape[1] + 1, dtype=torch.float64)
    for panel, element in zip(panels, names, strict=True):
        if true is not None:
            panel.axhline(float(true[element]), color=INK, linewidth=1.0, linestyle=(0, (4, 3)), label="true mean", zorder=1)
        _draw_chains(panel, samples, samples.draws[..., element].double().cumsum(1) / counts, first=1, width=1.2)
        panel.set_ylabel(f"mean of {_label(element)}")
    _finish(panels, samples, "draws")
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
    names = _check_elements("autocorrelation_plot", samples, elements)
    healthy = [k for k, status in enumerate(samples.status) if status.is_healthy]
    if not healthy:
        raise needs("autocorrelation_plot", "samples", "a healthy chain", "; ".join(map(str, samples.status)))
    values = autocorrelation(samples.healthy[..., names], max_lag)
    panels = _panels("autocorrelation_plot", names, axes)
    band = 1.96 / samples.draws.shape[1] ** 0.5
    for panel, element, column in zip(panels, names, values.unbind(-1), strict=True):
        panel.axhspan(-band, band, color=FAINT, alpha=0.6, linewidth=0, zorder=0)
        panel.axhline(0.0, color=INK, linewidth=0.8, zorder=1)
        for k, chain in zip(healthy, column, strict=True):
            panel.plot(chain.numpy(), label=f"chain {samples.status[k].chain}", **_line(k, len(samples.status), 1.2))
        panel.set_ylim(min(-0.1, 1.1 * float(column.nan_to_num(0.0).min())), 1.05)
        panel.set_ylabel(f"autocorr. of {_label(element)}")
    _finish(panels, samples, "lag (draws)")
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
    if len(elements) != 2:
        raise needs("pair", "elements", "two elements", elements)
    first, second = _check_elements("pair", samples, elements)
    check_number("pair", "temperature", temperature, "> 0", lambda v: v > 0)
    if target is not None:
        check_target("pair", target, data)
        if samples.draws.shape[-1] != 2 or (first, second) != (0, 1):
            raise needs("pair", "target", "draws of two elements, in their order", (tuple(samples.draws.shape), (first, second)))
    (panel,) = _panels("pair", [first], None if axes is None else [axes], size=(4.6, 4.4))

    draws = samples.draws[..., [first, second]].detach().cpu().double()
    points = draws.flatten(0, 1)
    chain = torch.arange(len(draws)).repeat_interleave(draws.shape[1])
    shown = torch.isfinite(points).all(-1).nonzero()[:, 0]
    shown = shown[evenly_spaced(len(shown), MAX_POINTS)]
    shown = shown[torch.from_numpy(np.argsort(np.arange(len(shown)) * GOLDEN % 1.0))]  # so that no chain lies on top
    colours = [_colour(k, len(draws)) for k in chain[shown].tolist()]
    alpha = float(np.clip(30 / max(len(shown), 1) ** 0.5, 0.12, 0.8))
    panel.scatter(points[shown, 0], points[shown, 1], s=7, c=colours, alpha=alpha, linewidths=0, rasterized=True, zorder=2)
    box = [_limits(samples, draws[..., axis]) for axis in (0, 1)]
    if target is not None:
        box = _contours(panel, target, data, temperature, box)
    panel.set_xlim(box[0])
    panel.set_ylim(box[1])
    _decorate(panel, _label(first), _label(second))
    return panel


def _contours(
    panel: Axes, target: Target, data: Sequence[Tensor] | Tensor | None, temperature: float, box: list[tuple[float, float]]
) -> list[tuple[float, float]]:
    """Draw the borders of the highest-density regions; return the box, widened to hold a target whose moments are known."""
    from matplotlib.lines import Line2D

    if isinstance(target, (Gaussian, Mixture)):  # draws that miss a mode should be seen to miss it
        reach = 3 * (temperature * target.covariance.diagonal()) ** 0.5
        edges = zip((target.mean - reach).tolist(), (target.mean + reach).tolist(), strict=True)
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


def _draw_chains(panel: Axes, samples: Samples, values: Tensor, first: int = 0, width: float = 0.8) -> None:
    """Draw a line for each chain, (chain, draw), at most `MAX_LINE` points of it, and a cross where it stopped."""
    values = values.detach().cpu().double()
    at = evenly_spaced(values.shape[1], MAX_LINE)
    for k, status in enumerate(samples.status):
        style = _line(k, len(samples.status), width)
        panel.plot((at + first).numpy(), values[k, at].numpy(), label=f"chain {status.chain}", **style)
    if all(status.is_healthy for status in samples.status):
        return
    low, high = _limits(samples, values)
    panel.set_ylim(low, high)
    ends = [(k, status.draws - 1) for k, status in enumerate(samples.status) if not status.is_healthy and status.draws > 0]
    heights = [min(max(float(values[k, last]), low), high) for k, last in ends]
    numbers = [last + first for _, last in ends]
    panel.plot(numbers, heights, "x", color=STOP, markersize=7, markeredgewidth=1.8, label="stopped", zorder=4, clip_on=False)


def _limits(samples: Samples, values: Tensor) -> tuple[float, float]:
    """Return the range of the healthy chains, (chain, draw), a little widened; without any, that of the middle 90 percent."""
    healthy = [k for k, status in enumerate(samples.status) if status.is_healthy]
    pool = values[healthy] if healthy else values
    pool = pool[torch.isfinite(pool)]
    if len(pool) == 0:
        return 0.0, 1.0
    low, high = np.quantile(pool.numpy(), (0.0, 1.0) if healthy else (0.05, 0.95))
    margin = 0.06 * (high - low) or 0.5
    return float(low - margin), float(high + margin)


def _line(chain: int, num_chains: int, width: float) -> dict[str, Any]:
    few = num_chains <= len(PALETTE)
    alpha = 0.85 if few else max(0.08, 0.85 * len(PALETTE) / num_chains)
    return {"color": _colour(chain, num_chains), "linewidth": width, "alpha": alpha, "solid_joinstyle": "round", "zorder": 2}


def _colour(chain: int, num_chains: int) -> str:
    """A colour for each of few chains; one for all of many, which nobody could tell apart."""
    return PALETTE[chain] if num_chains <= len(PALETTE) else PALETTE[0]


def _label(element: int) -> str:
    return rf"$\theta_{{{element}}}$"


def _check_elements(who: str, samples: Any, elements: Sequence[int] | None) -> list[int]:
    """Return the elements to draw."""
    dim = check_samples(who, samples).draws.shape[-1]
    if samples.draws.shape[1] == 0:
        raise needs(who, "samples", "at least one draw", tuple(samples.draws.shape))
    names = list(range(min(dim, MAX_PANELS))) if elements is None else list(elements)
    if not names:
        raise needs(who, "elements", "at least one element", elements)
    for element in names:
        if check_integer(who, "elements", element, 0) >= dim:
            raise needs(who, "elements", f"elements below dim = {dim}", element)
    return names


def _panels(who: str, names: list[int], axes: Sequence[Axes] | None, size: tuple[float, float] | None = None) -> list[Axes]:
    """Return one axes for each element, new ones below each other when none are given."""
    if axes is not None:
        panels = list(axes)
        if len(panels) != len(names):
            raise needs(who, "axes", f"{len(names)} axes, one for each element", len(panels))
        return panels
    import matplotlib.pyplot as plt

    height = 2.6 if len(names) == 1 else 1.7 * len(names) + 0.5
    _, grid = plt.subplots(len(names), 1, sharex=True, squeeze=False, figsize=size or (7.0, height), layout="constrained")
    return list(grid[:, 0])


def _finish(panels: list[Axes], samples: Samples, xlabel: str) -> None:
    """Label the axes, and say once which line is which when there are few."""
    for panel in panels:
        own = panel is panels[-1] or panel.get_shared_x_axes().get_siblings(panel) == [panel]
        _decorate(panel, xlabel if own else "", panel.get_ylabel())
        panel.margins(x=0.01)
    handles, labels = panels[0].get_legend_handles_labels()
    chosen = dict(sorted(zip(labels, handles, strict=True), key=lambda entry: not entry[0].startswith("chain ")))
    if len(samples.status) > len(PALETTE):
        chosen = {label: handle for label, handle in chosen.items() if not label.startswith("chain ")}
    if len(samples.status) > 1 and chosen:
        panels[0].legend(
            chosen.values(),
            chosen.keys(),
            loc="lower right",
            bbox_to_anchor=(1.0, 1.0),
            ncols=len(chosen),
            frameon=False,
            fontsize=8,
            handlelength=1.2,
            columnspacing=1.2,
            borderaxespad=0.2,
            labelcolor=INK,
        )


def _decorate(panel: Axes, xlabel: str, ylabel: str) -> None:
    panel.set_xlabel(xlabel, color=INK)
    panel.set_ylabel(ylabel, color=INK)
    panel.spines[["top", "right"]].set_visible(False)
    panel.spines[["left", "bottom"]].set_color("#999999")
    panel.tick_params(colors=INK, labelsize=8, length=3, color="#999999")
