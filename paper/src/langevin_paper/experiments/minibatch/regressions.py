"""Regressions with many data, stretched and rotated, whose posteriors are known; and a Gaussian with added noise."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from langevin.random import Purpose, normal, stream, streams
from langevin.targets import Batch, Evaluation, Target
from langevin.targets.gradients import find_mode
from langevin_paper.experiments.minibatch.known import Problem, row_covariance

__all__ = ["Regression", "noisy_gaussian", "regression"]


@dataclass(frozen=True)
class Regression(Target):
    """``-log p(y | x)``, up to a constant, is that of a unit normal about x theta, or of a coin with log odds x theta."""

    link: str
    prior_std: float
    dim: int | None = None

    needs_data = True
    has_closed_form = True

    @override
    def evaluate(self, position: Tensor, batch: Batch | None = None) -> Evaluation:
        assert batch is not None
        x, y = batch.columns
        z = (x @ position[..., None])[..., 0] if batch.per_chain else position @ x.mT
        if self.link == "identity":
            loss, slope = 0.5 * (z - y) ** 2, z - y
        else:
            loss, slope = torch.nn.functional.softplus(z) - y * z, torch.sigmoid(z) - y
        pulled = (slope[..., None, :] @ x)[..., 0, :] if batch.per_chain else slope @ x
        shrunk = position / self.prior_std**2
        return Evaluation(batch.scale * loss.sum(-1) + 0.5 * (position * shrunk).sum(-1), batch.scale * pulled + shrunk)


def _rotation(dim: int, seed: int) -> Tensor:
    """Return a random rotation, (dim, dim)."""
    return torch.linalg.qr(normal(seed, stream(Purpose.DATA), 0, dim * dim, dtype=torch.float64).reshape(dim, dim))[0]


def noisy_gaussian(given: Mapping[str, Any]) -> Problem:
    """Return a rotated Gaussian with noise in proportion to its curvature, as a regression has it; only laws are solved for."""
    scales = torch.logspace(0, 1, given["dim"], base=given["condition"], dtype=torch.float64)
    axes = _rotation(given["dim"], given["data_seed"])
    hessian = (axes * scales) @ axes.mT
    return Problem(
        given["num_data"], hessian, lambda positions: positions @ axes.to(positions), torch.zeros_like(scales), 1 / scales,
        "exact", torch.inf, lambda centred: given["num_data"] * hessian,
    )  # fmt: skip


def regression(given: Mapping[str, Any]) -> Problem:
    """Return a regression on stretched and rotated inputs; errors that grow with the first of them make it misspecified."""
    number, dim, seed, at = given["num_data"], given["dim"], given["data_seed"], stream(Purpose.DATA)
    stds = torch.logspace(0, -0.5, dim, base=given["condition"])
    x = (normal(seed, at, 1, number * dim).reshape(number, dim) * stds) @ _rotation(dim, seed).float()
    truth, error = normal(seed, at, 2, dim), normal(seed, at, 3, number)
    if given["link"] == "logit":
        y = (torch.special.ndtr(error) < torch.sigmoid(x @ truth)).float()
    else:
        size = x[:, 0].abs() / x[:, 0].abs().mean()  # errors of the model have size one
        y = x @ truth + (given["growth"] * size if given["growth"] else 1.0) * error
    target = Regression(given["link"], given["prior_std"], dim)
    return _known(target, (x, y), given)


def _known(target: Regression, data: tuple[Tensor, ...], given: Mapping[str, Any]) -> Problem:
    """Find mode, Hessian there, and moments: exact where the likelihood is normal, by importance sampling else."""
    x, y = (column.double() for column in data)
    dim, seed = x.shape[1], given["data_seed"]
    eye = torch.eye(dim, dtype=torch.float64) / given["prior_std"] ** 2
    if target.link == "identity":
        hessian = x.mT @ x + eye
        mode = torch.linalg.solve(hessian, x.mT @ y)
    else:
        mode = find_mode(target, (x, y), torch.zeros(dim, dtype=torch.float64), tolerance=1e-6)
        odds = torch.sigmoid(x @ mode)
        hessian = (x.mT * (odds * (1 - odds))) @ x + eye
    curvatures, axes = torch.linalg.eigh(hessian)
    zero, one = torch.zeros_like(curvatures), torch.ones_like(curvatures)
    moments = (zero, one, "exact", torch.inf)
    if target.link == "logit":
        moments = _weighed(target, (x, y), mode, axes * curvatures**-0.5, given)

    def draw(number: int, seed: int) -> Tensor:
        normals = normal(seed, streams(Purpose.INIT, range(number)), 0, dim, dtype=torch.float64)
        return (mode + normals * curvatures**-0.5 @ axes.mT).float()

    @functools.cache
    def covariance(centred: bool) -> Tensor:
        places = draw(given["noise_places"], seed)
        return row_covariance(target, data, places, given["noise_rows"], mode.float() if centred else None, seed)

    def coordinates(positions: Tensor) -> Tensor:
        return (positions - mode.to(positions)) @ (axes * curvatures**0.5).to(positions)

    return Problem(len(x), hessian, coordinates, *moments, covariance, draw, target, data, mode.float())


def _weighed(
    target: Regression, data: tuple[Tensor, ...], mode: Tensor, root: Tensor, given: Mapping[str, Any]
) -> tuple[Tensor, Tensor, str, float]:
    """Return the moments of the posterior in the coordinates of its Laplace approximation, whose draws are weighed."""
    number, dim, batch = given["reference_draws"], len(mode), Batch(data, len(data[0]), per_chain=False)
    draws = normal(given["data_seed"], streams(Purpose.PREDICT, range(number)), 0, dim, dtype=torch.float64)
    chunk = max(1, 5_000_000 // len(data[0]))
    # Of a draw and its mirror image: what is odd in the log weight, its largest part, cancels in the variance.
    heights = [
        torch.cat([target.evaluate(mode + sign * part @ root.mT, batch).energy for part in draws.split(chunk)]) for sign in (1, -1)
    ]
    log_weights = 0.5 * (draws * draws).sum(-1) - torch.stack(heights)
    weights = 2 * number * torch.softmax(log_weights.flatten(), 0).view_as(log_weights)
    mean = 0.5 * ((weights[0] - weights[1])[:, None] * draws).mean(0)
    change = (weights.mean(0) - 1)[:, None] * draws**2
    variance = 1 + change.mean(0) - mean**2
    error, effective = float(change.std(0).max()) / number**0.5, float(4 * number**2 / (weights**2).sum())
    text = (
        f"importance sampling, {number} pairs of the Laplace approximation worth {effective:.0f}, variances to {100 * error:.2g} %"
    )
    return mean, variance, text, 2 / error**2
