"""Draw the picture of the README: one coefficient's density by three samplers beside the truth (docs/assets/law.png).

    python tools/law_picture.py    # a minute or two; the numbers go to docs/assets/law.txt

A linear regression of 10,000 rows, whose posterior is known: the problem of `langevin-paper demo`, part 3. Step size, bias
factor and β are the same for all three; what differs is the form of the step, and whether it sees all rows or 100.
"""

from __future__ import annotations

import math
import platform
import warnings
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from langevin_paper.demo.minibatches import BATCH, BETA, BIAS, ROWS, STEP, Problem, problem
from matplotlib.figure import Figure

import langevin as lv
from langevin.diagnostics.plots import INK, PALETTE, decorate

OUT = Path(__file__).parents[1] / "docs" / "assets"
CHAINS, STEPS, WARMUP, SEED = 64, 4_000, 1_000, 0


class Curve(NamedTuple):
    """A density in the picture, and where its words stand (data coordinates, in standard deviations)."""

    words: str
    colour: str
    at: tuple[float, float]
    kernel: lv.kernels.Kernel
    batch_size: int | None


def curves(given: Problem) -> list[Curve]:
    """Return the three samplers."""
    step_size = STEP * float(torch.linalg.eigvalsh(given.covariance)[0])
    settings = {"bias_factor": BIAS, "beta": BETA}
    plain = lv.msgld(step_size, **settings, invariant=True)
    corrected = lv.msgld(step_size, **settings, invariant=True, noise="corrected")
    return [
        Curve("MSGLD as published,\nall rows: too narrow", PALETTE[5], (0.75, 0.88), lv.msgld(step_size, **settings), None),
        Curve(f"invariant, {BATCH} rows\na step: too wide", PALETTE[1], (2.35, 0.14), plain, BATCH),
        Curve("the same, the noise\nabsorbed: right", PALETTE[0], (-4.9, 0.3), corrected, BATCH),
    ]


def draws(given: Problem, curve: Curve) -> torch.Tensor:
    """Return draws (chains, draws) of the first coefficient, about its mean, in posterior standard deviations."""
    batches = {} if curve.batch_size is None else {"batch_size": curve.batch_size, "batches": "white"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lv.TrustWarning)  # it says of two of them what the picture shows
        samples = lv.sample(
            given.model,
            sampler=curve.kernel,
            init=given.mode.repeat(CHAINS, 1),
            data=given.data,
            num_steps=STEPS,
            warmup=WARMUP,
            seed=SEED,
            compile=False,
            progress=False,
            **batches,
        )  # fmt: skip
    return (samples.draws[..., 0] - given.mode[0]) / given.covariance[0, 0].sqrt()


def main() -> None:
    """Run the samplers, write picture and numbers."""
    given = problem(SEED)
    figure = Figure(figsize=(8.4, 4.2), layout="constrained")
    axes = figure.add_subplot()
    x = np.linspace(-6, 6, 400)
    axes.fill_between(x, np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi), color="#c9ced3", linewidth=0)
    axes.text(-4.9, 0.88, "grey: the posterior", fontsize=17, color=INK)
    lines = [
        f"linear regression, {ROWS:,} rows, 2 coefficients; b[0], {CHAINS} chains x {STEPS - WARMUP:,} draws, seed {SEED}; "
        f"langevin {lv.__version__}, torch {torch.__version__}, Python {platform.python_version()}",
    ]
    for curve in curves(given):
        found = draws(given, curve)
        by_chain = found.square().mean(1)
        error = float(by_chain.std()) / math.sqrt(CHAINS)
        lines.append(f"{' '.join(curve.words.split())}: {float(by_chain.mean()):.3f} ± {error:.3f} times the true variance")
        height, edges = np.histogram(found.flatten().numpy(), bins=121, range=(-6, 6), density=True)
        axes.plot((edges[1:] + edges[:-1]) / 2, height, color=curve.colour, linewidth=3)
        axes.text(*curve.at, curve.words, fontsize=17, color=curve.colour, linespacing=1.15, fontweight="bold")
    decorate(axes, "a coefficient, in standard deviations of its posterior", "density")
    axes.tick_params(labelsize=15)
    axes.set_yticks([])
    for label in (axes.xaxis.label, axes.yaxis.label):
        label.set_fontsize(17)
    axes.set_xlim(-5, 5)
    axes.set_ylim(bottom=0)
    figure.savefig(OUT / "law.png", dpi=130)
    (OUT / "law.txt").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
