"""Stationary covariances on the correlated Gaussian of section 4.1 against exact solutions.

Chains are independent, so the standard error of an estimated covariance S_ij from n chains is sqrt((S_ii S_jj + S_ij^2) / n).
All tolerances are 5 of these (one test in 2 million fails by chance for each entry).
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from exact import invariant_covariance, langevin_covariance, momentum_covariance
from sampler_table import TABLE, build, letters
from stepping import step as step_by_hand

import langevin as lv

COVARIANCE = np.array([[1.0, 0.9], [0.9, 1.0]])
PRECISION = np.linalg.inv(COVARIANCE)
NUM_CHAINS = 40_000
FROZEN = 1 - 2**-53  # the largest smoothing factor below 1: V stands still


def run(
    kernel, *, noise=0.0, steps=250, memory=None, seed=1, covariance=COVARIANCE, start=None, first_step=0, num_chains=NUM_CHAINS
):
    """Return the covariance over chains after `steps` steps from draws of N(0, start), through the public parts."""
    target = lv.targets.gaussian(torch.tensor(covariance), gradient_noise=noise)
    dim = len(covariance)
    chains = range(num_chains)
    root = torch.linalg.cholesky(torch.tensor(covariance if start is None else start))
    init = lv.random.normal(seed, lv.random.streams(lv.random.Purpose.INIT, chains), 0, dim, dtype=torch.float64) @ root.mT
    gradient_fn = lv.gradients.noisy(lv.gradients.full(target), noise, seed=seed, chains=chains, like=init)
    state = kernel.init(init)
    if memory is not None:
        state = state._replace(tensors=memory(state.tensors), step=first_step)
    for step in range(steps):
        noises = [
            lv.random.normal(seed, lv.random.streams(purpose, chains), step, dim, dtype=torch.float64)
            for purpose in (lv.random.Purpose.POSITION, lv.random.Purpose.SECOND)[: kernel.traits.num_noises]
        ]
        noise_now = torch.stack(noises)
        state = step_by_hand(kernel, state, gradient_fn(state.position, step).gradient, noise_now)
    return np.cov(state.position.numpy().T)


def assert_same_covariance(found, exact, count=NUM_CHAINS, k=5.0):
    error = np.sqrt((np.outer(np.diag(exact), np.diag(exact)) + exact**2) / count)
    assert np.all(np.abs(found - exact) < k * error), (
        f"found\n{found}\nexact\n{exact}\nstandard errors off\n{(found - exact) / error}"
    )


@pytest.mark.parametrize(("name", "case"), [(name, case) for name, entry in TABLE.items() if entry.law for case in entry.law_cases])
def test_a_linear_sampler_has_the_law_of_its_recursion(name, case):
    """For every entry of the table that has an exact law, at each of its settings."""
    place = {"eps": 0.02, "tau": 1.0, "s": 0.0, **{key: case[key] for key in ("eps", "tau", "s") if key in case}}
    changes = {key: value for key, value in case.items() if key not in place}
    exact = TABLE[name].law(PRECISION, **place, **letters({**TABLE[name].settings, **changes}))
    kernel = build(name, place["eps"], temperature=place["tau"], **changes)
    assert_same_covariance(run(kernel, noise=place["s"], start=exact), exact)


@pytest.mark.parametrize("recipe", [lv.asgld, lv.adamax_sgld])
def test_invariant_form_whose_scale_is_frozen_has_the_law_of_its_recursion(recipe):
    scale = np.diag([2.0, 0.5])
    stored = 1 / np.diag(scale) - 1e-8 if recipe is lv.adamax_sgld else np.diag(scale) ** -2 - 1e-5
    exact = invariant_covariance(PRECISION, eps=0.02, a=2.0, beta=0.9, s=1.0, scale=scale)
    kernel = recipe(0.02, bias_factor=2.0, invariant=True, adapt_steps=1)
    assert kernel.inputs(1).adapting == 0.0
    found = run(kernel, noise=1.0, memory=lambda m: (m[0], m[1], m[2] + torch.tensor(stored)), start=exact, first_step=1)
    assert_same_covariance(found, exact)


def test_the_invariant_matrix_form_has_the_target_as_its_law():
    """Exact gradients: the law is the target whatever the step and whatever the frozen matrix."""
    matrix = torch.tensor([[2.0, -0.5], [-0.5, 0.7]], dtype=torch.float64)
    kernel = lv.asgld_full(0.05, bias_factor=3.0, invariant=True, adapt_steps=1)
    found = run(kernel, memory=lambda m: (m[0], m[1], m[2] + matrix), first_step=1, steps=60, num_chains=4_000)
    assert_same_covariance(found, COVARIANCE, count=4_000)


@pytest.mark.parametrize("a", [0.0, 1.0, 10.0])
@pytest.mark.parametrize("eps", [0.001, 0.05])
def test_the_invariant_form_has_the_target_as_its_law_whatever_the_step(a, eps):
    """The exact solution; and neither without the momentum's noise, nor with twice as much, nor in the published order."""

    def error(**changes):
        return np.abs(invariant_covariance(PRECISION, eps=eps, a=a, beta=0.9, **changes) - COVARIANCE).max()

    assert error() < 1e-9
    if a:
        assert min(error(noise_factor=0.0), error(noise_factor=2.0)) > 0.2
        assert np.abs(momentum_covariance(PRECISION, eps=eps, a=a, beta=0.9) - COVARIANCE).max() > 0.3
    if a and eps == 0.05:
        assert error(published_order=True) > 0.02
    assert lv.msgld(eps, bias_factor=a, invariant=True).effective_temperature == 1.0


