"""Part 5: the regression with long narrow ravines of the paper's section 4.3, found by the invariant MSGLD."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

import langevin as lv
from langevin.diagnostics.plots import INK, PALETTE
from langevin.kernels import Kernel
from langevin.kernels.samplers import msgld, sgld
from langevin.random import Purpose, normal, streams
from langevin.targets import Batch, ravine, ravine_data
from langevin_paper.demo.shown import Shown, legend, panel

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["samplers", "show"]

TRUTH, NEAR = (20.0, 10.0), 0.3
CHAINS, BATCH = 8, 100
WINDOW = ((-25.0, 45.0), (-25.0, 25.0))  # of the picture


def samplers(steps: int) -> dict[str, Kernel]:
    """Return the samplers: the settings were searched on other data sets than the one here (`langevin-paper run ravine-search`)."""
    return {
        "SGLD": sgld(lv.schedules.step_decay(5.378e-5, factor=0.5, every=max(1, steps // 3))),
        "MSGLD, invariant": msgld(1.2e-6, bias_factor=303.8, beta=0.96, invariant=True),
    }


def show(quick: bool) -> Shown:
    """Run both from the same starts."""
    steps, data, target = (300 if quick else 10_000), ravine_data(1_000 if quick else 10_000), ravine()
    starts = normal(0, streams(Purpose.INIT, range(CHAINS)), 0, 2, dtype=torch.float64)
    truth = torch.tensor(TRUTH, dtype=torch.float64)
    paths: dict[str, Tensor] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lv.TrustWarning)  # chains that are on their way do not agree
        for name, kernel in samplers(steps).items():
            paths[name] = lv.sample(
                target, sampler=kernel, init=starts, data=data, num_steps=steps, batch_size=BATCH, progress=False
            ).draws
    far = {name: (path[:, steps * 2 // 3 :].mean(1) - truth).norm(dim=-1) for name, path in paths.items()}
    near = {name: int((values < NEAR).sum()) for name, values in far.items()}
    median = {name: float(values.median()) for name, values in far.items()}
    ours, theirs = "MSGLD, invariant", "SGLD"
    first = (
        f"From starts around the origin {near[ours]} of {CHAINS} chains of the invariant MSGLD find the truth "
        f"({TRUTH[0]:g}, {TRUTH[1]:g}) in {steps:,} steps of {BATCH} rows: the mean of their last third is within {NEAR} of it; "
        f"of SGLD {near[theirs]} do, and its median distance is {median[theirs]:.3g} against {median[ours]:.2g}."
    )
    arrived = (
        ((paths[ours] - truth).norm(dim=-1) < NEAR).double().argmax(1)[far[ours] < NEAR].tolist()
    )  # the first step that is near
    when = (
        f"The first of them comes that near at step {min(arrived):,}, the last at {max(arrived):,}"
        if arrived
        else "None comes that near"
    )
    second = (
        f"{when}, on a map of {WINDOW[0][1] - WINDOW[0][0]:g} by {WINDOW[1][1] - WINDOW[1][0]:g} full of ravines; both samplers "
        "have settings that were searched on other data sets."
    )
    return Shown((_map(paths, data), _distances(paths, truth)), (first, second))


def _map(paths: dict[str, Tensor], data: tuple[Tensor, Tensor]) -> Figure:
    figure, axes = panel("θ₁", "θ₂", title="Paths on the energy")
    rows = tuple(column[:500] for column in data)  # enough for a picture
    x, y = (torch.linspace(*side, 161, dtype=torch.float64) for side in WINDOW)
    grid = torch.stack(torch.meshgrid(x, y, indexing="xy"), -1).flatten(0, 1)
    energy = torch.cat([ravine().evaluate(part, Batch(rows, len(rows[0]), per_chain=False)).energy for part in grid.split(4_000)])
    axes.contourf(x.numpy(), y.numpy(), energy.view(len(y), len(x)).numpy(), 14, cmap="Greys", alpha=0.55)
    for (name, path), colour in zip(paths.items(), (PALETTE[1], PALETTE[0]), strict=True):
        at = np.unique(np.geomspace(1, path.shape[1], 1_500).astype(int)) - 1
        axes.plot(*path[0, at].mT.numpy(), color=colour, linewidth=1, label=name, alpha=0.9)
    axes.plot(*TRUTH, "*", color=PALETTE[5], markersize=15, markeredgecolor="white", label="truth", linestyle="none", zorder=5)
    axes.set_xlim(*WINDOW[0])
    axes.set_ylim(*WINDOW[1])
    legend(axes, 3)
    return figure


def _distances(paths: dict[str, Tensor], truth: Tensor) -> Figure:
    figure, axes = panel("step", "distance to the truth", title=f"All {CHAINS} chains")
    for (name, path), colour in zip(paths.items(), (PALETTE[1], PALETTE[0]), strict=True):
        at = np.arange(0, path.shape[1], max(1, path.shape[1] // 400))
        for number, chain in enumerate((path[:, at] - truth).norm(dim=-1).numpy()):
            axes.plot(at, chain, color=colour, linewidth=0.9, alpha=0.75, label=None if number else name)
    axes.axhline(NEAR, color=INK, linewidth=1, linestyle=(0, (4, 3)), label=f"{NEAR} away")
    axes.set_yscale("log")
    legend(axes, 3)
    return figure
