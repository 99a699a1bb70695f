"""The kick that absorbs the noise of its gradient: exact laws, reductions, the limit of one draw per epoch, and off Gaussians."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.linalg import solve_discrete_lyapunov

import langevin as lv
from langevin.kernels.gradient_noise import DenseNoise, DiagonalNoise, LowRankNoise
from langevin.targets import Evaluation

FORMS = {
    "msgld": lambda eps, **more: lv.msgld(eps, bias_factor=30.0, beta=0.9, invariant=True, **more),
    "asgld": lambda eps, **more: lv.asgld(eps, bias_factor=30.0, betas=(0.9, 0.999), invariant=True, adapt_steps=1, **more),
    "adamax_sgld": lambda eps, **more: lv.adamax_sgld(
        eps, bias_factor=30.0, betas=(0.9, 0.999), invariant=True, adapt_steps=1, **more
    ),
    "asgld_full": lambda eps, **more: lv.asgld_full(
        eps, bias_factor=30.0, betas=(0.9, 0.999), invariant=True, adapt_steps=1, **more
    ),
}


def definite(rng, dim, low, high):
    """Return a random symmetric matrix with eigenvalues between two numbers."""
    turn, _ = np.linalg.qr(rng.standard_normal((dim, dim)))
    return torch.tensor(turn * np.exp(rng.uniform(np.log(low), np.log(high), dim)) @ turn.T)


def law_of(kernel, curvature, covariance, scale=()):
    """Return the law of a kernel's own step on U = theta K theta / 2 with gradient noise: covariance, and steps per draw."""
    dim = len(curvature)
    inputs = kernel.inputs(5)._replace(adapting=0.0)

    def step(theta, velocity, passing, error, first, second):
        known = Evaluation(torch.tensor(0.0), (curvature @ theta + error)[None])
        memory = (velocity[None], passing[None], *(tensor[None] for tensor in scale))
        moved, after = kernel.update(theta[None], known, torch.stack([first, second])[:, None], memory, inputs)
        return torch.cat([moved[0], after[0][0], after[1][0]])

    units = torch.eye(6 * dim, dtype=torch.float64)
    response = torch.stack([step(*unit.split(dim)) for unit in units], 1).numpy()
    transition, from_error, from_noise = response[:, : 3 * dim], response[:, 3 * dim : 4 * dim], response[:, 4 * dim :]
    stationary = solve_discrete_lyapunov(transition, from_error @ covariance.numpy() @ from_error.T + from_noise @ from_noise.T)
    lagged = np.linalg.solve(np.eye(3 * dim) - transition, stationary)
    both = (lagged + lagged.T - stationary)[:dim, :dim]
    return stationary[:dim, :dim], np.diag(both) / np.diag(stationary)[:dim]


@pytest.mark.parametrize("tau", [1.0, 0.4])
@pytest.mark.parametrize("noise", [0.0, 0.3, 30.0, 3000.0])
@pytest.mark.parametrize("name", FORMS)
def test_the_law_is_the_target_whatever_the_noise(name, noise, tau):
    """On a Gaussian, to rounding: for matrices that do not commute, and metrics of the samplers' own."""
    rng = np.random.default_rng(int(noise) + 1)
    curvature, covariance = definite(rng, 3, 0.3, 4.0), noise * definite(rng, 3, 0.1, 2.0)
    scale = {"msgld": (), "asgld_full": (definite(rng, 3, 2.0, 9.0),)}.get(name, (definite(rng, 3, 2.0, 9.0).diagonal(),))
    if name != "msgld":  # beside a metric of its own Sigma is diagonal
        curvature, covariance = torch.diag(curvature.diagonal()), torch.diag(covariance.diagonal())
    pair = (covariance, tau * curvature) if name == "msgld" else (covariance.diagonal(), tau * curvature.diagonal())
    found, _ = law_of(FORMS[name](0.05, noise=pair, temperature=tau), curvature, covariance, scale)
    np.testing.assert_allclose(found @ curvature.numpy() / tau, np.eye(3), atol=1e-9)
    if noise:
        heated, _ = law_of(FORMS[name](0.05, temperature=tau), curvature, covariance, scale)
        assert np.diag(heated @ curvature.numpy() / tau).max() > 1 + 0.02 * noise


