"""Losses that are not minus the log of a density of what the model returns: broadcasting, activations twice, robust losses."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from lint_setups import (
    ROWS,
    GraphNetwork,
    LanguageModel,
    Mixture,
    adapters,
    built,
    classifier,
    column_outputs,
    column_targets,
    columns_of_moments,
    integers,
    labelled,
    language_model,
    learnt_noise,
    normals,
    regression,
)
from torch import nn
from torch.nn import functional as F

import langevin as lv


def found(arguments, **changes):
    report = lv.lint(**arguments | changes, verbose=False)
    assert report.skipped == ()
    return report


@pytest.mark.parametrize(("seed", "size"), [(0, 16), (1, 2), (2, 33)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_outputs_and_targets_that_broadcast_to_a_square_are_found(seed, size, dtype):
    report = found(column_outputs(seed, size, dtype), loss_fn=lambda f, y: ((f - y) ** 2 / 50).mean(), step=None)
    assert report.names == ["broadcasting"]
    assert f"({size}, 1)" in report["broadcasting"].sentence
    assert f"({size}, {size})" in report["broadcasting"].sentence


def ends_with(layer, loss_fn, seed=0, size=16, dtype=torch.float32, classes=3):
    model = built(seed, lambda: nn.Sequential(nn.Linear(5, classes), layer).to(dtype))
    return labelled(model, loss_fn, normals(seed, ROWS, 5, dtype=dtype), integers(seed, classes, ROWS), size)


@pytest.mark.parametrize(("seed", "size"), [(0, 16), (1, 1), (2, 33)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_softmax_before_a_cross_entropy_is_found(seed, size, dtype):
    report = found(ends_with(nn.Softmax(-1), nn.CrossEntropyLoss(), seed, size, dtype))
    assert report.names == ["softmax twice"]


@pytest.mark.parametrize("layer", [nn.Softmax(-1), nn.Identity()])
def test_outputs_that_are_no_log_probabilities_before_an_nll_loss_are_found(layer):
    for size in (1, 16):
        report = found(ends_with(layer, nn.NLLLoss(), size=size))
        assert report.names == ["not log-probabilities"]


def sampled(sampler, arguments=None):
    arguments = arguments or classifier()
    return arguments | {"data": torch.utils.data.DataLoader(arguments["data"].dataset, 16, sampler=sampler)}


def test_a_weighted_sampler_is_found():
    weights = torch.linspace(1, 4, ROWS)
    report = found(sampled(torch.utils.data.WeightedRandomSampler(weights, ROWS)))
    assert report.names == ["weighted sampler"]
    assert report["weighted sampler"].value == pytest.approx(4.0)


def test_a_huber_loss_is_noted_with_the_noise_that_it_stands_for():
    report = found(regression(loss_fn=nn.HuberLoss()))
    assert report.names == []
    assert report.is_clean
    (note,) = report.notes
    assert note.name == "robust loss"
    assert note.value == pytest.approx(HUBER_SD, rel=1e-2)
    assert str(report).startswith("note, robust loss: ")


GRID = torch.linspace(-60, 60, 2_000_001, dtype=torch.float64)
DENSITY = torch.exp(-F.huber_loss(GRID, torch.zeros_like(GRID), reduction="none"))
HUBER_SD = float((DENSITY * GRID**2).sum() / DENSITY.sum()) ** 0.5


def test_a_scale_that_is_learnt_without_its_log_is_no_likelihood():
    arguments = learnt_noise()
    model = arguments["model"]
    for loss in (lambda z: 0.5 * z**2, lambda z: F.huber_loss(z, torch.zeros_like(z), reduction="none")):
        report = found(arguments, loss_fn=lambda f, y: loss((f - y) / model.log_sd.exp()).mean(), step=None)  # noqa: B023
        assert report.names == ["not a likelihood"]
        assert "log_sd" in report["not a likelihood"].sentence


def test_a_loss_that_does_not_grow_is_no_likelihood():
    report = found(regression(loss_fn=lambda f, y: (1 - torch.exp(-0.5 * (f - y) ** 2)).mean()), step=None)
    assert report.names == ["not a likelihood"]
    assert "grow" in report["not a likelihood"].sentence


class Wrapper:
    """What accelerate and Lightning put around an optimizer."""

    def __init__(self, optimizer):
        self.optimizer = optimizer

    @property
    def param_groups(self):
        return self.optimizer.param_groups

    def step(self, closure=None):
        return self.optimizer.step(closure)

    def zero_grad(self):
        self.optimizer.zero_grad()


def test_an_optimizer_in_wrappers_is_linted_and_steps_through_them():
    arguments = classifier()
    wrapped = Wrapper(Wrapper(arguments["optimizer"]))

    def step(batch, divisor=1):
        wrapped.zero_grad()
        (arguments["loss_fn"](arguments["model"](batch[0]), batch[1]) / divisor).backward()
        wrapped.step()

    before = [parameter.clone() for parameter in arguments["model"].parameters()]
    assert found(arguments, optimizer=wrapped, step=step).names == []
    assert found(arguments, optimizer=wrapped, step=lambda batch: step(batch, 0.25)).names == ["accumulation"]
    assert all(torch.equal(a, b) for a, b in zip(before, arguments["model"].parameters(), strict=True))
    with pytest.raises(TypeError, match=r"needs an optimizer of langevin\.optim"):
        found(arguments, optimizer=Wrapper(torch.optim.SGD(arguments["model"].parameters(), 0.1)))


# Written after the checks: other set-ups with the same kinds of mistakes.


def test_targets_in_a_column_broadcast_too():
    assert found(column_targets(), loss_fn=lambda f, y: (f - y).abs().exp().mean().log(), step=None).names == ["broadcasting"]
    report = found(column_targets(), loss_fn=lambda f, y: (f - y).square().sum() / len(f), step=None)
    assert "broadcasting" in report.names


def test_moments_in_a_tuple_that_broadcast_are_found():
    report = found(columns_of_moments(), loss_fn=lambda out, y: (0.5 * (out[0] - y) ** 2 / out[1]).mean(), step=None)
    assert report.names == ["broadcasting"]


def test_counts_that_broadcast_in_a_loss_of_the_model_are_found():
    model = built(0, lambda: nn.Linear(4, 1))
    batch = {"x": normals(0, 16, 4), "y": integers(0, 5, 16)}
    optimizer = lv.optim.SGLD(model.parameters(), lr=0.1, num_data=ROWS, prior=lv.priors.gaussian(std=1.0))
    loss_fn = lambda model, batch: F.poisson_nll_loss(model(batch["x"]), batch["y"])  # noqa: E731
    assert lv.lint(model, loss_fn, optimizer, batch, verbose=False).names == ["broadcasting"]
    right = lambda model, batch: F.poisson_nll_loss(model(batch["x"])[:, 0], batch["y"])  # noqa: E731
    assert lv.lint(model, right, optimizer, batch).names == []


class ByHand(nn.Module):
    """A softmax without torch's, over the second axis of images."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Conv2d(1, 3, 1)

    def forward(self, x):
        weights = self.layer(x).exp()
        return weights / weights.sum(1, keepdim=True)


