"""Targets with known moments on which samplers are compared (sampler-benchmarks, tuningfork, the Inference Gym)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch.distributions import Normal, StudentT

from langevin.random import Purpose, normal, stream
from langevin.targets import Model
from langevin.targets.constraints import real
from langevin_paper.check.posteriors.base import KnownPosterior, Parameters

__all__ = ["ANALYTIC", "Analytic"]


class Analytic(NamedTuple):
    """A posterior, and the exact means and standard deviations of the reported numbers, in their order."""

    posterior: KnownPosterior
    mean: list[float]
    sd: list[float]


def _gaussian(variances: torch.Tensor, *, is_rotated: bool) -> Analytic:
    dim = len(variances)
    noise = normal(0, stream(Purpose.DATA), 0, dim * dim, dtype=torch.float64).reshape(dim, dim)
    axes = torch.linalg.qr(noise).Q if is_rotated else torch.eye(dim, dtype=torch.float64)
    precision = (axes / variances) @ axes.T
    sd = ((axes * variances) @ axes.T).diagonal().sqrt()
    model = Model.log_density(lambda p: -0.5 * p["x"] @ precision @ p["x"], parameters={"x": real(dim)})
    return Analytic(KnownPosterior(model), dim * [0.0], sd.tolist())


def ill_conditioned_gaussian() -> Analytic:
    """A Gaussian in 100 dimensions with condition number 1,000, rotated at random."""
    return _gaussian(torch.logspace(0, 3, 100, dtype=torch.float64), is_rotated=True)


def ill_conditioned_gaussian_50() -> Analytic:
    """A Gaussian in 50 dimensions with condition number 10,000, along the axes."""
    return _gaussian(torch.logspace(-2, 2, 50, dtype=torch.float64), is_rotated=False)


def banana() -> Analytic:
    """The banana of Haario, Saksman and Tamminen: ``x ~ N(0, 10), y ~ N(.03 (x^2 - 100), 1)``."""
    model = Model.log_density(
        lambda p: 0 * p["x"],
        parameters={"x": real(), "y": real()},
        prior={"x": Normal(0.0, 10.0), "y": lambda p: Normal(0.03 * (p["x"].square() - 100), 1.0)},
    )
    return Analytic(KnownPosterior(model), [0.0, 0.0], [10.0, math.sqrt(1 + 0.03**2 * 2 * 1e4)])


def rosenbrock() -> Analytic:
    """Eighteen pairs ``x ~ N(1, 1), y ~ N(x^2, .1^(1/2))``: curved ridges in 36 dimensions."""
    pairs = 18
    model = Model.log_density(
        lambda p: 0 * p["x"].sum(),
        parameters={"x": real(pairs), "y": real(pairs)},
        prior={"x": Normal(1.0, 1.0), "y": lambda p: Normal(p["x"].square(), 0.1**0.5)},
    )
    return Analytic(KnownPosterior(model), pairs * [1.0] + pairs * [2.0], pairs * [1.0] + pairs * [6.1**0.5])


def funnel() -> Analytic:
    """Neal's funnel in 10 dimensions, with conditional priors; v is reported, and ``z = x exp(-v / 2)``."""

    def reported(p: Parameters) -> Parameters:
        return {"v": p["v"], "z": p["x"] * (-p["v"] / 2).exp()}

    model = Model.log_density(
        lambda p: 0 * p["v"],
        parameters={"v": real(), "x": real(9)},
        prior={"v": Normal(0.0, 3.0), "x": lambda p: Normal(0.0, (p["v"] / 2).exp())},
    )
    return Analytic(KnownPosterior(model, None, reported), 10 * [0.0], [3.0, *(9 * [1.0])])


def student_t() -> Analytic:
    """Ten independent Student's t with 5 degrees of freedom."""
    model = Model.log_density(lambda p: StudentT(5.0).log_prob(p["x"]).sum(), parameters={"x": real(10)})
    return Analytic(KnownPosterior(model), 10 * [0.0], 10 * [(5 / 3) ** 0.5])


ANALYTIC: dict[str, Callable[[], Analytic]] = {
    "banana": banana,
    "funnel": funnel,
    "ill_conditioned_gaussian": ill_conditioned_gaussian,
    "ill_conditioned_gaussian_50": ill_conditioned_gaussian_50,
    "rosenbrock": rosenbrock,
    "student_t": student_t,
}