@pytest.mark.parametrize("ratio", [1.0, 10.0, 100.0, 1000.0])
def test_a_draw_takes_as_many_steps_more_as_the_noise_is_times_the_signal(ratio):
    """tau_int = (Sigma / tau K) (1 + 1 / rho), rho = (1 + a) eps Sigma / (2 tau): an epoch, for Sigma = (N / n) K."""
    eps, one = 0.02, torch.ones(1, dtype=torch.float64)
    kernel = FORMS["msgld"](eps, noise=(ratio * one, one))
    _, steps = law_of(kernel, torch.eye(1, dtype=torch.float64), ratio * torch.eye(1, dtype=torch.float64))
    heat = (1 + 30.0) * eps * ratio / 2
    assert steps[0] == pytest.approx(ratio * (1 + 1 / heat), rel=1e-9)


def path(kernel, position, steps=6):
    """Return the positions of some steps on a quartic, with noisy gradients."""
    state, found = kernel.init(position), []
    for step in range(steps):
        noise = lv.random.normal(7, range(2), step, position.numel(), dtype=torch.float64).reshape(2, *position.shape)
        error = lv.random.normal(8, range(1), step, position.numel(), dtype=torch.float64).reshape(position.shape)
        state = kernel.step(state, Evaluation(torch.zeros(len(position)), position**3 + state.position + error), noise)
        found.append(state.position)
    return torch.stack(found)


START = torch.tensor([[0.3, -1.2, 2.0], [1.0, 0.4, -0.7]], dtype=torch.float64)


@pytest.mark.parametrize("name", FORMS)
def test_without_noise_it_is_the_invariant_step_bit_for_bit(name):
    zero, one = torch.zeros(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64)
    assert torch.equal(path(FORMS[name](0.02), START), path(FORMS[name](0.02, noise=(zero, one)), START))
    assert not torch.equal(path(FORMS[name](0.02), START), path(FORMS[name](0.02, noise=(one, one)), START))


