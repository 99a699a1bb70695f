"""Mistakes in num_data, the data, the prior and the choice of parameters."""

from __future__ import annotations

import pytest
import torch
from lint_setups import (
    PRIOR,
    ROWS,
    TOKENS,
    adapters,
    built,
    classifier,
    integers,
    language_model,
    language_model_loss,
    normals,
    optimizer,
    regression,
)
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, SubsetRandomSampler, TensorDataset

import langevin as lv


def found(arguments, **changes):
    return lv.lint(**arguments | changes, verbose=False)


def with_optimizer(arguments, **changes):
    return arguments | {"optimizer": optimizer(arguments["model"], **changes), "step": None}


@pytest.mark.parametrize(
    ("num_data", "words"),
    [
        (4, "the number of batches"),
        (16, "the size of the batch"),
        (ROWS + 1, "the data set has 60 rows"),
        (ROWS // 2, "has 60 rows"),
    ],
)
def test_a_wrong_number_of_data_is_seen(num_data, words):
    report = found(with_optimizer(classifier(), num_data=num_data))
    assert report["num_data"].value == num_data
    assert words in report["num_data"].sentence
    assert report["num_data"].fix == "num_data=60."
    assert set(report.names) <= {"num_data"}
    assert found(with_optimizer(classifier(), num_data=num_data), data=classifier()["data"].dataset)["num_data"].value == num_data


def test_fewer_data_than_rows_of_the_batch_are_seen_without_the_data():
    assert found(with_optimizer(classifier(), num_data=15), data=None).names == ["num_data"]
    assert found(with_optimizer(classifier(), num_data=16), data=None).names == []


def test_groups_that_disagree_are_seen():
    arguments = classifier()
    first, last = arguments["model"][0], arguments["model"][2]
    groups = [{"params": first.parameters()}, {"params": last.parameters(), "num_data": ROWS + 1}]
    opt = lv.optim.SGLD(groups, lr=0.1, num_data=ROWS, prior=PRIOR)
    assert found(arguments, optimizer=opt, step=None).names == ["num_data"]


def test_a_subset_counts_its_own_rows_and_a_stream_has_none():
    arguments = classifier()
    data = DataLoader(arguments["data"].dataset, 16, sampler=SubsetRandomSampler(range(40)))
    before = torch.get_rng_state()
    assert found(arguments, data=data).names == ["num_data"]
    assert found(with_optimizer(arguments, num_data=40), data=data).names == []
    assert torch.equal(before, torch.get_rng_state())
    assert found(arguments, data=(row for row in arguments["data"].dataset)).names == []


@pytest.mark.parametrize("make", [language_model, language_model_loss])
def test_sequences_as_data_are_seen(make):
    report = found(with_optimizer(make(), num_data=ROWS))
    assert report.names == ["tokens"]
    assert report["tokens"].value == pytest.approx(TOKENS - 2 / 3)
    assert found(with_optimizer(make(), num_data=10), data=None).names == ["tokens"]  # fewer than the tokens of a batch
    assert found(with_optimizer(make(), num_data=ROWS * TOKENS // 3)).names == ["num_data"]


def test_a_loss_that_sums_over_tokens_counts_sequences():
    def loss_fn(model, batch):
        logits = model(batch["input_ids"]).logits
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten(), reduction="sum") / len(logits)

    assert found(language_model(num_data=ROWS, loss_fn=loss_fn)).names == []
    assert found(language_model(loss_fn=loss_fn)).names == ["num_data"]


def test_outputs_that_are_averaged_are_data_too():
    mean = lambda f, y: ((f - y) ** 2 / (2 * 5.0**2)).mean()  # noqa: E731
    report = found(regression(loss_fn=mean, outputs=3))
    assert report.names == ["tokens"]
    assert report["tokens"].value == 3
    assert found(regression(loss_fn=mean, outputs=3, num_data=3 * ROWS)).names == []
    assert found(regression(outputs=3)).names == []  # a sum over outputs


class Noisy(Dataset):
    def __init__(self, rows, noise):
        self.rows, self.noise = rows, noise

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        x, y = self.rows[index]
        return {"x": (x + self.noise * torch.randn_like(x)).numpy(), "name": "row", "y": int(y)}


def test_augmentation_is_seen():
    arguments = classifier()
    report = found(arguments, data=Noisy(arguments["data"].dataset, 0.1))
    assert report.names == ["augmentation"]
    assert report["augmentation"].value > 0.01
    assert found(arguments, data=Noisy(arguments["data"].dataset, 0.0)).names == []


def test_random_crops_of_other_sizes_are_augmentation():
    class Crops(Noisy):
        def __getitem__(self, index):
            self.noise += 1
            return self.rows[index][0][: self.noise]

    arguments = classifier()
    assert found(arguments, data=Crops(arguments["data"].dataset, 1)).names == ["augmentation"]


def test_a_flat_prior_on_a_network_is_seen():
    for prior in (None, lv.priors.flat()):
        report = found(with_optimizer(classifier(), prior=prior))
        assert report.names == ["flat prior"]
        assert report["flat prior"].value == 5 * 8 + 8 + 8 * 3 + 3
    assert found(with_optimizer(classifier(), prior=None, temperature=0.0)).names == []
    assert found(with_optimizer(adapters(), prior=None)).names == ["flat prior"]


def test_a_flat_prior_is_fine_on_a_line_and_on_biases():
    model = built(0, lambda: nn.Linear(5, 3))
    x, y = normals(0, ROWS, 5), integers(0, 3, ROWS)
    arguments = {"model": model, "loss_fn": nn.CrossEntropyLoss(), "batch": (x[:16], y[:16]), "data": TensorDataset(x, y)}
    assert found(with_optimizer(arguments, prior=None)).names == []
    small = lv.optim.SGLD(model.parameters(), lr=0.1, num_data=16)
    assert found(arguments, optimizer=small, data=None).names == ["flat prior"]  # 18 parameters
    arguments = classifier()
    weights, biases = ([p for p in arguments["model"].parameters() if (p.ndim > 1) is is_weight] for is_weight in (True, False))
    opt = lv.optim.SGLD([{"params": weights, "prior": PRIOR}, {"params": biases}], lr=0.1, num_data=ROWS)
    assert found(arguments, optimizer=opt, step=None).names == []


def test_parameters_that_are_left_out_strange_or_unused_are_seen():
    arguments = classifier()
    model = arguments["model"]
    opt = lv.optim.SGLD(model[2].parameters(), lr=0.1, num_data=ROWS, prior=PRIOR)
    report = found(arguments, optimizer=opt, step=None)
    assert report.names == ["not in the optimizer"]
    assert "0.weight, 0.bias" in report["not in the optimizer"].sentence
    model[0].requires_grad_(False)
    assert found(arguments, optimizer=opt, step=None).names == []
    model[2].requires_grad_(False)
    assert found(arguments, loss_fn=lambda f, y: F.cross_entropy(f, y), optimizer=opt, step=None).names == ["no gradient"]

    other = classifier(1)
    assert "not in the model" in found(other, optimizer=classifier()["optimizer"], step=None).names

    arguments = classifier()
    arguments["model"].spare = built(0, lambda: nn.Linear(2, 2))
    arguments["model"].forward = lambda x: arguments["model"][2](arguments["model"][0](x))
    report = found(with_optimizer(arguments))
    assert report.names == ["no gradient"]
    assert "spare.weight, spare.bias" in report["no gradient"].sentence


def test_a_parameter_of_the_loss_belongs_to_it():
    class Loss(nn.Module):
        def __init__(self):
            super().__init__()
            self.log_sd = nn.Parameter(torch.zeros(()))

        def forward(self, f, y):
            return (0.5 * ((f - y) / self.log_sd.exp()) ** 2 + self.log_sd).sum(-1).mean()

    loss_fn = Loss()
    arguments = regression()
    opt = lv.optim.SGLD([*arguments["model"].parameters(), loss_fn.log_sd], lr=0.1, num_data=ROWS, prior=PRIOR)
    assert found(arguments, loss_fn=loss_fn, optimizer=opt, step=None).names == []


def test_a_loss_or_gradient_that_is_no_number_is_seen():
    arguments = classifier()
    x, y = arguments["batch"]
    report = found(arguments, batch=(x * torch.nan, y))
    assert report.names == ["not finite"]
    assert "The loss is nan" in report["not finite"].sentence
    root = lambda f, y: F.cross_entropy(f, y) + (0 * f[0, 0]).sqrt()  # noqa: E731
    report = found(arguments, loss_fn=root)
    assert report.names == ["not finite"]
    assert "2.weight" in report["not finite"].sentence


def test_findings_are_printed_and_readable(capsys):
    report = lv.lint(**with_optimizer(classifier(loss_fn=nn.CrossEntropyLoss(reduction="sum")), num_data=4))
    assert report.names == ["sum loss", "num_data"]
    assert capsys.readouterr().out == f"{report}\n"
    assert str(report).count("\n  -> ") == 2
    with pytest.raises(KeyError, match="'dropout' is none of the findings"):
        report["dropout"]
