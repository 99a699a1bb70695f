"""The prior that is found: the joint law of weights and their scales, against quadrature."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from test_explore import DIM, SHORT, STD, N, linear_posterior

from langevin.random import Purpose, normal, streams
from langevin.tabular.explore import explore
from langevin.tabular.model import LayerScales


def quadrature(x, y):
    """Moments of the weights and of log s under a half-Cauchy scale of all of them, on a grid of log s."""
    design = torch.cat([x, torch.ones(N, 1)], 1).double()
    logs = torch.linspace(-7, 9, 4001, dtype=torch.float64)[:, None]
    deviations = logs.exp().expand(-1, DIM)
    precision = torch.diag_embed(deviations**-2) + design.T @ design / STD**2
    pull = design.T @ y.double() / STD**2
    means = torch.linalg.solve(precision, pull)
    evidence = 0.5 * (means @ pull) - 0.5 * torch.linalg.slogdet(precision)[1] - deviations.log().sum(-1)
    prior = (logs - (2 * logs).exp().log1p())[:, 0]  # half-Cauchy, and d s = s d log s
    weight = (evidence + prior).softmax(0)
    seconds = torch.linalg.inv(precision).diagonal(dim1=1, dim2=2) + means.square()
    return weight @ means, weight @ seconds, weight @ logs, weight @ logs.square()


def test_weights_and_scales_have_their_joint_law():
    """A hundred chains; the error is that of the chains' means."""
    posterior, data, *_ = linear_posterior()
    posterior.prior = LayerScales.first(posterior.space)
    found = explore(posterior, data, SHORT, chains=range(100), seed=0)
    assert not found.rejected.any()
    draws, logs = found.draws.double(), found.scales.double().log()
    for values, expected in zip((draws, draws.square(), logs, logs.square()), quadrature(*data), strict=True):
        means = values.mean(1)
        z = (means.mean(0) - expected) / (means.std(0) / len(means) ** 0.5)
        assert z.abs().max() < 4.5, (expected, z)


def test_the_posterior_that_is_explored_stays_as_it_was():
    posterior, data, *_ = linear_posterior()
    posterior.prior = first = LayerScales.first(posterior.space)
    explore(posterior, data, dataclasses.replace(SHORT, burn_in=64, num_steps=64, num_draws=1), chains=range(2), seed=0)
    assert posterior.prior is first


def test_the_scale_of_many_weights_is_theirs():
    groups = torch.tensor([0] * 5000 + [1] * 5000)
    first = LayerScales(("a", "b"), groups, torch.ones(1, 3))
    position = 0.2 * normal(0, streams(Purpose.DATA, range(2)), 0, 10_000)
    position[:, 5000:] *= 100
    found = first.redrawn(position, seed=0, chains=range(2), step=0)
    torch.testing.assert_close(found.std, torch.tensor([[0.2, 20.0]]).expand(2, 2), rtol=0.05, atol=0)


def test_weights_of_zero_do_not_break_it():
    scales = LayerScales(("a",), torch.zeros(3, dtype=torch.int64), torch.ones(1, 2))
    for step in range(100):
        scales = scales.redrawn(torch.zeros(1, 3), seed=0, chains=range(1), step=step)
        assert torch.isfinite(scales.energy(torch.zeros(1, 3))).all()


def test_its_gradient_is_that_of_its_energy():
    scales = LayerScales(("a",), torch.tensor([0, 0, 1]), torch.tensor([[2.0, 5.0], [3.0, 0.1]], dtype=torch.float64))
    position = torch.randn(2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    (gradient,) = torch.autograd.grad(scales.energy(position).sum(), position)
    torch.testing.assert_close(gradient, scales.gradient(position))
    normalised = torch.distributions.Normal(0.0, scales.curvature**-0.5).log_prob(position).sum(-1)
    assert -scales.energy(position).detach() == pytest.approx(normalised.detach())
