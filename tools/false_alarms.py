"""How often `samples.trust` warns of runs that are right: `python tools/false_alarms.py [seeds]` prints the rate for each target.

A run is four chains. Many runs are made in one call: chains run together are what they are alone, so each group of four is a run.
"""

from __future__ import annotations

import collections
import dataclasses
import sys
import warnings

import torch

import langevin as lv

CHAINS, TOGETHER = 4, 25  # chains of a run, and runs of a call
Recipe = tuple[lv.kernels.Kernel, lv.targets.Target, int, dict[str, object]]


def covariance(dim: int, correlation: float, spread: float) -> torch.Tensor:
    """Return a covariance with equal correlations and scales from 1 to `spread`."""
    scales = torch.linspace(1.0, spread, dim, dtype=torch.float64)
    return (correlation + (1 - correlation) * torch.eye(dim, dtype=torch.float64)) * scales[:, None] * scales


def logistic(theta: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the log-likelihood of each row."""
    return y * (x @ theta) - torch.nn.functional.softplus(x @ theta)


def recipes() -> dict[str, Recipe]:
    """Return samplers whose law is within 5 percent of their targets: kernel, target, dim, settings of `sample`."""
    x = lv.noise.normal(1, 0, 0, 200 * 5, dtype=torch.float64).reshape(200, 5)
    y = (x[:, 0] - 0.5 * x[:, 1] + lv.noise.normal(2, 0, 0, 200, dtype=torch.float64) > 0).double()
    regression = lv.targets.likelihood(logistic, prior=lv.priors.gaussian(std=2.0))
    line = lv.targets.likelihood(lambda theta, x: -0.5 * ((x - theta) ** 2).sum(-1), prior=lv.priors.gaussian(std=10.0))
    mean = x.mean(0)
    return {
        "N(0, 1), sgld": (lv.sgld(0.08), lv.targets.gaussian([[1.0]]), 1, {"num_steps": 20_000, "thin": 4}),
        "N(0, 1), msgld": (lv.msgld(0.5, invariant=True), lv.targets.gaussian([[1.0]]), 1, {}),
        "correlated 2, msgld": (
            lv.msgld(0.1, invariant=True), lv.targets.gaussian(covariance(2, 0.9, 1.0)), 2, {"num_steps": 16_000}
        ),
        "correlated 10, msgld": (
            lv.msgld(0.3, invariant=True), lv.targets.gaussian(covariance(10, 0.5, 2.0)), 10, {"num_steps": 10_000}
        ),
        "30 dimensions, msgld": (lv.msgld(0.5, invariant=True), lv.targets.gaussian(covariance(30, 0.0, 1.5)), 30, {}),
        "30 dimensions, sghmc": (
            lv.sghmc(0.05), lv.targets.gaussian(covariance(30, 0.0, 1.5)), 30, {"num_steps": 10_000, "thin": 2}
        ),
        "Student t, 5 degrees, msgld": (
            lv.msgld(0.3, invariant=True), lv.targets.energy(lambda t: 3 * (1 + t * t / 5).log().sum()), 3, {"num_steps": 8000}
        ),
        "exp(x) - x, msgld": (
            lv.msgld(0.3, invariant=True), lv.targets.energy(lambda t: (t.exp() - t).sum()), 1, {"num_steps": 8000}
        ),
        "logistic regression, msgld": (lv.msgld(0.02, invariant=True), regression, 5, {"data": (x, y)}),
        "a mean, minibatches": (
            lv.sgld(2e-4), line, 5, {"data": (x,), "batch_size": 20, "num_steps": 20_000, "thin": 5, "init": mean}
        ),
        "a mean, control variates": (
            lv.msgld(2e-3, invariant=True), line, 5, {"data": (x,), "batch_size": 20, "control_variate": mean, "init": mean}
        ),
    }  # fmt: skip


def runs(recipe: Recipe, seed: int) -> list[lv.Samples]:
    """Return the runs of one call."""
    kernel, target, dim, settings = recipe
    chains = CHAINS * TOGETHER
    settings = {"num_steps": 5000, "warmup": 500, "init": torch.zeros(dim, dtype=torch.float64), **settings}
    start = settings.pop("init") + 0.1 * lv.noise.normal(seed, range(chains), 0, dim, dtype=torch.float64)
    whole = lv.sample(kernel, target, start, seed=seed, compile=False, progress=False, **settings)
    arrays, found = {name: whole.arrays[name] for name in ("draws", "energy", "step_size")}, []
    for first in range(0, chains, CHAINS):
        part = slice(first, first + CHAINS)
        heat = dict(whole.heat)
        heat |= {"heat_centre": heat["heat_centre"][part], "heat_sums": heat["heat_sums"][:, :, part]}
        heat["heat_residuals"] = heat["heat_residuals"][:, part]
        own = {name: array[part] if array.ndim > 1 else array for name, array in arrays.items()}
        found.append(dataclasses.replace(whole, arrays=own, status=whole.status[part], heat=heat))
    return found


def main() -> None:
    """Print how many runs warn, for each target and in all."""
    warnings.simplefilter("ignore", lv.TrustWarning)
    seeds, alarms, total = int(sys.argv[1]) if len(sys.argv) > 1 else 1, 0, 0
    for name, recipe in recipes().items():
        found = [run.trust.warnings for seed in range(seeds) for run in runs(recipe, seed)]
        kinds = collections.Counter(sentence.split(":")[0] for sentences in found for sentence in sentences)
        count = sum(map(bool, found))
        alarms, total = alarms + count, total + len(found)
        print(f"{name:30} {count:3} of {len(found)} runs warn  {dict(kinds) or ''}", flush=True)
    print(f"{alarms} of {total} runs warn, {alarms / total:.1%}")


if __name__ == "__main__":
    main()