def test_a_softmax_by_hand_over_pixels_is_found():
    model = built(0, ByHand)
    x, y = normals(0, 4, 1, 3, 3), integers(0, 3, 4, 3, 3)
    optimizer = lv.optim.SGLD(model.parameters(), lr=0.1, num_data=9 * ROWS, prior=lv.priors.gaussian(std=1.0))
    assert lv.lint(model, nn.CrossEntropyLoss(), optimizer, (x, y), verbose=False).names == ["softmax twice"]
    assert lv.lint(model, nn.NLLLoss(), optimizer, (x, y), verbose=False).names == ["not log-probabilities"]


def test_an_average_of_softmaxes_without_a_log_is_found():
    arguments = classifier()
    model = built(0, Mixture)
    model.forward = lambda x: Mixture.forward(model, x).exp()
    report = found(labelled(model, nn.CrossEntropyLoss(), *arguments["data"].dataset.tensors, 16))
    assert report.names == ["softmax twice"]


def test_a_softmax_in_a_language_model_is_found():
    class WithSoftmax(LanguageModel):
        def forward(self, input_ids):
            return SimpleNamespace(logits=super().forward(input_ids).logits.softmax(-1))

    model, batch = built(0, WithSoftmax), language_model()["batch"]

    def loss_fn(model, batch):
        logits = model(input_ids=batch["input_ids"]).logits
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten())

    optimizer = lv.optim.SGLD(model.parameters(), lr=0.1, num_data=7 * ROWS, prior=lv.priors.gaussian(std=1.0))
    assert "softmax twice" in lv.lint(model, loss_fn, optimizer, batch, verbose=False).names


