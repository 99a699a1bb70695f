"""Every bad value fails with the function's and the argument's name and the value."""

from __future__ import annotations

import dataclasses
import math
import re

import pytest
import torch

import langevin as lv
from langevin import diagnostics as dg

DRAWS = torch.zeros(2, 5, 2)
NAN = DRAWS.clone()
NAN[1, 3, 0] = math.nan
GAUSSIAN = lv.targets.gaussian(torch.eye(2))
LIKELIHOOD = lv.targets.likelihood(lambda theta, x: -0.5 * (x - theta[0]) ** 2, prior=lv.priors.gaussian(std=1.0))


@pytest.fixture(scope="module")
def samples():
    return lv.sample(GAUSSIAN, sampler=lv.sgld(0.1), init=torch.zeros(2, 2), num_steps=5)


ARRAYS = {
    "draws of a wrong type": (
        lambda: dg.ess([[[1.0]]]),
        TypeError,
        "ess(draws=...) needs a torch.Tensor of shape (chain, draw, dim), got 'list'",
    ),
    "draws without chains": (
        lambda: dg.rhat(DRAWS[0]),
        ValueError,
        "rhat(draws=...) needs shape (chain, draw, dim) with no empty axis, got (5, 2)",
    ),
    "no draws": (
        lambda: dg.mcse(DRAWS[:, :0]),
        ValueError,
        "mcse(draws=...) needs shape (chain, draw, dim) with no empty axis, got (2, 0, 2)",
    ),
    "a stopped chain": (
        lambda: dg.ess(NAN),
        ValueError,
        "element [1, 3, 0] is not; `samples.healthy` leaves out chains that stopped), got nan",
    ),
    "lag of zero": (lambda: dg.autocorrelation(DRAWS, 0), ValueError, "autocorrelation(max_lag=...) needs an int >= 1, got 0"),
    "gradients of another shape": (
        lambda: dg.kernel_stein_discrepancy(DRAWS, DRAWS[:1]),
        ValueError,
        "kernel_stein_discrepancy(gradients=...) needs the shape of the draws (2, 5, 2), got (1, 5, 2)",
    ),
    "ksd scale": (
        lambda: dg.kernel_stein_discrepancy(DRAWS, DRAWS, scale=0.0),
        ValueError,
        "(scale=...) needs 1e-150 <= scale <= 1e150, got 0.0",
    ),
    "ksd num": (lambda: dg.kernel_stein_discrepancy(DRAWS, DRAWS, num=2.5), TypeError, "(num=...) needs an int >= 1, got 2.5"),
    "ksd block": (lambda: dg.kernel_stein_discrepancy(DRAWS, DRAWS, block=0), ValueError, "(block=...) needs an int >= 1, got 0"),
    "ksd temperature": (
        lambda: dg.kernel_stein_discrepancy(DRAWS, DRAWS, temperature=-1.0),
        ValueError,
        "(temperature=...) needs > 0, got -1.0",
    ),
    "kinetic step size": (
        lambda: dg.kinetic_temperature(DRAWS, 0.0),
        ValueError,
        "kinetic_temperature(step_size=...) needs > 0, got 0.0",
    ),
    "kinetic beta": (lambda: dg.kinetic_temperature(DRAWS, 0.1, beta=2.0), ValueError, "(beta=...) needs 0 <= beta <= 1, got 2.0"),
    "virial gradients": (
        lambda: dg.configurational_temperature(DRAWS, DRAWS[..., :1]),
        ValueError,
        "(gradients=...) needs the shape of the draws",
    ),
    "centre": (
        lambda: dg.configurational_temperature(DRAWS, DRAWS, centre=torch.zeros(3)),
        ValueError,
        "(centre=...) needs shape (2,), got (3,)",
    ),
    "no centre": (
        lambda: dg.configurational_temperature(DRAWS, DRAWS, centre=torch.tensor([0.0, math.nan])),
        ValueError,
        "configurational_temperature(centre=...) needs finite values (element [1] is not), got nan",
    ),
    "mean of words": (
        lambda: dg.moment_errors(DRAWS, "zero", torch.eye(2)),
        TypeError,
        "moment_errors(mean=...) needs numbers of shape (2,), got 'zero'",
    ),
    "one draw without centre": (
        lambda: dg.configurational_temperature(DRAWS[:1, :1], DRAWS[:1, :1]),
        ValueError,
        "when there is only one draw, got None",
    ),
    "expected": (lambda: dg.kinetic_temperature(DRAWS, 0.1, expected=0.0), ValueError, "(expected=...) needs > 0, got 0.0"),
    "level": (lambda: dg.Temperature(1.0, 0.1).interval(1.0), ValueError, "interval(level=...) needs 0 < level < 1, got 1.0"),
    "mean": (
        lambda: dg.moment_errors(DRAWS, [0.0], torch.eye(2)),
        ValueError,
        "moment_errors(mean=...) needs shape (2,), got (1,)",
    ),
    "covariance": (
        lambda: dg.moment_errors(DRAWS, [0.0, 0.0], torch.eye(3)),
        ValueError,
        "moment_errors(covariance=...) needs shape (2, 2), got (3, 3)",
    ),
    "infinite covariance": (
        lambda: dg.moment_errors(DRAWS, [0.0, 0.0], torch.eye(2) * math.inf),
        ValueError,
        "needs finite values",
    ),
    "reference": (
        lambda: dg.sliced_wasserstein(DRAWS, torch.zeros(4, 3)),
        ValueError,
        "sliced_wasserstein(reference=...) needs a tensor of shape (..., 2)",
    ),
    "directions": (
        lambda: dg.sliced_wasserstein(DRAWS, DRAWS, num_directions=0),
        ValueError,
        "(num_directions=...) needs an int >= 1, got 0",
    ),
    "seed": (
        lambda: dg.sliced_wasserstein(DRAWS, DRAWS, seed=-1),
        ValueError,
        "sliced_wasserstein(seed=...) needs an int in [0, 2**64), got -1",
    ),
    "no mixture": (
        lambda: dg.mode_shares(DRAWS, GAUSSIAN),
        TypeError,
        "mode_shares(target=...) needs a mixture of targets.mixture(...), got 'Gaussian'",
    ),
    "mixture of other dim": (
        lambda: dg.mode_shares(torch.zeros(1, 1, 3), lv.targets.mixture()),
        ValueError,
        "needs shape (chain, draw, 2), got (1, 1, 3)",
    ),
    "no plane": (
        lambda: dg.grid_total_variation(torch.zeros(1, 1, 3), GAUSSIAN, 1.0, 5),
        ValueError,
        "(draws=...) needs shape (chain, draw, 2)",
    ),
    "half width": (lambda: dg.grid_total_variation(DRAWS, GAUSSIAN, -1.0, 5), ValueError, "(half_width=...) needs > 0, got -1.0"),
    "bins": (lambda: dg.grid_total_variation(DRAWS, GAUSSIAN, 1.0, 0), ValueError, "(bins=...) needs an int >= 1, got 0"),
    "whole draws": (lambda: dg.ess(DRAWS.long()), TypeError, "ess(draws=...) needs a floating-point tensor, got torch.int64"),
    "draws without values": (lambda: dg.rhat(DRAWS.to("meta")), TypeError, "rhat(draws=...) needs a dense tensor with values, got"),
    "sparse draws": (lambda: dg.rhat(DRAWS.to_sparse()), TypeError, "rhat(draws=...) needs a dense tensor with values, got"),
    "a sparse reference": (
        lambda: dg.sliced_wasserstein(DRAWS, torch.zeros(4, 2).to_sparse()),
        TypeError,
        "sliced_wasserstein(reference=...) needs a dense tensor with values, got",
    ),
    "a method that is none": (
        lambda: dg.ess(DRAWS, method=[]),
        TypeError,
        'ess(method=...) needs one of "bulk", "tail", "mean", "sd", got []',
    ),
    "a mean too large": (lambda: dg.moment_errors(DRAWS, 10**400, DRAWS[0]), TypeError, "moment_errors(mean=...) needs numbers of"),
    "a scale whose square is infinite": (
        lambda: dg.kernel_stein_discrepancy(DRAWS, DRAWS, scale=1e308),
        ValueError,
        "(scale=...) needs 1e-150 <= scale <= 1e150, got 1e+308",
    ),
    "no target": (lambda: dg.grid_total_variation(DRAWS, "gaussian", 1.0, 5), TypeError, "(target=...) needs a target such as"),
}

