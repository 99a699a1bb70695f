"""Part 2: which law each sampler has, and the invariant form."""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING, NamedTuple

import torch

import langevin as lv
from langevin.adaptation import stationary_error
from langevin.diagnostics.plots import INK, PALETTE
from langevin.kernels import Kernel
from langevin.kernels.samplers import asgld, msgld, sghmc, sgld
from langevin.random import Purpose, normal, streams
from langevin_paper.demo.shown import Shown, legend, panel

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Measured", "measure", "samplers", "show"]

CURVATURES = (1.0, 25.0)  # of the Gaussian: a soft direction and a stiff one
STEP, BIAS = 0.002, 10.0


class Measured(NamedTuple):
    """The variance of a sampler along one direction, over that of the target."""

    ratio: float
    error: float  # standard error
    exact: float | None  # by the exact law of the recursion; None where no equation is known


def samplers() -> dict[str, Kernel]:
    """Return the samplers that are compared, by the names in the picture."""
    return {
        "SGLD": sgld(STEP),
        "SGHMC": sghmc(STEP / 10, beta=0.9),
        "MSGLD, published": msgld(STEP, bias_factor=BIAS, beta=0.9),
        "MSGLD, invariant": msgld(STEP, bias_factor=BIAS, beta=0.9, invariant=True),
        "ASGLD, published": asgld(STEP, bias_factor=BIAS),
        "ASGLD, invariant": asgld(STEP, bias_factor=BIAS, invariant=True),
    }


def measure(kernel: Kernel, chains: int, steps: int, seed: int = 0) -> list[Measured]:
    """Run many chains to the end and look at their last places: they are independent, so the error is known."""
    curvatures = torch.tensor(CURVATURES, dtype=torch.float64)
    target = lv.targets.gaussian(torch.diag(1 / curvatures))
    starts = normal(seed, streams(Purpose.INIT, range(chains)), 0, 2, dtype=torch.float64) * curvatures.rsqrt()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lv.TrustWarning)  # one draw of each chain is few; here it is meant
        last = lv.sample(target, sampler=kernel, init=starts, num_steps=steps, warmup=steps - 1, seed=seed, progress=False).draws[
            :, -1
        ]
    found = []
    for direction, curvature in enumerate(CURVATURES):
        squares = last[:, direction].square() * curvature
        exact = None
        if kernel.effective_temperature is not None and "square_average" not in kernel.state_names:
            exact = kernel.effective_temperature * (1 + stationary_error(kernel, kernel.step_size(0), curvature=curvature))
        found.append(Measured(float(squares.mean()), float(squares.std()) / math.sqrt(chains), exact))
    return found


def show(quick: bool) -> Shown:
    """Measure variances, and draw them beside the exact laws."""
    chains, steps = (100, 200) if quick else (4_000, 5_000)
    found = {name: measure(kernel, chains, steps) for name, kernel in samplers().items()}
    published, invariant = found["MSGLD, published"], found["MSGLD, invariant"]
    z = [abs(one.ratio - one.exact) / one.error for row in found.values() for one in row if one.exact is not None]
    first = (
        f"With a constant bias factor of {BIAS:g} the published MSGLD has {published[0].ratio:.3f} ± {published[0].error:.3f} of "
        f"the target's variance along a soft direction and {published[1].ratio:.3f} ± {published[1].error:.3f} along one that is "
        f"{CURVATURES[1] / CURVATURES[0]:g} times as steep; its invariant form, with the same settings, has "
        f"{invariant[0].ratio:.3f} ± {invariant[0].error:.3f} and {invariant[1].ratio:.3f} ± {invariant[1].error:.3f}."
    )
    second = (
        f"The law of a sampler is known before it is run: {len(z)} variances of {chains:,} chains lie within {max(z):.1f} standard "
        "errors of the exact law of the recursion."
    )
    return Shown((_picture(found),), (first, second))


def _picture(found: dict[str, list[Measured]]) -> Figure:
    figure, axes = panel("variance / variance of the target", "", title="The law of each sampler on a Gaussian")
    figure.set_size_inches(4.9, 4.4)
    axes.axvline(1, color=INK, linewidth=1, zorder=0)
    for direction, (label, colour) in enumerate((("soft direction", PALETTE[0]), ("stiff direction", PALETTE[1]))):
        rows = [row[direction] for row in found.values()]
        places = [place - 0.14 + 0.28 * direction for place in range(len(rows))]
        axes.errorbar(
            [row.ratio for row in rows],
            places,
            xerr=[2 * row.error for row in rows],
            fmt="o",
            color=colour,
            markersize=6,
            label=label,
        )
        exact = [(row.exact, place) for row, place in zip(rows, places, strict=True) if row.exact is not None]
        axes.plot(*zip(*exact, strict=True), "|", color=INK, markersize=12, label="exact law" if direction else None)
    axes.set_yticks(range(len(found)), list(found))
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    legend(axes, 3, left=-0.55)
    return figure
