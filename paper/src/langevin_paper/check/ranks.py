"""Gandy and Scott's rank test on a model with data: the truth has a uniform rank among the steps of a chain through it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import override

from langevin.diagnostics.calibration import uniformity
from langevin.kernels import Kernel, KernelState
from langevin.random import Purpose, integers, normal, streams
from langevin.targets import Batch, Evaluation, Target
from langevin.targets.gradients import full
from langevin_paper.check.linear import Inertial, adaptive
from langevin_paper.check.recursions import Matrix
from langevin_paper.check.start import advance, joined, state_of

__all__ = ["Regression", "rank_p_values", "reversed_in_time", "uniformity"]

LENGTH, THIN = 10, 4  # positions of a chain that are ranked, and steps between them
SLOPES, ROWS, SIGMA = 3, 20, 0.7
BACKWARDS = 2**32  # the steps of the way back have addresses of their own


@dataclass(frozen=True)
class Regression:
    """``y = X b + σ e`` with ``b ~ N(0, I)``: the posterior is N(mean, P^-1) with ``P = I + X^T X / σ^2`` whatever the data."""

    features: Tensor

    @classmethod
    def standard(cls, seed: int) -> Regression:
        """Make the features, the same in every replication; they are correlated."""
        plain = normal(seed, streams(Purpose.DATA, range(ROWS)), 0, SLOPES, dtype=torch.float64)
        return cls(plain + plain[:, :1])

    @property
    def precision(self) -> Tensor:
        """Of the posterior."""
        return torch.eye(SLOPES, dtype=torch.float64) + self.features.mT @ self.features / SIGMA**2

    def simulate(self, seed: int, chains: range) -> tuple[Tensor, Tensor]:
        """Draw slopes from the prior and data given them, (chains, slopes) and (chains, rows)."""
        slopes = normal(seed, streams(Purpose.INIT, chains), 1, SLOPES, dtype=torch.float64)
        errors = normal(seed, streams(Purpose.DATA, chains), 1, ROWS, dtype=torch.float64)
        return slopes, slopes @ self.features.mT + SIGMA * errors

    def posterior_means(self, y: Tensor) -> Tensor:
        """Return the posterior means given data (chains, rows)."""
        return torch.linalg.solve(self.precision, (y @ self.features / SIGMA**2).mT).mT


@dataclass(frozen=True, eq=False)
class Posteriors(Target):
    """One posterior for each chain: ``U = (b - mean)^T P (b - mean) / 2``."""

    means: Tensor
    precision: Tensor

    @override
    def evaluate(self, position: Tensor, batch: Batch | None = None) -> Evaluation:
        centred = position - self.means
        gradient = centred @ self.precision
        return Evaluation(0.5 * (centred * gradient).sum(-1), gradient)


def reversed_in_time(state: KernelState, gradient: Tensor, strides: tuple[Matrix, float]) -> KernelState:
    """Turn the invariant form round: steps from here go through what came before, in law.

    Its stages B A O A (`kernels.Invariant`) are each undone by itself with the velocities' signs changed, so the way back has the
    stages A O A B. These are B A O A again from where B is undone: from ``(θ, -v + h G^(1/2) g, -u + sqrt(2 ε) g)``.
    """
    velocity, passing, *frozen = state.tensors
    stride, passing_stride = strides
    return state._replace(tensors=(gradient @ torch.as_tensor(stride) - velocity, passing_stride * gradient - passing, *frozen))


def rank_p_values(
    name: str, share: float, breaking: Callable[[Kernel], Kernel] | None, seed: int, count: int, first: int
) -> NDArray[np.float64]:
    """Rank the truth among the positions of a chain that goes through it, and test that its ranks are uniform.

    Draw b from the prior, data given b: so b is a draw of the posterior. Choose its place among LENGTH positions at random and let
    the chain run to both sides of it, with velocities drawn given b; backwards it is the chain reversed in time. So the rank of the
    truth is uniform, however dependent the positions are (Gandy and Scott, section 2.2, after Besag and Clifford 1989; there the
    chain is its own reversal). Ranked are the slopes and the energy.
    """
    chains, model = range(first, first + count), Regression.standard(seed)
    case = adaptive(model.precision.numpy(), name, share=share)
    kernel = case.kernel if breaking is None else breaking(case.kernel)
    truth, y = model.simulate(seed, chains)
    target = Posteriors(model.posterior_means(y), model.precision)
    start = state_of(_with_velocities(case, truth, target.means, seed, chains), SLOPES, case.frozen)
    back = reversed_in_time(start, target.evaluate(truth).gradient, case.strides)._replace(step=BACKWARDS)

    def quantities(position: Tensor) -> Tensor:
        return torch.cat([position, target.evaluate(position).energy[:, None]], -1)

    place = integers(seed, streams(Purpose.DATA, chains), 2, 1, (LENGTH,))[..., 0, 0, None]
    here, ranks = quantities(truth), torch.zeros(count, SLOPES + 1, dtype=torch.int64)
    for state, length in ((start, LENGTH - 1 - place), (back, place)):
        for distance in range(1, LENGTH):
            state = advance(kernel, full(target), state, THIN, seed=seed, chains=chains)
            ranks += (quantities(state.position) < here) & (distance <= length)
        if not torch.isfinite(joined(state, case.frozen)).all():
            return np.zeros(1)
    return uniformity(ranks.numpy(), LENGTH)


def _with_velocities(case: Inertial, truth: Tensor, means: Tensor, seed: int, chains: range) -> Tensor:
    """Return z = (b, v, u) with the velocities drawn from their law given b."""
    law, d = torch.as_tensor(case.law), case.dim
    slope = torch.linalg.solve(law[:d, :d], law[:d, d:])  # of the mean of (v, u) on b - mean
    rest = law[d:, d:] - law[d:, :d] @ slope
    noise = normal(seed, streams(Purpose.INIT, chains), 2, 2 * d, dtype=torch.float64)
    return torch.cat([truth, (truth - means) @ slope + noise @ torch.linalg.cholesky(rest).mT], -1)
