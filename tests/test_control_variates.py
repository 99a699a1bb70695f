"""Gradients with control variates, and the search for their centre."""

from __future__ import annotations

import math
import re
import warnings

import pytest
import torch
from torch.nn.functional import softplus

import langevin as lv
from langevin.targets.gradients import control_variate, find_mode, full, minibatch

NUM_DATA, DIM, CHAINS = 240, 3, range(4)
PRIOR = lv.priors.gaussian(std=0.3)  # strong, so that a prior counted twice or not at all is seen


def log_likelihood(theta, x, y):
    return y * (x @ theta) - softplus(x @ theta)


TARGET = lv.targets.likelihood(log_likelihood, prior=PRIOR)


def logistic_data(dtype=torch.float64):
    x = lv.random.normal(11, lv.random.stream(lv.random.Purpose.DATA), 0, NUM_DATA * DIM, dtype=torch.float64).reshape(-1, DIM)
    noise = lv.random.normal(11, lv.random.stream(lv.random.Purpose.DATA, 1), 0, NUM_DATA, dtype=torch.float64)
    return x.to(dtype), (x @ torch.tensor([1.0, -1.0, 0.5], dtype=torch.float64) + noise > 0).to(dtype)


DATA = logistic_data()
MODE = find_mode(TARGET, DATA, torch.zeros(DIM, dtype=torch.float64))


def positions(dtype=torch.float64, scale=1.0):
    return (MODE + scale * lv.random.normal(5, range(len(CHAINS)), 0, DIM, dtype=torch.float64)).to(dtype)


def build(batch_size=20, mode=MODE, target=TARGET, data=DATA, seed=0, chains=CHAINS):
    return control_variate(target, data, batch_size, mode, seed=seed, chains=chains)


def over_steps(estimate, position, steps):
    return torch.stack([estimate(position, step).gradient for step in steps])