SAMPLES = {
    "ksd target": (
        lambda s: dg.ksd(s, None),
        TypeError,
        "ksd(target=...) needs a target such as targets.energy(...), a subclass of targets.Target, got None",
    ),
    "ksd without data": (
        lambda s: dg.ksd(s, LIKELIHOOD),
        ValueError,
        "ksd(data=...) needs the columns that the target's likelihood takes, got None",
    ),
    "ksd with data": (
        lambda s: dg.ksd(s, GAUSSIAN, DRAWS),
        ValueError,
        "ksd(data=...) needs None: this target has no data, got 'Tensor'",
    ),
    "kernel": (
        lambda s: dg.effective_temperature(s, GAUSSIAN, kernel="sgld"),
        TypeError,
        "effective_temperature(kernel=...) needs a sampler",
    ),
    "a cold kernel": (
        lambda s: dg.effective_temperature(s, GAUSSIAN, kernel=lv.sgld(0.1, temperature=0.0)),
        ValueError,
        "effective_temperature(kernel=...) needs temperature > 0: at 0 it is an optimizer, whose positions have no "
        "distribution, got 0.0",
    ),
    "a target of three elements": (
        lambda s: dg.effective_temperature(s, lv.targets.energy(lambda theta: theta @ torch.ones(3))),
        ValueError,
        "effective_temperature(target=...) needs an energy of positions like the draws, 2 elements of torch.float32, got",
    ),
    "a mixture of one element": (
        lambda s: dg.ksd(s, lv.targets.mixture(means=[[-1.0], [1.0]], weights=[0.5, 0.5])),
        ValueError,
        "ksd(target=...) needs an energy of positions like the draws, 2 elements of torch.float32, got 'one of 1'",
    ),
    "a target that is not defined at the draws": (
        lambda s: dg.ksd(s, lv.targets.energy(lambda theta: -(theta - 99).log().sum())),
        ValueError,
        "ksd(target=...) needs a finite energy and gradient at every draw (10 of 10 draws have none), got 'energy nan at [",
    ),
    "num": (
        lambda s: dg.effective_temperature(s, GAUSSIAN, num=0),
        ValueError,
        "effective_temperature(num=...) needs an int >= 1, got 0",
    ),
    "plot elements": (lambda s: dg.trace(s, elements=[]), ValueError, "trace(elements=...) needs at least one element, got []"),
    "plot element": (lambda s: dg.trace(s, elements=3), TypeError, "trace(elements=...) needs a sequence of ints, got 3"),
    "a target of another dtype": (
        lambda s: dg.ksd(s, lv.targets.energy(lambda theta: theta @ torch.ones(2, dtype=torch.float64))),
        ValueError,
        "ksd(target=...) needs an energy of positions like the draws, 2 elements of torch.float32, got",
    ),
    "plot axes": (lambda s: dg.trace(s, axes=[]), ValueError, "trace(axes=...) needs 2 axes, one for each element, got 0"),
    "no axes": (lambda s: dg.trace(s, axes=True), TypeError, "trace(axes=...) needs axes of Matplotlib, one for each element, got"),
    "axes that are numbers": (lambda s: dg.running_mean(s, axes=[1.0, 2.0]), TypeError, "(axes=...) needs axes of Matplotlib"),
    "axes of a pair": (lambda s: dg.pair(s, axes=torch.tensor(1.0)), TypeError, "pair(axes=...) needs axes of Matplotlib"),
    "one element of a pair": (lambda s: dg.pair(s, elements=0), TypeError, "pair(elements=...) needs a sequence of ints, got 0"),
    "a pair of none": (lambda s: dg.pair(s, elements=None), ValueError, "pair(elements=...) needs two elements, got None"),
    "a ksd of data that is none": (lambda s: dg.ksd(s, LIKELIHOOD, 3), TypeError, "ksd(data=...) needs tensors, one per column"),
    "a class for a target": (lambda s: dg.ksd(s, lv.targets.Gaussian), TypeError, "ksd(target=...) needs a target such as"),
    "pair elements": (lambda s: dg.pair(s, elements=(0,)), ValueError, "pair(elements=...) needs two elements, got (0,)"),
    "pair without data": (lambda s: dg.pair(s, LIKELIHOOD), ValueError, "pair(data=...) needs the columns"),
    "plot reference": (
        lambda s: dg.running_mean(s, reference=[0.0]),
        ValueError,
        "running_mean(reference=...) needs shape (2,), got (1,)",
    ),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_a_bad_array_or_setting_is_named_with_its_value(name):
    call, error, message = ARRAYS[name]
    with pytest.raises(error, match=re.escape(message)):
        call()


@pytest.mark.parametrize("name", SAMPLES)
def test_bad_samples_or_targets_are_named_with_their_value(samples, name):
    call, error, message = SAMPLES[name]
    with pytest.raises(error, match=re.escape(message)):
        call(samples)


NEED_POSITIONS = {
    "effective_temperature": lambda s: dg.effective_temperature(s, GAUSSIAN),
    "ksd": lambda s: dg.ksd(s, GAUSSIAN),
}
NEED_DRAWS = NEED_POSITIONS | {
    "trace": dg.trace,
    "running_mean": dg.running_mean,
    "autocorrelation_plot": dg.autocorrelation_plot,
    "pair": dg.pair,
}


@pytest.mark.parametrize("out", [None, "run.zarr"])
def test_what_a_function_made_of_positions_is_not_judged_as_positions(out, tmp_path):
    """exp(theta) has the shape of theta; grad U there says nothing of the law of theta."""
    path = None if out is None else tmp_path / out
    made = lv.sample(GAUSSIAN, sampler=lv.sgld(0.1), init=torch.zeros(2, 2), num_steps=5, keep=torch.exp, out=path)
    given_back = (
        [made] if path is None else [made, lv.load_samples(path), lv.resume(path, GAUSSIAN, sampler=lv.sgld(0.1), keep=torch.exp)]
    )
    for samples in given_back:
        for name, call in NEED_POSITIONS.items():
            with pytest.raises(ValueError, match=rf"{name}\(samples=...\) needs positions, sample\(keep=\"positions\"\), got"):
                call(samples)
        with pytest.raises(ValueError, match=r"pair\(target=...\) needs None if draws are the results of a function `keep`"):
            dg.pair(samples, GAUSSIAN)


def test_moments_are_not_judged_as_draws():
    samples = lv.sample(GAUSSIAN, sampler=lv.sgld(0.1), init=torch.zeros(2, 2), num_steps=5, keep="moments")
    for name, call in NEED_DRAWS.items():
        with pytest.raises(ValueError, match=rf"{name}\(samples=...\) needs draws, sample\(keep=\"positions\"\), got"):
            call(samples)


def test_values_that_are_not_finite_are_refused_and_no_draws_too(samples):
    spoilt = dataclasses.replace(samples, arrays={**samples.arrays, "draws": NAN})
    none = dataclasses.replace(samples, arrays={**samples.arrays, "draws": DRAWS[:, :0]})
    for name, call in NEED_POSITIONS.items():
        with pytest.raises(ValueError, match=rf"{name}\(samples=...\) needs finite values \(element \[1, 3, 0\] is not"):
            call(spoilt)
        with pytest.raises(ValueError, match=rf"{name}\(samples=...\) needs a healthy chain with draws"):
            call(none)


def test_chains_that_stopped_are_left_out_with_a_warning(samples):
    status = (samples.status[0], samples.status[1]._replace(reason="stopped"))
    stopped = dataclasses.replace(samples, status=status, arrays={**samples.arrays, "draws": samples.draws.clone()})
    stopped.draws[1] = math.nan
    alone = dataclasses.replace(samples, status=status[:1], arrays={"draws": samples.draws[:1]})
    for name, call in NEED_POSITIONS.items():
        with pytest.warns(UserWarning, match=rf"{name}\(\) uses 1 of 2 chains: the others stopped"):
            found = call(stopped)
        assert found == call(alone)


def test_a_temperature_without_an_error_says_nan():
    assert math.isnan(dg.Temperature(0.0, 0.0, 1.0).deviation)
    assert "expected 1 (+nan standard errors)" in str(dg.Temperature(0.0, 0.0, 1.0))


def test_a_run_without_a_healthy_chain_is_told_why():
    with pytest.warns(UserWarning, match="stopped"):
        dead = lv.sample(
            lv.targets.energy(lambda t: (t**4).sum()), sampler=lv.sgld(0.01), init=torch.full((2, 1), 30.0), num_steps=50
        )
    for call in (dg.ksd, dg.effective_temperature):
        with pytest.raises(ValueError, match=r"samples=...\) needs a healthy chain with draws, got 'chain 0 stopped at step"):
            call(dead, lv.targets.energy(lambda t: (t**4).sum()))
    with pytest.raises(ValueError, match="needs a healthy chain, got 'chain 0 stopped"):
        dg.autocorrelation_plot(dead)


def test_a_large_int_is_a_number_like_any_other(samples):
    """An int beyond 2**63 does not meet a tensor; a float does."""
    large = 10**30
    assert dg.grid_total_variation(DRAWS, GAUSSIAN, 4.0, 5, temperature=large) <= 1
    assert dg.ksd(samples, GAUSSIAN, temperature=large, scale=large) < 1e-6
    assert dg.kinetic_temperature(DRAWS + 1, large).value < 1e-6
