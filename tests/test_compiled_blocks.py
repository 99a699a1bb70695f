"""Compiled blocks, with rows for kept draws only, chains in lanes and in pieces: the run of eager steps."""

from __future__ import annotations

import math

import pytest
import torch

import langevin as lv
from langevin.diagnostics import running as heat_of
from langevin.diagnostics.running import add_heat, no_heat
from langevin.execution import compiled
from langevin.execution.blocks import draw_block
from langevin.execution.compiled import Compiled, Pace, Rows
from langevin.random import chains_last
from langevin.targets.gradients import full, minibatch

GAUSSIAN = lv.targets.gaussian([[1.0, 0.9], [0.9, 1.0]])
QUARTIC = lv.targets.energy(lambda theta: (theta**4).sum() / 4 + theta.cos().sum())


def start(chains, dim=2):
    return torch.linspace(-1, 1, chains * dim, dtype=torch.float64).reshape(chains, dim)


def both(kernel, target, init, **settings):
    return [lv.sample(target, sampler=kernel, init=init, compile=way, **settings) for way in (False, True)]


def same(eager, fast):
    assert fast.compiled
    for field in ("draws", "energy", "gradient_norm", "step_size"):
        torch.testing.assert_close(getattr(fast, field), getattr(eager, field), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("chains", [1, 3, 20])
def test_thinned_rows_are_the_kept_draws_of_the_eager_run(chains):
    eager, fast = both(lv.msgld(0.05), GAUSSIAN, start(chains), num_steps=640, warmup=40, thin=4)
    same(eager, fast)
    assert eager.draws.shape[1] == 150


def test_a_warmup_that_cuts_the_rows_is_gone_through_step_by_step():
    same(*both(lv.msgld(0.05), GAUSSIAN, start(3), num_steps=601, warmup=35, thin=3))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("chains", "dim"), [(5, 3), (37, 2)])
def test_chains_in_pieces_are_the_chains_together(monkeypatch, threads, chains, dim):
    """The last piece begins inside the one before where sizes do not divide."""
    monkeypatch.setattr(compiled, "_THREADS_FROM", 1)
    monkeypatch.setattr(compiled, "_CACHE", 1)
    monkeypatch.setattr(compiled, "_LEAST_CHAINS", 3)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for settings in ({}, {"thin": 4}):
            same(*both(lv.msgld(0.05, invariant=True), QUARTIC, start(chains, dim), num_steps=304, warmup=100, **settings))
    finally:
        torch.set_num_threads(before)


def test_pieces_have_one_size_and_keep_groups_together():
    assert compiled._pieces(lv.sgld(0.01), 5, 3) == [slice(0, 3), slice(2, 5)]
    kernel = lv.replica_exchange(lv.sgld(0.01), temperatures=(1.0, 2.0, 4.0))
    assert compiled._pieces(kernel, 9, 5) == [slice(0, 6), slice(3, 9)]


def test_a_chain_that_leaves_between_two_kept_draws_stops_where_it_left():
    """Thinned rows see that something was not finite; the steps are then taken again, with a look at each of them."""
    energy = lv.targets.energy(lambda theta: torch.where(theta[0] > 3.0, math.inf, -theta[0]))
    settings = {"num_steps": 400, "thin": 8}
    eager, fast = both(lv.sgld(0.1, temperature=1e-12), energy, torch.zeros(2, 1, dtype=torch.float64), **settings)
    assert fast.compiled
    assert [status.reason for status in fast.status] == [status.reason for status in eager.status]
    assert [status.steps for status in fast.status] == [status.steps for status in eager.status]
    assert "support" in fast.status[0].reason


def test_the_temperature_of_thinned_rows_is_that_of_the_law():
    kernel = lv.sgld(0.02)
    runs = both(kernel, GAUSSIAN, start(20), num_steps=40_000, warmup=400, thin=4)
    values = [run.trust["temperature"].value for run in runs]
    assert abs(values[0] - values[1]) < 0.1
    assert abs(values[1] - 1.0) < 0.1


