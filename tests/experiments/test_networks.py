"""Tables 3 and 4 in the runner: a cell trains its plan, its record has what the tables ask for, its settings say everything."""

from __future__ import annotations

import pytest

from langevin.experiments import plans, training
from langevin.experiments.paper import cifar, mnist, networks
from langevin.experiments.plans import MLP, Plan, Stage
from langevin.schedules import constant
from langevin.targets import priors


@pytest.fixture
def tiny(monkeypatch):
    """MNIST's rows with a small plan on the data that ship with the package."""

    def plan(method, scale):
        stage = Stage(2, "MSGLD", constant(0.1), {"bias_factor": 2.0}, priors.gaussian(std=1.0), 0.01)
        return Plan(method, "landsat", MLP((36, 5, 6)), (stage,), 50, rows=(100, 50), averaged_epochs=1, threshold=0.1)

    monkeypatch.setitem(networks.PLANS, "mnist", plan)
    return networks.MNIST


def test_a_cell_gives_what_the_table_and_the_figure_ask_for(tiny, tmp_path):
    shares = []
    results = tiny.run(tiny.method("msgld"), tiny.scale("quick"), range(3, 4), tmp_path, shares.append)
    assert set(results) == {3}
    assert shares == [0.5, 1.0]
    assert all(column.key in results[3] for table in tiny.tables for column in table.columns)
    assert results[3]["test_error"].shape == results[3]["ratio"].shape == (2,)
    assert results[3]["test_error"][-1] == pytest.approx(100 - results[3]["test_accuracy"], abs=1e-4)
    assert results[3]["law_temperature"] == pytest.approx(0.01 / 3)
    again = training.train(networks.PLANS["mnist"]("MSGLD", "quick"), 3, tmp_path / "3")
    assert again["test_accuracy"] == results[3]["test_accuracy"]  # the folder is the cell's: a finished run is read


def test_rows_have_published_numbers_and_their_settings_in_words():
    for experiment, published in ((networks.MNIST, mnist.PUBLISHED), (networks.CIFAR100, cifar.PUBLISHED[100])):
        names = {method.name for method in experiment.methods}
        for column in experiment.tables[0].columns:
            assert set(column.published) == {label.lower() for label in published} <= names
    msgld = networks.MNIST.method("msgld").settings
    assert msgld["stage 1"] == "lr 0.5, bias_factor 1.0, beta 0.99, prior GaussianPrior 1.0, τ 0.001"
    assert networks.MNIST.method("asgld-invariant").ours == ("*",)
    assert [scale.is_paper for scale in networks.CIFAR10.scales] == [False, False, True]
    assert isinstance(networks.PLANS["cifar10"]("SGD", "paper"), plans.Plan)
