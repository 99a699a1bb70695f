"""The paper's two small targets, sampled by SGLD, MSGLD and ASGLD with the paper's settings: a table and a picture.

Run it with `make demo`; it takes about half a minute and writes out/demo.png.
"""

from __future__ import annotations

import platform
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch

import langevin as lv

SEED, CHAINS, STEPS, WARMUP = 0, 100, 2_000, 500
CASES = {
    # Section 4.1: eps 0.1 throughout, tiny bias factors.
    "Gaussian": (
        lv.targets.gaussian([[1.0, 0.9], [0.9, 1.0]], gradient_noise=1.0),
        [lv.sgld(0.1), lv.msgld(0.1, bias_factor=0.01), lv.asgld(0.1, bias_factor=0.1)],
    ),
    # Section 4.2 and the appendix: eps 0.05; the paper has no SGLD here.
    "mixture": (
        lv.targets.mixture(gradient_noise=1.0),
        [lv.sgld(0.05), lv.msgld(0.05, bias_factor=10.0), lv.asgld(0.05, bias_factor=1.0)],
    ),
}
COLOURS = {"sgld": "#3b6ea8", "msgld": "#c44e3b", "asgld": "#4c9a5f"}


def row(name, target, kernel, samples):
    """Measure one run: error of the covariance, effective draws per second, share of draws per mode."""
    draws = samples.healthy.reshape(-1, 2)
    error = (torch.cov(draws.T) - target.covariance).abs().mean().item()
    speed = samples.summary()["ess_bulk"].min() / samples.seconds
    shares = ""
    if name == "mixture":
        counts = torch.bincount(target.nearest_mode(draws), minlength=len(target.means)) / len(draws)
        shares = " ".join(f"{share:.2f}" for share in counts)
    tempered = kernel.effective_temperature
    return f"{name:9} {kernel.name:6} {error:8.3f} {speed:12,.0f}  {'-' if tempered is None else f'{tempered:.3g}':>11}   {shares}"


def panel(axes, target, kernel, samples, half_width):
    """Draw samples over the contours of the true density."""
    line = torch.linspace(-half_width, half_width, 201, dtype=torch.float64)
    grid = torch.cartesian_prod(line, line)
    density = torch.exp(-target.evaluate(grid).energy).reshape(201, 201).T
    axes.contourf(line, line, density, levels=12, cmap="Greys", alpha=0.55, vmax=1.6 * density.max())
    thinned = samples.draws[:, ::60].reshape(-1, 2)
    axes.scatter(*thinned.T, s=5, alpha=0.5, linewidths=0, color=COLOURS[kernel.name])
    axes.contour(line, line, density, levels=6, colors="black", linewidths=0.5, alpha=0.7)
    axes.set(aspect="equal", xticks=[], yticks=[], xlim=(-half_width, half_width), ylim=(-half_width, half_width))


def main():
    figure, grid = plt.subplots(2, 3, figsize=(10.5, 7.2), layout="constrained")
    print(f"{CHAINS} chains x {STEPS} steps, {WARMUP} of them warm-up, seed {SEED}, float64, paper's settings")
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {platform.machine()}, langevin {lv.__version__}\n")
    print(f"{'target':9} {'sampler':6} {'cov err':>8} {'ESS per s':>12}  {'small-eps T':>11}   share per mode (exact: 0.20 each)")
    for line, (name, (target, kernels)) in zip(grid, CASES.items(), strict=True):
        for axes, kernel in zip(line, kernels, strict=True):
            samples = lv.sample(
                kernel, target, torch.zeros(CHAINS, 2, dtype=torch.float64), num_steps=STEPS, warmup=WARMUP, seed=SEED
            )
            print(row(name, target, kernel, samples), flush=True)
            panel(axes, target, kernel, samples, 3.6 if name == "Gaussian" else 5.2)
            settings = kernel.drift.settings().split(", b")[0]
            axes.set_title(f"{kernel.name.upper()}, {name}" + (f", {settings}" if settings else ""), fontsize=10)
    path = Path("out/demo.png")
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, dpi=150)
    print("\nsmall-eps T: the temperature of the sampler's law as eps -> 0 (target: 1); a `describe()` says why. The rest of the")
    print("error of the covariance is the step's own and the gradient noise's: these are the paper's, large, step sizes.")
    print(f"picture: {path.resolve()}")


if __name__ == "__main__":
    sys.exit(main())
