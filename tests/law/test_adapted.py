"""Scale-adapted SGHMC: what the published form samples, by its exact recursion, and the form that is exact on Gaussians."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from langevin_paper.check import recursions

import langevin as lv
from langevin.kernels import InvariantHamiltonian
from langevin.kernels.preconditioners import Identity, Windowed

P = np.diag([0.3, 1.0, 10.0])
SCALE = np.diag([2.0, 0.5, 0.3])


def published_variance(k, s, eps, beta, tau=1.0):
    """Return the stationary variance over the target's, with V where it settles: noise and signal."""
    scale = (s**2 + tau * k) ** -0.5
    law = recursions.hamiltonian(np.array([[k]]), eps=eps, beta=beta, tau=tau, s=s, scale=np.array([[scale]]), taken=eps)
    return law.stationary()[0, 0] * k / tau, scale


@pytest.mark.parametrize("k", [0.1, 1.0, 30.0])
@pytest.mark.parametrize("s", [0.0, 1.0, 30.0])
@pytest.mark.parametrize("beta", [0.5, 0.95])
def test_the_published_form_is_colder_by_the_signal_whatever_the_noise(k, s, beta):
    """1 - eps G k / (2 (1 - beta)) for small steps: the docstring's formula, against the Lyapunov equation, to second order."""
    for eps in (1e-5, 1e-6):
        found, scale = published_variance(k, s, eps, beta)
        # The step of SGHMC itself, exact gradients and nothing taken out, is off by a smaller term of the same order.
        plain = recursions.hamiltonian(np.array([[k]]), eps=eps, beta=beta, scale=np.array([[scale]])).stationary()[0, 0] * k
        assert found - plain == pytest.approx(-eps * scale * k / (2 * (1 - beta)), rel=1e-3)


def test_at_a_published_step_the_published_form_is_right_under_noise_and_cold_without():
    """Momentum decay .05, eps = .1**2: a tenth of the variance of N(0, 1) is lost with exact gradients, 1 % under noise."""
    quiet, _ = published_variance(1.0, 0.0, 0.01, 0.95)
    noisy, _ = published_variance(1.0, 10.0, 0.01, 0.95)
    assert quiet == pytest.approx(0.9, abs=0.01)
    assert noisy == pytest.approx(0.99, abs=0.005)
    stiff, _ = published_variance(25.0, 0.0, 0.0199, 0.95)
    assert stiff == pytest.approx(0.0, abs=0.03)  # G k = 5: nothing is left of the noise, and theta of its law


@pytest.mark.parametrize("share", [0.1, 0.9, 0.999])
def test_the_invariant_form_has_the_target_as_its_law_up_to_the_limit_of_stability(share):
    beta = 0.9
    eps = share * 4 / np.linalg.eigvals(P @ SCALE).real.max() * (1 + beta) / 2
    exact = recursions.baoab(P, eps=eps, beta=beta, scale=SCALE, tau=0.7)
    np.testing.assert_allclose(exact.stationary()[:3, :3], 0.7 * np.linalg.inv(P), rtol=1e-6)
    wrong = recursions.baoab(P, eps=eps, beta=beta, scale=SCALE, noise_factor=1.1).stationary()
    assert wrong[0, 0] * P[0, 0] == pytest.approx(1.21, rel=1e-6)


def test_the_invariant_form_is_the_large_bias_limit_of_the_paper_s_invariant_form():
    """Two recursions written apart: h^2 = 2 a eps (1 - beta) / (1 + beta) stays, while eps goes to zero."""
    eps, beta, tiny = 0.2, 0.8, 1e-14
    limit = recursions.invariant(P, eps=tiny, a=eps / (tiny * (1 - beta)), beta=beta, s=0.5, scale=SCALE).stationary()[:6, :6]
    np.testing.assert_allclose(
        recursions.baoab(P, eps=eps, beta=beta, s=0.5, scale=SCALE).stationary(), limit, rtol=1e-5, atol=1e-6
    )


def test_without_a_metric_it_is_sghmc_by_baoab():
    """The law of the code, read off by unit vectors, is that of the recursion; and none of it is learnt."""
    kernel = InvariantHamiltonian("baoab", lv.schedules.constant(0.1), 1.0, 0.9, Identity())
    assert kernel.state_names == ("velocity",)
    assert kernel.for_run(0, torch.zeros(1, 2)) is kernel
    assert "nothing is adapted" in kernel.description
    from langevin.adaptation.stationary import stationary_error

    assert stationary_error(kernel, 1.5, curvature=2.0) == pytest.approx(0.0, abs=1e-9)
    assert stationary_error(lv.sghmc(0.1, beta=0.9), 0.5, curvature=2.0) > 0.05  # where Euler's step is off


def test_the_window_grows_under_noise_and_is_short_where_gradients_agree():
    metric, chains = Windowed(), 2_000
    memory = metric.start(torch.zeros(chains, 2, dtype=torch.float64))
    noise = lv.random.normal(3, range(chains), range(400), 2, dtype=torch.float64)
    mean = torch.tensor([0.0, 3.0], dtype=torch.float64)
    for step in range(400):
        memory = metric.update(memory, mean + noise[step], 1.0)
    window, average, square = (tensor.mean(0) for tensor in memory)
    assert window[0] > 10 * window[1]
    assert window[1] == pytest.approx(10 / 9, rel=0.2)  # V / m^2
    assert square[1] == pytest.approx(10.0, rel=0.05)
    assert average[1] == pytest.approx(3.0, rel=0.05)
    assert square[0] == pytest.approx(1.0, rel=0.1)


def test_a_run_freezes_v_after_its_warmup_and_needs_one():
    target, start = lv.targets.gaussian([[1.0, 0.0], [0.0, 0.04]]), torch.zeros(4, 2, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"adaptive_sghmc\(warmup=.*estimated"):
        lv.sample(target, sampler=lv.adaptive_sghmc(0.01), init=start, num_steps=10, compile=False)
    with pytest.raises(ValueError, match=r'step_size=.*"auto" needs invariant=True'):
        lv.adaptive_sghmc("auto")
    kernel = lv.adaptive_sghmc(0.05, invariant=True)
    init = lv.random.normal(1, range(400), 0, 2, dtype=torch.float64)
    samples = lv.sample(target, sampler=kernel, init=init, num_steps=900, warmup=300, compile=False)
    squares = (samples.draws**2).mean(1) / torch.tensor([1.0, 0.04], dtype=torch.float64)
    error = squares.mean(0) - 1
    assert (error.abs() < 4 * squares.std(0) / 20).all()  # 400 chains, 4 standard errors
    assert (squares.std(0) / 20 < 0.04).all()
