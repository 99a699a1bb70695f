"""What the plots share: panels, one line for each chain, ranges that a chain which blew up does not set, and looks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from langevin.checks import check_integer, needs
from langevin.diagnostics.arrays import check_samples
from langevin.store import Samples
from langevin.trust import evenly_spaced

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    "FAINT",
    "INK",
    "PALETTE",
    "check_elements",
    "colour_of",
    "decorate",
    "draw_chains",
    "finish",
    "line_style",
    "make_panels",
    "name_of",
    "range_of",
]

PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
"""Colours that people with any colour vision can tell apart (Okabe and Ito 2008, without yellow and black)."""
INK, FAINT, STOP = "#333333", "#D9D9D9", "#B2182B"
MAX_PANELS = 4  # elements drawn when none are named
MAX_LINE = 4000  # points in a line, evenly spaced: more than a screen has pixels


def draw_chains(panel: Axes, samples: Samples, values: Tensor, first: int = 0, width: float = 0.8) -> None:
    """Draw a line for each chain, (chain, draw), at most `MAX_LINE` points of it, and a cross where it stopped."""
    values = values.detach().cpu().double()
    at = evenly_spaced(values.shape[1], MAX_LINE)
    for k, status in enumerate(samples.status):
        style = line_style(k, len(samples.status), width)
        panel.plot((at + first).numpy(), values[k, at].numpy(), label=f"chain {status.chain}", **style)
    if all(status.is_healthy for status in samples.status):
        return
    low, high = range_of(samples, values)
    panel.set_ylim(low, high)
    ends = [(k, status.draws - 1) for k, status in enumerate(samples.status) if not status.is_healthy and status.draws > 0]
    heights = [min(max(float(values[k, last]), low), high) for k, last in ends]
    numbers = [last + first for _, last in ends]
    panel.plot(numbers, heights, "x", color=STOP, markersize=7, markeredgewidth=1.8, label="stopped", zorder=4, clip_on=False)


def range_of(samples: Samples, values: Tensor) -> tuple[float, float]:
    """Return the range of the healthy chains, (chain, draw), a little widened; without any, that of the middle 90 percent."""
    healthy = [k for k, status in enumerate(samples.status) if status.is_healthy]
    pool = values[healthy] if healthy else values
    pool = pool[torch.isfinite(pool)]
    if len(pool) == 0:
        return 0.0, 1.0
    low, high = np.quantile(pool.numpy(), (0.0, 1.0) if healthy else (0.05, 0.95))
    margin = 0.06 * (high - low) or 0.5
    return float(low - margin), float(high + margin)


def line_style(chain: int, num_chains: int, width: float) -> dict[str, Any]:
    """Return how a chain's line looks: fainter when there are many."""
    few = num_chains <= len(PALETTE)
    alpha = 0.85 if few else max(0.08, 0.85 * len(PALETTE) / num_chains)
    return {"color": colour_of(chain, num_chains), "linewidth": width, "alpha": alpha, "solid_joinstyle": "round", "zorder": 2}


def colour_of(chain: int, num_chains: int) -> str:
    """A colour for each of few chains; one for all of many, which nobody could tell apart."""
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


def make_panels(who: str, names: list[int], axes: Sequence[Axes] | None, size: tuple[float, float] | None = None) -> list[Axes]:
    """Return one axes for each element, new ones below each other when none are given."""
    if axes is not None:
        from matplotlib.axes import Axes

        panels = list(axes) if isinstance(axes, Sequence) or (isinstance(axes, np.ndarray) and axes.ndim == 1) else [axes]
        if not all(isinstance(panel, Axes) for panel in panels):
            raise needs(who, "axes", "axes of Matplotlib, one for each element", axes, TypeError)
        if len(panels) != len(names):
            raise needs(who, "axes", f"{len(names)} axes, one for each element", len(panels))
        return panels
    import matplotlib.pyplot as plt

    height = 2.6 if len(names) == 1 else 1.7 * len(names) + 0.5
    _, grid = plt.subplots(len(names), 1, sharex=True, squeeze=False, figsize=size or (7.0, height), layout="constrained")
    return list(grid[:, 0])


def finish(panels: list[Axes], samples: Samples, xlabel: str) -> None:
    """Label the axes, and say once which line is which when there are few."""
    for panel in panels:
        own = panel is panels[-1] or panel.get_shared_x_axes().get_siblings(panel) == [panel]
        decorate(panel, xlabel if own else "", panel.get_ylabel())
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


def decorate(panel: Axes, xlabel: str, ylabel: str) -> None:
    """Label the axes and take away what is not needed."""
    panel.set_xlabel(xlabel, color=INK)
    panel.set_ylabel(ylabel, color=INK)
    panel.spines[["top", "right"]].set_visible(False)
    panel.spines[["left", "bottom"]].set_color("#999999")
    panel.tick_params(colors=INK, labelsize=8, length=3, color="#999999")
