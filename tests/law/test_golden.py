"""Ten-step float64 paths on a nonlinear target against the plain loops of `oracle.py`."""

from __future__ import annotations

from math import cos

import oracle
import pytest
import torch
from sampler_table import TABLE, build, letters
from stepping import step as step_by_hand

import langevin as lv

START = [0.3, -1.2, 2.0]
EPS, TAU = 0.03, 0.7
GOLDEN = [name for name, entry in TABLE.items() if entry.oracle]


def energy(theta):
    return (theta**4 / 4 + torch.sin(3 * theta)).sum()


def gradient(theta):
    return [t**3 + 3 * cos(3 * t) for t in theta]


@pytest.mark.parametrize("name", GOLDEN)
def test_ten_steps_equal_the_plain_loop(name):
    kernel, target = build(name, EPS, temperature=TAU), lv.targets.energy(energy)
    state = kernel.init(torch.tensor([START], dtype=torch.float64))
    draw = lv.random.KINDS[kernel.traits.noise_kind]
    noises = draw(4, range(kernel.traits.num_noises), range(10), 3, dtype=torch.float64)  # (step, noise, element)
    given = noises[:, 0] if kernel.traits.num_noises == 1 else noises
    known = {"energy": lambda theta: float(energy(torch.tensor(theta, dtype=torch.float64)))} if kernel.traits.needs_energy else {}
    expected = TABLE[name].oracle(START, gradient, given.tolist(), eps=EPS, tau=TAU, **known, **letters(TABLE[name].settings))
    for step in range(10):
        state = step_by_hand(kernel, state, target.evaluate(state.position), noises[step][:, None])
        torch.testing.assert_close(state.position[0], torch.tensor(expected[step], dtype=torch.float64), rtol=1e-11, atol=1e-11)


def test_psgld_adds_gamma_when_the_curvature_is_given():
    curvature = torch.tensor([2.0, 0.5, 1.0], dtype=torch.float64)
    kernel = lv.psgld(EPS, temperature=TAU, beta=0.8, eps=1e-2, curvature=lambda theta: curvature)
    noises = lv.random.normal(4, 0, range(10), 3, dtype=torch.float64)
    # The first step is left out: V is then the first squared gradient alone, whatever beta.
    state = kernel.init(torch.tensor([START], dtype=torch.float64))
    expected = oracle.psgld(
        START, lambda theta: [c * t for c, t in zip(curvature.tolist(), theta, strict=True)], noises.tolist(),
        eps=EPS, tau=TAU, beta=0.8, lam=1e-2, hessian_diagonal=curvature.tolist(),
    )  # fmt: skip
    for step in range(10):
        state = step_by_hand(kernel, state, curvature * state.position, noises[step : step + 1])
    torch.testing.assert_close(state.position[0], torch.tensor(expected[-1], dtype=torch.float64), rtol=1e-11, atol=1e-11)


def test_the_oracles_move_apart():
    """Guards the guard: paths of different samplers differ, so a test that compared nothing would be seen."""
    one, ends = [0.1, 0.2, 0.3], []
    for name in GOLDEN:
        noises = [one if build(name).traits.num_noises == 1 else [one, one]] * 10
        known = {"energy": lambda theta: 0.0} if build(name).traits.needs_energy else {}
        ends.append(TABLE[name].oracle(START, gradient, noises, eps=EPS, tau=TAU, **known, **letters(TABLE[name].settings))[-1])
    assert len({round(end[0], 9) for end in ends}) == len(ends)
