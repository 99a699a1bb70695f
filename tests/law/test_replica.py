"""Replica exchange has the law of all temperatures, with exact and with noisy energies; the oracle is a grid of the joint law."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.special import ndtr, ndtri

import langevin as lv
from langevin.store.replicas import swap_rates

double = torch.float64
EPS, HOT, NOISE = 0.004, 6.0, 1.2


def wells(x):
    return 5 * (x * x - 1) ** 2 + 0.4 * x


def slope(x):
    return 20 * x * (x * x - 1) + 0.4


def exact_chance(gain, variance):
    return np.minimum(1, np.exp(np.minimum(gain, 0)))


def mean_chance(gain, variance, penalty):
    """Return E[min(1, exp(gain + noise - penalty))] for Gaussian noise of that variance."""
    s, shifted = variance**0.5, gain - penalty
    return ndtr(shifted / s) + np.exp(np.minimum(shifted + variance / 2, 600)) * ndtr(-shifted / s - s)


def joint_law(chance):
    """Return the grid and the law of (cold, hot) after a step that follows a round, by iterating the transition of both.

    A round takes the place of x and y with `chance`; then each takes a step of SGLD. The grid has 2.2 cells per standard deviation
    of the cold step's noise, where sums of Gaussians are integrals to many digits.
    """
    x = np.arange(-2.4, 2.4, 0.04)
    cold, hot = (np.exp(-((x[:, None] - (x - EPS * slope(x))) ** 2) / (4 * EPS * tau)) for tau in (1.0, HOT))
    cold, hot = (torch.from_numpy(kernel / kernel.sum(0)) for kernel in (cold, hot))
    gap, variance = 1 - 1 / HOT, 2 * NOISE**2 * (1 - 1 / HOT) ** 2
    swap = torch.from_numpy(chance(gap * (wells(x)[:, None] - wells(x)[None]), variance))
    law = torch.from_numpy(np.exp(-wells(x)[:, None] - wells(x)[None] / HOT))
    law = law / law.sum()
    for _ in range(1500):
        law = cold @ (law * (1 - swap) + (law * swap).mT) @ hot.mT
    return x, (law / law.sum()).numpy()


def moments(chance):
    """Return P(x < 0) and E[x^2] of the cold chain, and E[y^2] of the hot one."""
    x, law = joint_law(chance)
    return law[x < 0].sum(), law.sum(1) @ x**2, law.sum(0) @ x**2


QUANTILES = torch.from_numpy(ndtri((np.arange(2000) + 0.5) / 2000))
NOISY = lv.targets.likelihood(lambda theta, z: -(wells(theta[0]) + NOISE * z) / 2000, prior=lv.priors.flat())
"""One row makes a normal error of the energy, and none of the gradient."""


def found(energy_noise, groups=1500, num_steps=900, kernel=None):
    """Run pairs on noisy energies (None: on exact ones) and return the same moments with their standard errors."""
    kernel = lv.replica_exchange(kernel or lv.sgld(EPS), temperatures=(1.0, HOT), swap_every=1, energy_noise=energy_noise)
    settings = {"num_steps": num_steps, "warmup": 500, "thin": 20, "compile": False, "seed": 1}
    init = torch.cat([torch.full((groups, 1), side, dtype=double) for side in (1.0, -1.0)])
    if energy_noise is None:
        samples = lv.sample(kernel, lv.targets.energy(lambda theta: wells(theta).sum()), init, **settings)
    else:
        samples = lv.sample(kernel, NOISY, init, data=QUANTILES, batch_size=1, batches="white", **settings)
    cold, hot = samples.draws[..., 0], samples.replicas.draws[1::2, :, 0]
    values = [(cold < 0).double(), cold**2, hot**2]
    return [(float(value.mean()), float(value.mean(1).std()) / len(value) ** 0.5) for value in values], samples


def z_scores(measured, expected):
    return np.array([(value - truth) / error for (value, error), truth in zip(measured, expected, strict=True)])


pytestmark = pytest.mark.filterwarnings("ignore::langevin.TrustWarning")  # many short chains


def test_swaps_with_exact_energies_have_the_joint_law():
    measured, samples = found(None)
    assert np.abs(z_scores(measured, moments(exact_chance))).max() < 4.5
    x, law = joint_law(exact_chance)
    rate = (law * exact_chance((1 - 1 / HOT) * (wells(x)[:, None] - wells(x)[None]), 0)).sum()
    assert float(swap_rates(samples.replicas)) == pytest.approx(rate, abs=0.02)


def test_the_correction_is_detailed_balance_for_any_noise():
    """The formula in `Replica`: the mean chance there is exp(gain) times that of the way back."""
    gain = np.linspace(-3, 3, 13)
    for variance in (0.1, 2.0, 9.0):
        there, back = (mean_chance(sign * gain, variance, variance / 2) for sign in (1, -1))
        np.testing.assert_allclose(there, np.exp(gain) * back, rtol=1e-12)


def test_noisy_energies_corrected_have_the_law_of_exact_ones_and_uncorrected_a_wrong_one():
    right, corrected, wrong = (
        moments(chance)
        for chance in (
            exact_chance,
            lambda gain, variance: mean_chance(gain, variance, variance / 2),
            lambda gain, variance: mean_chance(gain, variance, 0.0),
        )
    )
    assert corrected == pytest.approx(right, abs=2e-3)  # the swap keeps the law of exp(-U / tau), which the step has up to O(eps)
    measured, _ = found(NOISE)
    assert np.abs(z_scores(measured, corrected)).max() < 4.5
    bare, _ = found(0.0)
    assert np.abs(z_scores(bare, wrong)).max() < 4.5
    assert np.abs(z_scores(bare, right)).max() > 10  # so the test above sees a correction that is missing


def test_the_noise_of_the_energy_is_followed():
    kernel = lv.replica_exchange(lv.sgld(EPS), temperatures=(1.0, HOT), swap_every=1, energy_noise="auto")
    from langevin.engines import run_blocks
    from langevin.gradients import minibatch

    gradient = minibatch(NOISY, QUANTILES, 1, seed=5, chains=range(400), batches="white")
    for trace in run_blocks(kernel, gradient, torch.ones(400, 1, dtype=double), seed=5, chains=range(400), num_steps=300):
        pass
    variance = trace.state.memory[kernel.memory.index("energy_variance")]
    error = float(variance.std()) / 20
    assert float(variance[::2].mean()) == pytest.approx(NOISE**2, abs=5 * error + 0.02)  # the step's own residual is 0.01
    measured, _ = found("auto")
    assert np.abs(z_scores(measured, moments(lambda gain, v: mean_chance(gain, v, v / 2)))).max() < 4.5
