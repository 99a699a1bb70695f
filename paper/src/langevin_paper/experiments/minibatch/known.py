"""What is known of a problem: moments, curvature, and the noise of its minibatches."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from langevin.random import Purpose, stream, white_rows
from langevin.targets import Target
from langevin.targets.gradients import of_each_row

__all__ = ["Problem", "row_covariance"]


@dataclass(frozen=True, eq=False)
class Problem:
    """A posterior, what is known of it, and the noise of its minibatches.

    Its *coordinates* are numbers whose means and variances are known: positions along the axes of the posterior, or predictions.
    """

    num_data: int
    hessian: Tensor  # K, the mean Hessian, float64
    coordinates: Callable[[Tensor], Tensor]  # positions (..., dim) -> (..., coordinates)
    mean: Tensor  # of the coordinates
    variance: Tensor
    reference: str  # how these are known, in words
    reference_draws: float  # independent draws that they were found from; infinite where they are exact
    row_covariance: Callable[[bool], Tensor]  # whether with control variates -> n Σ, float64
    draw: Callable[[int, int], Tensor] | None = None  # number and seed -> draws, (number, dim)
    target: Target | None = None  # None where laws are solved for
    data: tuple[Tensor, ...] = ()
    mode: Tensor | None = None

    @functools.cached_property
    def curvature(self) -> float:
        """The largest eigenvalue of the mean Hessian, k."""
        return float(torch.linalg.eigvalsh(self.hessian)[-1])

    def noise(self, batch_size: int, *, centred: bool = False) -> Tensor:
        """Return Σ, the covariance of the noise of a white minibatch; with control variates where `centred`."""
        return self.row_covariance(centred) / batch_size


def row_covariance(target: Target, data: tuple[Tensor, ...], places: Tensor, count: int, mode: Tensor | None, seed: int) -> Tensor:
    """Return the covariance of what a row says of the gradient, the mean over some places (places, dim); float64."""
    total, found = len(data[0]), []
    for index, place in enumerate(places):
        rows = torch.arange(total) if count >= total else white_rows(seed, stream(Purpose.DATA), 2 + index, count, total)
        said = torch.cat([of_each_row(target, data, part, place, mode) for part in rows.split(100_000)]).double()
        found.append(torch.cov(said.mT))
    return torch.stack(found).mean(0)
