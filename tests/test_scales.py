"""Scales: a sampler in y = R^-1 theta is the sampler itself on U(R y), for every sampler that may; and what is learnt is right."""

from __future__ import annotations

import pytest
import torch
from sampler_table import TABLE

import langevin as lv
from langevin.adaptation.descent import descend, spread_starts
from langevin.adaptation.metric import curvature_metric, diagonal_metric, estimate_metric
from langevin.kernels import Scaled
from langevin.kernels.base import reads_position
from langevin.random import normal
from langevin.targets.gradients import full
from langevin.targets.metric import Dense, Diagonal, LowRank, as_metric

DIM = 5


def draw(rows, columns=DIM, seed=0):
    return normal(seed, 0, range(rows), columns, dtype=torch.float64)


def scales():
    root = draw(DIM, seed=3) + 3 * torch.eye(DIM, dtype=torch.float64)
    std = draw(1, seed=4)[0].exp()
    vectors = torch.linalg.qr(draw(2, seed=5).mT)[0]
    return {"diagonal": Diagonal(std), "dense": Dense(root), "low rank": LowRank(std, vectors, torch.tensor([3.0, 0.2]).double())}


def matrix(scale):
    return scale.push(torch.eye(DIM, dtype=torch.float64)).mT


@pytest.mark.parametrize("name", scales())
def test_pull_is_the_transpose_of_push(name):
    scale = scales()[name]
    assert torch.allclose(scale.pull(torch.eye(DIM, dtype=torch.float64)), matrix(scale))


@pytest.mark.parametrize("name", scales())
@pytest.mark.parametrize("sampler", TABLE)
def test_a_scaled_sampler_is_the_sampler_in_other_coordinates(sampler, name):
    scale, kernel = scales()[name], lv.SAMPLERS[sampler.split(",")[0]](0.01, **TABLE[sampler].settings)
    if reads_position(kernel):
        with pytest.raises(ValueError, match=r"scale=.*reads positions"):
            Scaled.of(kernel, scale)
        return
    root, curvature = matrix(scale), torch.diag(torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0], dtype=torch.float64))
    plain = lv.targets.energy(lambda theta: 0.5 * theta @ curvature @ theta + (theta**4).sum() / 10)
    inside = lv.targets.energy(lambda y: 0.5 * (root @ y) @ curvature @ (root @ y) + ((root @ y) ** 4).sum() / 10)
    start = 0.1 * draw(3, seed=6)
    settings = {"num_steps": 20, "warmup": 6, "compile": False}
    there = lv.sample(plain, sampler=Scaled.of(kernel, scale), init=start @ root.mT, **settings)
    here = lv.sample(inside, sampler=kernel, init=start, **settings)
    assert torch.allclose(there.draws, here.draws @ root.mT, rtol=1e-9, atol=1e-11)


def test_what_is_given_as_a_scale():
    like = torch.zeros(2, dtype=torch.float64)
    covariance = torch.tensor([[4.0, 1.0], [1.0, 9.0]], dtype=torch.float64)
    root = as_metric("sample", covariance, like).push(torch.eye(2, dtype=torch.float64)).mT
    assert torch.allclose(root @ root.mT, covariance)
    assert torch.equal(as_metric("sample", torch.tensor([4.0, 9.0]), like).push(torch.ones(2)), torch.tensor([2.0, 3.0]).double())
    for bad in (torch.ones(3), -torch.eye(2), torch.ones(2, 2, 2), 3.0, torch.tensor([[1.0, 0.5], [0.2, 1.0]])):
        with pytest.raises((ValueError, TypeError), match="metric="):
            as_metric("sample", bad, like)


