"""Sentences about the paper's claims, made from records: a verdict follows the interval, and a reading its counts."""

from __future__ import annotations

import pytest
from langevin_paper.compare import interval
from langevin_paper.experiments.landsat_readings import LANDSAT_READINGS
from langevin_paper.experiments.networks import CIFAR10
from langevin_paper.experiments.ravine_readings import RAVINE_READINGS, STATED
from langevin_paper.figures import View
from langevin_paper.findings import FINDINGS
from langevin_paper.record import Record


def view(experiment, scale, values):
    """Return what records hold: for each method a list of results, seed by seed."""
    records = tuple(
        Record(experiment.name, scale, method, seed, "done", {}, results)
        for method, runs in values.items()
        for seed, results in enumerate(runs)
    )
    return View(experiment, records, {})


def accuracies(*values):
    return [{"test_accuracy": value} for value in values]


@pytest.mark.parametrize(
    ("ours", "verdict"),
    [((92.0, 93.0, 94.1), "supported"), ((88.0, 89.0, 90.1), "contradicted"), ((91.0, 90.0, 92.0), "open")],
)
def test_a_ranking_is_judged_by_pairs_of_seeds(ours, verdict):
    found = FINDINGS["cifar10"](view(CIFAR10, "short", {"msgld": accuracies(*ours), "sghmc": accuracies(90.0, 91.0, 92.0)}))
    assert len(found) == 2
    assert found[0].startswith(f"MSGLD over SGHMC, test accuracy: {verdict} at this scale")
    assert "3 seeds in pairs; in the paper +0.04 ± 0.11 (standard error, 5 and 5 runs)" in found[0]


def test_one_seed_ranks_nothing_and_a_seed_without_its_pair_is_left_out():
    assert FINDINGS["cifar10"](view(CIFAR10, "short", {"msgld": accuracies(92.0), "sghmc": accuracies(90.0, 91.0)})) == []
    (found, _) = FINDINGS["cifar10"](
        view(CIFAR10, "short", {"asgld": accuracies(92.0, 93.1, 94.0), "adam": accuracies(90.0, 91.0)})
    )
    assert "open at this scale" in found  # two pairs are too few, though the interval is above zero
    assert "2 seeds in pairs" in found


def test_the_interval_is_students():
    low, high = interval([1.0, 2.0, 3.0])
    assert (low + high) / 2 == pytest.approx(2.0)
    assert (high - low) / 2 == pytest.approx(4.302653 / 3**0.5, rel=1e-6)  # t of 2 degrees of freedom at 97.5 %
    assert interval([1.0]) is None


def runs(**counts):
    return [{name: {"near": float(seed < counts.get(name, 0))} for name in STATED} for seed in range(5)]


def test_a_reading_that_gives_table_1_is_named():
    literal, other = (RAVINE_READINGS.method(name).label for name in ("literal", "halved"))
    first, second = FINDINGS["ravine-readings"](
        view(RAVINE_READINGS, "paper", {"literal": runs(sghmc=2), "halved": runs(msgld=5, asgld=3)})
    )
    assert first == f"2 readings. With the paper's counts in all five columns: {other}."
    assert f"SGHMC 2 of 5 (“{literal}”)" in second
    assert f"MSGLD 5 of 5 (“{other}”)" in second
    assert "pSGLD 0 of 5, " in second
    none, _ = FINDINGS["ravine-readings"](view(RAVINE_READINGS, "paper", {"literal": runs(), "halved": runs(msgld=5)}))
    assert none.endswith("none.")


def test_a_start_at_the_truth_is_no_reading():
    first, second, third = FINDINGS["ravine-readings"](
        view(RAVINE_READINGS, "paper", {"literal": runs(sghmc=2), "truth": runs(psgld=5)})
    )
    assert first.startswith("1 reading. ")
    assert "pSGLD 0 of 5" in second
    assert "pSGLD 5 of 5" in third


def test_a_reading_of_psgld_within_chance_is_named():
    near = [{"train": 93.8 + 0.1 * k, "test": 90.6 + 0.1 * k} for k in range(3)]
    far = [{"train": 93.8 + 0.1 * k, "test": 80.6 + 0.1 * k} for k in range(3)]
    labels = [LANDSAT_READINGS.method(name).label for name in ("zero", "mean")]
    (found,) = FINDINGS["landsat-readings"](view(LANDSAT_READINGS, "paper", {"zero": near, "mean": far}))
    assert f"p ≥ 0.01): “{labels[0]}”. Nearest: “{labels[0]}”" in found
    (found,) = FINDINGS["landsat-readings"](view(LANDSAT_READINGS, "paper", {"mean": far}))
    assert "p ≥ 0.01): none. Nearest" in found
    assert FINDINGS["landsat-readings"](view(LANDSAT_READINGS, "paper", {})) == []


def test_a_reading_whose_chains_ran_off_is_left_out_and_said():
    near = [{"train": 93.8 + 0.1 * k, "test": 90.6 + 0.1 * k} for k in range(3)]
    off = [{"train": None, "test": None}, *near[1:]]
    label = LANDSAT_READINGS.method("before").label
    first, second = FINDINGS["landsat-readings"](view(LANDSAT_READINGS, "paper", {"zero": near, "before": off}))
    assert first.startswith("1 reading. ")
    assert second == f"Left out, for chains ran off to infinity: “{label}” (1 of 3 runs)."
    (only,) = FINDINGS["landsat-readings"](view(LANDSAT_READINGS, "paper", {"before": [off[0]]}))
    assert only == f"Left out, for chains ran off to infinity: “{label}” (1 of 1 runs)."
