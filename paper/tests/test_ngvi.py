"""NGVI: exact on a Gaussian, better at every stage on the five modes, unbiased in its parts."""

from __future__ import annotations

import itertools

import pytest
import torch
from langevin_paper import ngvi

from langevin.diagnostics import mode_shares
from langevin.random import Purpose, normal, streams
from langevin.targets import gaussian, mixture

pytestmark = pytest.mark.usefixtures("one_thread")


def noise(runs, step, samples, components, dim=2, seed=0):
    flat = normal(seed, streams(Purpose.POSITION, range(runs)), step, samples * components * dim, dtype=torch.float64)
    return flat.reshape(runs, samples, components, dim)


def fit(target, components, num_steps, rate, runs=2, samples=10):
    state = ngvi.start(range(runs), components=components, dim=2, variance=1.5)
    for step in range(num_steps):
        state = ngvi.step(state, target, noise(runs, step, samples, components), rate=rate)
    return state


def test_one_component_finds_a_gaussian_exactly():
    covariance = torch.tensor([[1.0, 0.9], [0.9, 1.0]], dtype=torch.float64)
    state = fit(gaussian(covariance, mean=[1.0, -2.0]), 1, 500, 0.1)
    assert torch.allclose(torch.linalg.inv(state.precisions[:, 0]), covariance.expand(2, 2, 2), atol=1e-9)
    assert torch.allclose(state.means[:, 0], torch.tensor([1.0, -2.0], dtype=torch.float64).expand(2, 2), atol=1e-9)


def test_the_bound_rises_on_the_five_modes_and_the_mass_is_found():
    target, runs = mixture(), 3
    check = noise(runs, 0, 2_000, 5, seed=7)
    bounds = []
    state = ngvi.start(range(runs), components=5, dim=2, variance=1.5)
    for step in range(1_200):
        if step % 400 == 0:
            bounds.append(ngvi.elbo(state, target, check))
        state = ngvi.step(state, target, noise(runs, step, 10, 5), rate=0.005)
    bounds.append(ngvi.elbo(state, target, check))
    # The target is normalised, so the bound is minus a KL divergence: its standard error with 10,000 draws is below 0.02.
    assert all((later > earlier - 0.05).all() for earlier, later in itertools.pairwise(bounds))
    assert (bounds[-1] > bounds[0] + 0.5).all()
    assert (bounds[-1] < 0.06).all()
    draws = ngvi.draw(state, noise(runs, 5_000, 500, 5)).flatten(1, 2)
    assert (mode_shares(draws, target) > 0.05).sum() >= 4


def test_the_log_density_has_the_gradient_that_it_says_and_integrates_to_one():
    state = fit(mixture(), 3, 50, 0.01, runs=1)
    axis = torch.linspace(-12, 12, 241, dtype=torch.float64)
    z = torch.cartesian_prod(axis, axis)[None].requires_grad_()
    value, slope = ngvi.log_density(state, z)
    (expected,) = torch.autograd.grad(value.sum(), z)
    assert torch.allclose(slope, expected)
    assert float(value.detach().exp().sum() * 0.1**2) == pytest.approx(1.0, abs=1e-6)


def test_the_draws_have_the_components_moments():
    state = fit(mixture(), 2, 30, 0.05, runs=1)
    draws = ngvi.draw(state, noise(1, 9_999, 40_000, 2))[0]
    for component in range(2):
        expected = torch.linalg.inv(state.precisions[0, component])
        # Relative standard error of a variance from n normals is sqrt(2 / n) = 0.007; five of them.
        assert torch.allclose(torch.cov(draws[:, component].T), expected, atol=0.035 * float(expected.diagonal().max()))


def test_a_step_that_would_leave_the_cone_is_guarded():
    state = ngvi.start(range(1), components=1, dim=2, variance=1.5)
    # Between two far modes the curvature of U is very negative: a large step makes S indefinite.
    target = mixture(means=[[-8.0, 0.0], [8.0, 0.0]], std=0.3)
    state = state._replace(means=torch.zeros_like(state.means))
    after = ngvi.step(state, target, noise(1, 0, 10, 1), rate=1.0)
    assert after.guarded == 1
    assert (torch.linalg.eigvalsh(after.precisions) > 0).all()


def test_noise_of_the_wrong_shape_is_refused():
    state = ngvi.start(range(1), components=2, dim=2, variance=1.0)
    with pytest.raises(ValueError, match="runs, samples, components, dim"):
        ngvi.step(state, mixture(), torch.zeros(1, 10, 3, 2, dtype=torch.float64), rate=0.1)


def test_errors_of_the_gradients_enter_the_step_and_average_out():
    state, target = fit(mixture(), 2, 30, 0.05, runs=1), mixture()
    samples = noise(1, 7, 10, 2)
    plain = ngvi.step(state, target, samples, rate=0.01)
    same = ngvi.step(state, target, samples, rate=0.01, error=torch.zeros_like(samples))
    assert all(torch.equal(a, b) for a, b in zip(plain[:3], same[:3], strict=True))
    error = noise(1, 8, 10, 2)
    up, down = (ngvi.step(state, target, samples, rate=0.01, error=sign * error) for sign in (1, -1))
    assert not torch.allclose(up.means, plain.means)
    assert torch.allclose((up.precisions + down.precisions) / 2, plain.precisions)
