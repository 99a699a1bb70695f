"""Draw every sampler on the same six targets (docs/gallery.png), and write the table of all samplers (docs/samplers.md).

    python tools/gallery.py           # both: some minutes
    python tools/gallery.py --page    # the page alone: seconds

It takes whatever is in `langevin.SAMPLERS`.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import matplotlib

matplotlib.use("Agg")
import torch
from matplotlib import pyplot as plt
from PIL import Image
from torch import Tensor

import langevin as lv
from langevin.kernels.facts import Facts

DOCS = Path(__file__).parents[1] / "docs"
CHAINS, STEPS, WARMUP, SEED = 1_200, 1_000, 400, 0  # 1200 chains go in groups of any small size
POINTS = 1_500  # drawn in a panel
GRID = 301


class Case(NamedTuple):
    """A target in the plane."""

    name: str
    of: Callable[[Tensor, Tensor], Tensor]  # the energy, of x and y
    step_size: float
    low: tuple[float, float]  # of the window
    high: tuple[float, float]
    spread: float = 2.0  # the window of the quadrature, in units of that

    def energy(self, theta: Tensor) -> Tensor:
        """Return U at positions (..., 2)."""
        return self.of(theta[..., 0], theta[..., 1])


def _gaussian(x: Tensor, y: Tensor) -> Tensor:
    return (x**2 + y**2 - 1.6 * x * y) / 0.72


def _banana(x: Tensor, y: Tensor) -> Tensor:
    return x**2 / 2 + 2 * (y + 1 - x**2 / 2) ** 2


def _funnel(x: Tensor, y: Tensor) -> Tensor:
    return x**2 / 2 + x / 2 + y**2 * (-x).exp() / 2


def _ring(x: Tensor, y: Tensor) -> Tensor:
    return ((x**2 + y**2 + 1e-6).sqrt() - 2) ** 2 / 0.18


def _wells(x: Tensor, y: Tensor) -> Tensor:
    return (x**2 - 2) ** 2 / 2 + y**2 / 2


def _heavy(x: Tensor, y: Tensor) -> Tensor:
    return 3.5 * (1 + (x**2 + y**2) / 5).log()  # Student's t of 5 degrees of freedom


CASES = (
    Case("Gaussian, correlation .8", _gaussian, 0.03, (-4, -4), (4, 4)),
    Case("banana", _banana, 0.015, (-3.5, -2.5), (3.5, 5)),
    Case("funnel", _funnel, 0.02, (-3.5, -7), (3.5, 7)),
    Case("ring", _ring, 0.02, (-3.5, -3.5), (3.5, 3.5)),
    Case("two wells", _wells, 0.02, (-3, -4), (3, 4)),
    Case("heavy tails", _heavy, 0.05, (-6, -6), (6, 6), spread=6.0),
)


def density(case: Case, spread: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    """Return a grid (GRID, GRID, 2), the density on it up to a constant, and its means and variances (2, 2).

    `spread` widens the window.
    """
    low, high = torch.tensor(case.low, dtype=torch.float64), torch.tensor(case.high, dtype=torch.float64)
    middle, half = (low + high) / 2, spread * (high - low) / 2
    axes = [torch.linspace(float(m - h), float(m + h), GRID, dtype=torch.float64) for m, h in zip(middle, half, strict=True)]
    grid = torch.stack(torch.meshgrid(*axes, indexing="ij"), -1)
    weights = (-case.energy(grid)).exp()
    share = (weights / weights.sum())[..., None]
    mean = (share * grid).sum((0, 1))
    return grid, weights, torch.stack([mean, (share * (grid - mean) ** 2).sum((0, 1))])


def start(case: Case) -> Tensor:
    """Return draws of the target itself, (chain, 2): cells of the grid by their weight, and a place within each."""
    grid, weights, _ = density(case, spread=case.spread)
    at = lv.random.streams(lv.random.Purpose.INIT, range(CHAINS))
    u = lv.random.uniform(SEED, at, 0, 3, dtype=torch.float64)
    steps = (weights / weights.sum()).flatten().cumsum(0)
    cells = torch.searchsorted(steps, (1 + u[:, 0].contiguous()) / 2).clamp(max=len(steps) - 1)
    return grid.flatten(0, 1)[cells] + u[:, 1:] * (grid[1, 1] - grid[0, 0]) / 2


def draw(facts: Facts, case: Case) -> Tensor:
    """Return the draws of a sampler, (chain, draw, 2)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what `sample` says of chains this short is what the picture shows
        settings = {"num_steps": STEPS, "warmup": WARMUP, "seed": SEED, "compile": False, "progress": False}
        kernel, target = facts.kernel.with_step_size(case.step_size), lv.targets.energy(lambda theta: case.energy(theta))
        return lv.sample(target, sampler=kernel, init=start(case), **settings).draws