@pytest.mark.parametrize("a", [1.0, 10.0])
def test_the_invariant_form_samples_the_target_at_a_large_step(a):
    """The curvature along the narrow direction is 10: SGLD at this step is off by a factor of 2 there."""
    assert_same_covariance(run(lv.msgld(0.1, bias_factor=a, beta=0.9, invariant=True)), COVARIANCE)


def test_gradient_noise_heats_the_invariant_form_in_proportion_to_the_step():
    """Minibatch noise s^2 adds eps s^2 (...) / 2 as in every sampler without correction; half the step, half the error."""
    errors = [invariant_covariance(np.eye(1), eps=eps, a=1.0, beta=0.9, s=1.0)[0, 0] - 1 for eps in (0.02, 0.01, 0.005)]
    assert errors[0] / errors[1] == pytest.approx(2, rel=0.06)
    assert errors[1] / errors[2] == pytest.approx(2, rel=0.03)


def test_sgrld_has_the_law_of_its_recursion():
    target = lv.targets.gaussian(torch.tensor(COVARIANCE))
    exact = langevin_covariance(PRECISION, eps=0.1, s=1.0, metric=COVARIANCE)
    assert_same_covariance(run(lv.sgrld(0.1, metric=target.metric), noise=1.0, steps=60, start=exact), exact)


def test_asgld_whose_square_average_stands_still_has_the_law_of_its_recursion():
    square = torch.tensor([0.25, 4.0], dtype=torch.float64)
    scale = np.diag(1 / np.sqrt(square.numpy() + 1e-5))
    exact = momentum_covariance(PRECISION, eps=0.02, a=2.0, beta=0.9, s=1.0, scale=scale)
    kernel = lv.asgld(0.02, bias_factor=2.0, betas=(0.9, FROZEN))
    found = run(kernel, noise=1.0, memory=lambda m: (m[0], m[1] + square), start=exact)
    assert_same_covariance(found, exact)


