"""How often `samples.trust` warns of runs that are right: `python tools/false_alarms.py [seeds [first seed]]` prints the rates.

First samplers with settings that are right, then the call without settings. A run is four chains; many runs are made in one call:
chains run together are what they are alone, so each group of four is a run. The call without settings has eight, and is made alone.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import io
import sys
import warnings
from collections.abc import Iterator

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
    """Return samplers that are right (`langevin_paper.check.right`): kernel, target, dim, settings of `sample`."""
    x = lv.random.normal(1, 0, 0, 200 * 5, dtype=torch.float64).reshape(200, 5)
    y = (x[:, 0] - 0.5 * x[:, 1] + lv.random.normal(2, 0, 0, 200, dtype=torch.float64) > 0).double()
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
        "correlated 2, sghmc": (
            lv.sghmc(0.01), lv.targets.gaussian(covariance(2, 0.9, 1.0)), 2, {"num_steps": 60_000, "thin": 10}
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
    start = settings.pop("init") + 0.1 * lv.random.normal(seed, range(chains), 0, dim, dtype=torch.float64)
    whole = lv.sample(target, sampler=kernel, init=start, seed=seed, compile=False, progress=False, **settings)
    arrays, found = {name: whole.arrays[name] for name in ("draws", "energy", "step_size")}, []
    for first in range(0, chains, CHAINS):
        part = slice(first, first + CHAINS)
        heat = dict(whole.heat)
        heat |= {"heat_centre": heat["heat_centre"][part], "heat_sums": heat["heat_sums"][:, :, part]}
        heat["heat_residuals"] = heat["heat_residuals"][:, part]
        own = {name: array[part] if array.ndim > 1 else array for name, array in arrays.items()}
        found.append(dataclasses.replace(whole, arrays=own, status=whole.status[part], heat=heat))
    return found


def without_settings(seed: int) -> Iterator[tuple[str, lv.Samples]]:
    """Yield runs of the call without settings, eight chains each."""
    x = lv.random.normal(1, 0, 0, 200 * 5, dtype=torch.float64).reshape(200, 5)
    y = (x[:, 0] - 0.5 * x[:, 1] + lv.random.normal(2, 0, 0, 200, dtype=torch.float64) > 0).double()
    targets = {
        "Gaussian": (lv.targets.gaussian(covariance(10, 0.5, 20.0)), None),
        "exp(x) - x": (lv.targets.energy(lambda t: (t.exp() - t).sum(), dim=3), None),
        "Student t, 5 degrees": (lv.targets.energy(lambda t: 3 * (1 + t * t / 5).log().sum(), dim=3), None),
        "logistic regression": (lv.targets.likelihood(logistic, prior=lv.priors.gaussian(std=2.0), dim=5), (x, y)),
    }
    for name, (target, data) in targets.items():
        with contextlib.redirect_stdout(io.StringIO()):
            yield f"{name}, no settings", lv.sample(target, data=data, seed=seed, compile=False, progress=False)


def main() -> None:
    """Print how many runs warn, for each target and in all."""
    warnings.simplefilter("ignore", lv.TrustWarning)
    count, first = (int(sys.argv[k]) if len(sys.argv) > k else default for k, default in ((1, 1), (2, 0)))
    seeds, found = range(first, first + count), collections.defaultdict(list)
    for name, recipe in recipes().items():
        found[name] = [run.trust.warnings for seed in seeds for run in runs(recipe, seed)]
        say(name, found[name])
    for seed in range(TOGETHER * first, TOGETHER * (first + count)):
        for name, samples in without_settings(seed):
            found[name].append(samples.trust.warnings)
    for name in [name for name in found if name not in recipes()]:
        say(name, found[name])
    say("in all", [sentences for each in found.values() for sentences in each])


def say(name: str, found: list[list[str]]) -> None:
    """Print how many of some runs warn."""
    kinds = collections.Counter(sentence.split(":")[0] for sentences in found for sentence in sentences)
    print(f"{name:34} {sum(map(bool, found)):3} of {len(found)} runs warn  {dict(kinds) or ''}", flush=True)


if __name__ == "__main__":
    main()
