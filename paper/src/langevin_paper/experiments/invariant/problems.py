"""What is sampled: five laws whose moments are known, each with draws from it to start at."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from langevin.diagnostics import mode_shares
from langevin.random import Purpose, normal, permutation, stream, streams
from langevin.targets import Target, energy, gaussian, likelihood, mixture, priors
from langevin.targets.gradients import full
from langevin_paper.experiments.invariant.metropolis import metropolis

__all__ = ["DEFINITIONS", "TITLES", "Problem", "problem"]

TITLES = {
    "gaussian": "Gaussian, correlation 0.9", "mixture": "Mixture of five", "banana": "Banana",
    "wide": "50-D Gaussian, badly scaled", "logistic": "Logistic, minibatches",
}  # fmt: skip

CURVATURE = {"curvature_draws": 4000, "curvature_seed": 20}  # of the draws from which k is estimated
_OWN: dict[str, dict[str, Any]] = {
    "gaussian": {"covariance": ((1.0, 0.9), (0.9, 1.0))},
    "mixture": {},
    "banana": {"bend": 0.5, "width": 0.5},
    "wide": {"dim": 50, "log10_variances": (-3.0, 0.0)},
    "logistic": {
        "num_data": 2000, "batch_size": 50, "dim": 5, "truth": (-2.0, 2.0), "log10_scales": (-0.5, 0.0), "data_seed": 20,
        "prior_std": 1.0, "reference": {"num_chains": 250, "num_steps": 340, "burn": 40, "step": 0.8},
    },
}  # fmt: skip
DEFINITIONS = {name: {**own, **CURVATURE} for name, own in _OWN.items()}
"""What makes each problem, as records hold it."""


@dataclass(frozen=True, eq=False)
class Problem:
    """A target and its true moments.

    Steps are given times the curvature k, the largest eigenvalue of the mean Hessian E[grad U grad U^T] under the target: on a
    Gaussian with that curvature SGLD is unstable from ``eps k = 2`` on.
    """

    target: Target
    mean: Tensor  # (dim,)
    covariance: Tensor  # (dim, dim)
    draw: Callable[[int, int], Tensor]  # number and seed -> draws of the target, (number, dim)
    given: Mapping[str, Any]  # its definition
    data: tuple[Tensor, ...] | None = None
    reference: str = "exact"
    shares: Callable[[Tensor], Tensor] | None = None  # draws (chain, draw, dim) -> share of each mode, where modes are told apart

    @property
    def batch_size(self) -> int | None:
        """Rows of each step; None for a problem without data."""
        return self.given.get("batch_size")

    @functools.cached_property
    def hessian(self) -> Tensor:
        """The mean Hessian, as the mean of grad U grad U^T over draws; exact gradients."""
        draws = self.draw(self.given["curvature_draws"], self.given["curvature_seed"])
        gradients = full(self.target, self.data)(draws, 0).gradient.double()
        return gradients.mT @ gradients / len(gradients)

    @functools.cached_property
    def curvature(self) -> float:
        """The largest eigenvalue of the mean Hessian, k."""
        return float(torch.linalg.eigvalsh(self.hessian)[-1])

    @functools.cached_property
    def scaled_curvature(self) -> float:
        """The same in the coordinates of Adam's scale: of G^(1/2) H G^(1/2), G the inverse roots of the mean squared gradients."""
        root = self.hessian.diagonal() ** -0.25
        return float(torch.linalg.eigvalsh(root[:, None] * self.hessian * root)[-1])


def problem(name: str, given: Mapping[str, Any]) -> Problem:
    """Return the problem of that name and definition; the reference of the logistic regression takes seconds, once."""
    return _cached(name, json.dumps({key: given[key] for key in DEFINITIONS[name]}))


@functools.cache
def _cached(name: str, definition: str) -> Problem:
    return _MAKERS[name](json.loads(definition))


def _normals(number: int, dim: int, seed: int, step: int = 0) -> Tensor:
    return normal(seed, streams(Purpose.INIT, range(number)), step, dim)


def _gaussian(covariance: Tensor, given: Mapping[str, Any]) -> Problem:
    root = torch.linalg.cholesky(covariance).float()
    zero = torch.zeros(len(covariance), dtype=torch.float64)
    return Problem(
        gaussian(covariance), zero, covariance, lambda number, seed: _normals(number, len(covariance), seed) @ root.T, given
    )


def _correlated(given: Mapping[str, Any]) -> Problem:
    return _gaussian(torch.tensor(given["covariance"], dtype=torch.float64), given)


def _wide(given: Mapping[str, Any]) -> Problem:
    """Return variances that differ a lot, along the axes: the case that diagonal scales are made for."""
    low, high = given["log10_variances"]
    return _gaussian(torch.logspace(low, high, given["dim"], dtype=torch.float64).diag(), given)


def _mixture(given: Mapping[str, Any]) -> Problem:
    target = mixture()

    def draw(number: int, seed: int) -> Tensor:
        uniform = torch.special.ndtr(_normals(number, 1, seed, 1)[:, 0])
        component = torch.bucketize(uniform, target.weights.cumsum(0)[:-1].float())
        return target.means[component].float() + target.std * _normals(number, 2, seed)

    return Problem(target, target.mean, target.covariance, draw, given, shares=lambda draws: mode_shares(draws, target))


def _banana(given: Mapping[str, Any]) -> Problem:
    """Return x ~ N(0, 1), y ~ N(bend x^2, width^2)."""
    bend, width = given["bend"], given["width"]

    def draw(number: int, seed: int) -> Tensor:
        x, y = _normals(number, 2, seed).unbind(-1)
        return torch.stack([x, bend * x * x + width * y], -1)

    target = energy(lambda theta: 0.5 * theta[0] ** 2 + 0.5 * ((theta[1] - bend * theta[0] ** 2) / width) ** 2)
    covariance = torch.tensor([1.0, width**2 + 2 * bend**2], dtype=torch.float64).diag()
    return Problem(target, torch.tensor([0.0, bend], dtype=torch.float64), covariance, draw, given)


def _logistic(given: Mapping[str, Any]) -> Problem:
    number, dim, seed, at = given["num_data"], given["dim"], given["data_seed"], stream(Purpose.DATA)
    (low, high), (first, last) = given["log10_scales"], given["truth"]
    x = normal(seed, at, 0, number * dim).reshape(number, dim) * torch.logspace(low, high, dim)
    uniform = torch.special.ndtr(normal(seed, at, 1, number))
    y = (uniform < torch.sigmoid(x @ torch.linspace(first, last, dim))).float()
    target = likelihood(
        lambda theta, x, y: y * (x @ theta) - torch.nn.functional.softplus(x @ theta), prior=priors.gaussian(std=given["prior_std"])
    )
    found = metropolis(full(target, (x, y)), torch.zeros(dim), seed=seed, **given["reference"])

    def draw(number: int, seed: int) -> Tensor:
        return found.draws[permutation(seed, stream(Purpose.INIT), 0, len(found.draws))[torch.arange(number) % len(found.draws)]]

    return Problem(target, found.mean, found.covariance, draw, given, (x, y), found.text)


_MAKERS = {"gaussian": _correlated, "mixture": _mixture, "banana": _banana, "wide": _wide, "logistic": _logistic}
