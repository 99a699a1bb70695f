"""Nothing is said where nothing is wrong, and nothing is changed."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from lint_setups import CLEAN, classifier, convolution, everything
from torch import nn

import langevin as lv


def same(one, other):
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


@pytest.mark.parametrize("name", CLEAN)
@pytest.mark.parametrize(("seed", "size"), [(0, 16), (1, 1), (2, 2), (3, 5), (4, 33), (5, 60)])
def test_nothing_is_said_of_a_correct_set_up(name, seed, size, capsys):
    report = lv.lint(**CLEAN[name](seed, size))
    assert report.names == [], str(report)
    assert report.is_clean
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("name", CLEAN)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_nothing_is_said_in_other_dtypes(name, dtype):
    report = lv.lint(**CLEAN[name](6, 16, dtype))
    assert report.names == [], str(report)


@pytest.mark.parametrize("name", [name for name in CLEAN if name != "masked_nodes"])  # its loss takes no rows of our own
def test_everything_is_looked_at_but_where_the_loss_is_out_of_reach(name):
    assert lv.lint(**CLEAN[name]()).skipped == ()


@pytest.mark.parametrize(
    "make", [*CLEAN.values(), lambda: convolution(is_training=True), lambda: classifier(extra=[nn.Dropout(0.5)])]
)
def test_nothing_is_changed(make):
    arguments = make()
    parameter = next(p for p in arguments["model"].parameters() if p.requires_grad)
    parameter.grad = torch.full_like(parameter, 2.0)
    python, numpy, before, own = (
        random.getstate(),
        np.random.get_state()[1].copy(),  # noqa: NPY002
        everything(arguments),
        vars(arguments["optimizer"]).copy(),
    )
    lv.lint(**arguments, verbose=False)
    assert same(before, everything(arguments))
    assert random.getstate() == python
    assert (np.random.get_state()[1] == numpy).all()  # noqa: NPY002
    assert vars(arguments["optimizer"]).keys() == own.keys()
    assert all(vars(arguments["optimizer"])[name] is value for name, value in own.items())


def test_an_error_of_the_model_puts_everything_back():
    arguments = classifier(extra=[nn.Dropout(0.5)])
    before = everything(arguments)
    with pytest.raises(RuntimeError, match="shapes"):
        lv.lint(**arguments | {"batch": (torch.ones(4, 3), torch.zeros(4, dtype=torch.int64))})
    assert same(before, everything(arguments))


def test_a_look_at_a_sampler_in_mid_run_does_not_change_its_draws():
    ends = []
    for is_looked_at in (False, True):
        arguments = classifier()
        for number in range(40):
            arguments["step"](arguments["batch"])
            if is_looked_at and number % 7 == 0:
                lv.lint(**arguments)
        ends.append(nn.utils.parameters_to_vector(arguments["model"].parameters()).detach())
    assert torch.equal(*ends)


BAD = {
    "model": (lambda x: x, TypeError, r"lint\(model=\.\.\.\) needs a torch.nn.Module"),
    "optimizer": (torch.optim.SGD([torch.zeros(1, requires_grad=True)], 0.1), TypeError, "needs an optimizer of langevin.optim"),
    "loss_fn": (nn.CrossEntropyLoss(reduction="none"), ValueError, r'reduction="mean"\), got \(16,\)'),
    "batch": (torch.ones(4, 3), TypeError, r"needs a pair \(x, y\)"),
    "step": (3, TypeError, "one training step"),
    "takes_model": (1, TypeError, "True or False"),
    "verbose": (None, TypeError, "True or False"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments_are_refused(name):
    value, error, match = BAD[name]
    with pytest.raises(error, match=match):
        lv.lint(**classifier() | {name: value})


@pytest.mark.parametrize("batch", [(), (torch.ones(0, 5), torch.ones(0)), {"x": 1}])
def test_a_batch_without_rows_is_refused(batch):
    with pytest.raises((TypeError, ValueError), match=r"lint\(batch=\.\.\.\) needs"):
        lv.lint(**classifier() | {"batch": batch})


def test_no_loss_for_a_pair_is_refused():
    with pytest.raises(TypeError, match=r"lint\(loss_fn=\.\.\.\) needs a function"):
        lv.lint(**classifier() | {"loss_fn": None})


@pytest.mark.slow
@pytest.mark.parametrize("name", CLEAN)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("size", [0.1, 1.0, 10.0])
def test_there_is_no_false_alarm_in_hundreds_of_set_ups(name, dtype, size):
    """Over seeds, batch sizes and dtypes, with parameters that are small, fresh, or so large that losses saturate."""
    for seed in range(20):
        arguments = CLEAN[name](seed, 1 + seed * 3, dtype)
        with torch.no_grad():
            for parameter in arguments["model"].parameters():
                parameter.mul_(size)
        report = lv.lint(**arguments)
        assert report.names == [], f"seed {seed}: {report}"