def panel(axis: plt.Axes, facts: Facts, case: Case) -> str:
    """Draw one panel; return its errors in words."""
    grid, weights, _ = density(case)
    exact = density(case, spread=case.spread)[2]
    draws = draw(facts, case)
    kept = draws[draws.isfinite().all(-1).all(-1)]  # chains that ran to the end
    squares = (kept - exact[0]).square().mean(1) / exact[1]
    error, chance = squares.mean(0) - 1, squares.std(0) / len(kept) ** 0.5
    axis_of = int(error.abs().argmax())
    worst, spread = float(error[axis_of]), float(chance[axis_of])
    mean = (kept.mean((0, 1)) - exact[0]) / exact[1].sqrt()
    shown = kept.flatten(0, 1)[:: max(1, kept[..., 0].numel() // POINTS)]
    axis.contour(*grid.unbind(-1), weights / weights.max(), levels=[0.05, 0.3, 0.75], colors="0.55", linewidths=0.7)
    is_off = abs(worst) > 0.1 and (abs(worst) > 4 * spread or spread > 0.5)
    axis.plot(*shown.mT, ".", markersize=1.4, alpha=0.45, color="C3" if is_off else "C0", rasterized=True)
    text = f"mean {float(mean[mean.abs().argmax()]):+.2f} sd\nvar {100 * worst:+.0f} ± {100 * spread:.0f} %"
    if len(kept) < len(draws):
        text += f"\n{len(draws) - len(kept)} chains lost"
    box = {"facecolor": "white", "alpha": 0.75, "edgecolor": "none", "pad": 0.8}
    axis.text(0.03, 0.97, text, transform=axis.transAxes, va="top", fontsize=6.5, linespacing=1.1, bbox=box)
    axis.set(xlim=(case.low[0], case.high[0]), ylim=(case.low[1], case.high[1]), xticks=[], yticks=[])
    return text.replace("\n", ", ")


def figure(path: Path) -> None:
    """Draw all samplers on all targets."""
    rows, begun = lv.SAMPLERS.facts(), time.perf_counter()
    made, axes = plt.subplots(len(rows), len(CASES), figsize=(1.6 * len(CASES) + 0.6, 1.6 * len(rows) + 0.9), squeeze=False)
    for number, facts in enumerate(rows):
        for axis, case in zip(axes[number], CASES, strict=True):
            print(f"{facts.name}; {case.name}: {panel(axis, facts, case)}", flush=True)
        label = f"{facts.name.replace(', ', chr(10))}\n"
        axes[number, 0].set_ylabel(label, fontsize=8.5)
    for axis, case in zip(axes[0], CASES, strict=True):
        axis.set_title(f"{case.name}\nε = {case.step_size:g}", fontsize=8.5)
    seconds = time.perf_counter() - begun
    footer = (
        f"{CHAINS} chains of {STEPS} steps from draws of the target, the first {WARMUP} left out; default settings, exact "
        f"gradients, seed {SEED}.\nGrey: the density at 5, 30 and 75 % of its height. Errors of mean and variance (± one standard "
        "error over chains) on the worse axis;\nred where the variance is off by more than 10 % and 4 standard errors, or one of "
        "50 %. "
        f"langevin {lv.__version__}, torch {torch.__version__}, {seconds:.0f} s."
    )
    made.text(0.5, 0.12 / made.get_figheight(), footer, ha="center", va="bottom", fontsize=7)
    made.tight_layout(rect=(0, 0.55 / made.get_figheight(), 1, 1), h_pad=0.3, w_pad=0.3)
    made.savefig(path, dpi=110)
    plt.close(made)
    shrink(path)


def shrink(path: Path) -> None:
    """Write a picture with 64 colours, which are all that it has, in a third of the bytes."""
    with Image.open(path) as image:
        small = image.convert("RGB").quantize(64)
    small.save(path, optimize=True)


def optimizers() -> dict[str, str]:
    """Return the names of the optimizers by the sampler that they run."""
    classes = [value for value in vars(lv.optim).values() if isinstance(value, type) and hasattr(value, "builder")]
    return {getattr(cls.builder, "func", cls.builder).__name__: cls.__name__ for cls in classes}


def page() -> str:
    """Return the page of all samplers."""
    named = optimizers()
    lines = [
        "# All samplers",
        "",
        "Written by `python tools/gallery.py` from what the kernels say of themselves; `print(lv.SAMPLERS)` is the same table.",
        "ε is the step size, h the time step, of the order of √ε, d the number of parameters. *Any scale*: it may run under",
        "`sample(metric=...)`. Laws are those of `describe()`, at temperature 1 and default settings.",
        "",
        "| sampler | optimizer | error | memory per parameter | cost of a step | needs | any scale | law |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for facts in lv.SAMPLERS.facts():
        optimizer = f"`{named[facts.name.partition(',')[0]]}`" if facts.is_optimizer else ""
        scale = "yes" if facts.runs_in_any_scale else "no"
        cells = [f"`{facts.name}`", optimizer, facts.error, facts.memory, facts.cost, facts.needs, scale, facts.law]
        lines.append("| " + " | ".join(cells) + " |")
    lines += [
        "",
        "Each on the same six targets in the plane, with default settings, exact gradients and the step size above each column:",
        f"{CHAINS} chains of {STEPS:,} steps, which start at draws of the target. The published forms of MSGLD, ASGLD and their",
        "kin are colder than it, as their laws say; so is scale-adapted SGHMC as published. One step size for all is the best for",
        "none: this shows laws, not speed. Where a chain freezes a scale that it learnt in the wide part of a funnel, its step is",
        "too large for the narrow one: single chains run off.",
        "",
        "![Every sampler on six targets](gallery.png)",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--page", action="store_true", help="write the page alone")
    only_page = parser.parse_args().page
    (DOCS / "samplers.md").write_text(page())
    if not only_page:
        figure(DOCS / "gallery.png")
