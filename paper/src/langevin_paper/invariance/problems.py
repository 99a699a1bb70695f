"""What is sampled: five laws whose moments are known, each with draws from it to start at."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import override

from langevin.gradients import GradientFn, full, minibatch
from langevin.noise import Purpose, normal, permutation, stream, streams
from langevin.targets import Batch, Evaluation, Target, gaussian, likelihood, mixture, priors
from langevin_paper.invariance.metropolis import metropolis

__all__ = ["PROBLEMS", "Problem", "problem"]

PROBLEMS = ("gaussian", "mixture", "banana", "wide", "logistic")
BEND, WIDTH = 0.5, 0.5  # of the banana: x ~ N(0, 1), y ~ N(BEND x^2, WIDTH^2)
NUM_DATA, BATCH_SIZE = 2000, 50  # of the logistic regression
DATA_SEED = 20


@dataclass(frozen=True, eq=False)
class Problem:
    """A target, its true moments, and how long it takes.

    Steps are given times the curvature k, the largest eigenvalue of the mean Hessian E[grad U grad U^T] under the target: on a
    Gaussian with that curvature SGLD is unstable from ``eps k = 2`` on.
    """

    name: str
    title: str
    target: Target
    mean: Tensor  # (dim,)
    covariance: Tensor  # (dim, dim)
    draw: Callable[[int, int], Tensor]  # number and seed -> draws of the target, (number, dim)
    step: float  # eps k where the bias factor varies
    steps: tuple[float, ...]  # eps k where the step size varies
    warmup: int
    num_steps: int  # warm-up included
    num_chains: int  # per setting
    data: tuple[Tensor, ...] | None = None
    batch_size: int | None = None
    least_share: float = 0.01  # of the largest stable step, where step sizes are searched
    reference: str = "exact"
    reference_error: float = 0.0  # standard error of the reference's variances, relative

    def gradient(self, number: int, seed: int) -> GradientFn:
        """Return the gradient as `number` chains see it."""
        if self.batch_size is None or self.data is None:
            return full(self.target, self.data)
        return minibatch(self.target, self.data, self.batch_size, seed=seed, chains=range(number))

    @functools.cached_property
    def hessian(self) -> Tensor:
        """The mean Hessian, as the mean of grad U grad U^T over draws; exact gradients."""
        gradients = full(self.target, self.data)(self.draw(4000, DATA_SEED), 0).gradient.double()
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


@dataclass(frozen=True)
class Banana(Target):
    """``U = x^2 / 2 + (y - BEND x^2)^2 / (2 WIDTH^2)``."""

    @override
    def evaluate(self, position: Tensor, batch: Batch | None = None) -> Evaluation:
        x, y = position.unbind(-1)
        off = (y - BEND * x * x) / WIDTH**2
        energy = 0.5 * x * x + 0.5 * WIDTH**2 * off * off
        return Evaluation(energy, torch.stack([x - 2 * BEND * x * off, off], -1))


def _normals(number: int, dim: int, seed: int, step: int = 0) -> Tensor:
    return normal(seed, streams(Purpose.INIT, range(number)), step, dim)


def _gaussian(name: str, title: str, covariance: Tensor, **plan: object) -> Problem:
    root = torch.linalg.cholesky(covariance).float()
    zero = torch.zeros(len(covariance), dtype=torch.float64)
    return Problem(
        name, title, gaussian(covariance), zero, covariance,
        lambda number, seed: _normals(number, len(covariance), seed) @ root.T, **plan,  # type: ignore[arg-type]
    )  # fmt: skip


def _correlated() -> Problem:
    covariance = torch.tensor([[1.0, 0.9], [0.9, 1.0]], dtype=torch.float64)
    return _gaussian(
        "gaussian", "Gaussian, correlation 0.9", covariance,
        step=0.1, steps=(0.05, 0.1, 0.2, 0.4, 0.8, 1.6), warmup=600, num_steps=2000, num_chains=300,
    )  # fmt: skip


def _wide() -> Problem:
    """Return variances from 0.001 to 1, along the axes: the case that diagonal scales are made for."""
    return _gaussian(
        "wide", "Gaussian, 50-D, variances 0.001 to 1", torch.logspace(-3, 0, 50, dtype=torch.float64).diag(),
        step=0.2, steps=(0.1, 0.2, 0.4, 0.8, 1.2, 1.6), warmup=3000, num_steps=6000, num_chains=40,
    )  # fmt: skip


def _mixture() -> Problem:
    target = mixture()

    def draw(number: int, seed: int) -> Tensor:
        uniform = torch.special.ndtr(_normals(number, 1, seed, 1)[:, 0])
        component = torch.bucketize(uniform, target.weights.cumsum(0)[:-1].float())
        return target.means[component].float() + target.std * _normals(number, 2, seed)

    return Problem(
        "mixture", "Mixture of five Gaussians", target, target.mean, target.covariance, draw,
        step=0.1, steps=(0.05, 0.1, 0.2, 0.4, 0.8, 1.6), warmup=1000, num_steps=3000, num_chains=150,
    )  # fmt: skip


def _banana() -> Problem:
    def draw(number: int, seed: int) -> Tensor:
        x, y = _normals(number, 2, seed).unbind(-1)
        return torch.stack([x, BEND * x * x + WIDTH * y], -1)

    covariance = torch.tensor([1.0, WIDTH**2 + 2 * BEND**2], dtype=torch.float64).diag()
    return Problem(
        "banana", "Banana", Banana(), torch.tensor([0.0, BEND], dtype=torch.float64), covariance, draw,
        step=0.05, steps=(0.025, 0.05, 0.1, 0.2, 0.4), warmup=600, num_steps=2000, num_chains=1000,
    )  # fmt: skip


def _logistic() -> Problem:
    dim, at = 5, stream(Purpose.DATA)
    x = normal(DATA_SEED, at, 0, NUM_DATA * dim).reshape(NUM_DATA, dim) * torch.logspace(-0.5, 0, dim)
    uniform = torch.special.ndtr(normal(DATA_SEED, at, 1, NUM_DATA))
    y = (uniform < torch.sigmoid(x @ torch.linspace(-2, 2, dim))).float()
    target = likelihood(
        lambda theta, x, y: y * (x @ theta) - torch.nn.functional.softplus(x @ theta), prior=priors.gaussian(std=1.0)
    )
    found = metropolis(full(target, (x, y)), torch.zeros(dim), seed=DATA_SEED)

    def draw(number: int, seed: int) -> Tensor:
        return found.draws[permutation(seed, stream(Purpose.INIT), 0, len(found.draws))[torch.arange(number) % len(found.draws)]]

    return Problem(
        "logistic", f"Logistic regression, N = {NUM_DATA}, n = {BATCH_SIZE}", target, found.mean, found.covariance, draw,
        step=0.01, steps=(0.005, 0.01, 0.02, 0.04, 0.08, 0.16), warmup=800, num_steps=2400, num_chains=32,
        data=(x, y), batch_size=BATCH_SIZE, least_share=1e-4, reference=found.text, reference_error=found.error,
    )  # fmt: skip


_MAKERS = {"gaussian": _correlated, "mixture": _mixture, "banana": _banana, "wide": _wide, "logistic": _logistic}


@functools.cache
def problem(name: str) -> Problem:
    """Return a problem by name; the reference of the logistic regression takes seconds, once."""
    return _MAKERS[name]()
