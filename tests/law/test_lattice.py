"""The lattice random walk: its exact law by the transition matrix of the lattice, with exact and with noisy gradients."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import chi2

import langevin as lv
from langevin.random import KINDS, Purpose, normal, streams, uniform, uniform_reference

TAU, EPS, CHAINS = 0.7, 0.08, range(40_000)
D = np.sqrt(2 * EPS * TAU)
SITES = np.arange(-60, 61)
X = D * SITES  # |x| up to 20


def slope(x):
    """The gradient of 3 log cosh x + x / 2: EPS |slope| < D everywhere, so that every step is on the lattice."""
    return 3 * np.tanh(x) + 0.5


def transition():
    """P[i, j]: from site i to site j, from the probabilities of the paper; the ends reflect, where nobody gets."""
    up = (1 - EPS * slope(X) / D) / 2
    matrix = np.zeros((len(X), len(X)))
    for i in range(len(X)):
        matrix[i, min(i + 1, len(X) - 1)] += up[i]
        matrix[i, max(i - 1, 0)] += 1 - up[i]
    return matrix


def walk(steps, noise=0.0, seed=2):
    """Return the sites of chains that started at zero; the gradient's noise is `noise`, up or down."""
    kernel, place = lv.sglrw(EPS, temperature=TAU), torch.zeros(len(CHAINS), 1, dtype=torch.float64)
    state = kernel.init(place)
    for step in range(steps):
        u = uniform(seed, streams(Purpose.POSITION, CHAINS), step, 1, dtype=torch.float64)
        signs = uniform(seed, streams(Purpose.GRADIENT, CHAINS), step, 1, dtype=torch.float64).sign()
        gradient = 3 * state.position.tanh() + 0.5 + noise * signs
        state = kernel.step(state, lv.targets.Evaluation(torch.zeros(len(CHAINS)), gradient), u[None])
    return state.position[:, 0].numpy() / D


def p_value(found, exact):
    """Chi-squared over the sites that expect five chains or more, the rest in one."""
    expected, counts = exact * len(found), np.array([(found == site).sum() for site in SITES])
    many = expected >= 5
    expected, counts = np.append(expected[many], expected[~many].sum()), np.append(counts[many], counts[~many].sum())
    keep = expected > 0.5
    return chi2.sf(((counts - expected)[keep] ** 2 / expected[keep]).sum(), keep.sum() - 1)


@pytest.mark.parametrize("steps", [1, 2, 7, 40])
@pytest.mark.parametrize("noise", [0.0, 0.6])
def test_the_law_after_n_steps_is_the_power_of_the_transition_matrix_with_noise_or_without(steps, noise):
    """Noise of either sign, EPS (|slope| + .6) < D: the same matrix, so no heat at all."""
    assert EPS * (3.5 + 0.6) < D
    sites = walk(steps, noise)
    assert np.abs(sites - sites.round()).max() < 1e-9
    exact = np.linalg.matrix_power(transition(), steps)[60]
    assert p_value(sites.round(), exact) > 1e-4
    other = np.linalg.matrix_power(transition(), steps + 2)[60]
    assert steps > 30 or p_value(sites.round(), other) < 1e-4  # the test sees two steps more


def stationary(eps, gradient, tau=1.0, reach=12.0):
    """Return the lattice and its law, by detailed balance between neighbours."""
    d = np.sqrt(2 * eps * tau)
    x = d * np.arange(-int(reach / d), int(reach / d) + 1)
    r = eps * gradient(x) / d
    assert np.abs(r).max() < 1
    logs = np.concatenate([[0.0], np.cumsum(np.log1p(-r[:-1]) - np.log1p(r[1:]))])
    weights = np.exp(logs - logs.max())
    return x, weights / weights.sum()


