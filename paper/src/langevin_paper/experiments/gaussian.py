"""Section 4.1, figure 1: a Gaussian with correlation 0.9, gradients with N(0, I) noise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from langevin.targets import gaussian
from langevin_paper.chains import run_chains
from langevin_paper.spec import Column, Experiment, Method, Progress, Results, Scale, Setting, Table

__all__ = ["GAUSSIAN"]

SHARED: dict[str, Any] = {
    "covariance": ((1.0, 0.9), (0.9, 1.0)),
    "gradient_noise": 1.0,
    "temperature": 1.0,
    "start": (0.0, 0.0),
    "seed": 0,
    "scatter": 1_000,  # iterations in the right panel
    "points": 60,  # of the curve in the left panel, evenly spaced on a logarithmic axis
}


def running_errors(draws: Tensor, covariance: Tensor, at: Tensor) -> Tensor:
    """Return the average absolute error of the sample covariance of the first `at` draws: (chain, draw, 2) gives (chain, at)."""
    count = at.to(draws)[:, None, None]
    products = (draws[..., :, None] * draws[..., None, :]).cumsum(1)[:, at - 1] / count
    mean = draws.cumsum(1)[:, at - 1] / count[..., 0]
    return (products - mean[..., :, None] * mean[..., None, :] - covariance).abs().mean((-2, -1))


def run(method: Method, scale: Scale, seeds: range, folder: Path, progress: Progress) -> Results:
    """Run a cell."""
    given, num_steps = scale.settings, scale.settings["num_steps"]
    target = gaussian(given["covariance"], gradient_noise=given["gradient_noise"])
    kernel = method.kernel(temperature=given["temperature"])
    samples = run_chains(
        kernel,
        target,
        torch.tensor(given["start"], dtype=torch.float64).repeat(len(seeds), 1),
        chains=seeds,
        seed=given["seed"],
        num_steps=num_steps,
        progress=progress,
        compile=given["compile"],
    )
    at = torch.logspace(1, float(np.log10(num_steps)), given["points"], dtype=torch.float64).round().long().unique()
    errors = running_errors(samples.draws, target.covariance, at)
    # E[theta . grad U] = dim * T for a law exp(-U / T): the temperature of what was drawn.
    temperature = (samples.draws * (samples.draws @ target.precision)).mean((1, 2))
    results: Results = {}
    for index, seed in enumerate(seeds):
        results[seed] = {
            "covariance_error": float(errors[index, -1]),
            "temperature": float(temperature[index]),
            "law_temperature": kernel.effective_temperature,
            "iterations": at.numpy().astype(np.int32),
            "curve": errors[index].numpy(),
        }
    if 0 in results:
        results[0]["scatter"] = samples.draws[0, : given["scatter"]].numpy()
    return results


GAUSSIAN = Experiment(
    name="gaussian",
    title="A Gaussian with high correlation",
    section="Section 4.1, figure 1",
    about="N(0, Σ) with Σ = [[1, 0.9], [0.9, 1]]. The paper shows that ASGLD and MSGLD estimate Σ as well as SGLD does. Its "
    "bias factors "
    "are so small here that the colder law of the adaptive drifts cannot be seen; the two rows of ours with a = 1 show it.",
    methods=(
        Method("sgld", "SGLD", "sgld", {"step_size": 0.1}),
        Method(
            "asgld",
            "ASGLD",
            "asgld",
            {"step_size": 0.1, "bias_factor": 0.1, "betas": (0.9, 0.999), "eps_root": 1e-5},
            ours=("eps_root",),
        ),
        Method("msgld", "MSGLD", "msgld", {"step_size": 0.1, "bias_factor": 0.01, "beta": 0.9}),
        Method(
            "msgld-a1",
            "MSGLD, a = 1",
            "msgld",
            {"step_size": 0.1, "bias_factor": 1.0, "beta": 0.9},
            ours=("*",),
            note="the published drift with a bias factor that can be seen",
        ),
        Method(
            "msgld-a1-invariant",
            "MSGLD invariant, a = 1",
            "msgld",
            {"step_size": 0.1, "bias_factor": 1.0, "beta": 0.9, "invariant": True},
            ours=("*",),
            note="the momentum has noise of its own",
        ),
    ),
    scales=(
        # Compiling a short run takes longer than it saves, and rounds in another way.
        Scale("quick", {**SHARED, "num_steps": 5_000, "compile": False}, num_seeds=10, seconds=2),
        Scale("short", {**SHARED, "num_steps": 20_000, "compile": True}, num_seeds=20, seconds=10),
        Scale("paper", {**SHARED, "num_steps": 100_000, "compile": True}, num_seeds=20, seconds=15, is_paper=True),
    ),
    run=run,
    tables=(
        Table(
            "Error of the covariance at the end, and the temperature of what was drawn",
            (
                Column("covariance_error", "average absolute error of Σ", 4, better="low"),
                Column("temperature", "temperature measured", 3),
            ),
            note="The paper gives no numbers here. The step itself (ε = 0.1 at a curvature of 10) and the gradient noise make "
            "every law hotter than 1: compare rows, not the row with 1.",
        ),
    ),
    settings=(
        Setting("step size ε", "0.1, constant", "paper"),
        Setting("temperature τ", "1", "paper"),
        Setting("gradient noise", "N(0, I)", "paper"),
        Setting("β₁, β₂", "0.9, 0.999", "paper"),
        Setting("λ of ASGLD", "1e-5, inside the root", "ours", "the appendix gives it for other examples only"),
        Setting("start", "θ = 0", "ours"),
        Setting("iterations", "100,000 at the paper scale", "ours", "the axis of figure 1 is not in the text"),
        Setting("replicates", "20 chains; the paper shows one", "ours"),
    ),
)
