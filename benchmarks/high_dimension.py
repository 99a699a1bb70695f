"""The default call in 500 to 10,000 dimensions: right or not, warnings, gradients per effective draw.

    python benchmarks/high_dimension.py [name ...] [--seed 0] [--reference 5000]

Gaussians are compared with their exact moments, the others with a longer run of the default call (`--reference` draws per chain,
another seed): that shows errors that depend on the run, not a bias which both share. Right: every mean within 5 % of an sd and 4
standard errors, every sd within 5 % and 4 standard errors. `pooled` is the root mean square of all sds over the true ones, less 1.
`cost` is gradients of all chains per effective draw of the slowest element, without the warm-up.
"""

from __future__ import annotations

import argparse
import math
import time
import warnings
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

import langevin as lv
from langevin.random import normal, uniform

SHARE = 0.05  # of a standard deviation, by which means and standard deviations may be wrong


class Problem(NamedTuple):
    """A target, and its exact means and standard deviations if they are known."""

    target: lv.targets.Target
    exact: tuple[Tensor, Tensor] | None = None


def gaussian(dim: int, turned: bool) -> Problem:
    """Return a Gaussian with condition number 1e4, along the axes or turned."""
    variance = torch.logspace(-4, 0, dim, dtype=torch.float64)
    units = torch.nn.functional.normalize(normal(1, 0, range(3), dim, dtype=torch.float64), dim=1)

    def energy(theta: Tensor) -> Tensor:
        if turned:
            for unit in units:
                theta = theta - 2 * (theta @ unit) * unit
        return 0.5 * (theta.square() / variance).sum()

    sd = _turned_sd(units, variance) if turned else variance.sqrt()
    return Problem(lv.targets.energy(energy, dim=dim), (torch.zeros(dim, dtype=torch.float64), sd))


def _turned_sd(units: Tensor, variance: Tensor) -> Tensor:
    """Return the sds in blocks of rows, so that no (dim, dim) matrix is needed."""
    dim, found = len(variance), []
    for first in range(0, dim, 500):
        rows = torch.zeros(min(500, dim - first), dim, dtype=torch.float64)
        rows[torch.arange(len(rows)), torch.arange(first, first + len(rows))] = 1.0
        for unit in units:
            rows = rows - 2 * (rows @ unit)[:, None] * unit
        found.append((rows.square() @ variance).sqrt())
    return torch.cat(found)


def cox(side: int = 32) -> Problem:
    """Return a log-Gaussian Cox process on a grid, whitened: a Matern-1/2 field, counts of points."""
    at = torch.cartesian_prod(*[torch.arange(side, dtype=torch.float64)] * 2) / side
    covariance = 1.91 * (-33 * torch.cdist(at, at)).exp()
    root = torch.linalg.cholesky(covariance)
    mean = math.log(126) - 1.91 / 2 - math.log(side**2)
    field = mean + root @ normal(2, 0, 0, side**2, dtype=torch.float64)
    chance = uniform(3, 0, 0, side**2, dtype=torch.float64) * 0.5 + 0.5
    counts = _poisson(field.exp(), chance)

    def energy(z: Tensor) -> Tensor:
        x = mean + root @ z
        return 0.5 * z.square().sum() + (x.exp() - counts * x).sum()

    return Problem(lv.targets.energy(energy, dim=side**2))


def _poisson(rate: Tensor, chance: Tensor) -> Tensor:
    """Return quantiles of Poisson distributions."""
    at = torch.arange(60, dtype=torch.float64)[:, None]
    mass = (at * rate.log() - rate - torch.lgamma(at + 1)).exp()
    return (mass.cumsum(0) < chance).sum(0).double()


def volatility(steps: int = 500) -> Problem:
    """Return a stochastic volatility model of synthetic returns, in terms of its innovations."""
    lags = torch.arange(steps, dtype=torch.float64)
    lags = lags[:, None] - lags
    past, lags = (lags >= 0).double(), lags.clamp(min=0.0)

    def path(level: Tensor, phi: Tensor, scale: Tensor, z: Tensor) -> Tensor:
        start = (1 - phi**2) ** -0.5 - 1  # the first innovation has the stationary variance
        shocks = z + torch.nn.functional.pad(z[:1] * start, (0, steps - 1))
        return level + scale * (((lags * phi.log()).exp() * past) @ shocks)

    known = [torch.tensor(value, dtype=torch.float64) for value in (-1.0, 0.97, 0.2)]
    h = path(*known, normal(4, 0, 0, steps, dtype=torch.float64))
    squares = (h / 2).exp().mul(normal(5, 0, 0, steps, dtype=torch.float64)).square()

    def energy(theta: Tensor) -> Tensor:
        level, raw, log_scale, z = theta[0], theta[1], theta[2], theta[3:]
        phi = raw.sigmoid()
        x = path(level, phi, log_scale.exp(), z)
        prior = level.square() / 50 + (log_scale + 1.5).square() / 2
        prior = prior - 20 * phi.log() - 1.5 * torch.nn.functional.logsigmoid(-raw)  # beta(20, 1.5)
        return prior + 0.5 * z.square().sum() + 0.5 * (x + squares * (-x).exp()).sum()

    return Problem(lv.targets.energy(energy, dim=steps + 3))


