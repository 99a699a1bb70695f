"""No two elements draw the same noise: not within an optimizer, not across dtypes, optimizers, chains or ranks."""

from __future__ import annotations

import gc
import itertools
import subprocess
import sys
import warnings

import pytest
import torch
from catalogue import build
from torch import nn

import langevin as lv
from langevin.optim import SharedNoiseWarning


def noise_of(optimizer, *parameters):
    """Return what the first step of SGLD adds to parameters at rest, as standard normals."""
    before = [p.detach().clone() for p in parameters]
    for p in parameters:
        p.grad = torch.zeros_like(p)
    optimizer.step()
    group = optimizer.param_groups[0]
    scale = (2 * group["lr"] / group["num_data"]) ** 0.5
    return [((p.detach() - b) / scale).double() for p, b in zip(parameters, before, strict=True)]


def zeros(size, dtype=torch.float32):
    return nn.Parameter(torch.zeros(size, dtype=dtype))


def sgld(params, **settings):
    return build("SGLD", params, prior=None, **settings)


@pytest.mark.parametrize("fused", [None, False])
def test_float32_and_float64_parameters_share_no_block(fused):
    """Radius and angle of a pair in one dtype are made from words that the other dtype must not see (rank correlation -.43)."""
    size = 40_000
    single, double = zeros(size), zeros(size, torch.float64)
    a, b = noise_of(sgld([single, double], fused=fused), single, double)
    pairs = [torch.stack([x.view(-1, 2).norm(dim=1), torch.atan2(x[1::2], x[0::2])]) for x in (a, b)]
    for x, y in itertools.product(*pairs):
        for lag in range(4):
            for step in (1, 2):
                n = min(len(x[lag:]), len(y[::step]))
                ranks = torch.stack([t[:n].argsort().argsort().double() for t in (x[lag:], y[::step])])
                assert abs(torch.corrcoef(ranks)[0, 1]) < 5 / n**0.5