@pytest.mark.parametrize("centre", ["mode", "far from it"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_estimates_of_an_epoch_average_to_the_full_gradient_wherever_the_centre_is(dtype, centre):
    data, position = logistic_data(dtype), positions(dtype)
    mode = (MODE if centre == "mode" else MODE + 2.0).to(dtype)
    mean = over_steps(build(mode=mode, data=data), position, range(12)).mean(0)
    exact = full(TARGET, data)(position, 0).gradient
    assert mean.dtype == dtype
    torch.testing.assert_close(
        mean, exact, rtol=1e-4 if dtype == torch.float32 else 1e-12, atol=1e-3 if dtype == torch.float32 else 1e-10
    )


def test_it_is_the_formula_of_baker_et_al_written_for_single_data():
    """grad U(mode) + prior's difference + (N / n) sum over the batch of [grad_i(theta) - grad_i(mode)], by closed forms."""
    x, y = DATA
    position, step = positions(), 7
    (rows,) = minibatch(TARGET, DATA, 20, seed=0, chains=CHAINS).draw(range(step, step + 1))

    def sums(theta, index):
        return ((torch.sigmoid(x[index] @ theta) - y[index])[:, None] * x[index]).sum(0)

    everything = torch.arange(NUM_DATA)
    for chain, theta in enumerate(position):
        batch = rows[0, chain]
        expected = sums(MODE, everything) + theta / 0.3**2 + NUM_DATA / 20 * (sums(theta, batch) - sums(MODE, batch))
        torch.testing.assert_close(build()(position, step).gradient[chain], expected, rtol=1e-12, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_at_the_centre_every_estimate_is_the_full_gradient_to_the_last_bit(dtype):
    data, mode = logistic_data(dtype), MODE.to(dtype)
    found = over_steps(build(mode=mode, data=data), mode.repeat(len(CHAINS), 1), range(30))
    assert torch.equal(found, full(TARGET, data)(mode[None], 0).gradient.expand_as(found))


def test_the_variance_grows_with_the_square_of_the_distance_and_is_far_below_the_minibatchs_near_the_centre():
    direction = torch.tensor([[1.0, 1.0, -1.0]], dtype=torch.float64) / 3**0.5

    def variance(estimate, distance):
        return over_steps(estimate, MODE + distance * direction.expand(len(CHAINS), -1), range(48)).var(0).mean().item()

    plain = minibatch(TARGET, DATA, 20, seed=0, chains=CHAINS)
    for near, far in ((0.001, 0.01), (0.01, 0.1)):
        # The same rows at both distances: no sampling error, only the curvature of the gradient, of relative size O(distance).
        assert variance(build(), far) / variance(build(), near) == pytest.approx((far / near) ** 2, rel=2 * far)
    posterior_sd = (NUM_DATA / 6) ** -0.5  # curvature about 1/6 per datum
    assert variance(build(), 0.01) < 1e-3 * variance(plain, 0.01)
    assert variance(build(), posterior_sd) < 0.05 * variance(plain, posterior_sd)


def test_a_batch_of_all_data_is_the_full_gradient():
    found, exact = build(NUM_DATA)(positions(), 3), full(TARGET, DATA)(positions(), 0)
    torch.testing.assert_close(found.gradient, exact.gradient, rtol=1e-12, atol=1e-10)
    torch.testing.assert_close(found.energy, exact.energy, rtol=1e-12, atol=0)


def test_rows_are_those_of_the_minibatch_with_the_same_seed():
    plain = minibatch(TARGET, DATA, 20, seed=9, chains=range(2, 6))
    estimate = build(seed=9, chains=range(2, 6))
    (rows,), (same,) = plain.draw(range(5, 20)), estimate.draw(range(5, 20))
    assert torch.equal(rows, same)
    assert rows.shape == (15, 4, 20)


def test_chains_apart_see_what_they_see_together():
    together = build()(positions(), 4).gradient
    torch.testing.assert_close(build(chains=range(2, 4))(positions()[2:], 4).gradient, together[2:], rtol=1e-14, atol=1e-12)


def test_the_centre_is_copied():
    mode = MODE.clone()
    first = build(mode=mode)
    before = first(positions(), 0).gradient
    mode += 1.0
    assert torch.equal(first(positions(), 0).gradient, before)


@pytest.mark.filterwarnings("error")
def test_the_search_is_done_at_the_tolerance_times_the_root_of_the_number_of_data():
    """The mean of N = 10,000 numbers: the gradient is N (theta - mean), and 1 = tolerance * sqrt(N) counts as small."""
    x = torch.full((10_000,), 2.0, dtype=torch.float64)
    target = lv.targets.likelihood(lambda theta, x: -0.5 * (x - theta) ** 2, prior=lv.priors.flat())
    near, far = (torch.tensor([2.0 + gradient / 10_000], dtype=torch.float64) for gradient in (0.5, 2.0))
    assert torch.equal(find_mode(target, x, near), near)
    assert abs(find_mode(target, x, far) - 2.0) < 1e-4 < abs(far - 2.0)


def test_it_is_traced_in_one_piece():
    estimate, position = build(), positions()
    (rows,) = estimate.draw(range(1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the compiler's own
        traced = torch.compile(lambda at, drawn: estimate.evaluate(at, (drawn,)), fullgraph=True, backend="eager")
        found = traced(position, rows[0])
    torch.testing.assert_close(found.gradient, estimate(position, 0).gradient, rtol=1e-12, atol=1e-10)


@pytest.mark.slow
def test_a_compiled_run_is_the_eager_run_up_to_rounding():
    settings = {"data": DATA, "batch_size": 20, "num_steps": 300, "control_variate": MODE}
    eager = lv.sample(TARGET, sampler=lv.sgld(1e-3), init=positions(), compile=False, **settings)
    compiled = lv.sample(TARGET, sampler=lv.sgld(1e-3), init=positions(), compile=True, **settings)
    torch.testing.assert_close(compiled.draws, eager.draws, rtol=1e-9, atol=1e-9)


def test_modules_have_control_variates_too():
    with torch.random.fork_rng():
        model = torch.nn.Linear(DIM, 2)
    x, y = logistic_data(torch.float32)
    posterior = lv.targets.Posterior(model, "categorical", prior=PRIOR, num_data=NUM_DATA)
    columns = (x, y.long())
    mode = find_mode(posterior, columns, posterior.init(chains=1, seed=0)[0])
    position = mode + 0.1 * lv.random.normal(5, range(4), 0, len(mode))
    found = over_steps(control_variate(posterior, columns, 20, mode, seed=0, chains=CHAINS), position, range(12)).mean(0)
    torch.testing.assert_close(found, full(posterior, columns)(position, 0).gradient, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("start", [0.0, 5.0, -20.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_mode_is_found_from_near_and_far(dtype, start):
    data, init = logistic_data(dtype), torch.full((DIM,), start, dtype=dtype)
    found = find_mode(TARGET, data, init)
    assert found.shape == (DIM,)
    assert found.dtype == dtype
    assert full(TARGET, data)(found[None], 0).gradient.norm() <= 1e-2 * NUM_DATA**0.5
    assert torch.equal(init, torch.full((DIM,), start, dtype=dtype))
    assert torch.equal(found, find_mode(TARGET, data, init))


def test_a_small_tolerance_finds_the_mode_to_rounding():
    """The mean of a normal with N(0, 1) prior: sum x / (N + 1)."""
    x = DATA[0][:, 0] + 3
    target = lv.targets.likelihood(lambda theta, x: -0.5 * (x - theta[0]) ** 2, prior=lv.priors.gaussian(std=1.0))
    found = find_mode(target, x, torch.zeros(1, dtype=torch.float64), tolerance=1e-10)
    torch.testing.assert_close(found[0], x.sum() / (NUM_DATA + 1), rtol=1e-12, atol=0)


def test_a_search_that_stops_too_early_says_so():
    with pytest.warns(UserWarning, match=r"find_mode\(\) stopped after at most 1 steps at a gradient of norm .* above tolerance"):
        found = find_mode(TARGET, DATA, torch.full((DIM,), 5.0, dtype=torch.float64), num_steps=1)
    assert torch.isfinite(found).all()


def test_a_search_that_leaves_the_numbers_fails():
    cliff = lv.targets.energy(lambda theta: torch.where(theta[0] > 0.5, theta[0] / 0 * theta[0], -theta[0]))
    with pytest.raises(ValueError, match=r"find_mode\(init=...\) led to a gradient of norm (nan|inf)"):
        find_mode(cliff, None, torch.full((1,), 0.6, dtype=torch.float64))


NO_DATA = lv.targets.gaussian([[1.0]])
ZERO = torch.zeros(DIM, dtype=torch.float64)
BAD = {
    "mode of a wrong type": (lambda: build(mode=[0.0, 0.0, 0.0]), TypeError, "control_variate(mode=...)"),
    "mode of integers": (lambda: build(mode=torch.zeros(3, dtype=torch.int64)), TypeError, "mode=...) needs a floating-point"),
    "mode per chain": (lambda: build(mode=MODE[None]), ValueError, "mode=...) needs shape (dim,), got (1, 3)"),
    "mode of another length": (
        lambda: build(mode=MODE, target=lv.targets.likelihood(lambda t, x, y: y * t[0], prior=PRIOR))(positions()[:, :2], 0),
        ValueError,
        "mode=...) needs shape (2,), that of one position, got (3,)",
    ),
    "mode that is not finite": (lambda: build(mode=MODE * math.nan), ValueError, "mode=...) needs finite values"),
    "mode with an infinite gradient": (lambda: build(mode=MODE * 0 + 1e308), ValueError, "where the gradient over all data is"),
    "target without data": (lambda: build(target=NO_DATA), ValueError, "target=...) needs a target with data"),
    "batch size zero": (lambda: build(0), ValueError, "batch_size=...) needs an int >= 1, got 0"),
    "batch size above N": (lambda: build(241), ValueError, "batch_size=...) needs at most the 240 rows"),
    "ragged data": (lambda: build(data=(DATA[0], DATA[1][:-1])), ValueError, "data=...) needs columns of the same length"),
    "no init": (lambda: find_mode(TARGET, DATA, None), TypeError, "find_mode(init=...)"),
    "init of chains": (lambda: find_mode(TARGET, DATA, ZERO[None]), ValueError, "init=...) needs shape (dim,), got (1, 3)"),
    "init not finite": (lambda: find_mode(TARGET, DATA, ZERO + math.inf), ValueError, "init=...) needs finite values"),
    "no steps": (lambda: find_mode(TARGET, DATA, ZERO, num_steps=0), ValueError, "num_steps=...) needs an int >= 1, got 0"),
    "steps of a wrong type": (lambda: find_mode(TARGET, DATA, ZERO, num_steps=1.5), TypeError, "num_steps=..."),
    "no tolerance": (lambda: find_mode(TARGET, DATA, ZERO, tolerance=0.0), ValueError, "tolerance=...) needs > 0, got 0.0"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_value_fails_when_it_is_given(case):
    call, error, words = BAD[case]
    with pytest.raises(error, match=re.escape(words)):
        call()
