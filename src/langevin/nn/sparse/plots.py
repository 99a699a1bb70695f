"""Plot what is left of a pruned network; functions draw into Matplotlib axes and return them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from langevin.checks import import_extra, needs
from langevin.diagnostics.plots import FAINT, INK, PALETTE, make_panel
from langevin.nn.sparse.weights import Kept, sparsity, weights_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["connection_map", "input_map", "layer_bars"]

_MOST = 400  # rows and columns of a picture: more are merged into blocks


def input_map(model: nn.Module, shape: tuple[int, int], *, axes: Axes | None = None) -> Axes:
    """Draw the number of connections of each input as an image; unused inputs are blank.

    Args:
        model: a pruned network; its first weight has a column for each pixel.
        shape: rows and columns of an image, (28, 28) for MNIST.
        axes: where to draw; new ones by default.

    Example:
        >>> axes = input_map(nn.Linear(6, 3), (2, 3))
        >>> axes.get_title()
        '6 of 6 inputs are used'
        >>> import matplotlib.pyplot
        >>> matplotlib.pyplot.close(axes.figure)
    """
    colors = import_extra("input_map()", "matplotlib.colors", "plots")
    name, weight = next(iter(weights_of("input_map", model).items()))
    if weight.ndim != 2 or weight.shape[1] != shape[0] * shape[1]:
        what = f"rows and columns for the {weight.shape[1]} inputs of {name!r}"
        raise needs("input_map", "shape", what, shape)
    counts = (weight != 0).sum(0).reshape(shape).cpu().numpy()
    panel = make_panel("input_map", axes, (4.6, 4.0))
    ramp = colors.LinearSegmentedColormap.from_list(
        "connections", ["#D6E6F2", PALETTE[0], "#08306B"]
    )
    masked, top = np.ma.masked_equal(counts, 0), max(2, counts.max())
    image = panel.imshow(masked, cmap=ramp, vmin=1, vmax=top, interpolation="nearest")
    panel.set_facecolor("#F4F4F4")
    title = f"{(counts > 0).sum()} of {counts.size} inputs are used"
    _finish(panel, image, title, "connections left", integer=True)
    return panel


def layer_bars(model: nn.Module, kept: Kept = 0.0, *, axes: Axes | None = None) -> Axes:
    """Draw the share of weights that each layer keeps, on a logarithmic scale.

    Args:
        model: a network.
        kept: what counts as kept, as in `sparsity`; by default what is not exactly zero.
        axes: where to draw; new ones by default.

    Example:
        >>> axes = layer_bars(nn.Sequential(nn.Linear(6, 3), nn.Linear(3, 2)))
        >>> len(axes.patches)
        4
        >>> import matplotlib.pyplot
        >>> matplotlib.pyplot.close(axes.figure)
    """
    layers = sparsity(model, kept).layers
    size = 6.4, 0.9 + 0.42 * len(layers)
    panel = make_panel("layer_bars", axes, size)
    least = min([layer.ratio for layer in layers if layer.kept], default=1.0)
    floor = min(10 ** np.floor(np.log10(least)), 0.1)
    for row, layer in enumerate(layers):
        panel.barh(row, 1 - floor, left=floor, color=FAINT, height=0.62)
        panel.barh(row, max(layer.ratio - floor, 0.0), left=floor, color=PALETTE[0], height=0.62)
        text = f"{layer.kept:,} of {layer.weights:,}"
        panel.text(1.08, row, text, va="center", ha="left", fontsize=9, color=INK)
    panel.set_xscale("log")
    panel.set_xlim(floor, 1.0)
    ticks = 10.0 ** np.arange(round(np.log10(floor)), 1)
    panel.set_xticks(ticks, [f"{100 * tick:g} %" for tick in ticks])
    panel.set_yticks(range(len(layers)), [layer.name for layer in layers])
    panel.invert_yaxis()
    panel.set_xlabel("weights kept")
    panel.spines[["top", "right", "left"]].set_visible(False)
    panel.tick_params(axis="y", length=0)
    return panel


def connection_map(model: nn.Module, name: str, *, axes: Axes | None = None) -> Axes:
    """Draw a layer's weights: blue if positive, red if negative, white if zero.

    Units without any connection are left out.

    Args:
        model: a pruned network.
        name: of a weight with two axes, (outputs, inputs), as in ``model.named_parameters()``.
        axes: where to draw; new ones by default.

    Example:
        >>> axes = connection_map(nn.Linear(6, 3), "weight")
        >>> axes.get_xlabel()
        'inputs (6 of 6)'
        >>> import matplotlib.pyplot
        >>> matplotlib.pyplot.close(axes.figure)
    """
    weights = {key: w for key, w in weights_of("connection_map", model).items() if w.ndim == 2}
    if name not in weights:
        raise needs("connection_map", "name", f"one of {list(weights)}", name)
    weight = weights[name].cpu().double()
    rows, columns = (weight != 0).any(1), (weight != 0).any(0)
    shown = _blocks(weight[rows][:, columns])
    panel = make_panel("connection_map", axes, (6.4, 4.0))
    limit = float(shown.abs().max()) if shown.numel() else 1.0
    image = panel.imshow(
        shown.numpy(), cmap="RdBu", vmin=-limit, vmax=limit, interpolation="nearest", aspect="auto"
    )
    panel.set_xlabel(f"inputs ({int(columns.sum())} of {len(columns)})")
    panel.set_ylabel(f"outputs ({int(rows.sum())} of {len(rows)})")
    title = f"{name}: {int((weight != 0).sum()):,} of {weight.numel():,} connections"
    _finish(panel, image, title, "weight")
    return panel


def _blocks(weight: Tensor) -> Tensor:
    """Merge rows and columns to at most 400 blocks, each shown by its largest weight."""
    for axis in (0, 1):
        if weight.shape[axis] > _MOST:
            parts = weight.tensor_split(_MOST, dim=axis)
            picked = [part.gather(axis, part.abs().argmax(axis, keepdim=True)) for part in parts]
            weight = torch.cat(picked, axis)
    return weight


def _finish(panel: Axes, image: Any, title: str, label: str, *, integer: bool = False) -> None:
    """Remove the frame, and add a title and a colour bar."""
    from matplotlib.ticker import MaxNLocator

    panel.set_xticks([])
    panel.set_yticks([])
    panel.spines[:].set_visible(False)
    panel.set_title(title, fontsize=10, color=INK)
    figure: Any = panel.figure
    ticks = MaxNLocator(6, integer=integer)
    bar = figure.colorbar(image, ax=panel, shrink=0.85, pad=0.02, ticks=ticks)
    bar.outline.set_visible(False)
    bar.set_label(label, color=INK)
    bar.ax.tick_params(labelsize=8, color=INK)