def test_addresses_of_mixed_dtypes_are_disjoint_blocks():
    from langevin.optim.addresses import next_address, word_ranges

    sizes = [3, 5, 2, 7, 1, 9]
    dtypes = [torch.float32, torch.float64, torch.float64, torch.bfloat16, torch.float32, torch.float64]
    groups = [{"params": [zeros(n, d)], "first_address": 8} for n, d in zip(sizes, dtypes, strict=True)]
    blocks = {}
    end = 8
    for ((first, last),), dtype in zip(word_ranges("SGLD", groups), dtypes, strict=True):
        assert first >= end
        end = last
        for block in range(first // 4, -(-last // 4)):
            assert blocks.setdefault(block, dtype == torch.float64) == (dtype == torch.float64)
    assert next_address("SGLD", groups) == -(-end // 4) * 4


def test_an_optimizer_of_one_dtype_has_consecutive_addresses():
    """So it draws what the functional samplers draw for the flat vector."""
    for dtype in (torch.float32, torch.float64):
        parts = [zeros(n, dtype) for n in (3, 1, 6)]
        drawn = torch.cat(noise_of(sgld(parts), *parts))
        expected = lv.random.normal(5, lv.random.stream(lv.random.Purpose.POSITION), 0, 10, dtype=dtype)
        torch.testing.assert_close(drawn, expected.double(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("fused", [None, False])
def test_chains_draw_the_noise_of_their_own_stream(fused):
    p = zeros(1001)
    drawn = {chain: noise_of(sgld([p], chain=chain, fused=fused), p)[0] for chain in (0, 1, 2**32 - 1)}
    for chain, noise in drawn.items():
        expected = lv.random.normal(5, lv.random.stream(lv.random.Purpose.POSITION, chain), 0, 1001)
        torch.testing.assert_close(noise, expected.double(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("fused", [None, False])
def test_the_second_noise_of_a_chain_is_its_own(fused):
    results = []
    for chain in (0, 1):
        p = zeros(4001)
        optimizer = build("MSGLD, invariant", [p], prior=None, chain=chain, fused=fused)
        for _ in range(2):
            p.grad = torch.zeros_like(p)
            optimizer.step()
        results.append(optimizer.state[p]["velocity"])
    assert abs(torch.corrcoef(torch.stack(results))[0, 1]) < 5 / 4001**0.5


def test_parts_of_a_model_in_optimizers_of_their_own_draw_different_noise_without_a_word():
    """One optimizer per parameter, as in backward hooks: each begins where the one before ends."""
    parts, optimizers, first = [zeros(1003) for _ in range(5)], [], 0
    for p in parts:
        optimizers.append(sgld([p], first_address=first))
        first = optimizers[-1].next_address
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        drawn = torch.stack([noise_of(o, p)[0] for o, p in zip(optimizers, parts, strict=True)])
    off_diagonal = torch.corrcoef(drawn) - torch.eye(5)
    assert off_diagonal.abs().max() < 5 / 1003**0.5


@pytest.mark.filterwarnings("error")
class TestWarning:
    """Said once, at the first step of the second optimizer, and only if both are alive and both draw noise."""

    def test_two_live_optimizers_with_the_same_addresses(self):
        a, b = zeros(10), zeros(20)
        one, two = sgld([a]), sgld([b])
        noise_of(one, a)
        with pytest.warns(
            SharedNoiseWarning, match=r"seed 5, chain 0, addresses 0 to 9.*first_address=other.next_address.*chain="
        ) as said:
            noise_of(two, b)
        assert [w.filename for w in said] == [__file__]
        noise_of(two, b)
        noise_of(one, a)

    @pytest.mark.parametrize("difference", [{"seed": 6}, {"chain": 1}, {"first_address": 12}, {"temperature": 0.0}])
    def test_silence_where_nothing_is_shared(self, difference):
        a, b = zeros(10), zeros(20)
        one, two = sgld([a]), sgld([b], **difference)
        noise_of(one, a)
        noise_of(two, b)

    def test_silence_once_the_first_is_gone(self):
        a, b = zeros(10), zeros(20)
        noise_of(sgld([a]), a)
        gc.collect()
        noise_of(sgld([b]), b)

    def test_a_group_that_reaches_into_another_is_seen(self):
        a, b, c = zeros(8), zeros(8), zeros(8)
        one, two = sgld([a]), sgld([b], first_address=8)
        noise_of(one, a)
        noise_of(two, b)
        one.add_param_group({"params": [c]})
        with pytest.warns(SharedNoiseWarning, match="addresses 8 to 15"):
            noise_of(one, a, c)

    def test_a_copy_is_a_second_optimizer(self):
        import copy

        a = zeros(10)
        one = sgld([a])
        noise_of(one, a)
        two = copy.deepcopy(one)
        with pytest.warns(SharedNoiseWarning):
            noise_of(two, *two.param_groups[0]["params"])


ZERO = """
import sys, torch, torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
import langevin as lv
rank, folder = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
layers = [nn.Parameter(torch.zeros(4000)) for _ in range(2)]
optimizer = ZeroRedundancyOptimizer(layers, optimizer_class=lv.optim.SGLD, lr=0.5, num_data=1, chain=dist.get_rank())
for layer in layers:
    layer.grad = torch.zeros(4000)
optimizer.step()
torch.save([layer.detach() for layer in layers], f"{folder}/{rank}.pt")
dist.barrier()
dist.destroy_process_group()
"""


def test_ranks_of_zero_redundancy_draw_uncorrelated_noise(tmp_path):
    """Two real processes; each updates one of the two layers and sends it to the other."""
    ranks = [subprocess.Popen([sys.executable, "-c", ZERO, str(rank), str(tmp_path)]) for rank in range(2)]
    assert [rank.wait(timeout=200) for rank in ranks] == [0, 0]
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert all(abs(layer.std() - 1) < 5 / 8000**0.5 for layer in first)
    assert abs(torch.corrcoef(torch.stack(first))[0, 1]) < 5 / 4000**0.5