def test_a_gaussian_is_learnt_exactly_from_any_cloud():
    """More draws than dimensions, far from the mean, of the wrong shape: g = H (theta - m) is all that it takes."""
    root = matrix(scales()["dense"])
    covariance = root @ root.mT
    cloud = 7 + draw(400) * torch.tensor([1.0, 9.0, 0.1, 2.0, 30.0], dtype=torch.float64)
    gradients = torch.linalg.solve(covariance, (cloud - 1).mT).mT
    first = Dense(torch.linalg.cholesky(covariance) @ torch.diag(torch.tensor([1.0, 1.1, 0.9, 1.0, 1.0], dtype=torch.float64)))
    scale = first
    for _ in range(60):  # shrinkage towards the scale so far dies out
        scale, softness = estimate_metric(scale, cloud, gradients, "dense")
    found = matrix(scale) @ matrix(scale).mT
    assert torch.allclose(found, covariance, rtol=1e-3, atol=1e-3 * float(covariance.abs().max()))
    assert 0 < softness <= 1
    widths = estimate_metric(Diagonal(torch.ones(DIM)), draw(4000) * 3, draw(4000) / 3, "diagonal").metric.push(torch.ones(DIM))
    assert torch.allclose(widths, torch.full((DIM,), 3.0, dtype=torch.float64), rtol=1e-9)


def test_the_curvature_at_a_mode_is_the_scale_there():
    covariance = torch.tensor([[1.0, 900.0], [900.0, 1e6]], dtype=torch.float64)
    target = lv.targets.gaussian(covariance)
    scale, _ = curvature_metric(full(target), torch.zeros(2, dtype=torch.float64), 4)
    root = scale.push(torch.eye(2, dtype=torch.float64)).mT
    assert torch.allclose(root @ root.mT, covariance, rtol=1e-4)


def test_the_diagonal_of_many_dimensions():
    curvatures = torch.logspace(-1, 3, 300, dtype=torch.float64)
    target = lv.targets.energy(lambda theta: 0.5 * (curvatures * theta**2).sum(), dim=300)
    scale, largest, _ = diagonal_metric(full(target), torch.zeros(300, dtype=torch.float64), 0, range(4))
    assert torch.allclose(scale.push(torch.ones(300, dtype=torch.float64)), curvatures**-0.5, rtol=1e-3)
    assert largest == pytest.approx(1.0, rel=1e-3)


def test_a_few_wide_directions_among_many():
    """A low-rank scale takes out what a diagonal one cannot: a direction a hundred times wider than the rest."""
    dim = 300
    wide = torch.nn.functional.normalize(draw(1, dim, seed=9)[0], dim=0)
    draws = draw(2000, dim, seed=10) + 100 * draw(2000, 1, seed=11) * wide
    gradients = draws - (draws @ wide)[:, None] * wide * (1 - 1 / (1 + 100.0**2))
    scale = estimate_metric(Diagonal(torch.ones(dim, dtype=torch.float64)), draws, gradients, "low_rank").metric
    inside = scale.pull(wide[None])[0]  # its length is the standard deviation that y takes along `wide`
    assert isinstance(scale, LowRank)
    assert 50 < float(torch.linalg.vector_norm(inside)) < 200


def test_every_chain_goes_downhill_by_itself():
    def banana(theta):
        return 100 * (theta[1] - theta[0] ** 2) ** 2 + (1 - theta[0]) ** 2

    gradient_fn = full(lv.targets.energy(banana))
    starts = spread_starts(gradient_fn, range(6), 0, torch.zeros(2, dtype=torch.float64))
    assert starts.abs().max() <= 2
    assert len(starts.unique(dim=0)) == 6
    together = descend(gradient_fn, starts, 400, tolerance=1e-10)
    assert torch.allclose(together.position, torch.ones(6, 2, dtype=torch.float64), atol=1e-3)
    alone = descend(gradient_fn, starts[2:3], 400, tolerance=1e-10)
    assert torch.allclose(alone.position, together.position[2:3], atol=1e-6)
    assert together.evaluations < 200


def test_starts_are_drawn_again_outside_the_support():
    target = lv.targets.energy(lambda theta: torch.where(theta[0] > 0, theta[0], torch.inf), dim=1)
    starts = spread_starts(full(target), range(20), 0, torch.zeros(1, dtype=torch.float64))
    assert (starts > 0).all()
    nowhere = lv.targets.energy(lambda theta: theta[0] + torch.inf, dim=1)
    with pytest.raises(ValueError, match="no initial position with a finite energy"):
        spread_starts(full(nowhere), range(2), 0, torch.zeros(1, dtype=torch.float64))