def test_psgld_whose_square_average_stands_still_has_the_law_of_its_recursion():
    # The first squared gradient would replace V, so the run starts after step 0.
    square = np.array([0.25, 4.0])
    exact = langevin_covariance(PRECISION, eps=0.05, s=1.0, metric=np.diag(1 / (1e-5 + np.sqrt(square))))
    kernel = lv.psgld(0.05, beta=FROZEN)
    target = lv.targets.gaussian(torch.tensor(COVARIANCE))
    chains = range(NUM_CHAINS)
    root = torch.linalg.cholesky(torch.tensor(exact))
    init = lv.random.normal(3, lv.random.streams(lv.random.Purpose.INIT, chains), 0, 2, dtype=torch.float64) @ root.mT
    gradient_fn = lv.gradients.noisy(lv.gradients.full(target), 1.0, seed=3, chains=chains, like=init)
    state = kernel.init(init)._replace(step=1, tensors=(torch.tensor(square).expand(NUM_CHAINS, 2),))
    for step in range(1, 200):
        noises = lv.random.normal(3, lv.random.streams(lv.random.Purpose.POSITION, chains), step, 2, dtype=torch.float64)
        state = step_by_hand(kernel, state, gradient_fn(state.position, step).gradient, noises)
    assert_same_covariance(np.cov(state.position.numpy().T), exact)


def adaptive_by_numpy(update, dim_start, steps, seed):
    """Run a nonlinear sampler as a few numpy lines with numpy's own generator: a second code path and other noise."""
    generator = np.random.default_rng(seed)
    theta = generator.standard_normal(dim_start) @ np.linalg.cholesky(COVARIANCE).T
    memory = None
    for _ in range(steps):
        g = theta @ PRECISION + generator.standard_normal(dim_start)
        theta, memory = update(theta, g, memory, generator.standard_normal(dim_start))
    return np.cov(theta.T)


@pytest.mark.parametrize("a", [1.0, 10.0])
def test_asgld_has_the_law_of_algorithm_2_run_by_numpy(a):
    eps, steps = 0.05, 250

    def update(theta, g, memory, eta):
        m, v = (np.zeros_like(theta), np.zeros_like(theta)) if memory is None else memory
        moved = theta - eps * (g + a * m / np.sqrt(v + 1e-5)) + np.sqrt(2 * eps) * eta
        return moved, (0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g**2)

    reference = adaptive_by_numpy(update, (NUM_CHAINS, 2), steps, seed=5)
    found = run(lv.asgld(eps, bias_factor=a, betas=(0.9, 0.99)), noise=1.0, steps=steps)
    assert_same_covariance(found, reference, count=NUM_CHAINS / 2)  # both sides are estimates


def test_psgld_has_the_law_of_its_equations_run_by_numpy():
    eps, steps = 0.05, 250

    def update(theta, g, memory, eta):
        v = g**2 if memory is None else 0.9 * memory + 0.1 * g**2
        metric = 1 / (0.1 + np.sqrt(v))
        return theta - eps * metric * g + np.sqrt(2 * eps * metric) * eta, v

    reference = adaptive_by_numpy(update, (NUM_CHAINS, 2), steps, seed=6)
    assert_same_covariance(run(lv.psgld(eps, beta=0.9, eps=0.1), noise=1.0, steps=steps), reference, count=NUM_CHAINS / 2)


@pytest.mark.parametrize("a", [1.0, 10.0])
def test_published_msgld_samples_temperature_one_over_one_plus_a(a):
    """The law tends to tau / (1 + a) as the step shrinks, not to tau as Theorem 3.1 says."""
    limits = [momentum_covariance(np.eye(1), eps=eps, a=a, beta=0.9)[0, 0] for eps in (1e-2, 1e-3, 1e-4)]
    gaps = [limit - 1 / (1 + a) for limit in limits]
    assert gaps[2] < gaps[1] / 5 < gaps[0] / 25  # the exact law closes in on 1 / (1 + a), linearly in eps
    kernel = lv.msgld(0.01, bias_factor=a)
    assert kernel.effective_temperature == 1 / (1 + a)
    found = run(kernel, covariance=np.eye(2), start=np.eye(2) / (1 + a), steps=400)
    assert_same_covariance(found, momentum_covariance(np.eye(2), eps=0.01, a=a, beta=0.9))
    assert found[0, 0] < 0.6  # and nowhere near the target's variance 1
