"""Replica exchange has the law of all temperatures, with exact and with noisy energies; the oracle is a grid of the joint law."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from scipy.special import ndtr, ndtri

import langevin as lv
from langevin.execution import run_blocks
from langevin.storage.replicas import swap_rates
from langevin.targets.gradients import minibatch

double = torch.float64
EPS, HOT, NOISE = 0.004, 6.0, 2.2


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
        samples = lv.sample(lv.targets.energy(lambda theta: wells(theta).sum()), sampler=kernel, init=init, **settings)
    else:
        samples = lv.sample(NOISY, sampler=kernel, init=init, data=QUANTILES, batch_size=1, batches="white", **settings)
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
    gradient = minibatch(NOISY, QUANTILES, 1, seed=5, chains=range(400), batches="white")
    *_, trace = run_blocks(kernel, gradient, torch.ones(400, 1, dtype=double), seed=5, chains=range(400), num_steps=300)
    variance = trace.state.tensors[kernel.state_names.index("energy_variance")]
    error = float(variance.std()) / 20
    assert float(variance[::2].mean()) == pytest.approx(NOISE**2, abs=5 * error + 0.02)  # 0.02: the steps' own residual
    measured, _ = found("auto")
    assert np.abs(z_scores(measured, moments(lambda gain, v: mean_chance(gain, v, v / 2)))).max() < 4.5


KERNELS = {
    "sghmc": lv.sghmc(0.02, beta=0.8),
    "msgld": lv.msgld(0.5, bias_factor=1.0, beta=0.5, invariant=True),
    "asgld": lv.asgld(0.5, bias_factor=1.0, betas=(0.5, 0.9), invariant=True, adapt_steps=20),
    "sgnht": lv.sgnht(0.02, beta=0.8),
}


@pytest.mark.parametrize("name", KERNELS)
def test_a_swap_keeps_velocities_in_step_with_positions(name):
    """On N(0, 1) invariant forms are exact for large steps, also where chains swap at every step; 4.5 standard errors.

    Velocities that are not scaled, or without their share of the gradient, are off by 10 standard errors and more.
    """
    kernel = lv.replica_exchange(KERNELS[name], temperatures=(1.0, 3.0), swap_every=1)
    init = (
        lv.random.normal(0, 7, 0, 8000, dtype=double).reshape(4000, 2)
        * torch.tensor([1.0, 3.0**0.5], dtype=double).repeat(2000)[:, None]
    )
    target = lv.targets.gaussian(torch.eye(2, dtype=double))
    samples = lv.sample(target, sampler=kernel, init=init, num_steps=160, warmup=60, thin=5, compile=False, seed=2).replicas
    for k, tau in enumerate((1.0, 3.0)):
        square = samples.draws[k::2].square().mean((1, 2)) / tau
        bias = 0.015 if name in ("sghmc", "sgnht") else 0.0  # these have an error of O(h) or O(h^2)
        assert abs(float(square.mean()) - 1) < 4.5 * float(square.std()) / len(square) ** 0.5 + bias


def test_without_swaps_every_chain_is_the_sampler_itself():
    """Bit for bit, velocities included, at its temperature."""
    target, init = lv.targets.gaussian(torch.eye(2, dtype=double)), torch.ones(4, 2, dtype=double)
    for inner in KERNELS.values():
        kernel = lv.replica_exchange(inner, temperatures=(1.0, 4.0), swap_every=1000)
        samples = lv.sample(target, sampler=kernel, init=init, num_steps=30, compile=False).replicas
        for k, tau in enumerate((1.0, 4.0)):
            alone = lv.sample(target, sampler=dataclasses.replace(inner, temperature=tau), init=init, num_steps=30, compile=False)
            assert torch.equal(samples.draws[k::2], alone.draws[k::2]), inner.name


def test_a_run_on_disk_hands_out_the_cold_chains_too(tmp_path):
    target, init = lv.targets.energy(lambda theta: wells(theta).sum()), torch.ones(6, 1, dtype=double)
    kernel = lv.replica_exchange(lv.sghmc(EPS), temperatures=(1.0, 2.0, 6.0), swap_every=3, energy_noise="auto")
    settings = {"num_steps": 60, "warmup": 10, "compile": False, "seed": 4}
    memory = lv.sample(target, sampler=kernel, init=init, **settings)
    disk = lv.sample(target, sampler=kernel, init=init, out=tmp_path / "run", **settings)
    loaded = lv.load_samples(tmp_path / "run")
    assert memory.draws.shape == (2, 50, 1)
    assert memory.replicas.draws.shape == (6, 50, 1)
    for samples in (disk, loaded):
        assert torch.equal(samples.draws, memory.draws)
        assert torch.equal(samples.draws, samples.replicas.draws[::3])
        assert [status.chain for status in samples.status] == [0, 3]
        assert samples.temperature == 1.0
        assert samples.replicas.temperatures == (1.0, 2.0, 6.0)
    running = lv.sample(target, sampler=kernel, init=init, keep="moments", **settings)
    torch.testing.assert_close(running.moments.mean, memory.draws.mean(1))


def test_a_ladder_with_a_gap_is_said():
    target = lv.targets.gaussian(torch.eye(30, dtype=double))
    kernel = lv.replica_exchange(lv.sgld(0.05), temperatures=(1.0, 1.3, 20.0))
    samples = lv.sample(target, sampler=kernel, init=torch.zeros(12, 30, dtype=double), num_steps=400, warmup=200, compile=False)
    assert samples.trust["swaps"].is_fine is False
    assert "temperatures 2 and 3 of the ladder" in samples.trust["swaps"].sentence
    assert samples.trust["temperature"].value == pytest.approx(1.0, abs=0.15)  # of the cold chains alone


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"temperatures": (1.0,)}, "temperatures=.*rise from 1, got"),
        ({"temperatures": (2.0, 4.0)}, "temperatures=.*rise from 1, got"),
        ({"temperatures": (1.0, 3.0, 2.0)}, "temperatures=.*rise from 1, got"),
        ({"temperatures": 3.0}, "temperatures=.*rise from 1, got 3"),
        ({"swap_every": 0}, "swap_every=.*got 0"),
        ({"energy_noise": -1.0}, "energy_noise=.*>= 0, got -1"),
        ({"energy_noise": "learn"}, "energy_noise=.*got 'learn'"),
        ({"kernel": lv.sgld("auto")}, "kernel=.*numbers"),
        ({"kernel": lv.sgld(0.1, temperature=0.0)}, "kernel=.*temperature > 0"),
        ({"kernel": lv.replica_exchange(lv.sgld(0.1))}, "kernel=.*do not interact"),
        ({"kernel": "sgld"}, "kernel=.*a sampler"),
    ],
)
def test_bad_settings_are_refused(arguments, words):
    with pytest.raises((ValueError, TypeError), match=f"replica_exchange.{words}"):
        lv.replica_exchange(**{"kernel": lv.sgld(0.1), **arguments})


def test_minibatches_without_a_correction_are_refused_and_so_is_a_step_without_chances():
    kernel = lv.replica_exchange(lv.sgld(EPS), temperatures=(1.0, HOT))
    init = torch.ones(2, 1, dtype=double)
    with pytest.raises(ValueError, match=r'batch_size=.*energy_noise="auto"'):
        lv.sample(NOISY, sampler=kernel, init=init, data=QUANTILES, batch_size=1, num_steps=10)
    with pytest.raises(ValueError, match=r"inputs=.*a chance for each chain"):
        kernel.step(kernel.init(init), lv.targets.Evaluation(init[:, 0], init), torch.zeros(1, 2, 1))
