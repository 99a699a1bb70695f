"""The estimators beside others on many tables: protocols, scores and ranks, at a tiny scale."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from langevin_paper.experiments.scoring import SCORING, SCORING_CLASSES, _of_classes, _of_numbers
from langevin_paper.figures import View
from langevin_paper.findings import FINDINGS
from langevin_paper.record import Record
from langevin_paper.scoring.models import Forecast, _of_gaussians
from langevin_paper.scoring.tables import CLASSES, NUMBERS, load
from scipy.stats import norm
from sklearn.model_selection import KFold


def test_there_are_as_many_tables_as_the_protocol_asks_for():
    assert len(SCORING.methods) >= 12
    assert len(SCORING_CLASSES.methods) >= 8


@pytest.mark.parametrize("name", [*NUMBERS, *CLASSES])
def test_a_table_has_at_most_the_rows_of_the_scale_and_is_the_same_again(name):
    x, y = load(name, 100, 42)
    again, _ = load(name, 100, 42)
    assert len(x) == len(y) <= 150
    assert x.equals(again) if hasattr(x, "equals") else np.array_equal(x, again)


def test_a_cell_scores_every_model_on_the_fold_of_scoringbench(tmp_path):
    shares = []
    found = SCORING.run(SCORING.method("sales"), SCORING.scale("quick"), range(1, 2), tmp_path, shares.append)[1]
    x, _ = load("sales", 80, 42)
    train, _ = list(KFold(5, shuffle=True, random_state=42).split(x))[1]
    assert found["rows"] == len(train) == 64
    assert {"langevin", "boosting", "gp", "ensemble"} <= set(found["nll"])
    for key in ("nll", "crps", "coverage", "rmse", "seconds"):
        assert set(found[key]) == set(found["nll"])
        assert np.isfinite(list(found[key].values())).all()
    assert shares[-1] == 1.0


def test_a_cell_of_classes_scores_every_model(tmp_path):
    scale = SCORING_CLASSES.scale("quick")
    found = SCORING_CLASSES.run(SCORING_CLASSES.method("moons"), scale, range(1), tmp_path, lambda share: None)[0]
    assert set(found["nll"]) == {"langevin", "boosting", "gp", "ensemble"}
    assert found["accuracy"]["gp"] > 70
    few = replace(scale, settings={**scale.settings, "gp_rows": 10})
    found = SCORING_CLASSES.run(SCORING_CLASSES.method("moons"), few, range(1), tmp_path, lambda share: None)[0]
    assert "gp" not in found["nll"]


def test_scores_are_those_of_the_distribution():
    y = np.array([0.3, -1.0])
    found = _of_gaussians(np.zeros((1, 2)), np.ones((1, 2)), y, {"samples": 400})
    assert (found.lower, found.upper) == (pytest.approx(norm.ppf(0.05)), pytest.approx(norm.ppf(0.95)))
    measured = _of_numbers(found, y)
    exact = y * (2 * norm.cdf(y) - 1) + 2 * norm.pdf(y) - np.pi**-0.5
    assert measured["crps"] == pytest.approx(exact.mean(), abs=2e-3)
    assert measured["nll"] == pytest.approx(-norm.logpdf(y).mean())
    assert measured["rmse"] == pytest.approx(np.sqrt(np.mean(y**2)))
    outside = Forecast(found.mean, found.log_density, found.samples, np.array([0.0, 0.0]), np.array([1.0, 1.0]))
    assert _of_numbers(outside, y)["coverage"] == 50
    classes = _of_classes(np.array([[0.8, 0.2], [0.4, 0.6]]), np.array(["a", "b"]), np.array(["a", "a"]))
    assert classes == pytest.approx({"nll": -np.log([0.8, 0.4]).mean(), "brier": (0.08 + 0.72) / 2, "accuracy": 50})


def test_findings_rank_models_over_tables():
    def record(method, seed, **results):
        settings = SCORING.settings_of(SCORING.method(method), SCORING.scale("short"))
        return Record("scoring", "short", method, seed, "done", settings, results)

    records = (
        record("yacht", 0, nll={"langevin": 1.0, "boosting": 2.0, "gp": 0.5}, coverage={"langevin": 90.0, "boosting": 80.0}),
        record("yacht", 1, nll={"langevin": 2.0, "boosting": 2.0, "gp": 0.5}, coverage={"langevin": 92.0, "boosting": 80.0}),
        record("boston", 0, nll={"langevin": 3.0, "boosting": 2.0}, coverage={"langevin": 88.0, "boosting": 80.0}),
    )
    rank, coverage = FINDINGS["scoring"](View(SCORING, records, {}))
    assert rank == "Mean rank by NLL over 2 tables, of models that ran on all: langevin 1.50, boosting 1.50."
    assert coverage == "The 90 % intervals hold, on average: langevin 90.0 %, boosting 80.0 %."
    assert FINDINGS["scoring"](View(SCORING, (), {})) == []