@pytest.mark.parametrize("end", [[nn.Sigmoid()], [nn.Sigmoid(), nn.Flatten(0), nn.Unflatten(0, (-1, 1))]])
def test_a_sigmoid_before_a_loss_of_logits_is_found(end):
    x, y = normals(0, ROWS, 5), integers(0, 2, ROWS, 1).float()
    model = built(0, lambda: nn.Sequential(nn.Linear(5, 1), *end))
    assert found(labelled(model, nn.BCEWithLogitsLoss(), x, y, 16)).names == ["sigmoid twice"]
    assert found(labelled(model, nn.BCELoss(), x, y, 16)).names == []
    assert found(adapters()).names == []


def test_a_weighted_sampler_in_a_batch_sampler_is_found():
    arguments = classifier()
    weights = [1.0] * (ROWS - 1) + [0.0]
    batches = torch.utils.data.BatchSampler(torch.utils.data.WeightedRandomSampler(weights, ROWS), 16, drop_last=False)
    data = torch.utils.data.DataLoader(arguments["data"].dataset, batch_sampler=batches)
    assert found(arguments, data=data).names == ["weighted sampler"]


@pytest.mark.parametrize(
    ("loss_fn", "sd"),
    [
        (nn.L1Loss(), 2**0.5),
        (lambda f, y: torch.log1p((f - y) ** 2).mean(), float("inf")),
        (lambda f, y: F.smooth_l1_loss(f, y, beta=0.001), 2**0.5),
    ],
)
def test_other_robust_losses_are_noted(loss_fn, sd):
    report = found(regression(loss_fn=loss_fn))
    assert report.names == []
    assert report.notes[0].name == "robust loss"
    assert report.notes[0].value == pytest.approx(sd, rel=1e-2)


def test_a_robust_density_with_its_constant_is_not_noted():
    two = torch.tensor(2.0)
    assert found(regression(loss_fn=lambda f, y: ((f - y).abs() + two.log()).mean())).notes == ()


def test_robust_outputs_of_a_row_are_noted_once_with_the_noise_of_one():
    for loss_fn in (lambda f, y: F.huber_loss(f, y, reduction="none").sum(-1).mean(), nn.HuberLoss()):
        report = lv.lint(**regression(loss_fn=loss_fn, outputs=3, num_data=3 * ROWS) | {"data": None}, verbose=False)
        assert report.notes[0].value == pytest.approx(HUBER_SD, rel=1e-2)


def test_rows_of_a_graph_in_minibatches_are_coupled():
    model = built(0, lambda: GraphNetwork(16, nn.BatchNorm1d(6))).train()
    arguments = labelled(model, nn.CrossEntropyLoss(), normals(0, ROWS, 5), integers(0, 3, ROWS), 16)
    assert found(arguments).names == ["batchnorm"]


def test_a_sum_over_the_nodes_of_a_graph_is_found():
    model = built(0, lambda: GraphNetwork(16, nn.LayerNorm(6)))
    arguments = labelled(model, nn.CrossEntropyLoss(reduction="sum"), normals(0, 16, 5), integers(0, 3, 16), 16, num_data=16)
    assert found(arguments | {"data": None}).names == ["sum loss"]


def test_num_data_below_the_labelled_nodes_is_found():
    model = built(0, lambda: GraphNetwork(16, nn.LayerNorm(6)))
    y = integers(0, 3, 16)
    y[8:] = -100
    for num_data, names in ((8, []), (7, ["num_data"])):
        arguments = labelled(model, nn.CrossEntropyLoss(), normals(0, 16, 5), y, 16, num_data=num_data)
        assert found(arguments | {"data": None}).names == names
