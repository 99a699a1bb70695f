"""Draws of a cyclical step size that count are cold; on a Gaussian the law at every step size is exact."""

from __future__ import annotations

import pytest
import torch

import langevin as lv
from langevin.diagnostics import cooled

double = torch.float64
TARGET = lv.targets.gaussian(torch.eye(3, dtype=double))

pytestmark = pytest.mark.filterwarnings("ignore::langevin.TrustWarning")  # hot draws of a cycle, which this is about


def run(step_size, **settings):
    init = torch.zeros(400, 3, dtype=double)
    return lv.sample(TARGET, sampler=lv.sgld(step_size), init=init, **{"num_steps": 3000, "compile": False, **settings})


def test_draws_that_count_have_the_variance_of_small_steps():
    """The variance at step size ε is 1 / (1 - ε / 2), so 5 % are had at ε = 0.095.

    The smallest steps, with which the others are compared, are frozen where somewhat larger ones left them.
    """
    samples = run(lv.schedules.cyclical(1.0, cycle_length=500))
    found = cooled(samples)
    assert 0.06 < found.step_size < 0.3
    assert samples.draws.var() > 1.3
    assert float(samples.draws[:, found.keep].var()) == pytest.approx(1.0, abs=0.08)
    assert bool((samples.step_size[found.keep] <= found.step_size).all())
    assert bool((found.excess[-3:] > 0.5).all())
    assert cooled(samples, tolerance=0.5).step_size > 2 * found.step_size


def test_all_draws_of_one_step_size_count():
    assert cooled(run(0.05)).keep.all()


def test_bad_samples_are_refused():
    with pytest.raises(TypeError, match=r"cooled.samples=.*one temperature > 0"):
        cooled(run(0.1, keep="moments"))
    with pytest.raises(ValueError, match=r"cooled.samples=.*200 draws or more"):
        cooled(run(0.1, num_steps=100))
    with pytest.raises(ValueError, match=r"tolerance=.*> 0, got 0"):
        cooled(run(0.1), tolerance=0.0)
