"""Tables 3 and 4 in the runner: a cell trains, its record has what the tables ask for, its settings say everything."""

from __future__ import annotations

from dataclasses import replace

import pytest
from langevin_paper.experiments import cifar, mnist, networks
from langevin_paper.train import train


@pytest.fixture
def tiny():
    """MNIST's rows with small settings, on the data that ship with the package."""
    stage = {
        "optimizer": "MSGLD",
        "lr": 0.1,
        "bias_factor": 2.0,
        "prior": {"kind": "GaussianPrior", "std": 1.0},
        "temperature": 0.01,
    }
    settings = {
        **networks.MNIST.scale("quick").settings,
        "data": "landsat", "network": {"kind": "MLP", "sizes": (36, 5, 6)}, "batch_size": 50, "num_data": None,
        "rows": (100, 50), "epochs": (2,), "threshold": 0.1,
    }  # fmt: skip
    methods = tuple(replace(method, settings={"stage 1": stage}) for method in networks.MNIST.methods)
    return replace(networks.MNIST, methods=methods, scales=(replace(networks.MNIST.scale("quick"), settings=settings),))


def test_a_cell_gives_what_the_table_and_the_figure_ask_for(tiny, tmp_path):
    shares = []
    results = tiny.run(tiny.method("msgld"), tiny.scale("quick"), range(3, 4), tmp_path, shares.append)
    assert set(results) == {3}
    assert shares == [0.5, 1.0]
    assert all(column.key in results[3] for table in tiny.tables for column in table.columns)
    assert results[3]["test_error"].shape == results[3]["ratio"].shape == (2,)
    assert results[3]["test_error"][-1] == pytest.approx(100 - results[3]["test_accuracy"], abs=1e-4)
    assert results[3]["law_temperature"] == pytest.approx(0.01 / 3)
    again = train(networks.training_of(tiny.method("msgld"), tiny.scale("quick")), 3, tmp_path / "3")
    assert again["test_accuracy"] == results[3]["test_accuracy"]  # the folder is the cell's: a finished run is read


def test_rows_have_published_numbers_and_all_their_settings():
    for experiment, published in ((networks.MNIST, mnist.PUBLISHED), (networks.CIFAR100, cifar.PUBLISHED[100])):
        names = {method.name for method in experiment.methods}
        for column in experiment.tables[0].columns:
            assert set(column.published) == {label.lower() for label in published} <= names
    assert networks.MNIST.method("msgld").settings["stage 1"] == {
        "optimizer": "MSGLD", "lr": 0.5, "bias_factor": 1.0, "beta": 0.99, "prior": {"kind": "GaussianPrior", "std": 1.0},
        "temperature": 0.001,
    }  # fmt: skip
    assert networks.MNIST.method("asgld-invariant").ours == ("*",)
    assert {scale.name for scale in networks.CIFAR10.scales if scale.is_paper} == {"paper"}
    short, long = (dict(networks.CIFAR10.scale(name).settings) for name in ("short", "long"))
    assert {name for name in short if short[name] != long[name]} == {"epochs"}  # a ladder in one number
