"""The thermostat: exact where ξ stands still, against exact moments where it moves, with gradient noise that it is not told.

Chains are independent: the standard error of a mean over the run is the spread of the chains' own means over the
root of their number. Tolerances are 5 of these, and besides what the jitter of ξ and the size of the step explain.
"""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
from exact import hamiltonian_covariance, stationary
from scipy.integrate import quad

import langevin as lv
from langevin.targets import Evaluation

GAUSSIAN = (lambda x: x, lambda x: x**2 / 2)
LOG_COSH = (lambda x: 3 * torch.tanh(3 * x) + x / 2, lambda x: np.logaddexp(3 * x, -3 * x) + x**2 / 4)  # E[U''] = 5.2
EXP = (lambda x: x.exp() - 1, lambda x: np.exp(x) - x)  # E[U''] = 1
NUM_CHAINS = 2_000


def run(kernel, gradient, *, root=None, noise=0.0, dim=1, steps=1_500, warmup=500, friction=0.0, num_chains=NUM_CHAINS, seed=3):
    """Return the chains' means (chain, dim) of θ, θ^2, v^2 in units of ε, ξ, ξ^2, θ U'(θ), and θ_i θ_j of two elements."""
    chains, purposes = range(num_chains), lv.random.Purpose
    eps, tau = kernel.inputs(0).step_size, kernel.temperature
    root = noise * torch.eye(dim, dtype=torch.float64) if root is None else torch.tensor(root)  # of the noise's covariance

    def normal(purpose, step):
        return lv.random.normal(seed, lv.random.streams(purpose, chains), step, dim, dtype=torch.float64)

    state = kernel.init(normal(purposes.INIT, 0))
    start = (eps * tau) ** 0.5 * normal(purposes.INIT, 1), state.tensors[1] + friction
    state = state._replace(tensors=start)
    sums = 0.0
    for step in range(warmup + steps):
        exact = gradient(state.position)
        if step >= warmup:
            (v, xi), x = state.tensors, state.position
            rows = (x, x**2, v**2 / eps, xi.expand_as(x), xi.expand_as(x) ** 2, x * exact, x * x.flip(-1))
            sums = sums + torch.stack(rows)
        noisy = Evaluation(torch.tensor(torch.nan), exact + normal(purposes.GRADIENT, step) @ root.mT)
        state = kernel.step(state, noisy, normal(purposes.POSITION, step)[None])
    return dict(zip(("x", "xx", "vv", "friction", "friction^2", "virial", "cross"), (sums / steps).numpy(), strict=True))


def assert_mean(found, exact, allowed=0.0):
    """5 standard errors over the chains and a share `allowed` of the exact value."""
    error = 5 * found.std(0) / len(found) ** 0.5
    off = found.mean(0) - exact
    assert np.all(np.abs(off) < error + allowed * np.abs(exact)), f"off by {off / exact}, chance {error / np.abs(exact)}"
    assert np.all(error < 0.1 * np.abs(exact)), f"says little: {error} of {exact}"


def moments(energy, tau=1.0):
    """Return mean and variance of exp(-U / τ) by quadrature."""
    weight = [quad(lambda x, p=p: x**p * np.exp((energy(0) - energy(x)) / tau), -40, 9, limit=500, points=[0])[0] for p in range(3)]
    return weight[1] / weight[0], weight[2] / weight[0] - (weight[1] / weight[0]) ** 2


def settled_friction(eps, beta, k, s, tau):
    """Return the ξ at which a Gaussian of curvature k has T = τ, when ξ moves slowly: solved by hand from the covariances."""
    return (eps * s**2 / tau + eps * k * (1 - beta) / (1 + beta)) / (4 - 2 * eps * k / (1 + beta))


def still(precision, *, eps, beta, friction, tau=1.0, noise):
    """Return the law of (θ, v) with ξ held, `noise` the covariance of the gradient's, by feeding the kernel unit vectors."""
    kernel, d = lv.sgnht(eps, beta=beta, temperature=tau, elementwise=True), len(precision)
    unit = torch.eye(4 * d, dtype=torch.float64)
    x, v, e, eta = (unit[:, k * d : (k + 1) * d] for k in range(4))
    held = torch.zeros_like(x) + torch.as_tensor(friction)
    gradient = x @ torch.tensor(precision) + e @ torch.tensor(np.linalg.cholesky(noise + 1e-300 * np.eye(d))).mT
    moved, (velocity, _) = kernel.update(x, Evaluation(torch.tensor(torch.nan), gradient), eta[None], (v, held), kernel.inputs(1))
    whole = torch.cat([moved, velocity], -1).mT.numpy()
    return stationary(whole[:, : 2 * d], whole[:, 2 * d :] @ whole[:, 2 * d :].T)


# Exact, while ξ stands still


