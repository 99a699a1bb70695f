"""Mistakes in the training step, seen in the gradient that reaches the optimizer."""

from __future__ import annotations

import pytest
import torch
from lint_setups import ROWS, built, classifier, convolution, labelled, language_model
from torch import nn
from torch.nn import functional as F

import langevin as lv


def step_of(arguments, *, loss_fn=None, parts=1, divisor=1, zero=True, before=lambda model: None):
    """Make a training step with room for mistakes."""
    model, opt, loss_fn = arguments["model"], arguments["optimizer"], loss_fn or arguments["loss_fn"]

    def step(batch):
        if zero:
            opt.zero_grad()
        for x, y in zip(batch[0].chunk(parts), batch[1].chunk(parts), strict=True):
            (loss_fn(model(x), y) / divisor).backward()
        before(model)
        opt.step()

    return step


def found(arguments, **changes):
    return lv.lint(**arguments | {"step": step_of(arguments, **changes)}, verbose=False)


def test_gradients_that_are_summed_over_micro_batches_are_seen():
    report = found(classifier(), parts=4)
    assert report.names == ["accumulation"]
    assert report["accumulation"].value == pytest.approx(4.0, rel=1e-4)
    assert found(classifier(), parts=4, divisor=4).names == []
    report = found(classifier(), divisor=4)
    assert report.names == ["clipping"]
    assert "divided once too often" in report["clipping"].sentence


def test_a_missing_zero_grad_is_seen():
    report = found(classifier(), zero=False)
    assert report.names == ["zero_grad"]
    assert report["zero_grad"].value == pytest.approx(2.0, rel=1e-4)


def test_gradients_cleared_after_the_step_or_by_the_model_are_fine():
    arguments = classifier()
    model, opt = arguments["model"], arguments["optimizer"]

    def step(batch):
        arguments["loss_fn"](model(batch[0]), batch[1]).backward()
        opt.step()
        model.zero_grad()

    def with_closure():
        def closure():
            opt.zero_grad(set_to_none=False)
            loss = arguments["loss_fn"](model(arguments["batch"][0]), arguments["batch"][1])
            loss.backward()
            return loss

        assert opt.step(closure).item() > 0

    assert lv.lint(**arguments | {"step": step}).names == []
    report = lv.lint(**arguments | {"step": with_closure})
    assert (report.names, report.skipped) == ([], ())


def test_clipping_of_the_norm_and_of_values_is_seen():
    report = found(classifier(), before=lambda model: nn.utils.clip_grad_norm_(model.parameters(), 0.05))
    assert report.names == ["clipping"]
    assert "of norm 0.05" in report["clipping"].sentence
    report = found(classifier(), before=lambda model: nn.utils.clip_grad_value_(model.parameters(), 0.05))
    assert report.names == ["clipping"]
    assert "cut off at 0.05" in report["clipping"].sentence
    assert found(classifier(), before=lambda model: nn.utils.clip_grad_norm_(model.parameters(), 100.0)).names == []


def test_a_scale_of_mixed_precision_that_is_left_in_is_seen():
    report = found(classifier(), divisor=1 / 65536)
    assert report.names == ["loss scale"]
    assert report["loss scale"].value == pytest.approx(65536, rel=1e-4)
    assert "mixed precision" in report["loss scale"].sentence


def test_a_sum_in_the_step_is_seen():
    report = found(classifier(size=12), loss_fn=nn.CrossEntropyLoss(reduction="sum"))
    assert report.names == ["sum loss"]
    assert report["sum loss"].value == pytest.approx(12, rel=1e-4)


@pytest.mark.parametrize("rate", [1e-3, 0.1])
def test_a_penalty_that_the_step_adds_is_seen(rate):
    def decay(model):
        for parameter in model.parameters():
            parameter.grad.add_(parameter.detach(), alpha=rate)

    report = found(classifier(), before=decay)
    assert report.names == ["penalty"]
    assert report["penalty"].value == pytest.approx(rate, rel=1e-3)

    def decay_of_weights(model):
        for layer in (model[0], model[2]):
            layer.weight.grad.add_(layer.weight.detach(), alpha=rate)

    report = found(classifier(), before=decay_of_weights)
    assert report.names == ["penalty"]
    assert report["penalty"].value == pytest.approx(rate, rel=1e-3)

    def lasso(model):
        for parameter in model.parameters():
            parameter.grad.add_(parameter.detach().sign(), alpha=rate)

    assert found(classifier(), before=lasso).names == ["penalty"]


