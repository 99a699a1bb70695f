"""Predictions with their uncertainty in the runner: cost, draws, measures, and a page with the numbers of the records."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from langevin_paper.data import KNOWN
from langevin_paper.experiments import mnist_ood
from langevin_paper.experiments.digits import DIGITS, _rows
from langevin_paper.experiments.mnist_ood import MNIST_OOD
from langevin_paper.experiments.uncertainty import Rows, measure, train
from langevin_paper.other import FILE, load_notmnist
from langevin_paper.record import read_records

from langevin.random import Purpose, batch_indices, stream
from langevin.random.torch_rng import fork_rng

DOCS = Path(__file__).parents[2] / "docs" / "uncertainty"
SMALL = {"sizes": (64, 8, 10), "activation": "Tanh", "batch_size": 50, "rows": 300, "tests": 360, "held_out": 0, "epochs": 10}


def keys(experiment):
    return {column.key for table in experiment.tables for column in table.columns}


@pytest.mark.parametrize("name", [method.name for method in DIGITS.methods])
def test_a_cell_gives_what_the_page_asks_for(name, tmp_path):
    method = DIGITS.method(name)
    if "scales" in method.settings:
        method = replace(method, settings={**method.settings, "scales": (0.1, 1.0)})
    scale, shares = replace(DIGITS.scale("quick"), settings=SMALL), []
    (found,) = DIGITS.run(method, scale, range(1), tmp_path, shares.append).values()
    assert keys(DIGITS) - set(found) <= {"prior_std", "heat", "ess"}
    assert ("heat" in found) == ("ess" in found) == ("prior_std" in found) == ("adam" not in method.sampler)
    assert found["gradients"] == pytest.approx(60 * method.settings["share"])
    assert found["accuracy"] > 10
    assert all(0 <= share <= 1 for share in shares)
    if "scales" in method.settings:
        assert found["prior_std"] == 1.0  # 0.1 is the prior under which nothing is learnt


def test_the_members_share_the_gradients_and_the_last_step_is_a_draw():
    rows = _rows(SMALL, 0)
    given = {"optimizer": "SGHMC", "members": 1, "share": 1.0, "draws": 3, "burn_in": 0.5, "lr": 0.1, "end_lr": 0.01, "beta": 0.9}
    given["temperature"] = 1.0
    draws, cost = train(rows, given, SMALL, 0, None, lambda share: None)
    assert (len(draws), cost["gradients"]) == (3, 60)
    last, _ = train(rows, {**given, "draws": 1}, SMALL, 0, None, lambda share: None)
    assert torch.equal(last[0][0].weight, draws[2][0].weight)
    members, cost = train(rows, {**given, "members": 3, "draws": 1}, SMALL, 0, None, lambda share: None)
    assert (len(members), cost["gradients"]) == (3, 60)
    assert not torch.allclose(members[0][0].weight, members[1][0].weight, atol=0.01)


def test_members_are_those_of_a_loop_by_hand():
    rows, lr, end_lr = _rows(SMALL, 0), 0.02, 0.005
    given = {"optimizer": "Adam", "members": 2, "share": 1.0, "draws": 2, "burn_in": 0.5, "lr": lr, "end_lr": end_lr}
    draws, _ = train(rows, given, SMALL, 3, None, lambda share: None)
    expected = []
    for member in range(2):
        with fork_rng(3, Purpose.INIT, member):
            model = torch.nn.Sequential(torch.nn.Linear(64, 8), torch.nn.Tanh(), torch.nn.Linear(8, 10))
        opt = torch.optim.Adam(model.parameters(), lr=lr)
        for step in range(30):
            opt.param_groups[0]["lr"] = lr * math.exp(math.log(end_lr / lr) * step / 15) if step < 15 else end_lr
            batch = batch_indices(3, stream(Purpose.BATCH, member), step, 50, 300)
            opt.zero_grad()
            torch.nn.functional.cross_entropy(model(rows.x[batch]), rows.y[batch]).backward()
            opt.step()
            if step in (21, 29):  # after 22 and 30 steps of 30: the second half, in two
                expected.append(model[0].weight.detach().clone())
    assert len(draws) == 4
    for draw, weight in zip(draws, expected, strict=True):
        torch.testing.assert_close(draw[0].weight, weight, atol=1e-4, rtol=0)


def test_the_splits_differ_and_the_rows_held_out_are_no_test_rows():
    def sums(rows):
        return {tuple(row.tolist()) for row in rows}

    whole, held = (_rows({**SMALL, "rows": None, "held_out": count}, 0) for count in (0, 360))
    assert (len(whole.x), len(whole.x_test), len(held.x), len(held.x_test)) == (1437, 360, 1077, 360)
    assert not sums(held.x_test) & sums(whole.x_test)
    assert not sums(whole.x) & sums(whole.x_test)
    assert not torch.equal(whole.x, _rows({**SMALL, "rows": None}, 1).x)
    assert whole.x.max() == 1


def test_what_is_measured_is_right_for_networks_that_are_known():
    """Outputs (log 3, 0) are the probabilities 3/4 and 1/4; rows of the other kind are those with x = 1."""
    odds = math.log(3)

    def linear(bias, weight):
        layer = torch.nn.Linear(1, 2)
        with torch.no_grad():
            layer.bias.copy_(torch.tensor(bias))
            layer.weight.copy_(torch.tensor(weight)[:, None])
        return layer

    x = torch.zeros(8, 1)
    rows = Rows(x, x, x, torch.tensor([0] * 6 + [1] * 2), other=x + 1)
    one = measure([linear([odds, 0.0], [-odds, 0.0])], rows)  # 1/2 and 1/2 for the others
    assert one["accuracy"] == pytest.approx(75)
    assert one["ece"] == pytest.approx(0, abs=1e-4)
    assert one["nll"] == pytest.approx(-(6 * math.log(0.75) + 2 * math.log(0.25)) / 8)
    assert one["auroc_total"] == pytest.approx(100)
    assert "auroc_epistemic" not in one
    surer = measure([linear([odds, 0.0], [odds, 0.0])], rows)  # 9/10 for the others
    assert surer["auroc_total"] == pytest.approx(0)
    two = measure([linear([odds, 0.0], [0.0, 0.0]), linear([odds, 0.0], [-odds, odds])], rows)  # they disagree on the others
    assert two["nll"] == pytest.approx(one["nll"])
    assert two["auroc_epistemic"] == pytest.approx(100)


def test_mnist_against_letters_in_small(tmp_path, monkeypatch):
    """On digits and letters of noise that a network can tell: dim rows are the digits' kind, bright ones are not."""
    pixels = np.arange(600 * 784, dtype=np.uint64).reshape(600, 28, 28) * 2654435761 % 2**32 // 2**24
    labels = (np.arange(600) % 10).astype(np.uint8)
    monkeypatch.setitem(KNOWN, "mnist", replace(KNOWN["mnist"], rows=(500, 100)))
    images = (pixels // 8).astype(np.uint8)
    np.savez(tmp_path / "mnist.npz", x_train=images[:500], y_train=labels[:500], x_test=images[500:], y_test=labels[500:])
    monkeypatch.setenv("LANGEVIN_DATA", str(tmp_path))
    monkeypatch.setattr(mnist_ood, "load_notmnist", lambda: torch.from_numpy(pixels[:100].astype(np.uint8)))
    settings = {**MNIST_OOD.scale("quick").settings, "sizes": (784, 8, 10), "epochs": 20, "rows": None}
    for name in ("ensemble", "msgld"):
        scale = replace(MNIST_OOD.scale("quick"), settings=settings)
        (found,) = MNIST_OOD.run(MNIST_OOD.method(name), scale, range(1), tmp_path, lambda share: None).values()
        assert keys(MNIST_OOD) - set(found) <= {"heat", "ess"}
        assert found["gradients"] == 100
        assert all(0 <= found[key] <= 100 for key in ("auroc_epistemic", "auroc_total"))
    short = replace(scale, settings={**settings, "held_out": 100})
    (found,) = MNIST_OOD.run(MNIST_OOD.method("adam"), short, range(1), tmp_path, lambda share: None).values()
    assert "auroc_total" not in found  # settings are chosen without the letters


def test_every_row_but_the_one_member_costs_the_same():
    for experiment in (MNIST_OOD, DIGITS):
        shares = {method.name: method.settings["share"] for method in experiment.methods}
        assert shares.pop("adam") == 1 / experiment.method("ensemble").settings["members"]
        assert set(shares.values()) == {1.0}


def test_letters_that_are_absent_or_others_are_said(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("LANGEVIN_DATA", raising=False)
    with pytest.raises(FileNotFoundError, match=rf"found no {FILE} in .*home/langevin/data, and it has no download\. Put it into"):
        load_notmnist()
    np.savez(tmp_path / FILE, x_test=np.zeros((10_000, 28, 28), np.uint8))
    with pytest.raises(ValueError, match=rf"{FILE} needs sha256 7b423f80.*, got "):
        load_notmnist(tmp_path)


def test_the_committed_records_have_the_settings_of_this_version():
    found = read_records(DOCS / "records")
    assert not found.problems
    known = {experiment.name: experiment for experiment in (MNIST_OOD, DIGITS)}
    seen = set()
    for record in found.records:
        experiment = known[record.experiment]
        settings = experiment.settings_of(experiment.method(record.method), experiment.scale(record.scale))
        assert json.dumps(record.settings, sort_keys=True) == json.dumps(settings, sort_keys=True)
        assert record.status == "done"
        seen.add((record.experiment, record.method))
    assert seen == {(name, method.name) for name, experiment in known.items() for method in experiment.methods}


def test_the_page_prints_the_numbers_of_the_report():
    tables = [line for line in (DOCS / "report.md").read_text().splitlines() if line.startswith("| ")]
    page = [line for line in (DOCS.parent / "uncertainty.md").read_text().splitlines() if line.startswith("| ")]
    assert len(page) > 20
    assert [line for line in page if line not in tables] == []
