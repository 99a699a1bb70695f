"""The regressor in the runner: cells on tables of the test's own, checked against numbers computed another way."""

from __future__ import annotations

import json
import math
import re
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from langevin_paper.experiments.tables import PUBLISHED, TABLES, UCI
from langevin_paper.figures import View
from langevin_paper.findings import FINDINGS
from langevin_paper.record import Record, read_records
from langevin_paper.registry import EXPERIMENTS
from langevin_paper.tabular import digest, load_regression
from scipy.stats import norm

from langevin.diagnostics.trust import TrustWarning
from langevin.tabular import LangevinRegressor

DOCS = Path(__file__).parents[2] / "docs"
UNIT = 50.0  # of y, so that a forgotten change of units is seen


@pytest.fixture
def table(tmp_path, monkeypatch):
    """Write a table where the runner looks for it; return its arrays, and a function that makes a row of it."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 3))
    arrays = {"X": x, "y": 300 + UNIT * (x[:, 0] + 0.3 * rng.normal(size=120))}
    for k in range(2):
        rows = rng.permutation(120)
        arrays |= {f"train_{k}": rows[:90], f"test_{k}": rows[90:]}
    (tmp_path / "uci").mkdir()
    np.savez(tmp_path / "uci" / "own.npz", **arrays)
    monkeypatch.setenv("LANGEVIN_DATA", str(tmp_path))
    return arrays, lambda method: replace(method, settings={**method.settings, "file": "own", "sha256": digest(arrays)})


def by_hand(settings, x, y, x_test, y_test, seed):
    """Return RMSE, both NLL and the coverage from what the estimator predicts, with SciPy's density."""
    words = {name: settings[name] for name in ("noise", "chains", "num_draws", "prior_std", "n_jobs")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TrustWarning)
        model = LangevinRegressor(settings["hidden"], **words, **settings["small"], random_state=seed).fit(x, y)
        mean, std, (lower, upper) = model.predict(x_test, return_std=True, return_interval=0.9)
    densities = []
    for draw in model.draws_.flatten(0, -2):
        with torch.no_grad():
            centre, log_variance = model.posterior_.module(draw)(model.columns_(x_test)).double().numpy().T
        log_variance = 2 * np.log(3.0) - np.logaddexp(0, 2 * np.log(3.0) - log_variance)  # stds from .001 to 3 times that of y
        log_variance = 2 * np.log(1e-3) + np.logaddexp(0, log_variance - 2 * np.log(1e-3))
        law = norm(model.y_mean_ + model.y_std_ * centre, model.y_std_ * np.exp(log_variance / 2))
        densities.append(law.pdf(y_test))
    return {
        "rmse": math.sqrt(np.mean((mean - y_test) ** 2)),
        "nll": -np.log(np.mean(densities, axis=0)).mean(),
        "nll_gaussian": -norm(mean, std).logpdf(y_test).mean(),
        "coverage": 100 * np.mean((lower <= y_test) & (y_test <= upper)),
    }


def test_a_cell_of_uci_is_measured_in_the_units_of_y(table, tmp_path):
    arrays, row = table
    scale, shares = UCI.scale("quick"), []
    found = UCI.run(row(UCI.method("yacht")), scale, range(2), tmp_path, shares.append)
    assert shares == [0.5, 1.0]
    for seed in range(2):
        train, test = arrays[f"train_{seed}"][: scale.settings["rows"]], arrays[f"test_{seed}"]
        x, y = arrays["X"], arrays["y"]
        expected = by_hand(scale.settings, x[train], y[train], x[test], y[test], seed)
        assert {key: found[seed][key] for key in expected} == pytest.approx(expected, rel=1e-4)
        assert found[seed]["rmse"] < 0.9 * UNIT  # less than the spread of y
        assert (found[seed]["rows"], found[seed]["test_rows"]) == (60, 30)
        assert (found[seed]["published_rmse"], found[seed]["published_nll"]) == (0.93, 1.19)


def test_a_cell_of_tables_has_the_split_and_the_units_of_bde(table, tmp_path):
    arrays, row = table
    scale = TABLES.scale("quick")
    scale = replace(scale, settings={**scale.settings, "rows": None})
    found = TABLES.run(row(TABLES.method("airfoil")), scale, range(1, 2), tmp_path, lambda share: None)[1]
    order = np.random.RandomState(0).permutation(120)  # what train_test_split(test_size=0.2, random_state=0) does
    test, train = order[:24], order[24:]
    y = (arrays["y"] - arrays["y"][train].mean()) / arrays["y"][train].std()
    expected = by_hand(scale.settings, arrays["X"][train], y[train], arrays["X"][test], y[test], 1)
    assert {key: found[key] for key in expected} == pytest.approx(expected, rel=1e-4)
    assert (found["rows"], found["test_rows"]) == (96, 24)


