"""What an optimizer says by itself of gradients that are missing or no numbers, and what a bank refuses."""

from __future__ import annotations

import gc
import pickle
import warnings
import weakref

import pytest
import torch
from catalogue import OPTIMIZERS, build, data, network
from torch import nn

import langevin as lv
from langevin.optim import gradient_checks


def train(model, optimizer, steps, spoil=lambda step: None):
    x, y = data()
    for step in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        spoil(step)
        optimizer.step()


def said(run):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run()
    return [warning for warning in caught if issubclass(warning.category, lv.TrustWarning)]


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_gradient_that_is_no_number_is_said_once_with_its_parameter(name, value):
    model = network()
    optimizer = build(name, model.parameters())
    found = said(lambda: train(model, optimizer, 6, lambda step: model[2].weight.grad[1].fill_(value) if step == 1 else None))
    texts = [str(warning.message) for warning in found if "not finite" in str(warning.message)]
    assert len(texts) == 1
    assert "the gradient of parameter 2 of group 0, shape (3, 7), is not finite in step 1" in texts[0]
    assert found[0].filename == __file__


def test_a_name_is_said_where_the_optimizer_knows_it():
    model = network()
    optimizer = lv.optim.SGLD(model.named_parameters(), lr=0.1, num_data=50)
    found = said(lambda: train(model, optimizer, 1, lambda step: model[0].bias.grad.fill_(torch.nan)))
    assert "the gradient of '0.bias', shape (7,), is not finite in step 0" in str(found[0].message)


def test_a_nan_between_two_looks_is_found_at_the_next():
    model = network()
    optimizer = lv.optim.SGLD(model.parameters(), lr=0.01, num_data=50)
    found = said(lambda: train(model, optimizer, 20, lambda step: model[0].weight.grad.fill_(torch.nan) if step == 9 else None))
    assert [str(warning.message).split("in step ")[1][:2] for warning in found] == ["16"]


def test_a_step_without_any_gradient_is_said_once():
    model, x = network(), data()[0]
    optimizer = lv.optim.SGLD(model.parameters(), lr=0.1, num_data=50)

    def run():
        for _ in range(4):
            model(x).sum()  # no backward
            optimizer.step()

    found = said(run)
    assert len(found) == 1
    assert "step 0 has no gradient for any of the 4 parameters" in str(found[0].message)
    assert found[0].filename == __file__


def test_parameters_that_were_replaced_have_no_gradient():
    model = network()
    optimizer = lv.optim.SGLD(model.parameters(), lr=0.1, num_data=50)
    other = network()
    assert len(said(lambda: train(other, optimizer, 3))) == 1


def test_nothing_is_said_of_good_gradients_of_some_that_are_missing_or_at_rate_zero():
    model = network()
    optimizer = lv.optim.SGLD(model.parameters(), lr=1e-3, num_data=50)
    assert said(lambda: train(model, optimizer, 20)) == []
    assert said(lambda: train(model, optimizer, 20, lambda step: setattr(model[0].weight, "grad", None))) == []
    still = lv.optim.SGLD(model.parameters(), lr=0.0, num_data=50)
    assert said(still.step) == []


def test_a_sum_that_overflows_is_no_infinity():
    parameter = nn.Parameter(torch.zeros(4))
    parameter.grad = torch.full((4,), 3e38)
    assert said(lv.optim.SGLD([parameter], lr=1e-30, num_data=1).step) == []


@pytest.mark.parametrize(("steps", "looks"), [(9, 5), (257, 10), (1025, 13)])
def test_few_steps_are_looked_at(steps, looks, monkeypatch):
    seen = []
    monkeypatch.setattr(gradient_checks, "_is_finite", lambda gradient: seen.append(gradient) or True)
    parameter = nn.Parameter(torch.zeros(2))
    parameter.grad = torch.zeros(2)
    optimizer = lv.optim.SGLD([parameter], lr=1e-3, num_data=10)
    for _ in range(steps):
        optimizer.step()
    assert len(seen) == looks


def test_what_was_said_keeps_no_optimizer_alive_and_is_not_pickled():
    parameter = nn.Parameter(torch.zeros(2))
    optimizer = lv.optim.SGLD([parameter], lr=1e-3, num_data=10)
    assert len(said(optimizer.step)) == 1
    copy = pickle.loads(pickle.dumps(optimizer))
    reference = weakref.ref(optimizer)
    del optimizer
    gc.collect()
    assert reference() is None
    assert len(copy.param_groups) == 1


@pytest.mark.parametrize("value", [torch.nan, -torch.inf])
def test_a_bank_takes_no_draw_that_is_no_number(tmp_path, value):
    model, bank = network(), lv.SampleBank(tmp_path / "bank")
    bank.add(model)
    with torch.no_grad():
        model[2].bias[1] = value
    with pytest.raises(ValueError, match=r"SampleBank.add\(model=...\) needs finite parameters \(2.bias is not\)"):
        bank.add(model)
    assert len(bank) == 1