def sparse(columns: int = 500, rows: int = 400) -> Problem:
    """Return a linear regression with a Student-t (3) prior of scale .1 and unit noise."""
    x = normal(6, 0, range(rows), columns, dtype=torch.float64)
    truth = torch.zeros(columns, dtype=torch.float64)
    truth[:10] = torch.tensor([2.0, -2.0, 1.5, -1.5, 1.0, -1.0, 0.8, -0.8, 0.5, -0.5], dtype=torch.float64)
    y = x @ truth + normal(7, 0, 0, rows, dtype=torch.float64)

    def energy(b: Tensor) -> Tensor:
        return 0.5 * (y - x @ b).square().sum() + 2.0 * (b.square() / (3 * 0.1**2)).log1p().sum()

    return Problem(lv.targets.energy(energy, dim=columns))


PROBLEMS: dict[str, Callable[[], Problem]] = {
    "Gaussian, 1,000, axes": lambda: gaussian(1000, False),
    "Gaussian, 1,000, turned": lambda: gaussian(1000, True),
    "Gaussian, 10,000, axes": lambda: gaussian(10_000, False),
    "Gaussian, 10,000, turned": lambda: gaussian(10_000, True),
    "Cox process, 32 x 32": cox,
    "stochastic volatility, 503": volatility,
    "sparse regression, 500": sparse,
}


def run(name: str, seed: int, reference_draws: int) -> str:
    """Return the line of a problem."""
    problem = PROBLEMS[name]()
    start = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        samples = lv.sample(problem.target, seed=seed, progress=False)
    seconds = time.perf_counter() - start
    mean, sd, mean_error, sd_error = moments(samples)
    exact, other = problem.exact, (0.0, 0.0)
    if exact is None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            long = lv.sample(problem.target, seed=seed + 1000, num_draws=reference_draws, progress=False)
        exact, other = moments(long)[:2], moments(long)[2:]
    off = ((mean - exact[0]) / exact[1]).abs()
    off_sd = (sd / exact[1] - 1).abs()
    allowed = SHARE + 4 * (mean_error**2 + other[0] ** 2).sqrt() / exact[1]
    allowed_sd = SHARE + 4 * (sd_error**2 + other[1] ** 2).sqrt() / exact[1]
    right = bool((off < allowed).all() and (off_sd < allowed_sd).all())
    steps = sum(status.steps for status in samples.status)
    size = min(samples.trust[kind].value or math.nan for kind in ("bulk ESS", "tail ESS"))
    told = "; ".join(str(each.message).splitlines()[-1][:60] for each in caught)
    pooled = float((sd / exact[1]).square().mean().sqrt() - 1)
    return (
        f"{name:30}{'yes' if right else 'no':>6}{float(off.max()):8.1%}{float(off_sd.max()):8.1%}{pooled:9.1%}"
        f"{steps / size:9.1f}{samples.warmup_gradients:9,}{seconds:7.0f}  {told}"
    )


def moments(samples: lv.Samples) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return means, sds and their standard errors, from the chains."""
    draws = samples.healthy.double()
    means, mean = draws.mean(1), draws.mean((0, 1))
    squares = (draws - mean).square().mean(1)
    sd, root = squares.mean(0).sqrt(), len(draws) ** 0.5
    return mean, sd, means.std(0) / root, squares.std(0) / (2 * sd * root)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", default=list(PROBLEMS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--reference", type=int, default=5000)
    arguments = parser.parse_args()
    print(f"The default call of langevin {lv.__version__}, seed {arguments.seed}")
    print(f"{'':30}{'right':>6}{'mean':>8}{'sd':>8}{'pooled':>9}{'cost':>9}{'warm-up':>9}{'s':>7}")
    for title in arguments.names:
        print(run(title, arguments.seed, arguments.reference), flush=True)
