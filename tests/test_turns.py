"""Compiled blocks, with several steps in a turn, rows for kept draws only, chains in lanes and pieces: the run of step by step."""

from __future__ import annotations

import math

import pytest
import torch

import langevin as lv
from langevin.engines import compiled, turns
from langevin.engines.turns import Rows, Turns, pace_of
from langevin.gradients import full, minibatch
from langevin.noise import in_lanes
from langevin.trust import heat as heat_of
from langevin.trust.heat import add_heat, no_heat

GAUSSIAN = lv.targets.gaussian([[1.0, 0.9], [0.9, 1.0]])
QUARTIC = lv.targets.energy(lambda theta: (theta**4).sum() / 4 + theta.cos().sum())


def start(chains, dim=2):
    return torch.linspace(-1, 1, chains * dim, dtype=torch.float64).reshape(chains, dim)


def both(kernel, target, init, **settings):
    return [lv.sample(kernel, target, init, compile=way, **settings) for way in (False, True)]


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


def test_chains_in_pieces_on_two_threads_are_the_chains_together(monkeypatch):
    """Five chains on two threads: the second piece begins inside the first."""
    monkeypatch.setattr(compiled, "_PIECES_FROM", 1)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        init = start(5, 3)
        assert compiled._pieces(lv.sgld(0.01), init) == [slice(0, 3), slice(2, 5)]
        same(*both(lv.msgld(0.05, invariant=True), QUARTIC, init, num_steps=300, warmup=100))
    finally:
        torch.set_num_threads(before)


def test_chains_that_meet_stay_in_one_piece(monkeypatch):
    monkeypatch.setattr(compiled, "_PIECES_FROM", 1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    kernel = lv.replica_exchange(lv.sgld(0.01), temperatures=(1.0, 2.0, 4.0))
    assert compiled._pieces(kernel, start(9)) == [slice(0, 6), slice(3, 9)]
    assert compiled._pieces(lv.side_by_side([lv.sgld(0.01), lv.sgld(0.02)], chains_each=2), start(4)) == [slice(0, 4)]


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


def test_small_steps_make_long_turns_and_large_ones_none():
    kernel = lv.sgld(0.01)
    found, length, _ = pace_of(kernel, full(GAUSSIAN), kernel.init(start(1)), Rows())
    assert found == Turns(8, 1, False, None)
    assert length % 8 == 0
    assert length == 4096
    found, length, _ = pace_of(kernel, full(GAUSSIAN), kernel.init(start(64)), Rows(thinned=100))
    assert found == Turns(10, 10, True, None)
    assert length % 10 == 0
    long = lv.targets.energy(lambda theta: sum(((theta - k).sin().sum() for k in range(100)), torch.zeros(())))
    assert pace_of(kernel, full(long), kernel.init(start(1)), Rows())[0].steps == 1


def test_only_minibatches_leave_out_elements_of_the_gradient():
    """Exact gradients are needed whole: the work over a step is told from them."""
    target = lv.targets.likelihood(lambda theta, x: -((x - theta[0]) ** 2), prior=lv.priors.gaussian(std=1.0))
    x, kernel = torch.zeros(50, dtype=torch.float64), lv.sgld(0.01)
    state, rows = kernel.init(start(1, 3)), Rows(elements=(0, 2))
    assert pace_of(kernel, full(target, x), state, rows)[0].elements is None
    assert pace_of(kernel, minibatch(target, x, 5, seed=0, chains=range(1)), state, rows)[0].elements == (0, 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_noise_in_lanes_is_the_same_noise(dtype, size):
    for chains in (1, 17, 700):
        where = 5, range(2**33 + 3, 2**33 + 3 + chains), range(2**32 - 2, 2**32 + 3), size
        laned = in_lanes("normal", *where, dtype, torch.device("cpu"))
        assert torch.equal(laned, lv.noise.normal(*where, dtype=dtype).mT)
        assert laned.is_contiguous()


def test_the_sums_of_the_temperature_have_the_bits_of_the_torch_version(monkeypatch):
    positions, gradients = (lv.noise.normal(0, s, range(300), 6, dtype=torch.float64).view(300, 3, 2) for s in (0, 1))
    weights, good = lv.noise.normal(0, 2, 0, 300, dtype=torch.float64), torch.tensor([True, False, True])
    given = positions, gradients, weights, positions[:10, :, 0], good

    def twice():
        heat = add_heat(no_heat(positions[0]), *(tensor[:170] for tensor in given[:3]), *given[3:])
        return add_heat(heat, *(tensor[170:] for tensor in given[:3]), *given[3:])

    fast = twice()
    monkeypatch.setattr(heat_of, "_compiled", lambda: None)
    plain = twice()
    assert plain.keys() == fast.keys()
    for name, tensor in plain.items():
        assert torch.equal(tensor, fast[name]), name


@pytest.mark.parametrize("shape", [(20, 3, 3), (2, 5, 7), (40, 30, 2)])
def test_small_products_are_sums_with_the_same_value(shape):
    m, k, n = shape
    matrix = lv.noise.normal(1, 0, 0, k * n, dtype=torch.float64).view(k, n)
    target = lv.targets.energy(lambda theta: (theta.view(-1, k) @ matrix).tanh().sum() + 0.5 * theta @ theta)
    same(*both(lv.sgld(0.01), target, start(m if m < 40 else 2, k * (1 if m < 40 else m)), num_steps=40))


def test_a_step_that_raises_while_it_is_counted_counts_as_a_large_one():
    def broken(theta):
        raise RuntimeError("no")

    kernel = lv.sgld(0.01)
    assert pace_of(kernel, full(lv.targets.energy(broken)), kernel.init(start(1)), Rows())[0].steps == 1
    assert turns._MOST_OPERATIONS > 1