def test_a_table_with_other_content_or_none_is_refused(table):
    arrays, _ = table
    data = load_regression("own", digest(arrays))
    assert len(data.splits) == 2
    assert (data.splits[1][0] == arrays["train_1"]).all()
    with pytest.raises(ValueError, match=r"own\.npz needs content with the sum 0123, got"):
        load_regression("own", "0123")
    with pytest.raises(FileNotFoundError, match=r"load_regression\('absent'\) found none of .*uci/absent\.npz"):
        load_regression("absent", "0123")
    changed = arrays | {"y": arrays["y"] + 1e-9}
    assert digest(changed) != digest(arrays)


def record(name, method, seed, **results):
    experiment = EXPERIMENTS[name]
    settings = experiment.settings_of(experiment.method(method), experiment.scale("short"))
    return Record(name, "short", method, seed, "done", settings, results)


def test_findings_say_where_we_are_better_and_where_not():
    records = (
        record("uci", "yacht", 0, rmse=1.0, nll=1.0, nll_gaussian=1.3, coverage=88.0, published_rmse=0.93, published_nll=1.19),
        record("uci", "yacht", 1, rmse=0.8, nll=1.2, nll_gaussian=1.3, coverage=90.0, published_rmse=0.93, published_nll=1.19),
        record("uci", "wine", 0, rmse=0.7, nll=0.99, nll_gaussian=0.9, coverage=95.0, published_rmse=0.633, published_nll=0.97),
    )
    mixture, gaussian, rmse, coverage = FINDINGS["uci"](View(UCI, records, {}))
    assert mixture == "NLL of the mixture below the deep ensemble's on 1 of 2 sets: yacht. Not on wine (0.99 against 0.97)."
    assert gaussian == "NLL of a Gaussian below the deep ensemble's on 1 of 2 sets: wine. Not on yacht (1.3 against 1.19)."
    assert rmse.startswith("RMSE below the deep ensemble's on 1 of 2 sets: yacht.")
    assert coverage == "The 90 % intervals hold 89.0 % (yacht) to 95.0 % (wine) of the test rows."
    (*_, broken) = FINDINGS["uci"](
        View(UCI, (*records, record("uci", "wine", 1, **{**records[-1].results, "nll_gaussian": None})), {})
    )
    assert "no finite NLL: wine (1 of 2)." in broken
    rmse, nll = FINDINGS["tables"](View(TABLES, (record("tables", "airfoil", 0, rmse=0.13, nll_gaussian=-1.0),), {}))
    assert rmse == "airfoil, RMSE 0.1300: below TabPFN v2 (0.1359), ensemble (0.365) and XGBoost (0.2025); not below bde (0.1215)."
    assert nll.endswith("below bde (-0.913), TabPFN v2 (-0.934) and ensemble (0.176).")
    assert FINDINGS["uci"](View(UCI, (), {})) == FINDINGS["tables"](View(TABLES, (), {})) == []


def test_the_committed_records_have_the_settings_of_this_version():
    found = read_records(DOCS / "tables" / "records")
    assert not found.problems
    assert found.records
    for entry in found.records:
        experiment = EXPERIMENTS[entry.experiment]
        settings = experiment.settings_of(experiment.method(entry.method), experiment.scale(entry.scale))
        assert json.dumps(entry.settings, sort_keys=True) == json.dumps(settings, sort_keys=True)
        if entry.is_done:
            rival = "ensemble" if entry.experiment == "uci" else "bde"
            assert (entry.results["published_rmse"], entry.results["published_nll"]) == PUBLISHED[entry.method][rival]


def test_the_code_of_the_page_runs():
    (code,) = re.findall(r"```python\n(.*?)```", (DOCS / "tables.md").read_text(), re.S)
    names: dict[str, object] = {}
    exec(code, names)
    assert names["model"].warnings_ == []
    assert ((names["lower"] < names["mean"]) & (names["mean"] < names["upper"])).mean() > 0.9


def test_the_page_prints_the_tables_of_the_report():
    rows = [line for line in (DOCS / "tables" / "report.md").read_text().splitlines() if line.startswith("| ")]
    page = (DOCS / "tables.md").read_text().splitlines()
    names = {f"| {method.label} |" for experiment in (UCI, TABLES) for method in experiment.methods}
    shown = [line for line in page if any(line.startswith(name) for name in names)]
    assert shown
    assert set(shown) <= set(rows)
