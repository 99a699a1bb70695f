"""No memory is touched that was not checked; a hundred abuses, each in its own process, are in tools/reliability/memory.py."""

from __future__ import annotations

import pytest
import torch
from catalogue import OPTIMIZERS, build
from torch import nn

from langevin.execution.fused import clashing_rows, misfit, table_row


def test_all_is_checked_before_anything_moves():
    good, bad = nn.Parameter(torch.zeros(5)), nn.Parameter(torch.zeros(3))
    optimizer = build("ASGLD", [{"params": [good]}, {"params": [bad]}])
    good.grad, bad.grad = torch.ones(5), torch.ones(3)
    bad.data = torch.zeros(4)
    with pytest.raises(ValueError, match=r"shape \(4,\), got \(3,\)"):
        optimizer.step()
    assert torch.equal(good, torch.zeros(5))
    assert [group["step"] for group in optimizer.param_groups] == [0, 0]


def test_the_table_refuses_each_kind_of_tensor_with_a_reason():
    plain = torch.zeros(6)
    reasons = {
        "float64": (plain, plain.double(), []),
        "shape": (plain, torch.zeros(3, 2), []),
        "flag": (plain, torch._neg_view(plain), []),
        "strides": (torch.zeros(2, 3), torch.zeros(3, 2).T, []),
        "state": (plain, plain, [torch.zeros(7)]),
        "meta": (plain, torch.zeros(6, device="meta"), []),
        "float16": (plain.half(), plain.half(), []),
        "sparse": (plain, plain.to_sparse(), []),
    }
    for word, (position, gradient, memory) in reasons.items():
        assert table_row(position, gradient, memory, 0) is None
        assert word in misfit(position, gradient, memory)
    assert table_row(plain, plain.clone(), [plain.clone()], 0) is not None
    assert table_row(plain.bfloat16(), plain.bfloat16(), [plain], 0) is not None


def test_rows_that_share_memory_are_found_and_no_others():
    memory = torch.zeros(100)
    rows = [
        (memory[:10], memory[10:20]),
        (memory[20:30], memory[29:39]),
        (memory[40:50], memory[50:60]),
        (memory[55:65], memory[70:80]),
    ]
    table = [table_row(a, b, [], 0) for a, b in rows]
    assert clashing_rows(table, torch.float32) == [1, 2, 3]
    assert clashing_rows(table[:1], torch.float32) == []
    nested = [table_row(memory[:50], memory[50:100], [], 0), table_row(memory[5:6], memory[90:91], [], 0)]
    assert clashing_rows(nested, torch.float32) == [0, 1]
    half = [
        table_row(memory.bfloat16()[:50], memory.bfloat16()[50:], [memory[:50]], 0),
        table_row(memory[50:].bfloat16(), memory[50:].bfloat16(), [memory[50:]], 0),
    ]
    assert clashing_rows(half, torch.bfloat16) == []


@pytest.mark.parametrize("overlap", [7, 300_000])
def test_parameters_that_share_memory_move_one_after_the_other_on_any_number_of_threads(overlap):
    size, results = 300_000, []
    for fused, threads in ((False, 1), (None, 1), (None, 2)):
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            base = torch.linspace(-1, 1, 2 * size)
            shared = [nn.Parameter(base[:size]), nn.Parameter(base[size - overlap : 2 * size - overlap])]
            optimizer = build("MSGLD", shared, fused=fused)
            for _ in range(3):
                for p in shared:
                    p.grad = p.detach().cos()
                optimizer.step()
            results.append(base)
        finally:
            torch.set_num_threads(before)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_steps_and_addresses_beyond_the_counter_are_refused_by_both_engines():
    p = nn.Parameter(torch.zeros(8))
    for fused in (None, False):
        p.grad = torch.ones(8)
        with pytest.raises(ValueError, match=r"SGLD\(first_address=.*2\*\*34"):
            build("SGLD", [p], first_address=2**34 - 4, fused=fused).step()
        optimizer = build("SGLD", [p], fused=fused)
        optimizer.param_groups[0]["step"] = 2**56
        with pytest.raises(ValueError, match=r"2\*\*56"):
            optimizer.step()
    assert torch.equal(p, torch.zeros(8))


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("shape", [(7,), (5, 3, 3, 3), (4, 70, 3, 3), (3, 1500, 3, 3), (2, 3, 2, 3, 2)])
def test_bfloat16_and_channels_last_take_the_fused_engine_with_the_bits_of_torch(name, shape):
    """(3, 1500, 3, 3) has more elements per output channel than a tile."""
    layout = {4: torch.channels_last, 5: torch.channels_last_3d}.get(len(shape), torch.contiguous_format)
    for dtype in (torch.bfloat16, torch.float32, torch.float64):
        results = []
        for fused in (True, False):
            start = torch.linspace(-1, 1, torch.Size(shape).numel()).view(shape)
            p = nn.Parameter(start.to(dtype).contiguous(memory_format=layout))
            optimizer = build(name, [nn.Parameter(torch.zeros(3, dtype=dtype)), p], fused=fused, master=False)
            for _ in range(3):
                p.grad = p.detach().cos()
                optimizer.step()
            results.append(p.detach().clone())
        assert torch.equal(*results), (dtype, shape)


def test_channels_last_weights_get_the_same_bits_on_two_threads():
    threads, results = torch.get_num_threads(), []
    for count in (1, 2):
        torch.set_num_threads(count)
        try:
            p = nn.Parameter(torch.linspace(-1, 1, 70 * 512 * 9).view(70, 512, 3, 3).contiguous(memory_format=torch.channels_last))
            optimizer = build("MSGLD, invariant", [p], fused=True)
            for _ in range(2):
                p.grad = p.detach().sin()
                optimizer.step()
            results.append(p.detach().clone())
        finally:
            torch.set_num_threads(threads)
    assert torch.equal(*results)


def test_rounding_to_bfloat16_is_that_of_torch():
    """Ties, the largest numbers, infinities and NaN: a step of length zero in all but name copies the value through the engine."""
    bits = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
    values = bits.view(torch.bfloat16)
    for fused in (True, False):
        p = nn.Parameter(values.clone())
        p.grad = torch.zeros_like(p)
        build("SGLD", [p], temperature=0.0, prior=None, fused=fused).step()
        finite = torch.isfinite(values)
        assert torch.equal(p[finite], values[finite])
        assert torch.equal(torch.isnan(p), torch.isnan(values))


def test_fused_true_fails_where_the_engine_cannot_be_taken():
    p = nn.Parameter(torch.zeros(4, dtype=torch.float16))
    p.grad = torch.ones_like(p)
    with pytest.raises(ValueError, match=r"SGLD\(fused=.*float16"):
        build("SGLD", [p], fused=True, master=False).step()
