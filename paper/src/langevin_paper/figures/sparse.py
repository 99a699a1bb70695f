"""Figures of the sparse networks: error and weights along the epochs, and what is left of one network."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from torch import nn

from langevin.nn import sparse
from langevin_paper.figures.base import View, panel_grid, put_legend
from langevin_paper.figures.networks import draw_epochs

__all__ = ["course_figure", "network_figure"]


def course_figure(view: View) -> Figure | None:
    """Draw test error and the number of weights along the stages."""
    if not view.methods("error_curve"):
        return None
    figure, panels = panel_grid(1, 2, 5.6, 3.9)
    for panel, name, label in zip(panels, ("error_curve", "kept_curve"), ("test error, percent", "weights left"), strict=True):
        draw_epochs(panel, view, name, label)
    panels[1].set_yscale("log")
    panels[1].yaxis.set_major_locator(LogLocator(subs=(1, 2, 4, 6)))
    panels[1].yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    panels[1].yaxis.set_minor_formatter(NullFormatter())
    put_legend(panels[1])
    return figure


def network_figure(view: View) -> Figure | None:
    """Draw the first row's network of the first seed: its inputs, its layers, and the connections between its hidden layers."""
    if not (methods := view.methods("weight_0")):
        return None
    weights = [next(iter(view.of(methods[0], f"weight_{k}").values())) for k in range(3)]
    side = int(np.sqrt(weights[0].shape[1]))
    layers = [nn.utils.skip_init(nn.Linear, weight.shape[1], weight.shape[0], bias=False) for weight in weights]
    names = [f"layer {number}" for number in range(1, 4)]
    model = nn.Sequential(OrderedDict(zip(names, layers, strict=True))).requires_grad_(False)
    for layer, weight in zip(layers, weights, strict=True):
        layer.weight.copy_(torch.from_numpy(weight))
    figure, panels = panel_grid(1, 3, 4.6, 3.6)
    sparse.input_map(model, (side, side), axes=panels[0])
    sparse.connection_map(model, f"{names[1]}.weight", axes=panels[1])
    sparse.layer_bars(model, axes=panels[2])
    return figure
