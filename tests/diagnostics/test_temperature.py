"""Temperatures against exact laws: Gaussians, the discrete Lyapunov equation of SGHMC and MSGLD."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from exact import momentum_covariance, stationary

import langevin as lv
from langevin import diagnostics as dg

EXACT_TARGET = lv.targets.gaussian([[1.0, 0.9], [0.9, 1.0]], mean=[30.0, -20.0])


def normals(chains, draws, dim, seed=0):
    return lv.random.normal(seed, range(chains), range(draws), dim, dtype=torch.float64).transpose(0, 1)


@pytest.mark.parametrize(("chains", "draws"), [(40, 500), (4, 5000), (1, 20_000), (20_000, 1)])
def test_the_configurational_temperature_of_exact_draws_is_theirs(chains, draws):
    """Draws of N(mean, 0.3 Sigma) far from the origin: standard error 0.3 sqrt(2 / (draws * dim)), tolerance 5 of them."""
    root = torch.linalg.cholesky(EXACT_TARGET.covariance)
    positions = EXACT_TARGET.mean + 0.3**0.5 * normals(chains, draws, 2, seed=2) @ root.mT
    gradients = EXACT_TARGET.evaluate(positions).gradient
    exact_error = 0.3 * (2 / (chains * draws * 2)) ** 0.5
    found = dg.configurational_temperature(positions, gradients, expected=0.3)
    assert abs(found.value - 0.3) < 5 * exact_error
    assert found.standard_error == pytest.approx(exact_error, rel=0.4)
    assert found.deviation == pytest.approx((found.value - 0.3) / found.standard_error)


def test_it_is_the_mean_of_the_virial_about_a_given_centre():
    draws, gradients, centre = normals(3, 20, 4), normals(3, 20, 4, seed=1), torch.tensor([1.0, 2.0, 3.0, 4.0])
    virials = [(draws[c, t] - centre) @ gradients[c, t] / 4 for c in range(3) for t in range(20)]
    found = dg.configurational_temperature(draws, gradients, centre=centre.double())
    assert found.value == pytest.approx(np.mean(virials), rel=1e-12)


@pytest.mark.parametrize("chains", [1, 5])
def test_centring_adds_no_bias_in_many_dimensions(chains):
    """The draws' own mean would give 1 - 1 / 20, which is 15 standard errors here."""
    draws = 7 + normals(chains, 20 // chains, 9000)
    found = dg.configurational_temperature(draws, draws - 7)
    error = (2 / (20 * 9000)) ** 0.5
    assert abs(found.value - 1) < 5 * error * 1.2  # the centre's own noise adds a fifth at most
    own = (((draws - draws.mean((0, 1))) * (draws - 7)).mean()).item()
    assert own < 1 - 10 * error


def test_it_holds_for_a_target_that_is_no_gaussian():
    """U = theta^4 / 4: theta^4 / 4 is Gamma(1/4) of mean T / 4, so E[theta grad U] = T, by rejection-free inversion on a grid."""
    grid = torch.linspace(-4, 4, 20_001, dtype=torch.float64)
    weights = (-(grid**4) / 4 / 0.5).exp().cumsum(0)
    uniform = torch.special.ndtr(normals(50, 400, 1))
    draws = grid[torch.searchsorted(weights / weights[-1], uniform.flatten()).clamp(max=20_000)].reshape(uniform.shape)
    target = lv.targets.energy(lambda theta: (theta**4).sum() / 4)
    gradients = target.evaluate(draws.reshape(-1, 1)).gradient.reshape(draws.shape)
    found = dg.configurational_temperature(draws, gradients, centre=torch.zeros(1))
    assert abs(found.value - 0.5) < 5 * found.standard_error < 0.05


@pytest.mark.parametrize(
    ("kernel", "expected", "exact"),
    [
        (lv.sgld(0.01), 1.0, 1 / (1 - 0.01 / 2)),
        (lv.msgld(0.01, bias_factor=1.0), 0.5, momentum_covariance(np.eye(1), eps=0.01, a=1.0, beta=0.9).item()),
    ],
    ids=["sgld", "msgld"],
)
def test_sgld_is_measured_near_one_and_published_msgld_near_one_half(kernel, expected, exact):
    """500 chains of N(0, I_4), one draw of each every 100 steps; `exact` is the variance of the recursion, tolerance 5 errors."""
    target = lv.targets.gaussian(torch.eye(4), gradient_noise=0.0)
    init = lv.random.normal(1, range(500), 0, 4, dtype=torch.float64)
    samples = lv.sample(target, sampler=kernel, init=init, num_steps=1100, warmup=700, thin=100)
    found = dg.effective_temperature(samples, target, kernel=kernel)
    assert found.expected == expected
    assert abs(found.value - exact) < 5 * found.standard_error < 0.1
    assert abs(found.value - expected) < 0.1
    low, high = found.interval(0.9999)
    assert low < exact < high


def test_without_a_kernel_nothing_is_expected():
    samples = lv.sample(EXACT_TARGET, sampler=lv.sgld(0.1), init=torch.zeros(4, 2), num_steps=50)
    found = dg.effective_temperature(samples, EXACT_TARGET)
    assert (found.expected, found.deviation) == (None, None)
    assert str(found) == f"temperature {found.value:.4g} ± {found.standard_error:.2g}"


@pytest.mark.parametrize(("eps", "beta", "tau"), [(0.01, 0.9, 1.0), (0.1, 0.5, 0.3)])
def test_the_kinetic_temperature_of_sghmc_is_that_of_its_exact_law(eps, beta, tau):
    """The 2 x 2 recursion of (theta, v) on N(0, 1): S = A S A^T + B; 5 standard errors."""
    noise = 2 * tau * eps * (1 - beta)
    law = stationary(np.array([[1 - eps, beta], [-eps, beta]]), noise * np.ones((2, 2)))
    target = lv.targets.gaussian([[1.0]])
    init = lv.random.normal(4, range(2000), 0, 1, dtype=torch.float64) * law[0, 0] ** 0.5
    samples = lv.sample(target, sampler=lv.sghmc(eps, beta=beta, temperature=tau), init=init, num_steps=300, warmup=100)
    found = dg.kinetic_temperature(samples.draws.diff(dim=1), eps)
    assert abs(found.value - law[1, 1] / eps) < 5 * found.standard_error < 0.06 * tau
    corrected = dg.kinetic_temperature(samples.draws.diff(dim=1), eps, beta=beta, expected=tau)
    assert corrected.value == pytest.approx((1 + beta) / 2 * found.value)
    assert abs(corrected.value - tau) < (eps + 0.06) * tau


def test_the_interval_of_independent_velocities_is_the_exact_chi_square_one():
    """One velocity of 50 elements, 1000 times: an exact 90 percent interval covers 900 times, standard deviation 9.5."""
    covered = 0
    for velocity in 0.1 * normals(1000, 1, 50, seed=8)[:, None]:
        found = dg.kinetic_temperature(velocity, 0.01)
        low, high = found.interval(0.9)
        covered += low < 1 < high
    assert abs(covered - 900) < 5 * 9.5
    from scipy.stats import chi2

    total = float((velocity**2).sum() / 0.01)
    np.testing.assert_allclose((low, high), (total / chi2.ppf(0.95, 50), total / chi2.ppf(0.05, 50)))
    assert np.isnan(dg.Temperature(-0.1, 0.2).interval()).all()
