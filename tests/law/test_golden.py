"""Ten-step float64 paths on a nonlinear target against the plain loops of `oracle.py`."""

from __future__ import annotations

from math import cos

import oracle
import pytest
import torch
from stepping import step as step_by_hand

import langevin as lv

START = [0.3, -1.2, 2.0]
EPS, TAU, A = 0.03, 0.7, 2.5


def energy(theta):
    return (theta**4 / 4 + torch.sin(3 * theta)).sum()


def gradient(theta):
    return [t**3 + 3 * cos(3 * t) for t in theta]


def information(theta):
    return torch.diag(1 + theta**2)


CASES = {
    "sgld": (lv.sgld(EPS, temperature=TAU), oracle.sgld, {}),
    "msgld": (lv.msgld(EPS, temperature=TAU, bias_factor=A, beta=0.8), oracle.msgld, {"a": A, "beta": 0.8}),
    "asgld": (
        lv.asgld(EPS, temperature=TAU, bias_factor=A, betas=(0.8, 0.95), eps_root=1e-3),
        oracle.asgld,
        {"a": A, "beta_1": 0.8, "beta_2": 0.95, "lam": 1e-3},
    ),
    "adamax_sgld": (
        lv.adamax_sgld(EPS, temperature=TAU, bias_factor=A, betas=(0.8, 0.95), eps=1e-3),
        oracle.adamax,
        {"a": A, "beta_1": 0.8, "beta_2": 0.95, "lam": 1e-3},
    ),
    "adadelta_sgld": (
        lv.adadelta_sgld(EPS, temperature=TAU, bias_factor=A, beta=0.8, eps_root=1e-3),
        oracle.adadelta,
        {"a": A, "rho": 0.8, "lam": 1e-3},
    ),
    "psgld": (lv.psgld(EPS, temperature=TAU, beta=0.8, eps=1e-2), oracle.psgld, {"beta": 0.8, "lam": 1e-2}),
    "psgld of the mean gradient": (
        lv.psgld(EPS, temperature=TAU, beta=0.8, eps=1e-2, num_data=50),
        oracle.psgld,
        {"beta": 0.8, "lam": 1e-2, "num_data": 50},
    ),
    "sghmc": (lv.sghmc(EPS, temperature=TAU, beta=0.8), oracle.sghmc, {"beta": 0.8}),
    "sgrld": (
        lv.sgrld(EPS, temperature=TAU, metric=information),
        oracle.sgrld,
        {
            "inverse": lambda t: 1 / (1 + t**2),
            "inverse_slope": lambda t: -2 * t / (1 + t**2) ** 2,
            "root": lambda t: (1 + t**2) ** -0.5,
        },
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_ten_steps_equal_the_plain_loop(case):
    kernel, loop, settings = CASES[case]
    target = lv.targets.energy(energy)
    state = kernel.init(torch.tensor([START], dtype=torch.float64))
    noises = lv.noise.normal(4, 0, range(10), 3, dtype=torch.float64)
    expected = loop(START, gradient, noises.tolist(), eps=EPS, tau=TAU, **settings)
    for step in range(10):
        state = step_by_hand(kernel, state, target.evaluate(state.position).gradient, noises[step : step + 1])
        torch.testing.assert_close(state.position[0], torch.tensor(expected[step], dtype=torch.float64), rtol=1e-11, atol=1e-11)


ADAM_LIKE = {"bias_factor": A, "betas": (0.8, 0.95), "invariant": True, "adapt_steps": 6}
ADAM_LIKE_LOOP = {"a": A, "beta_1": 0.8, "beta_2": 0.95, "lam": 1e-3, "adapt_steps": 6}
INVARIANT = {
    "msgld": (
        lv.msgld(EPS, temperature=TAU, bias_factor=A, beta=0.8, invariant=True),
        oracle.msgld_invariant,
        {"a": A, "beta": 0.8},
    ),
    "asgld": (lv.asgld(EPS, temperature=TAU, eps_root=1e-3, **ADAM_LIKE), oracle.asgld_invariant, ADAM_LIKE_LOOP),
    "adamax_sgld": (lv.adamax_sgld(EPS, temperature=TAU, eps=1e-3, **ADAM_LIKE), oracle.adamax_invariant, ADAM_LIKE_LOOP),
}


@pytest.mark.parametrize("case", INVARIANT)
def test_ten_steps_of_the_invariant_form_equal_the_plain_loop(case):
    kernel, loop, settings = INVARIANT[case]
    target = lv.targets.energy(energy)
    state = kernel.init(torch.tensor([START], dtype=torch.float64))
    noises = lv.noise.normal(4, range(2), range(10), 3, dtype=torch.float64)  # (step, noise, element)
    expected = loop(START, gradient, noises.tolist(), eps=EPS, tau=TAU, **settings)
    for step in range(10):
        state = step_by_hand(kernel, state, target.evaluate(state.position).gradient, noises[step][:, None])
        torch.testing.assert_close(state.position[0], torch.tensor(expected[step], dtype=torch.float64), rtol=1e-11, atol=1e-11)


def test_psgld_adds_gamma_when_the_curvature_is_given():
    curvature = torch.tensor([2.0, 0.5, 1.0], dtype=torch.float64)
    kernel = lv.psgld(EPS, temperature=TAU, beta=0.8, eps=1e-2, curvature=lambda theta: curvature)
    noises = lv.noise.normal(4, 0, range(10), 3, dtype=torch.float64)
    # The first step is left out: V is then the first squared gradient alone, whatever beta.
    state = kernel.init(torch.tensor([START], dtype=torch.float64))
    expected = oracle.psgld(
        START, lambda theta: [c * t for c, t in zip(curvature.tolist(), theta, strict=True)], noises.tolist(),
        eps=EPS, tau=TAU, beta=0.8, lam=1e-2, hessian_diagonal=curvature.tolist(),
    )  # fmt: skip
    for step in range(10):
        state = step_by_hand(kernel, state, curvature * state.position, noises[step : step + 1])
    torch.testing.assert_close(state.position[0], torch.tensor(expected[-1], dtype=torch.float64), rtol=1e-11, atol=1e-11)


def test_the_oracle_moves():
    """Guards the guard: paths of different samplers differ, so a test that compared nothing would be seen."""
    ends = [loop(START, gradient, [[0.1, 0.2, 0.3]] * 10, eps=EPS, tau=TAU, **settings)[-1] for _, loop, settings in CASES.values()]
    assert len({round(end[0], 9) for end in ends}) == len(ends)
