"""Cycles of temperature have the posterior's weights of modes, which restarts alone have not; oracles are grids and exact laws."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from test_replica import EPS, NOISY, QUANTILES, slope, wells

import langevin as lv
from langevin.kernels import Cycles

double = torch.float64
SETTINGS = {"cycle_length": 150, "hottest": 8.0, "hot": 0.4, "cold": 0.4}
TARGET = lv.targets.energy(lambda theta: wells(theta).sum())
KERNEL = lv.cyclical_annealing(lv.sgld(EPS), **SETTINGS)
SHARE = quad(lambda x: np.exp(-wells(x)), -4, 0)[0] / quad(lambda x: np.exp(-wells(x)), -4, 4)[0]

pytestmark = pytest.mark.filterwarnings("ignore::langevin.TrustWarning")  # many short chains


@dataclass(frozen=True)
class Always(Cycles):
    """Takes whatever a cycle finds, as restarts do."""

    def update(self, position, evaluation, noise, memory, inputs):
        return super().update(position, evaluation, noise, memory, inputs._replace(uniform=0 * inputs.uniform))


def share(kernel, **settings):
    """Return P(x < 0) of the first draw of a late cycle, with its standard error; chains are independent."""
    target = settings.pop("target", TARGET)
    first = 12 * kernel.cycle_length + kernel._decision + 1
    init = torch.ones(3000, 1, dtype=double)
    draws = lv.sample(target, sampler=kernel, init=init, num_steps=first + 1, warmup=first, compile=False, seed=3, **settings).draws
    found = float((draws < 0).double().mean())
    return found, (found * (1 - found) / len(draws)) ** 0.5


def share_of_restarts():
    """Return P(x < 0) where a cycle ends, by the law of its steps on a grid, from the equilibrium of the hot phase."""
    x = np.arange(-3.2, 3.2, 0.04)
    law = np.exp(-wells(x) / KERNEL.hottest)
    for place in range(KERNEL._hot_steps - 40, KERNEL._decision):
        step = np.exp(-((x[:, None] - (x - EPS * slope(x))) ** 2) / (4 * EPS * KERNEL.inputs(place).temperature))
        law = (step / step.sum(0)) @ law
    return law[x < 0].sum() / law.sum()


def test_cycles_have_the_weights_of_the_posterior_and_restarts_alone_have_not():
    """4.5 standard errors, and 1 % of step size."""
    found, error = share(KERNEL)
    assert abs(found - SHARE) < 4.5 * error + 0.01
    expected = share_of_restarts()
    always, error = share(Always("always", KERNEL.step_size, inner=KERNEL.inner, **SETTINGS))
    assert abs(always - expected) < 4.5 * error
    assert SHARE - expected > 4.5 * error + 0.01 + 3 * error  # so that the first test would see it


def test_noise_of_the_energy_changes_nothing():
    found, error = share(KERNEL, target=NOISY, data=QUANTILES, batch_size=1, batches="white")
    assert abs(found - SHARE) < 4.5 * error + 0.01


@pytest.mark.parametrize("name", ["sghmc", "msgld", "sgnht"])
def test_draws_are_cold_from_the_first_on(name):
    """On N(0, 1) the variance of the first draws of a cycle is 1: velocities cool with the chain."""
    inner = {"sghmc": lv.sghmc(0.02), "msgld": lv.msgld(0.3, bias_factor=4.0, invariant=True), "sgnht": lv.sgnht(0.02)}[name]
    kernel = lv.cyclical_annealing(inner, cycle_length=60, hottest=4.0, hot=0.8, cold=0.15)  # it cools in 2 steps
    init, target = torch.zeros(3000, 2, dtype=double), lv.targets.gaussian(torch.eye(2, dtype=double))
    square = (
        lv.sample(target, sampler=kernel, init=init, num_steps=1200, warmup=900, compile=False).draws[:, 1::8].square().mean((1, 2))
    )
    bias = 0.0 if name == "msgld" else 0.02  # of O(h)
    assert abs(float(square.mean()) - 1) < 4.5 * float(square.std()) / len(square) ** 0.5 + bias


def test_chains_run_apart_as_they_run_together_and_on_disk(tmp_path):
    kernel = lv.cyclical_annealing(lv.sghmc(EPS), cycle_length=20)
    init, settings = torch.ones(4, 1, dtype=double), {"num_steps": 70, "compile": False, "seed": 5}
    together = lv.sample(TARGET, sampler=kernel, init=init, **settings).draws
    assert together.shape == (4, 21, 1)
    assert torch.equal(lv.sample(TARGET, sampler=kernel, init=init[2:], first_chain=2, **settings).draws, together[2:])
    assert torch.equal(lv.sample(TARGET, sampler=kernel, init=init, out=tmp_path / "run", **settings).draws, together)


def test_a_cycle_cools_from_the_hottest_to_the_target():
    found = [KERNEL.inputs(step).temperature for step in range(150)]
    assert found[:60] == [8.0] * 60
    assert found[90:] == [1.0] * 60
    assert np.allclose(np.diff(np.log(found[59:91])), -np.log(8.0) / 31)
    assert [KERNEL.inputs(step).phase for step in (0, 59, 60, 89, 90, 91, 149)] == [0, 0, -1, -1, 1, -1, -1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"hottest": 1.0}, "hottest=.*> 1, got 1.0"),
        ({"hot": 0.0}, "hot=.*got 0.0"),
        ({"hot": 0.5, "cold": 0.5}, "cold=.*< 1 - hot, got 0.5"),
        ({"cycle_length": 3}, "cycle_length=.*got 3"),
        ({"cycle_length": 10, "hot": 0.05}, "cycle_length=.*each phase has one, got 10"),
        ({"kernel": lv.sgld("auto")}, "kernel=.*numbers"),
        ({"kernel": KERNEL}, "kernel=.*do not interact"),
        ({"kernel": 1.0}, "kernel=.*a sampler"),
    ],
)
def test_bad_cycles_are_refused(arguments, words):
    with pytest.raises((ValueError, TypeError), match=f"cyclical_annealing.{words}"):
        lv.cyclical_annealing(**{"kernel": lv.sgld(0.1), "cycle_length": 100, **arguments})
