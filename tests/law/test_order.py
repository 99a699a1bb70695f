"""The error of the variance on N(0, 1) grows with the step size as theory predicts."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from exact import hamiltonian_covariance, langevin_covariance, momentum_covariance
from stepping import step as step_by_hand

import langevin as lv

NUM_CHAINS = 200_000


def variance(kernel, start, steps):
    """Return the variance over independent chains of one element on N(0, 1), and its standard error."""
    chains = lv.random.stream(lv.random.Purpose.POSITION)
    position = start**0.5 * lv.random.normal(0, lv.random.stream(lv.random.Purpose.INIT), 0, NUM_CHAINS, dtype=torch.float64)
    state = kernel.init(position)
    for step in range(steps):
        state = step_by_hand(kernel, state, state.position, lv.random.normal(0, chains, step, NUM_CHAINS, dtype=torch.float64))
    found = state.position.var().item()
    return found, found * (2 / NUM_CHAINS) ** 0.5


CASES = {
    # SGLD on N(0, 1) has variance 1 / (1 - eps / 2): an error of eps / 2 + O(eps^2). So has MSGLD without bias.
    "sgld": (lambda eps: lv.sgld(eps), lambda eps: langevin_covariance(np.eye(1), eps=eps)[0, 0], 0.5),
    "msgld": (
        lambda eps: lv.msgld(eps, bias_factor=0.0),
        lambda eps: momentum_covariance(np.eye(1), eps=eps, a=0.0, beta=0.9)[0, 0],
        0.5,
    ),
    # SGHMC: solving its 2 x 2 Lyapunov equation by hand gives 1 / (1 - eps / (2 (1 + beta))), an error of eps / 3 at beta = 1/2.
    "sghmc": (lambda eps: lv.sghmc(eps, beta=0.5), lambda eps: hamiltonian_covariance(np.eye(1), eps=eps, beta=0.5)[0, 0], 1 / 3),
}


@pytest.mark.parametrize("name", CASES)
def test_the_error_is_of_first_order_in_the_step_size(name):
    recipe, exact, slope = CASES[name]
    assert exact(1e-4) - 1 == pytest.approx(slope * 1e-4, rel=1e-2)  # the prediction itself
    for eps in (0.1, 0.2, 0.4):
        found, error = variance(recipe(eps), exact(eps), steps=40)
        assert abs(found - exact(eps)) < 5 * error
        # First order: the measured excess lies within O(eps^2) of slope * eps, and is many standard errors from none at all.
        assert abs(found - 1 - slope * eps) < slope * eps**2 + 5 * error
        assert found - 1 > 5 * error
