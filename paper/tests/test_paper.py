"""The four experiments run from end to end, in seconds, and their pieces are what they say."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch
from langevin_paper import chains
from langevin_paper.experiments import landsat, mixture
from langevin_paper.experiments.gaussian import running_errors
from langevin_paper.experiments.landsat import LANDSAT
from langevin_paper.experiments.mixture import MIXTURE
from langevin_paper.experiments.ravine import PUBLISHED, Side, stacked_data
from langevin_paper.figures import FIGURES, View, png
from langevin_paper.record import Record, Records
from langevin_paper.registry import EXPERIMENTS, find
from langevin_paper.report import plain_tables, write_report
from langevin_paper.spec import Method, Scale
from langevin_paper.worker import Cell, execute

from langevin.sampling import loop
from langevin.targets import ravine, ravine_data
from langevin.targets.gradients import minibatch

TINY = {
    "gaussian": {"num_steps": 1_100},
    "mixture": {"cpu_seconds": 0.05, "compile": False},
    "ravine": {"num_steps": 150, "warmup": 50},
    "landsat": {"epochs": 1, "halved_every": 1, "thin": 20, "averaged_steps": 40, "compile": False},
}
"""What differs from the quick scale."""


pytestmark = pytest.mark.usefixtures("one_thread")


def tiny(name, method, folder, seeds=range(2), progress=lambda share: None):
    experiment = EXPERIMENTS[name]
    settings = {**experiment.scales[0].settings, **TINY[name]}
    return execute(Cell(experiment, Scale("tiny", settings, 2, 1.0), experiment.method(method), seeds), folder, progress)


def test_every_experiment_gives_a_page_with_its_tables_and_figures(tmp_path):
    records = Records(tmp_path)
    for name in TINY:
        experiment = EXPERIMENTS[name]
        for method in experiment.methods:
            shares = []
            folder = records.work_folder(method.name + name)
            outcome = tiny(name, method.name, folder, progress=shares.append)
            assert outcome.error is None, outcome.error
            assert shares
            assert 0 <= min(shares) <= max(shares) <= 1
            keys = [column.key for table in experiment.tables for column in table.columns]
            assert all(key in outcome.results[seed] for key in keys for seed in range(2))
            scale = experiment.scales[0]
            records.add(
                Record(name, scale.name, method.name, seed, "done", experiment.settings_of(method, scale), results, seeds=(0, 1))
                for seed, results in outcome.results.items()
            )
    page, made = write_report(tmp_path, tmp_path / "report")
    sections = made.sections
    assert not made.problems
    assert [section.experiment.name for section in sections] == list(TINY)
    for section in sections:
        assert [picture.name for picture in section.pictures] == [figure.name for figure in FIGURES[section.experiment.name]]
        for method in section.experiment.methods:
            assert method.label in plain_tables(sections)
    assert (tmp_path / "report" / "overview.png").stat().st_size > 50_000
    assert page.stat().st_size > 200_000


def test_a_seed_gives_the_same_alone_and_together(tmp_path):
    for name, key in (("gaussian", "covariance_error"), ("ravine", "theta_1"), ("landsat", "test")):
        together = tiny(name, "msgld", tmp_path / f"{name}-both").results[1][key]
        alone = tiny(name, "msgld", tmp_path / f"{name}-one", seeds=range(1, 2)).results[1][key]
        assert alone == pytest.approx(together, rel=1e-6)


def test_landsat_goes_on_after_being_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "_CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setitem(TINY, "landsat", {**TINY["landsat"], "epochs": 6})

    def stop(share):
        if share > 0.6:
            raise OSError("pulled the plug")

    def never(*args, **options):
        raise AssertionError("the run was started again")

    whole = tiny("landsat", "msgld", tmp_path / "long").results
    assert "pulled the plug" in tiny("landsat", "msgld", tmp_path / "cut", progress=stop).error
    monkeypatch.setattr(chains, "sample", never)
    resumed = tiny("landsat", "msgld", tmp_path / "cut")
    assert resumed.error is None, resumed.error
    assert resumed.results[0]["test_error"].tolist() == whole[0]["test_error"].tolist()


@pytest.fixture
def asked(monkeypatch):
    """What landsat asks of the chains, which give draw k the accuracies k and k / 2 percent, and chain 1 twice as much."""
    found = {}

    def fake(kernel, target, init, *, num_steps, thin, **options):
        found.update(options, kernel=kernel, num_steps=num_steps, thin=thin)
        train = torch.arange(num_steps // thin) / 100
        return SimpleNamespace(draws=torch.stack([train, train / 2], -1) * torch.tensor([1.0, 2.0])[:, None, None])

    monkeypatch.setattr(landsat, "run_chains", fake)
    return found


@pytest.mark.parametrize("name", ["quick", "short", "paper"])
def test_landsats_rate_is_halved_every_so_many_epochs(asked, tmp_path, name):
    epochs, halved = {"quick": (30, 3), "short": (300, 30), "paper": (3_000, 300)}[name]
    LANDSAT.run(LANDSAT.method("sgld"), LANDSAT.scale(name), range(2), tmp_path, lambda share: None)
    rate, per_epoch = asked["kernel"].step_size, 4435 / 50
    assert asked["num_steps"] == int(epochs * per_epoch)
    assert rate(0) == pytest.approx(0.1 / 4435)
    for period in range(10):  # a little after the start of each period, and a little before its end
        for epoch in (period * halved + 0.1, (period + 1) * halved - 0.1):
            assert rate(int(epoch * per_epoch)) == pytest.approx(0.1 / 4435 / 2**period), (period, epoch)


@pytest.mark.parametrize("name", ["quick", "short", "paper"])
def test_landsat_averages_the_last_draws_and_no_more(asked, tmp_path, name):
    results = LANDSAT.run(LANDSAT.method("msgld"), LANDSAT.scale(name), range(2), tmp_path, lambda share: None)
    count = {"quick": 40, "short": 100, "paper": 200}[name]
    total = asked["num_steps"] // asked["thin"]
    mean = sum(range(total - count, total)) / count
    assert [results[0]["train"], results[0]["test"]] == pytest.approx([mean, mean / 2])
    assert [results[1]["train"], results[1]["test"]] == pytest.approx([2 * mean, mean])
    assert results[0]["draws"] == count
    assert results[0]["train_error"].shape == (total,)


def test_ravines_side_by_side_are_ravines():
    seeds, position = range(3), torch.tensor([[1.0, 2.0], [20.0, 10.0], [-3.0, 0.5]], dtype=torch.float64)
    columns = stacked_data(seeds)
    estimate = minibatch(Side(ravine()), columns, 100, seed=0, chains=seeds)(position, 5)
    for seed in seeds:
        alone = minibatch(ravine(), ravine_data(seed=seed), 100, seed=0, chains=range(seed, seed + 1))(position[seed : seed + 1], 5)
        assert torch.allclose(alone.gradient[0], estimate.gradient[seed])
        assert torch.allclose(alone.energy[0], estimate.energy[seed])


@pytest.mark.parametrize("per_second", [602_833, 1_000, 10])
def test_a_run_of_the_mixture_takes_the_steps_of_its_trial_by_whole_turns(monkeypatch, per_second):
    clock, asked = [0.0], []

    def fake(kernel, target, init, *, num_steps, thin, **options):
        clock[0] += num_steps / per_second
        asked.append((num_steps, thin))
        return SimpleNamespace(draws=torch.zeros(1, num_steps // thin, 2))

    monkeypatch.setattr(mixture, "run_chains", fake)
    monkeypatch.setattr(mixture.time, "process_time", lambda: clock[0])
    given = MIXTURE.scale("paper").settings
    kept = given["kept"]
    _, facts = mixture._sample(MIXTURE.method("sgld"), None, given, range(1), lambda share: None)
    num_steps, thin = asked[-1]
    fitting = 360 * per_second
    assert facts == {"steps": num_steps, "cpu_seconds": pytest.approx(num_steps / per_second)}
    if fitting > 17 * kept:  # a multiple of what a compiled turn may take, and exactly so many draws
        assert thin % 16 == 0
        assert num_steps == thin * kept
        assert 0 <= fitting - num_steps < 16 * kept
    else:
        assert thin == max(1, fitting // kept)
        assert num_steps == pytest.approx(fitting, abs=1)


def test_running_errors_are_those_of_torch_cov():
    draws = torch.linspace(-1, 2, 40, dtype=torch.float64).reshape(1, 20, 2) ** 3
    at = torch.tensor([5, 20])
    found = running_errors(draws, torch.eye(2, dtype=torch.float64), at)
    for column, count in enumerate(at.tolist()):
        covariance = torch.cov(draws[0, :count].T, correction=0)
        assert found[0, column] == pytest.approx(float((covariance - torch.eye(2)).abs().mean()))


def test_settings_are_plain_and_every_published_row_has_a_method():
    for experiment in EXPERIMENTS.values():
        rungs = ["long"] if experiment.name.startswith("cifar") else []
        assert [scale.name for scale in experiment.scales] == ["quick", "short", *rungs, "paper"]
        in_paper = not experiment.section.startswith("Not in the paper")
        assert [scale.is_paper for scale in experiment.scales] == [False] * (2 + len(rungs)) + [in_paper]
        names = {method.name for method in experiment.methods}
        assert len(names) == len(experiment.methods)
        for method in experiment.methods:
            json.dumps(experiment.settings_of(method, experiment.scales[0]))
            assert set(method.ours) <= {*method.settings, "*"}
        for table in experiment.tables:
            assert {name for column in table.columns for name in column.published} <= names
        assert {setting.source for setting in experiment.settings} == ({"paper", "ours"} if in_paper else {"ours"})
    assert set(PUBLISHED) == {"sgld", "sghmc", "psgld", "asgld", "msgld"}


def test_a_step_size_may_be_a_schedule_in_words():
    method = Method("x", "X", "sgld", {"step_size": {"kind": "step_decay", "initial": 0.4, "factor": 0.5, "every": 10}})
    assert [method.kernel().step_size(step) for step in (0, 10, 29)] == [0.4, 0.2, 0.1]


def test_an_unknown_experiment_is_answered_with_the_choices():
    with pytest.raises(ValueError, match="one of gaussian, mixture, mixture-noisy, ravine, ravine-readings"):
        find("imagenet")


def test_a_figure_without_its_arrays_is_left_out():
    for name, figures in FIGURES.items():
        for figure in figures:
            made = figure.draw(View(EXPERIMENTS[name], (), {}))
            assert made is None or len(png(made)) > 1_000
