"""The prior with one unknown scale per layer: its density and the law of its draws, against quadrature."""

from __future__ import annotations

import math

import pytest
import torch
from scipy.integrate import quad
from test_table_chains import DIM, SHORT, STD, N, linear_posterior, run

from langevin.tabular.network import SharedScale, layer_scales, network
from langevin.targets import Posterior, likelihoods

S0 = 0.3


def quadrature(x, y):
    """Moments of the weights under one scale s of all of them, ``1 / s^2 ~ Gamma(1/2, s0^2 / 2)``, on a grid of log s."""
    design = torch.cat([x, torch.ones(N, 1)], 1).double()
    logs = torch.linspace(-7, 9, 4001, dtype=torch.float64)[:, None]
    deviations = logs.exp().expand(-1, DIM)
    precision = torch.diag_embed(deviations**-2) + design.T @ design / STD**2
    pull = design.T @ y.double() / STD**2
    means = torch.linalg.solve(precision, pull)
    evidence = 0.5 * (means @ pull) - 0.5 * torch.linalg.slogdet(precision)[1] - deviations.log().sum(-1)
    prior = (-logs - 0.5 * S0**2 * (-2 * logs).exp())[:, 0]  # of log s
    weight = (evidence + prior).softmax(0)
    seconds = torch.linalg.inv(precision).diagonal(dim1=1, dim2=2) + means.square()
    return weight @ means, weight @ seconds


def test_weights_have_their_law_under_an_unknown_scale():
    """A hundred chains; the error is that of the chains' means."""
    posterior, data, *_ = linear_posterior(prior=SharedScale(S0))
    draws = run(posterior, data, SHORT, range(100)).draws.double()
    for values, expected in zip((draws, draws.square()), quadrature(*data), strict=True):
        means = values.mean(1)
        z = (means.mean(0) - expected) / (means.std(0) / len(means) ** 0.5)
        assert z.abs().max() < 4.5, (expected, z)


@pytest.mark.parametrize("size", [1, 3, 40])
def test_its_density_is_the_mixture_over_scales(size):
    theta = torch.linspace(-0.5, 1.0, size, dtype=torch.float64)
    square = float(theta @ theta)

    def density(s):  # s = s0 / |z| with z ~ N(0, 1)
        scale = math.sqrt(2 / math.pi) * S0 / s**2 * math.exp(-0.5 * (S0 / s) ** 2)
        return scale * math.exp(-0.5 * square / s**2 - size * math.log(s * math.sqrt(2 * math.pi)) - shift)

    energy = float(SharedScale(S0).energy(theta))
    shift = -energy
    assert quad(density, 1e-3, math.inf, limit=500, points=None)[0] == pytest.approx(1.0, rel=1e-6)


def test_its_gradient_is_that_of_its_energy():
    position = torch.randn(2, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    prior = SharedScale(S0)
    (gradient,) = torch.autograd.grad(prior.energy(position).sum(), position)
    torch.testing.assert_close(gradient, prior.gradient(position))


def test_each_layer_has_its_own_scale():
    with torch.random.fork_rng():
        model = network(3, (4, 5), 2)
    whole = Posterior(model, likelihoods.gaussian("predicted"), prior=layer_scales(model), num_data=1).prior
    position = torch.randn(1, 3 * 4 + 4 + 4 * 5 + 5 + 5 * 2 + 2, generator=torch.Generator().manual_seed(0))
    parts = position.split([16, 25, 12], -1)
    torch.testing.assert_close(whole.energy(position), sum(SharedScale(S0).energy(part) for part in parts))