def test_held_at_its_temperature_a_gaussian_has_its_variance_whatever_the_step_and_the_noise():
    """The virial argument of `kernels.Thermostat`, by the discrete Lyapunov equation: noise up to 250 times the temperature."""
    for eps, beta, k, s, tau in product((0.01, 0.5), (0.0, 0.5, 0.9, 0.99), (0.01, 1.0, 3.0), (0.0, 1.0, 30.0), (1.0, 0.3)):
        friction = settled_friction(eps, beta, k, s, tau)
        law = still(np.array([[k]]), eps=eps, beta=beta, friction=friction, tau=tau, noise=np.array([[s**2]]))
        assert law[0, 0] == pytest.approx(tau / k, rel=1e-6)
        assert law[1, 1] == pytest.approx(2 * eps * tau / (1 + beta), rel=1e-6)


def badodab(rho, *, eps=0.0005, k=1.0, a=0.1):
    """Return the variance of θ times k where the thermostat of BADODAB settles: mean of v^2 before and after the friction is 1."""
    h = eps**0.5
    kick = np.array([[1, 0, 0, 0], [-h * k, 1, -np.sqrt(2 * rho), 0]])  # of θ, v, the gradient's noise, η; s^2 = 2 ρ / h^2
    drift = np.array([[1, h / 2], [0, 1]])

    def law(z):
        before = drift @ kick
        after = np.diag([1, np.exp(-z)]) @ before
        after[1, 3] += np.sqrt(a * (1 - np.exp(-2 * z)) / z)
        whole = drift @ after
        full = np.eye(4)
        full[:2, :2] = stationary(whole[:, :2], whole[:, 2:] @ whole[:, 2:].T)
        return full, (before @ full @ before.T)[1, 1] + (after @ full @ after.T)[1, 1] - 2

    low, high = a, a + 10 * rho + 0.1
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if law(middle)[1] > 0 else (low, middle)
    return law(low)[0][0, 0] * k


def test_badodab_holds_another_temperature_under_noise():
    """The numbers in the docstring of the kernel, at ξ = (1 + β) ρ / 4 for β = .9."""
    assert badodab(1e-9) == pytest.approx(1, abs=1e-4)
    assert badodab(0.3) - 1 == pytest.approx(-0.031, abs=0.002)
    assert badodab(0.8) - 1 == pytest.approx(-0.24, abs=0.01)


@pytest.mark.parametrize("elementwise", [False, True])
@pytest.mark.parametrize("settings", [{"thermal_mass": 1e18}, {"temperature": 0.0}])
def test_a_thermostat_that_stands_still_is_sghmc(elementwise, settings):
    """With a mass without end; and at temperature 0, where `sghmc` is SGD with momentum."""
    ours = lv.sgnht(0.03, beta=0.8, elementwise=elementwise, **settings)
    other = lv.sghmc(0.03, beta=0.8, temperature=ours.temperature)
    one, two = ours.init(torch.ones(4, 3, dtype=torch.float64)), other.init(torch.ones(4, 3, dtype=torch.float64))
    for step in range(50):
        noise = lv.random.normal(1, range(4), step, 3, dtype=torch.float64)[None]
        one, two = (
            kernel.step(state, Evaluation(torch.tensor(0.0), state.position**3), noise)
            for kernel, state in ((ours, one), (other, two))
        )
    torch.testing.assert_close(one.position, two.position, rtol=1e-12, atol=1e-14)
    assert one.tensors[1].abs().max() < 1e-14


# The law of all three, exact gradients


@pytest.mark.parametrize(("elementwise", "dim"), [(False, 1), (False, 8), (True, 3)])
@pytest.mark.parametrize("tau", [1.0, 0.25])
def test_the_extended_law_on_a_gaussian(elementwise, dim, tau):
    """θ ~ N(0, τ), v, and ξ with variance (1 + β) / (4 μ d); 2 % for a step and a mass that are not infinite."""
    eps, beta, mass = 0.02, 0.9, 200.0
    kernel = lv.sgnht(eps, beta=beta, thermal_mass=mass, elementwise=elementwise, temperature=tau)
    found = run(kernel, GAUSSIAN[0], dim=dim, steps=2_000)
    spread = (1 + beta) / (4 * mass * (1 if elementwise else dim))
    assert_mean(found["xx"], tau, 1 / mass)
    assert_mean(found["vv"], 2 * tau / (1 + beta), 1e-3)
    centred = found["friction^2"] - found["friction"].mean() ** 2
    assert_mean(centred, spread, 0.02)
    assert np.abs(found["friction"].mean()) < 2e-3


@pytest.mark.parametrize("beta", [0.0, 0.5, 0.99])
def test_any_injected_noise_gives_the_law(beta):
    """Over-damped, between, and almost none: what the heat needs is found for each; 1 % for the mass and the step."""
    kernel, settled = lv.sgnht(0.1, beta=beta, elementwise=True), settled_friction(0.1, beta, 1.0, 2.0, 1.0)
    found = run(kernel, GAUSSIAN[0], noise=2.0, steps=3_000, warmup=1_000, friction=settled)
    assert_mean(found["xx"], 1.0, 0.01)
    assert_mean(found["friction"], settled, 0.05)