def pace_of(kernel, gradient_fn, init, rows):
    state = kernel.init(init)
    return Compiled(kernel, gradient_fn, rows).prepare(draw_block(kernel, gradient_fn, init, 0, range(len(init)), range(1)), state)


def test_blocks_are_whole_rows_and_shorter_for_large_steps():
    kernel = lv.sgld(0.01)
    assert pace_of(kernel, full(GAUSSIAN), start(1), Rows()) == Pace(1, 4096, None)
    every, length, _ = pace_of(kernel, full(GAUSSIAN), start(64), Rows(thinned=100))
    assert every == 10
    assert length % 10 == 0
    large = lv.targets.energy(lambda theta: (theta[0] * torch.ones(4_000_000)).square().sum())
    assert pace_of(kernel, full(large), start(2).float(), Rows()).length < 100


def test_only_minibatches_leave_out_elements_of_the_gradient():
    """Exact gradients are needed whole: the work over a step is computed from them."""
    target = lv.targets.likelihood(lambda theta, x: -((x - theta[0]) ** 2), prior=lv.priors.gaussian(std=1.0))
    x, kernel, rows = torch.zeros(50, dtype=torch.float64), lv.sgld(0.01), Rows(elements=(0, 2))
    assert pace_of(kernel, full(target, x), start(1, 3), rows).elements is None
    assert pace_of(kernel, minibatch(target, x, 5, seed=0, chains=range(1)), start(1, 3), rows).elements == (0, 2)


def test_memory_of_a_sampler_goes_on_over_blocks():
    same(*both(lv.msgld(0.03), GAUSSIAN, start(3), num_steps=9000))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_noise_in_lanes_is_the_same_noise(dtype, size):
    for chains in (1, 17, 700):
        where = 5, range(2**33 + 3, 2**33 + 3 + chains), range(2**32 - 2, 2**32 + 3), size
        laned = chains_last("normal", *where, dtype, torch.device("cpu"))
        assert torch.equal(laned, lv.random.normal(*where, dtype=dtype).mT)
        assert laned.is_contiguous()


def test_the_sums_of_the_temperature_have_the_bits_of_the_torch_version(monkeypatch):
    positions, gradients = (lv.random.normal(0, s, range(300), 6, dtype=torch.float64).view(300, 3, 2) for s in (0, 1))
    weights, good = lv.random.normal(0, 2, 0, 300, dtype=torch.float64), torch.tensor([True, False, True])
    given = positions, gradients, weights, positions[:10, :, 0], good

    def twice():
        heat = add_heat(no_heat(positions[0]), *(tensor[:170] for tensor in given[:3]), *given[3:])
        return add_heat(heat, *(tensor[170:] for tensor in given[:3]), *given[3:])

    fast = twice()
    monkeypatch.setattr(heat_of, "_compiled_adder", lambda *tensors: None)
    plain = twice()
    assert plain.keys() == fast.keys()
    for name, tensor in plain.items():
        assert torch.equal(tensor, fast[name]), name


@pytest.mark.parametrize("shape", [(20, 3, 3), (2, 5, 7), (40, 30, 2)])
def test_small_products_are_sums_with_the_same_value(shape):
    m, k, n = shape
    matrix = lv.random.normal(1, 0, 0, k * n, dtype=torch.float64).view(k, n)
    target = lv.targets.energy(lambda theta: (theta.view(-1, k) @ matrix).tanh().sum() + 0.5 * theta @ theta)
    same(*both(lv.sgld(0.01), target, start(m if m < 40 else 2, k * (1 if m < 40 else m)), num_steps=40))


@pytest.mark.parametrize("chains", [3, 20])
def test_the_energy_residual_of_thinned_rows_is_zero_on_a_quadratic(chains):
    samples = lv.sample(GAUSSIAN, sampler=lv.sgld(0.1), init=start(chains), num_steps=400, thin=4, compile=True)
    assert samples.compiled
    assert samples.trust["energy residual"].value < 1e-10
