"""Distances to known laws against closed forms and other programs."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.integrate
import scipy.optimize
import torch

import langevin as lv
from langevin import diagnostics as dg
from langevin.diagnostics.distances import _cell_probabilities

FIVE = lv.targets.mixture()


def normals(chains, draws, dim, seed=0):
    return lv.random.normal(seed, range(chains), range(draws), dim, dtype=torch.float64).transpose(0, 1)


def mixture_draws(chains, draws, shares, seed=0):
    """Exact draws with the components in turn, as often as `shares` say."""
    component = torch.tensor([k for k, count in enumerate(shares) for _ in range(count)])
    means = FIVE.means[component[torch.arange(draws) % len(component)]]
    return means + FIVE.std * normals(chains, draws, 2, seed=seed)


def test_moment_errors_are_mean_absolute_errors():
    draws = normals(3, 40, 3, seed=1)
    flat = draws.reshape(-1, 3).numpy()
    mean, covariance = np.array([0.1, 0.2, 0.3]), np.diag([1.0, 2.0, 3.0])
    found = dg.moment_errors(draws, mean.tolist(), torch.from_numpy(covariance))
    assert found.mean == pytest.approx(np.abs(flat.mean(0) - mean).mean(), rel=1e-12)
    assert found.covariance == pytest.approx(np.abs(np.cov(flat.T, bias=True) - covariance).mean(), rel=1e-12)


@pytest.mark.parametrize(("chains", "draws"), [(100, 200), (5, 4000)])
def test_errors_in_standard_errors_are_near_the_mean_absolute_normal_without_bias_and_large_with_it(chains, draws):
    """|N(0, 1)| has mean 0.80 and sd 0.60: over 8 elements of the mean 0.8 +- 0.21; tolerance 4 of these."""
    root = torch.linalg.cholesky(torch.eye(8, dtype=torch.float64) + 0.5)
    exact = normals(chains, draws, 8, seed=5) @ root.mT
    found = dg.moment_errors(exact, torch.zeros(8), root @ root.mT)
    assert abs(found.mean_in_errors - 0.8) < 4 * 0.6 / 8**0.5
    assert abs(found.covariance_in_errors - 0.8) < 4 * 0.6 / 8**0.5
    wrong = dg.moment_errors(1.1 * exact + 0.1, torch.zeros(8), root @ root.mT)
    assert wrong.mean_in_errors > 5
    assert wrong.covariance_in_errors > 5


def exact_wasserstein(x, y):
    """W_2 of two sets of points of unequal size as a linear program over transport plans."""
    n, m = len(x), len(y)
    cost = ((x[:, None] - y[None]) ** 2).ravel()
    rows = np.kron(np.eye(n), np.ones(m))
    columns = np.kron(np.ones(n), np.eye(m))
    plan = scipy.optimize.linprog(cost, A_eq=np.vstack([rows, columns]), b_eq=np.r_[np.full(n, 1 / n), np.full(m, 1 / m)])
    return plan.fun**0.5


@pytest.mark.parametrize(("n", "m"), [(12, 12), (9, 14), (20, 3), (1, 7)])
def test_in_one_dimension_it_is_the_optimal_transport_of_a_linear_program(n, m):
    x, y = normals(1, n, 1, seed=1), 0.5 + 2 * normals(1, m, 1, seed=2)
    found = dg.sliced_wasserstein(x, y, num_directions=3)
    assert found == pytest.approx(exact_wasserstein(x.flatten().numpy(), y.flatten().numpy()), rel=1e-6)


def test_the_mean_absolute_difference_of_quantiles_is_scipy_s_wasserstein_distance():
    """SciPy has W_1 only; on the line x <= y everywhere, both moves are the same, so squares of a shift agree."""
    from scipy.stats import wasserstein_distance

    x = normals(1, 200, 1)
    assert dg.sliced_wasserstein(x, x + 0.7) == pytest.approx(wasserstein_distance(x.flatten(), x.flatten() + 0.7), rel=1e-9)


def test_gaussians_shifted_and_scaled_are_at_the_closed_form():
    """W_2^2 of N(d, s^2 I) from N(0, I) along u is (u . d)^2 + (s - 1)^2, whose mean over u is |d|^2 / dim + (s - 1)^2."""
    x, y = normals(4, 2000, 3, seed=1), normals(1, 10_000, 3, seed=2)
    shift = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    exact = (float(shift @ shift) / 3 + 0.5**2) ** 0.5
    assert dg.sliced_wasserstein(x, shift + 1.5 * y, num_directions=200) == pytest.approx(exact, rel=0.08)
    assert dg.sliced_wasserstein(x, y) < 0.04


def test_the_same_seed_gives_the_same_directions_and_identical_sets_are_at_zero():
    x, y = normals(2, 50, 3), normals(1, 70, 3, seed=1)
    assert dg.sliced_wasserstein(x, y, seed=3) == dg.sliced_wasserstein(x, y, seed=3) != dg.sliced_wasserstein(x, y, seed=4)
    assert dg.sliced_wasserstein(x, x.flip(1).flip(0)) < 1e-12


def test_mode_shares_are_the_components_shares():
    draws = mixture_draws(10, 2000, (3, 1, 2, 0, 4))
    shares = dg.mode_shares(draws, FIVE)
    assert shares.sum().item() == pytest.approx(1.0)
    # Modes are 3 apart with std 0.71: 1.7 percent of a component lies beyond the middle to each neighbour.
    np.testing.assert_allclose(shares, [0.3, 0.1, 0.2, 0.0, 0.4], atol=0.02)


def test_cell_probabilities_are_integrals_of_the_density():
    found = _cell_probabilities(FIVE, 7.0, 28, None, 1.0).reshape(28, 28)

    def density(y, x):
        return math.exp(-FIVE.evaluate(torch.tensor([[x, y]], dtype=torch.float64)).energy.item())

    for i, j in [(8, 14), (20, 19), (11, 15)]:
        left, low = -7 + i / 2, -7 + j / 2
        exact, _ = scipy.integrate.dblquad(density, left, left + 0.5, low, low + 0.5, epsabs=1e-8)
        assert found[i, j].item() == pytest.approx(exact, rel=0.01)
    assert found.sum().item() == pytest.approx(1.0)


def test_total_variation_of_exact_draws_is_that_of_chance_and_a_missing_mode_costs_its_weight():
    exact = mixture_draws(20, 10_000, (1, 1, 1, 1, 1))
    assert dg.grid_total_variation(exact, FIVE, 7.0, 28) < 0.03
    missing = mixture_draws(20, 10_000, (1, 1, 1, 1, 0))
    assert dg.grid_total_variation(missing, FIVE, 7.0, 28) == pytest.approx(0.2, abs=0.02)
    assert dg.grid_total_variation(exact + 100.0, FIVE, 7.0, 28) == pytest.approx(1.0)


def test_total_variation_knows_the_temperature_and_data():
    cold = 0.5 * normals(10, 4000, 2)
    target = lv.targets.gaussian(torch.eye(2))
    assert dg.grid_total_variation(cold, target, 5.0, 20, temperature=0.25) < 0.03
    # TV of two centred normals in the plane, variances 1/4 and 1: exp(-r^2 / 2) - exp(-2 r^2) where 4 exp(-2 r^2) = exp(-r^2 / 2).
    radius_square = math.log(4) / 1.5
    exact = math.exp(-radius_square / 2) - math.exp(-2 * radius_square)
    assert dg.grid_total_variation(cold, target, 5.0, 40) == pytest.approx(exact, abs=0.02)

    x = lv.random.normal(9, 0, 0, 20, dtype=torch.float64)
    posterior = lv.targets.likelihood(
        lambda theta, x: -0.5 * (x - theta[0]) ** 2 - 0.5 * theta[1] ** 2 / 20, prior=lv.priors.gaussian(std=1.0)
    )
    draws = normals(10, 4000, 2) * torch.tensor([21**-0.5, 2**-0.5], dtype=torch.float64) + torch.tensor([x.sum() / 21, 0.0])
    assert dg.grid_total_variation(draws, posterior, 4.0, 40, data=x) < 0.04