def test_the_jitter_of_the_friction_costs_half_of_one_over_the_mass():
    """The number in the docstring of the kernel, with and without noise."""
    for s in (0.0, 2.0):
        found = run(lv.sgnht(0.1, thermal_mass=20.0, elementwise=True), GAUSSIAN[0], noise=s, steps=3_000)
        assert_mean(found["xx"], 1 - 0.55 / 20, 0.006)


# Noise of a size that is not told


@pytest.mark.parametrize("elementwise", [False, True])
@pytest.mark.parametrize("s", [0.0, 1.0, 3.0, 10.0])
def test_gradient_noise_does_not_heat(elementwise, s):
    """ε s^2 / τ up to 5, where SGHMC has 26 times the variance: within 1 % here, and ξ says how much noise there was."""
    eps, beta, tau = 0.05, 0.9, 1.0
    settled = settled_friction(eps, beta, 1.0, s, tau)
    kernel = lv.sgnht(eps, elementwise=elementwise)
    found = run(kernel, GAUSSIAN[0], noise=s, dim=4, steps=3_000, friction=settled)
    assert_mean(found["xx"], tau, 0.01)
    assert_mean(found["vv"], 2 * tau / (1 + beta), 2e-3)
    if s:
        assert_mean(found["friction"], settled, 0.05)
        heated = hamiltonian_covariance(np.eye(1), eps=eps, beta=beta, s=s)[0, 0]
        assert heated > 1 + 0.2 * s**2  # SGHMC, exactly


TARGETS = {  # U', U, ε, and the error of a step of that size: ε E[U''] is .05
    "log cosh": (*LOG_COSH, 0.01, 0.012),
    "exp": (*EXP, 0.05, 0.02),
}


@pytest.mark.parametrize("share", [0.0, 0.2, 2.0])
@pytest.mark.parametrize("name", TARGETS)
def test_off_gaussians_against_quadrature(name, share):
    """`share` is ε s^2 / τ; E[θ U'] = τ holds for any step, and so may be asked for beside the variance."""
    gradient, energy, eps, allowed = TARGETS[name]
    mean, variance = moments(energy)
    found = run(lv.sgnht(eps, elementwise=True), gradient, noise=(share / eps) ** 0.5, steps=3_000, warmup=1_000)
    assert_mean((found["xx"] - found["x"].mean() ** 2), variance, allowed)
    assert np.abs(found["x"].mean() - mean) < 5 * found["x"].std() / NUM_CHAINS**0.5 + 0.01 * variance**0.5
    assert_mean(found["virial"], 1.0, 0.005)


@pytest.mark.parametrize("name", TARGETS)
def test_the_virial_holds_at_large_steps_too(name):
    """ε E[U''] = .5, noise as large as the temperature."""
    gradient, _, eps, _ = TARGETS[name]
    found = run(lv.sgnht(10 * eps, elementwise=True), gradient, noise=(0.1 / eps) ** 0.5, steps=2_000)
    assert_mean(found["virial"], 1.0, 0.01)


# What one number cannot hold


def common_friction(precision, noise, eps, beta):
    """Return the ξ that all elements share where the mean temperature is 1, and the covariance of θ there."""
    low, high, d = 0.0, 50.0, len(precision)
    for _ in range(80):
        middle = (low + high) / 2
        law = still(precision, eps=eps, beta=beta, friction=middle, noise=noise)
        hot = np.trace(law[d:, d:]) / d * (1 + beta) / (2 * eps) > 1
        low, high = (middle, high) if hot else (low, middle)
    return low, law[:d, :d]


def test_noise_that_differs_between_elements():
    """One thermostat for all holds the mean temperature: one element 1.5 times too hot, one too cold. One for each is right."""
    eps, noise = 0.05, np.diag([0.5, 3.0]) ** 2
    friction, law = common_friction(np.eye(2), noise, eps, 0.9)
    assert law[0, 0] < 0.5 < 1.5 < law[1, 1]
    together = run(lv.sgnht(eps, thermal_mass=2000.0), GAUSSIAN[0], root=np.sqrt(noise), dim=2, steps=3_000, warmup=3_000)
    assert_mean(together["xx"], np.diag(law), 0.01)
    assert_mean(together["friction"], np.full(2, friction), 0.01)
    apart = run(lv.sgnht(eps, elementwise=True), GAUSSIAN[0], root=np.sqrt(noise), dim=2, steps=3_000, warmup=1_500)
    assert_mean(apart["xx"], np.ones(2), 0.01)


def test_noise_that_is_correlated():
    """A thermostat for each element holds the variances and not the correlation, which should be 0."""
    eps, noise = 0.05, 9.0 * np.array([[1.0, 0.8], [0.8, 1.0]])
    _, law = common_friction(np.eye(2), noise, eps, 0.9)
    assert law[0, 0] == pytest.approx(1, rel=1e-6)
    assert 0.5 < law[0, 1] < 0.8
    found = run(lv.sgnht(eps, elementwise=True), GAUSSIAN[0], root=np.linalg.cholesky(noise), dim=2, steps=3_000, warmup=1_500)
    assert_mean(found["xx"], np.ones(2), 0.01)
    assert_mean(found["cross"], law[0, 1], 0.02)