def test_the_forms_of_a_covariance_agree():
    """A diagonal as a matrix, as directions of their own, and in the coordinates in which a matrix is diagonal."""
    rng = np.random.default_rng(3)
    variance, signal = (torch.tensor(rng.uniform(0.5, 50.0, 3)) for _ in range(2))
    diagonal = DiagonalNoise(variance, signal)
    dense = DenseNoise.of(torch.diag(variance), torch.diag(signal))
    some = torch.eye(3, dtype=torch.float64)[:, :2]
    low_rank = LowRankNoise(torch.ones(3, dtype=torch.float64) * variance[2], signal, some, variance[:2], signal[:2])
    expected = path(FORMS["msgld"](0.02, noise=diagonal), START)
    torch.testing.assert_close(path(FORMS["msgld"](0.02, noise=dense), START), expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(path(FORMS["msgld"](0.02, noise=low_rank), START), expected, rtol=1e-12, atol=1e-12)


def test_settings_side_by_side_share_their_noise():
    one = torch.ones(3, dtype=torch.float64)
    kernels = [FORMS["msgld"](eps, noise=(one, one)) for eps in (0.01, 0.02)]
    both = lv.side_by_side(kernels).for_run(0, START)
    noise = torch.zeros(2, 2, 3, dtype=torch.float64)
    known = Evaluation(torch.zeros(2), START)
    together = both.step(both.init(START), known, noise).position
    for index, kernel in enumerate(kernels):
        alone = kernel.step(kernel.init(START), known, noise).position
        torch.testing.assert_close(together[index], alone[index], rtol=1e-14, atol=1e-14)
    with pytest.raises(ValueError, match="the same tensor in all kernels"):
        lv.side_by_side([FORMS["msgld"](0.01, noise=(one, one)), FORMS["msgld"](0.01, noise=(2 * one, one))])


def test_a_matrix_metric_takes_a_noise_of_each_chain():
    """With as many chains as dimensions a wrong axis would go unseen."""
    drift = lv.drifts.AdamFull()
    memory = (torch.stack([definite(np.random.default_rng(k), 3, 1.0, 5.0) for k in range(3)]),)
    vector, excess = (torch.tensor(np.random.default_rng(9).uniform(1, 3, (2, 3, 3)))).unbind(0)
    together = drift.damped(memory, vector, 2.0, 0.1, 0.2, excess)
    for chain in range(3):
        alone = drift.damped((memory[0][chain],), vector[chain], 2.0, 0.1, 0.2, excess[chain])
        torch.testing.assert_close(together[chain], alone)


def steep(x):
    return np.log(np.cosh(3 * x)) + x * x / 4


@pytest.mark.parametrize("heat", [0.5, 5.0, 50.0])
def test_off_gaussians_the_error_stays_small_however_much_noise(heat):
    """log cosh, against quadrature: within 3 percent where the plain step has 50 to thousands."""
    chains, steps, burn = 20_000, 700, 300
    whole = [quad(lambda x, p=p: x**p * np.exp(-steep(x)), -15, 15)[0] for p in (0, 2)]
    true = whole[1] / whole[0]
    slope = quad(lambda x: (3 * np.tanh(3 * x) + x / 2) ** 2 * np.exp(-steep(x)), -15, 15)[0] / whole[0]
    eps = 0.1 / 9.5
    variance = 2 * heat / (11 * eps)
    pair = tuple(torch.tensor([value], dtype=torch.float64) for value in (variance, slope))
    errors = {}
    for name, noise in (("corrected", pair), ("plain", None)):
        kernel = lv.msgld(eps, bias_factor=10.0, beta=0.9, invariant=True, noise=noise)
        begin = true**0.5 * lv.random.normal(0, range(chains), 0, 1, dtype=torch.float64)
        state, total = kernel.init(begin), torch.zeros(chains, 1, dtype=torch.float64)
        slow = 1 if heat < 20 else 3
        for step in range(steps * slow):
            normals = lv.random.normal(5, range(3 * chains), step, 1, dtype=torch.float64).view(3, chains, 1)
            gradient = 3 * torch.tanh(3 * state.position) + state.position / 2 + variance**0.5 * normals[2]
            state = kernel.step(state, Evaluation(torch.zeros(chains), gradient), normals[:2])
            total += (step >= burn * slow) * state.position**2
        means = total / ((steps - burn) * slow)
        errors[name] = float(means.mean()) / true - 1, float(means.std()) / chains**0.5 / true
    value, chance = errors["corrected"]
    assert abs(value) < 0.03 + 4 * chance
    assert errors["plain"][0] > 0.3


def test_in_exploration_phases_nothing_is_absorbed():
    """At temperature 0 the friction would be all that is left of the gradient."""
    one = torch.ones(3, dtype=torch.float64)
    kernel = FORMS["msgld"](0.02, noise=(one, one))
    cold = kernel.inputs(1)._replace(temperature=0.0, correcting=0.0)
    state = kernel.init(START)
    known, silent = Evaluation(torch.zeros(2), START), torch.zeros(2, 2, 3, dtype=torch.float64)
    plain = FORMS["msgld"](0.02).step(state, known, silent, cold)
    assert torch.equal(kernel.step(state, known, silent, cold).position, plain.position)
    cycle = lv.schedules.cyclical(0.02, cycle_length=20, exploration=0.5)
    steps = [FORMS["msgld"](cycle, noise=(one, one)).inputs(step) for step in range(40)]
    assert {(step.temperature > 0) == (step.correcting == 1) for step in steps} == {True}
    assert {step.correcting for step in steps} == {0.0, 1.0}


BAD = {
    "negative": ((-torch.ones(2), torch.ones(2)), "a variance that is positive definite"),
    "indefinite": ((torch.tensor([[1.0, 2.0], [2.0, 1.0]]), torch.eye(2)), "positive definite, got 'an eigenvalue of -1'"),
    "not symmetric": ((torch.tensor([[1.0, 0.5], [0.0, 1.0]]), torch.eye(2)), "a symmetric variance"),
    "not finite": ((torch.tensor([1.0, torch.nan]), torch.ones(2)), "a finite variance"),
    "shapes": ((torch.ones(2), torch.ones(3)), "a pair"),
    "a word": ("absorbed", "corrected"),
    "one tensor": (torch.ones(2), "a pair"),
    "integers": ((torch.ones(2, dtype=torch.int64), torch.ones(2)), "a pair"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_noise_that_is_none_is_refused(name):
    value, words = BAD[name]
    with pytest.raises((ValueError, TypeError), match=words):
        lv.msgld(0.1, invariant=True, noise=value)


def test_what_cannot_absorb_is_refused():
    with pytest.raises(ValueError, match="needs invariant=True"):
        lv.msgld(0.1, noise="corrected")
    with pytest.raises(ValueError, match="temperature > 0"):
        lv.msgld(0.1, invariant=True, noise="corrected", temperature=0.0)
    with pytest.raises(ValueError, match="a diagonal one beside an adapted scale"):
        lv.asgld(0.1, invariant=True, noise=(torch.eye(2), torch.eye(2)))
    with pytest.raises(ValueError, match="msgld has none"):
        lv.nasgld(noise=None)
    kernel = lv.msgld(0.1, invariant=True, noise="corrected")
    with pytest.raises(ValueError, match="leaves it to sample"):
        kernel.step(kernel.init(START), Evaluation(torch.zeros(2), START), torch.zeros(2, 2, 3, dtype=torch.float64))
