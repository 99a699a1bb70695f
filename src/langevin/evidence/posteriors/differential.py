"""A differential equation inside the likelihood: hares and lynxes (Lotka and Volterra)."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.distributions import LogNormal, Normal

from langevin.constraints import positive
from langevin.evidence.posteriors.base import Data, Parameters, KnownPosterior, column
from langevin.targets import Model

__all__ = ["DIFFERENTIAL", "log_populations"]

_STEPS = 8  # of Runge and Kutta's method, a year


def log_populations(theta: Tensor, start: Tensor, years: int, steps: int) -> Tensor:
    """Solve ``u' = (α - β v) u``, ``v' = (-γ + δ u) v`` for log u and log v; return them at years 1, 2, .. (years, 2).

    In logarithms populations stay positive and the slopes are milder, so that the classical method of order 4 with few fixed
    steps is enough; no loop depends on the values.
    """
    constant = torch.stack([theta[0], -theta[2]]) / steps
    other = torch.stack([-theta[1], theta[3]]) / steps

    def slope(logs: Tensor) -> Tensor:
        return constant + other * logs.exp().flip(-1)

    logs, every_year = start.log(), []
    for _ in range(years):
        for _ in range(steps):
            first = slope(logs)
            second = slope(logs + 0.5 * first)
            third = slope(logs + 0.5 * second)
            logs = logs + (first + 2.0 * (second + third) + slope(logs + third)) / 6.0
        every_year.append(logs)
    return torch.stack(every_year)


def lotka_volterra(data: Data) -> KnownPosterior:
    """Pelts of hares and lynxes: lognormal around the solution of the equation, from the start on."""
    observed = torch.cat([column(data, "y_init")[None], column(data, "y")])
    if data["ts"] != list(range(1, len(observed))):
        raise ValueError("lotka_volterra needs observations at the years 1, 2, ..")

    def log_density(p: Parameters) -> Tensor:
        later = log_populations(p["theta"], p["z_init"], len(observed) - 1, _STEPS)
        return LogNormal(torch.cat([p["z_init"].log()[None], later]), p["sigma"]).log_prob(observed).sum()

    means, sds = torch.tensor([[1.0, 0.05, 1.0, 0.05], [0.5, 0.05, 0.5, 0.05]], dtype=torch.float64)
    return KnownPosterior(
        Model.log_density(
            log_density,
            parameters={"theta": positive(4), "z_init": positive(2), "sigma": positive(2)},
            prior={"theta": Normal(means, sds), "z_init": LogNormal(math.log(10.0), 1.0), "sigma": LogNormal(-1.0, 1.0)},
        )
    )


DIFFERENTIAL = {"hudson_lynx_hare-lotka_volterra": lotka_volterra}
