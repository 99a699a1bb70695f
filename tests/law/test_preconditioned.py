"""What the Gamma term is for: the law of a metric that moves with theta, exact densities on N(0, 1).

With G = 1 / (lam + |theta|), which is pSGLD's for beta = 0, the Ito equation without Gamma has the stationary density
(1 / G) exp(-theta^2 / 2): its variance is (lam c + 4) / (lam c + 2) with c = sqrt(2 pi). With Gamma it is N(0, 1).
Tolerances: 5 standard errors of a variance from n elements, plus the O(eps) of the Euler step, 2 eps here (measured
at three step sizes: below 1.5 eps).
"""

from __future__ import annotations

import math

import torch
from stepping import step as step_by_hand

import langevin as lv

NUM, LAM, EPS, STEPS = 60_000, 1.0, 0.01, 900


def variance(kernel):
    """Return the variance over elements, each of which is a chain."""
    position = lv.random.normal(2, lv.random.stream(lv.random.Purpose.INIT), 0, NUM)
    state = kernel.init(position)
    for step in range(STEPS):
        state = step_by_hand(
            kernel, state, state.position, lv.random.normal(2, lv.random.stream(lv.random.Purpose.POSITION), step, NUM)
        )
    return state.position.var().item()


def test_psgld_without_gamma_has_the_density_off_by_one_over_g():
    expected = (LAM * math.sqrt(2 * math.pi) + 4) / (LAM * math.sqrt(2 * math.pi) + 2)
    found = variance(lv.psgld(EPS, beta=0.0, eps=LAM))
    assert abs(found - expected) < 5 * expected * math.sqrt(2 / NUM) * 1.5 + 2 * EPS  # 1.5: the density's kurtosis is not 3
    assert found > 1.3


def test_psgld_with_gamma_has_the_right_law_when_v_is_a_function_of_theta():
    found = variance(lv.psgld(EPS, beta=0.0, eps=LAM, curvature=torch.ones_like))
    assert abs(found - 1) < 5 * math.sqrt(2 / NUM) + 2 * EPS


def test_sgrld_needs_gamma_where_the_metric_moves():
    """The same metric through the matrix code: F = lam + |theta|, chains of dimension one."""

    def information(theta):
        return (LAM + theta.abs())[:, None]

    def run(correction):
        kernel = lv.sgrld(EPS, metric=information, correction=correction)
        chains = 4_000
        streams = lv.random.streams(lv.random.Purpose.POSITION, range(chains))
        state = kernel.init(
            lv.random.normal(3, lv.random.streams(lv.random.Purpose.INIT, range(chains)), 0, 1, dtype=torch.float64)
        )
        for step in range(500):
            state = step_by_hand(kernel, state, state.position, lv.random.normal(3, streams, step, 1, dtype=torch.float64))
        return state.position.var().item()

    assert abs(run(True) - 1) < 5 * math.sqrt(2 / 4_000) + 2 * EPS
    assert run(False) > 1 + 5 * math.sqrt(2 / 4_000) + 2 * EPS
