"""Part 3: minibatches, uncorrected, corrected, and the truth."""

from __future__ import annotations

import contextlib
import io
import math
import warnings
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.distributions import Normal

import langevin as lv
from langevin.diagnostics.arrays import evenly_spaced
from langevin.diagnostics.plots import INK, PALETTE
from langevin.kernels import Kernel
from langevin.kernels.samplers import msgld
from langevin.random import Purpose, normal, stream
from langevin_paper.demo.shown import Shown, legend, panel

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Problem", "Run", "problem", "run", "runs", "show"]

ROWS, BATCH = 10_000, 100
STEP, BIAS, BETA = 0.1, 10.0, 0.8  # the step over the largest curvature
POINTS = 1_500  # drawn in the picture


class Problem(NamedTuple):
    """A linear regression of two coefficients, whose posterior is a Gaussian that is known."""

    data: tuple[Tensor, Tensor]
    model: lv.Model
    mode: Tensor
    covariance: Tensor


class Run(NamedTuple):
    """Draws, and their variances along the axes of the posterior, over the true ones, the softest axis first."""

    draws: Tensor
    ratios: list[float]
    errors: list[float]


def problem(seed: int = 0) -> Problem:
    """Make data, and solve for the posterior."""
    at = stream(Purpose.DATA)
    z = normal(seed, at, 0, 2 * ROWS, dtype=torch.float64).reshape(ROWS, 2)
    x = torch.stack([z[:, 0], 0.9 * z[:, 0] + 0.3 * z[:, 1]], 1)
    y = x @ torch.tensor([1.0, -0.5], dtype=torch.float64) + normal(seed, at, 1, ROWS, dtype=torch.float64)
    precision = x.mT @ x + torch.eye(2, dtype=torch.float64)
    model = lv.Model(
        lambda p, x, y: Normal(x @ p["b"], 1.0).log_prob(y),
        parameters={"b": lv.real(2)},
        prior={"b": lv.priors.gaussian(std=1.0)},
    )
    return Problem((x, y), model, torch.linalg.solve(precision, x.mT @ y), torch.linalg.inv(precision))


def run(given: Problem, kernel: Kernel, chains: int, steps: int, seed: int = 0) -> Run:
    """Run a sampler on minibatches of rows drawn anew at every step."""
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore", lv.TrustWarning)  # that the uncorrected one is too hot is what the picture shows
        draws = lv.sample(
            given.model,
            sampler=kernel,
            init=given.mode.repeat(chains, 1),
            data=given.data,
            batch_size=BATCH,
            batches="white",
            num_steps=steps,
            warmup=steps // 4,
            seed=seed,
            progress=False,
        ).draws  # fmt: skip
    variances, axes = torch.linalg.eigh(given.covariance)
    by_chain = ((draws - given.mode) @ axes).square().mean(1) / variances  # about the mean, which is known
    ratios, errors = by_chain.mean(0).flip(0), by_chain.std(0).flip(0) / math.sqrt(chains)
    return Run(draws.flatten(0, 1), ratios.tolist(), errors.tolist())


def runs(given: Problem, chains: int, steps: int) -> dict[str, Run]:
    """Run the same sampler with the same settings, without the correction and with it."""
    step_size = STEP * float(torch.linalg.eigvalsh(given.covariance)[0])
    kernels = {
        "uncorrected": msgld(step_size, bias_factor=BIAS, beta=BETA, invariant=True),
        "corrected": msgld(step_size, bias_factor=BIAS, beta=BETA, invariant=True, noise="corrected"),
    }
    return {name: run(given, kernel, chains, steps) for name, kernel in kernels.items()}


def show(quick: bool) -> Shown:
    """Compare both with the truth."""
    given = problem()
    found = runs(given, *((8, 80) if quick else (128, 4_000)))
    hot, right = found["uncorrected"], found["corrected"]
    first = (
        f"With {BATCH} of {ROWS:,} rows at a step, MSGLD without the correction has {hot.ratios[1]:.3g} ± {hot.errors[1]:.2g} "
        f"times the true variance along the stiffest axis of this posterior and {hot.ratios[0]:.2f} ± {hot.errors[0]:.2f} times "
        "along the softest."
    )
    second = (
        f'With noise="corrected" the noise of the minibatches is learnt and absorbed by the step: the same settings then have '
        f"{right.ratios[1]:.2f} ± {right.errors[1]:.2f} and {right.ratios[0]:.2f} ± {right.errors[0]:.2f} times the true variances."
    )
    return Shown((_clouds(given, found), _bars(found)), (first, second))


def _clouds(given: Problem, found: dict[str, Run]) -> Figure:
    figure, axes = panel("coefficient b[0]", "coefficient b[1]", title="Draws, and 95 % of the truth")
    for (name, made), colour in zip(found.items(), (PALETTE[1], PALETTE[0]), strict=True):
        at = evenly_spaced(len(made.draws), POINTS)
        axes.plot(*made.draws[at].mT.numpy(), ".", color=colour, markersize=3, alpha=0.45, label=name)
    angle = torch.linspace(0, 2 * math.pi, 200, dtype=torch.float64)
    circle = torch.stack([angle.cos(), angle.sin()], 1) * math.sqrt(-2 * math.log(0.05))
    axes.plot(
        *(given.mode + circle @ torch.linalg.cholesky(given.covariance).mT).mT.numpy(), color=INK, linewidth=1.8, label="truth"
    )
    legend(axes, 3, markersize=10)
    return figure


def _bars(found: dict[str, Run]) -> Figure:
    figure, axes = panel("", "variance / true variance", title="Variances")
    axes.axhline(1, color=INK, linewidth=1.8, label="truth", zorder=1)
    for number, ((name, made), colour) in enumerate(zip(found.items(), (PALETTE[1], PALETTE[0]), strict=True)):
        places = [place - 0.12 + 0.24 * number for place in range(2)]
        axes.errorbar(places, made.ratios, yerr=[2 * e for e in made.errors], fmt="o", color=colour, markersize=8, label=name)
    axes.set_yscale("log")
    axes.set_xticks([0, 1], ["softest axis", "stiffest axis"])
    axes.set_xlim(-0.5, 1.5)
    legend(axes, 3)
    return figure