def test_detailed_balance_gives_the_stationary_law_of_the_matrix():
    x, law = stationary(EPS, slope, TAU, 20.0)
    big = np.zeros(len(X))
    big[60 - len(x) // 2 : 61 + len(x) // 2] = law
    np.testing.assert_allclose(big @ transition(), big, atol=1e-12)


@pytest.mark.parametrize("eps", [0.02, 0.08])
def test_the_configurational_temperature_is_exact_for_any_step(eps):
    x, law = stationary(eps, slope, TAU)
    assert (law * x * slope(x)).sum() == pytest.approx(TAU, rel=1e-9)


def test_the_law_is_off_by_the_first_order_term_of_the_docstring():
    tau = 1.0

    def curve(x):
        return np.log(np.cosh(x)) * 2.0

    def gradient(x):
        return 2 * np.tanh(x)

    errors = []
    for eps in (0.02, 0.005):
        x, law = stationary(eps, gradient, tau, 9.0)
        inner = np.abs(x) < 3
        cube = 8 * (np.log(np.cosh(x)) - np.tanh(x) ** 2 / 2)  # the integral of g^3
        first = gradient(x) ** 2 / (4 * tau) - cube / (6 * tau**2) - 2 / np.cosh(x) ** 2 / 6
        gap = np.log(law) + curve(x) / tau - eps * first
        errors.append(np.ptp(gap[inner]))
        assert np.ptp((np.log(law) + curve(x) / tau)[inner]) > 10 * np.ptp(gap[inner])  # the term explains nearly all
    assert errors[0] / errors[1] == pytest.approx(16, rel=0.3)  # what is left is of second order


def test_on_a_gaussian_variances_are_right_at_a_step_where_sgld_is_not_and_noise_does_not_heat():
    """N(0, 1) in three elements, eps .2, noise of variance 1 in the gradient, shared by the last two. 5 standard errors.

    SGLD's variance is (2 eps + eps^2 s^2) / (2 eps - eps^2) = 1.22; the covariance of the two that share noise is
    eps^2 / (1 - (1 - eps)^2) = .11.
    """
    eps, chains = 0.2, range(40_000)
    found = {}
    for kernel in (lv.sglrw(eps), lv.sgld(eps)):
        state = kernel.init(normal(1, streams(Purpose.INIT, chains), 0, 3, dtype=torch.float64))
        for step in range(40):
            noise = KINDS[kernel.traits.noise_kind](1, streams(Purpose.POSITION, chains), step, 3, dtype=torch.float64)
            own = uniform(1, streams(Purpose.GRADIENT, chains), step, 2, dtype=torch.float64).sign()
            evaluation = lv.targets.Evaluation(torch.zeros(len(chains)), state.position + own[:, [0, 1, 1]])
            state = kernel.step(state, evaluation, noise[None])
        found[kernel.name] = np.cov(state.position.numpy().T)
    error = np.sqrt(2 / len(chains))
    shared = eps**2 / (1 - (1 - eps) ** 2)
    # |eps g| > d beyond 2.2 standard deviations, where steps are larger: .6 % is what that adds
    np.testing.assert_allclose(np.diag(found["sglrw"]), 1.0, atol=5 * error + 0.012)
    assert found["sglrw"][1, 2] == pytest.approx(shared, abs=5 * error)
    assert found["sglrw"][0, 1] == pytest.approx(0.0, abs=5 * error)
    np.testing.assert_allclose(np.diag(found["sgld"]), (2 * eps + eps**2) / (2 * eps - eps**2), atol=6 * error)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_uniforms_have_the_bits_of_the_reference_at_any_offset_and_the_moments_of_uniforms(dtype):
    for offset, size in ((0, 1), (1, 2), (3, 9), (5, 4100), (2**33 + 1, 7)):
        if offset + size <= (2 if dtype == torch.float64 else 4) * 2**32:
            drawn = uniform(3, range(5, 8), range(2**40, 2**40 + 2), size, offset=offset, dtype=dtype)
            assert torch.equal(drawn, uniform_reference(3, range(5, 8), range(2**40, 2**40 + 2), size, offset=offset, dtype=dtype))
            assert torch.equal(drawn[1, 2], uniform(3, 7, 2**40 + 1, size, offset=offset, dtype=dtype))
    many = uniform(3, 1, 0, 400_000, dtype=dtype).double()
    assert abs(many.mean()) < 5 * (1 / 3 / 400_000) ** 0.5
    assert abs(many.square().mean() - 1 / 3) < 5 * (4 / 45 / 400_000) ** 0.5
    assert many.abs().max() < 1
    assert (many != 0).all()
