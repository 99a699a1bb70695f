"""Parameters in half precision: moved by way of a float32 copy, so that steps below their spacing are not lost."""

from __future__ import annotations

import copy

import pytest
import torch
from catalogue import OPTIMIZERS, build, network, train
from torch import nn

import langevin as lv

pytestmark = pytest.mark.filterwarnings("ignore::langevin.optim.SharedNoiseWarning")  # twins draw the same noise on purpose
HALVES = [torch.bfloat16, torch.float16]


def spread_of(dtype, master, steps=4000, size=10_000):
    """Return the variance that SGLD on N(1, s^2) has around its mean, over s^2, where a step's noise is a tenth of the spacing."""
    spacing = 2.0**-8 if dtype == torch.bfloat16 else 2.0**-11  # of numbers just below 1: half that of those above
    noise, sd = 0.1 * spacing, 2.0 * spacing
    epsilon = noise**2 / 2
    start = lv.random.normal(
        3, lv.random.stream(lv.random.Purpose.INIT), 0, size
    )  # from the law itself: there is nothing to forget
    p = nn.Parameter((1 + (sd * start if master else 0 * start)).to(dtype))
    optimizer = lv.optim.SGLD([p], lr=epsilon, num_data=1, master=master)
    squares = 0.0
    for step in range(steps):
        where = optimizer.state[p]["master"] if master and step else p.detach().float()
        p.grad = ((where - 1) / sd**2).to(dtype)
        optimizer.step()
        squares += float((where - 1).square().mean())
    return squares / steps / sd**2, 2 * epsilon / sd**2


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_the_variance_is_right_where_steps_are_a_tenth_of_the_spacing(dtype):
    found, rate = spread_of(dtype, True)
    exact = 1 / (1 - rate / 4)  # that of the recursion x' = (1 - rate/2) x + noise; gradients are rounded, by 2**-9 of themselves
    draws = 10_000 * max(1.0, 4000 * rate / 2)  # independent ones: squares forget in 1 / rate steps
    assert abs(found / exact - 1) < 5 * (2 / draws) ** 0.5 + 2**-8


def test_without_the_copy_such_steps_are_lost():
    found, _ = spread_of(torch.bfloat16, False, steps=400)
    assert found < 0.02


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("fused", [None, False])
def test_the_copy_takes_the_steps_of_a_float32_parameter(name, fused):
    half, single = (nn.Parameter(torch.linspace(-1, 1, 37).to(dtype)) for dtype in (torch.bfloat16, torch.float32))
    single.data.copy_(half.detach())
    optimizers = [build(name, [p], fused=fused) for p in (half, single)]
    for _ in range(5):
        gradient = single.detach().cos().bfloat16()
        half.grad, single.grad = gradient, gradient.float()
        for optimizer in optimizers:
            optimizer.step()
        assert torch.equal(optimizers[0].state[half]["master"], single.detach())
        assert torch.equal(half.detach(), single.detach().bfloat16())


def test_elements_that_someone_else_moves_are_taken_as_they_are():
    p = nn.Parameter(torch.ones(4, dtype=torch.bfloat16))
    optimizer = lv.optim.SGLD([p], lr=1e-6, num_data=1, temperature=0.0)
    p.grad = torch.ones_like(p)
    optimizer.step()
    copied = optimizer.state[p]["master"].clone()
    with torch.no_grad():
        p[1] = 3.0
    optimizer.step()
    found = optimizer.state[p]["master"]
    assert torch.allclose(found[[0, 2, 3]], copied[[0, 2, 3]] - 1e-6, atol=1e-9)
    assert abs(float(found[1]) - 3.0) < 1e-5


@pytest.mark.parametrize("name", ["SGLD", "MSGLD, invariant"])
def test_the_copy_is_saved_and_the_next_steps_are_the_same_bits(name):
    model = network(torch.bfloat16)
    optimizer = build(name, model.parameters())
    train(model, optimizer, 5, torch.bfloat16)
    twin = copy.deepcopy(model)
    other = build(name, twin.parameters())
    other.load_state_dict(optimizer.state_dict())
    assert torch.equal(train(twin, other, 20, torch.bfloat16), train(model, optimizer, 20, torch.bfloat16))
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        assert optimizer.state[p]["master"].dtype == torch.float32
        assert torch.equal(optimizer.state[p]["master"], other.state[q]["master"])


def test_a_state_of_before_has_no_copy_and_is_taken():
    model = network(torch.bfloat16)
    optimizer = build("MSGLD, invariant", model.parameters())
    train(model, optimizer, 3, torch.bfloat16)
    state = copy.deepcopy(optimizer.state_dict())
    for entry in state["state"].values():
        entry.pop("master")
    for group in state["param_groups"]:
        group.pop("master")
    optimizer.load_state_dict(state)
    assert optimizer.param_groups[0]["master"] is True
    assert torch.isfinite(train(model, optimizer, 3, torch.bfloat16)).all()


def test_a_copy_of_another_shape_is_refused():
    p = nn.Parameter(torch.ones(4, dtype=torch.bfloat16))
    optimizer = lv.optim.SGLD([p], lr=1e-6, num_data=1)
    p.grad = torch.ones_like(p)
    optimizer.step()
    saved = optimizer.state_dict()
    saved["state"][0]["master"] = torch.ones(5)
    with pytest.raises(ValueError, match="'master' of the parameter's shape"):
        optimizer.load_state_dict(saved)
    with pytest.raises(TypeError, match=r"SGLD\(master=.*got 1"):
        lv.optim.SGLD([p], lr=1e-6, num_data=1, master=1)
