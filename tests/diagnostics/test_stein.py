"""The kernel Stein discrepancy against a double loop, automatic differentiation, and its known size."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

import langevin as lv
from langevin import diagnostics as dg


def normals(chains, draws, dim, seed=0):
    return lv.random.normal(seed, range(chains), range(draws), dim, dtype=torch.float64).transpose(0, 1)


def naive(draws, gradients, temperature, c):
    """Sum k0 over pairs, with the kernel's derivatives by automatic differentiation."""

    def kernel(x, y):
        return (c**2 + ((x - y) ** 2).sum()) ** -0.5

    points, scores = draws.reshape(-1, draws.shape[-1]), -gradients.reshape(-1, draws.shape[-1]) / temperature
    by_x, by_y = torch.func.grad(kernel, 0), torch.func.grad(kernel, 1)
    by_both = torch.func.jacrev(by_x, 1)
    total = 0.0
    for x, sx in zip(points, scores, strict=True):
        for y, sy in zip(points, scores, strict=True):
            trace = by_both(x, y).trace()
            total += float((sx @ sy) * kernel(x, y) + sx @ by_y(x, y) + sy @ by_x(x, y) + trace)
    return total**0.5 / len(points)


@pytest.mark.parametrize(("temperature", "scale"), [(1.0, 1.0), (0.3, 2.5)])
@pytest.mark.parametrize("block", [3, 512])
def test_it_is_the_double_sum_of_the_stein_kernel(temperature, scale, block):
    draws = 40 + 1.3 * normals(2, 10, 3)
    gradients = torch.sin(draws) + draws - 40  # of no Gaussian
    found = dg.kernel_stein_discrepancy(draws, gradients, temperature=temperature, scale=scale, block=block)
    assert found == pytest.approx(naive(draws, gradients, temperature, scale), rel=1e-10)


def test_for_exact_draws_its_square_is_the_mean_of_the_diagonal_over_n_and_so_it_shrinks_with_the_root_of_n():
    """E KSD^2 = E k0(x, x) / n = (dim + dim) / n on N(0, I); over 60 repetitions the mean of KSD^2 is within 15 percent of it."""
    for n in (50, 200, 800):
        squares = [dg.kernel_stein_discrepancy(x, x) ** 2 for x in normals(60, n, 2, seed=n)[:, None]]
        assert np.mean(squares) == pytest.approx(4 / n, rel=0.15)


def test_draws_with_a_wrong_variance_or_mean_stay_away_from_zero():
    draws = normals(4, 250, 2, seed=3)
    right = dg.kernel_stein_discrepancy(draws, draws)
    for wrong in (1.5 * draws, 0.6 * draws, draws + 0.5):
        assert dg.kernel_stein_discrepancy(wrong, wrong) > 4 * right


def test_a_temperature_makes_cold_draws_right():
    draws = 0.3**0.5 * normals(4, 250, 2)
    cold = dg.kernel_stein_discrepancy(draws, draws, temperature=0.3)
    assert cold < 0.6 * dg.kernel_stein_discrepancy(draws, draws)
    assert cold == pytest.approx((2 * (1 / 0.3 + 1) / 1000) ** 0.5, rel=0.5)


def test_the_subsample_is_spread_evenly_over_the_chains():
    draws = normals(4, 500, 2)
    assert dg.kernel_stein_discrepancy(draws, draws, num=2000) == dg.kernel_stein_discrepancy(draws, draws, num=10**6)
    flat = draws.reshape(-1, 2)[[0, 333, 666, 1000, 1333, 1666, 1999]]
    # seven of 2000: spacing 1999 / 6 = 333.17, rounded (999.5 to the even 1000)
    found = dg.kernel_stein_discrepancy(draws, draws, num=7)
    assert found == pytest.approx(dg.kernel_stein_discrepancy(flat[None], flat[None]), rel=1e-12)


def test_ksd_of_samples_takes_the_gradient_over_all_data_without_artificial_noise_on_healthy_chains():
    x = lv.random.normal(9, 0, 0, 30, dtype=torch.float64)
    target = lv.targets.likelihood(
        lambda theta, x: -0.5 * (x - theta[0]) ** 2, prior=lv.priors.gaussian(std=1.0), gradient_noise=1.0
    )
    samples = lv.sample(
        target, sampler=lv.sgld(1e-3), init=torch.zeros(3, 1, dtype=torch.float64), data=x, batch_size=10, num_steps=50
    )
    gradients = 31 * samples.draws - x.sum()
    exact = dg.kernel_stein_discrepancy(samples.draws, gradients, scale=0.2)
    assert dg.ksd(samples, target, x, scale=0.2) == pytest.approx(exact, rel=1e-10)

    bad = samples.draws.clone()
    bad[1, 20:] = torch.nan
    status = (samples.status[0], samples.status[1]._replace(reason="stopped"), samples.status[2])
    stopped = dataclasses.replace(samples, arrays={**samples.arrays, "draws": bad}, status=status)
    healthy = dg.kernel_stein_discrepancy(samples.draws[[0, 2]], gradients[[0, 2]])
    with pytest.warns(UserWarning, match=r"ksd\(\) uses 2 of 3 chains: the others stopped"):
        assert dg.ksd(stopped, target, x) == pytest.approx(healthy, rel=1e-10)
