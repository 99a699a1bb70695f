"""Mistakes that are in the loss: each is found, with its number, and nothing else is."""

from __future__ import annotations

import pytest
import torch
from lint_setups import (
    PRIOR,
    ROWS,
    adapters,
    built,
    classifier,
    language_model,
    language_model_loss,
    learnt_noise,
    log_probabilities,
    regression,
)
from torch import nn
from torch.nn import functional as F

import langevin as lv

SIZES = [(0, 16), (1, 5), (2, 33)]


def found(arguments, **changes):
    return lv.lint(**arguments | changes, verbose=False)


@pytest.mark.parametrize(("seed", "size"), SIZES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_sum_is_seen(seed, size, dtype):
    report = found(classifier(seed, size, dtype, nn.CrossEntropyLoss(reduction="sum")))
    assert report.names == ["sum loss"]
    assert report["sum loss"].value == pytest.approx(2.0, rel=0.02)
    assert f"sum over the {size} rows" in report["sum loss"].sentence


def test_a_sum_in_a_regression_and_in_a_loss_of_the_model_is_seen():
    assert found(regression(loss_fn=lambda f, y: ((f - y) ** 2 / 50).sum())).names == ["sum loss"]
    loss_fn = language_model_loss()["loss_fn"]
    report = found(language_model(loss_fn=lambda model, batch: len(batch["labels"]) * loss_fn(model, batch)))
    assert report.names == ["sum loss"]


@pytest.mark.parametrize(("seed", "size"), SIZES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_squared_error_without_a_variance_is_seen(seed, size, dtype):
    report = found(regression(seed, size, dtype, nn.MSELoss()))
    assert report.names == ["squared error"]
    assert report["squared error"].value == pytest.approx(0.5, rel=1e-3)


def test_the_variance_of_a_mean_over_outputs_is_half_their_number():
    assert found(regression(loss_fn=nn.MSELoss(), outputs=3), data=None)["squared error"].value == pytest.approx(1.5, rel=1e-3)
    assert found(regression(loss_fn=lambda f, y: ((f - y) ** 2).sum(-1).mean(), outputs=3))["squared error"].value == pytest.approx(
        0.5
    )


@pytest.mark.parametrize("loss_fn", [nn.HuberLoss(), nn.L1Loss(), lambda f, y: 0.5 * F.mse_loss(f, y), nn.PoissonNLLLoss()])
def test_other_losses_of_numbers_are_not_taken_for_it(loss_fn):
    assert found(regression(loss_fn=loss_fn)).names == []


@pytest.mark.parametrize("rate", [1e-4, 0.1])
def test_an_l2_penalty_is_seen_with_its_prior(rate):
    arguments = classifier()
    loss_fn = lambda f, y: F.cross_entropy(f, y) + rate / 2 * sum(p.square().sum() for p in arguments["model"].parameters())  # noqa: E731
    report = found(arguments, loss_fn=loss_fn, step=None)
    assert report.names == ["penalty"]
    assert report["penalty"].value == pytest.approx(rate, rel=1e-3)
    assert f"gaussian(std={(rate * ROWS) ** -0.5:.3g})" in report["penalty"].fix


def test_a_penalty_of_weights_only_an_l1_penalty_and_one_in_a_loss_of_the_model_are_seen():
    arguments = learnt_noise()
    model, nll = arguments["model"], arguments["loss_fn"]
    report = found(arguments, loss_fn=lambda f, y: nll(f, y) + 0.01 * model.body.weight.square().sum(), step=None)
    assert report.names == ["penalty"]
    assert report["penalty"].value == pytest.approx(0.02, rel=1e-3)
    report = found(arguments, loss_fn=lambda f, y: nll(f, y) + 0.01 * model.body.weight.abs().sum(), step=None)
    assert report.names == ["penalty"]
    assert report["penalty"].value == pytest.approx(0.02, rel=1e-3)  # the norm of .01 times four signs
    arguments = classifier()  # of the last layer only: other parameters are not known to the penalty
    last = arguments["model"][2].weight
    assert found(arguments, loss_fn=lambda f, y: F.cross_entropy(f, y) + 0.01 * last.square().sum(), step=None).names == ["penalty"]
    arguments = language_model_loss()
    inner = arguments["loss_fn"]
    report = found(arguments, loss_fn=lambda model, batch: inner(model, batch) + 0.01 * model.head.weight.square().sum(), step=None)
    assert report.names == ["penalty"]
    arguments = language_model()
    report = found(arguments, loss_fn=lambda model, batch: model(**batch).loss + 0.01 * model.head.weight.square().sum(), step=None)
    assert report.names == ["penalty"]


def test_a_loss_that_does_not_call_the_model_as_a_whole_has_no_false_penalty():
    arguments = language_model_loss()
    inner = arguments["loss_fn"]
    arguments["loss_fn"] = lambda model, batch: inner(model.forward, batch)
    report = found(arguments)
    assert report.names == []
    assert any(text.startswith("penalty: ") for text in report.skipped)


WEIGHTS = torch.tensor([1.0, 1.0, 4.0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_class_weights_are_seen(dtype):
    weights = WEIGHTS.to(dtype)
    assert found(classifier(dtype=dtype, loss_fn=nn.CrossEntropyLoss(weight=weights))).names == ["class weights"]
    report = found(classifier(dtype=dtype, loss_fn=lambda f, y: (weights[y] * F.cross_entropy(f, y, reduction="none")).mean()))
    assert report.names == ["class weights"]
    report = found(classifier(dtype=dtype, loss_fn=nn.CrossEntropyLoss(weight=weights, reduction="sum")))
    assert sorted(report.names) == ["class weights", "sum loss"]


def test_weights_of_two_classes_and_of_a_sequence_are_seen():
    report = found(adapters(loss_fn=nn.BCEWithLogitsLoss(pos_weight=torch.tensor(3.0))))
    assert report.names == ["class weights"]
    assert report["class weights"].value == pytest.approx(3.0, rel=1e-3)

    def loss_fn(model, batch):
        weight = torch.linspace(1, 2, 11)
        return F.cross_entropy(
            model(batch["input_ids"]).logits[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten(), weight=weight
        )

    assert found(language_model(loss_fn=loss_fn)).names == ["class weights"]


@pytest.mark.parametrize("share", [0.05, 0.3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_label_smoothing_is_told_apart_with_its_share(share, dtype):
    report = found(classifier(dtype=dtype, loss_fn=nn.CrossEntropyLoss(label_smoothing=share)))
    assert report.names == ["label smoothing"]
    assert report["label smoothing"].value == pytest.approx(share, rel=5e-3)


def test_labels_that_are_smoothed_already_are_seen():
    arguments = classifier()
    soft = F.one_hot(arguments["batch"][1], 3) * 0.7 + 0.1
    report = found(arguments, batch=(arguments["batch"][0], soft), step=None, data=None)
    assert report.names == ["label smoothing"]
    assert report["label smoothing"].value == pytest.approx(0.2)
    arguments = adapters()
    report = found(arguments, batch=(arguments["batch"][0], 0.9 * arguments["batch"][1] + 0.05), step=None)
    assert report.names == ["label smoothing"]
    assert report["label smoothing"].value == pytest.approx(0.1)


def test_hard_labels_as_probabilities_are_fine():
    arguments = classifier()
    hard = F.one_hot(arguments["batch"][1], 3).float()
    assert found(arguments, batch=(arguments["batch"][0], hard), step=None).names == []


def test_a_focal_loss_is_no_likelihood_and_a_scaled_loss_is_tempered():
    def focal(output, y):
        nll = F.cross_entropy(output, y, reduction="none")
        return ((1 - torch.exp(-nll)) ** 2 * nll).mean()

    assert found(classifier(loss_fn=focal)).names == ["not a likelihood"]
    report = found(classifier(loss_fn=lambda f, y: 0.1 * F.cross_entropy(f, y)))
    assert report.names == ["loss scale"]
    assert report["loss scale"].value == pytest.approx(0.1, rel=1e-3)
    report = found(classifier(loss_fn=lambda f, y: 65536.0 * F.cross_entropy(f, y)))
    assert report.names == ["loss scale"]
    assert "mixed precision" in report["loss scale"].sentence


def test_a_label_that_is_ignored_is_no_weight():
    assert found(classifier(loss_fn=nn.CrossEntropyLoss(ignore_index=1))).names == []


def test_many_classes_are_looked_at_too():
    arguments = log_probabilities()
    assert found(arguments, loss_fn=nn.NLLLoss(weight=torch.linspace(1, 2, 200)), step=None).names == ["class weights"]


def test_segmentation_with_classes_second_is_fine_when_elements_are_counted():
    model = built(0, lambda: nn.Conv2d(1, 3, 1))
    x, y = torch.linspace(-1, 1, 32).reshape(2, 1, 4, 4), torch.arange(32).reshape(2, 4, 4) % 3
    for num_data, names in ((320, []), (20, ["tokens"])):
        optimizer = lv.optim.SGLD(model.parameters(), lr=0.1, num_data=num_data, prior=PRIOR)
        data = torch.utils.data.TensorDataset(x.repeat(10, 1, 1, 1), y.repeat(10, 1, 1))
        assert lv.lint(model, nn.CrossEntropyLoss(), optimizer, (x, y), data=data, verbose=False).names == names