def test_another_gradient_and_no_step_are_seen():
    assert found(classifier(), before=lambda model: model[0].weight.grad.neg_()).names == ["gradient"]
    assert found(classifier(), loss_fn=lambda f, y: -F.cross_entropy(f, y)).names == ["gradient"]
    assert found(classifier(), before=lambda model: model[0].weight.grad.fill_(torch.nan)).names == ["not finite"]
    assert lv.lint(**classifier() | {"step": lambda batch: None}, verbose=False).names == ["no step"]


def test_an_error_of_the_step_is_raised_and_leaves_the_optimizer_as_it_was():
    arguments = classifier()

    def step(batch):
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        lv.lint(**arguments | {"step": step})
    assert "step" not in vars(arguments["optimizer"])


def test_autocast_and_a_scaler_that_unscales_are_fine():
    arguments = classifier(size=32)
    model, opt = arguments["model"], arguments["optimizer"]
    scaler = torch.amp.GradScaler("cpu")

    def step(batch):
        opt.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = arguments["loss_fn"](model(batch[0]), batch[1])
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()

    report = lv.lint(**arguments | {"step": step})
    assert (report.names, report.skipped) == ([], ())


def test_a_step_that_turns_training_mode_on_shows_dropout_and_batchnorm():
    arguments = classifier(extra=[nn.Dropout(0.5)])
    arguments["model"].eval()
    assert lv.lint(**arguments).names == []
    assert found(arguments, before=lambda model: model.train()).names == ["dropout"]
    assert not arguments["model"].training
    assert found(convolution(), before=lambda model: model.train()).names == ["batchnorm"]


def test_dropout_in_training_mode_is_seen():
    arguments = classifier(extra=[nn.Dropout(0.5)])
    for changes in ({}, {"step": None}):
        report = lv.lint(**arguments | changes, verbose=False)
        assert report.names == ["dropout"]
        assert report["dropout"].value > 0.1
        assert "dropout is on (2)" in report["dropout"].sentence


@pytest.mark.parametrize("size", [2, 5, 16, 60])
def test_batchnorm_in_training_mode_is_seen(size):
    report = lv.lint(**convolution(size=size, is_training=True), verbose=False)
    assert report.names == ["batchnorm"]
    assert "(1)" in report["batchnorm"].sentence


@pytest.mark.parametrize("seed", range(5))
def test_batchnorm_is_seen_beside_dropout(seed):
    model = built(seed, lambda: nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3)))
    x, y = torch.linspace(-1, 1, 5 * ROWS).reshape(ROWS, 5).sin(), torch.arange(ROWS) % 3
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        report = lv.lint(**labelled(model, nn.CrossEntropyLoss(), x, y, 16), verbose=False)
    assert sorted(report.names) == ["batchnorm", "dropout"]


def test_a_scheduler_in_the_step_changes_no_setting():
    arguments = classifier()
    opt = arguments["optimizer"]
    scheduler = torch.optim.lr_scheduler.ExponentialLR(opt, 0.5)
    own = opt.step

    def step(batch):
        arguments["step"](batch)
        scheduler.step()

    lr = opt.param_groups[0]["lr"]
    opt.step()
    with pytest.warns(UserWarning, match="lr_scheduler"):
        assert lv.lint(**arguments | {"step": step}).names == []
    assert opt.param_groups[0]["lr"] == lr
    assert opt.step is own or opt.step == own


def test_a_step_of_a_dict_batch_is_looked_at():
    arguments = language_model()
    model, opt = arguments["model"], arguments["optimizer"]

    def step(batch):
        opt.zero_grad()
        (2 * model(**batch).loss).backward()
        opt.step()

    assert lv.lint(**arguments | {"step": step}, verbose=False).names == ["accumulation"]
