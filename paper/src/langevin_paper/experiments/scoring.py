"""The estimators on many tables beside others, in five folds, in the manner of ScoringBench: `scoring` and `scoring-classes`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from langevin.nn.predictive import crps
from langevin_paper.scoring.models import CLASSIFIERS, REGRESSORS
from langevin_paper.scoring.tables import CLASSES, NUMBERS, UCI, Array, load
from langevin_paper.spec import Column, Experiment, Method, Progress, Results, Scale, Setting, Table

__all__ = ["SCORING", "SCORING_CLASSES"]


def run_numbers(method: Method, scale: Scale, seeds: range, folder: Path, progress: Progress) -> Results:
    """Run a cell: seed k is fold k of a table, for all models."""
    return _run(method, scale, seeds, progress, of_classes=False)


def run_classes(method: Method, scale: Scale, seeds: range, folder: Path, progress: Progress) -> Results:
    """Run a cell: seed k is fold k of a table, for all models."""
    return _run(method, scale, seeds, progress, of_classes=True)


def _run(method: Method, scale: Scale, seeds: range, progress: Progress, *, of_classes: bool) -> Results:
    from sklearn.model_selection import KFold, StratifiedKFold

    settings = scale.settings
    x, y = load(method.settings["table"], settings["rows"], settings["seed"])
    kind = StratifiedKFold if of_classes else KFold
    folds = list(kind(settings["folds"], shuffle=True, random_state=settings["seed"]).split(np.zeros(len(y)), y))
    models: dict[str, Any] = {**(CLASSIFIERS if of_classes else REGRESSORS)}
    found: Results = {}
    for done, seed in enumerate(seeds):
        train, test = folds[seed]
        parts = _rows(x, train), y[train], _rows(x, test)
        result: dict[str, Any] = {"rows": len(train), "columns": x.shape[1]}
        for count, (name, model) in enumerate(models.items()):
            start = time.perf_counter()
            if of_classes:
                forecast = model(*parts, seed, settings)
                measured = None if forecast is None else _of_classes(forecast, np.unique(y[train]), y[test])
            else:
                forecast = model(*parts, y[test], seed, settings)
                measured = None if forecast is None else _of_numbers(forecast, y[test])
            if measured is not None:
                measured["seconds"] = time.perf_counter() - start
                for key, value in measured.items():
                    result.setdefault(key, {})[name] = value
            progress((done + (count + 1) / len(models)) / len(seeds))
        found[seed] = result
    return found


def _rows(x: Any, rows: Array) -> Any:
    return x.iloc[rows] if hasattr(x, "iloc") else x[rows]


def _of_numbers(forecast: Any, y: Array) -> dict[str, float]:
    """Return the scores of a forecast of numbers, in the units of y."""
    inside = (forecast.lower <= y) & (y <= forecast.upper)
    return {
        "nll": -float(forecast.log_density.mean()),
        "crps": float(crps(forecast.samples, y).mean()),
        "coverage": 100 * float(inside.mean()),
        "rmse": float(np.sqrt(np.mean((forecast.mean - y) ** 2))),
    }


def _of_classes(probabilities: Array, classes: Array, y: Array) -> dict[str, float]:
    """Return the scores of probabilities, (n, classes)."""
    place = np.searchsorted(classes, y)
    own = probabilities[np.arange(len(y)), place]
    hits = (np.arange(len(classes)) == place[:, None]).astype(float)
    return {
        "nll": -float(np.log(own.clip(1e-15)).mean()),
        "brier": float(((probabilities - hits) ** 2).sum(-1).mean()),
        "accuracy": 100 * float((probabilities.argmax(-1) == place).mean()),
    }


LABELS = {"langevin": "langevin", "boosting": "boosting", "gp": "Gaussian process", "ensemble": "ensemble", "ngboost": "NGBoost"}


def _table(title: str, key: str, digits: int, models: Any, note: str = "") -> Table:
    return Table(title, tuple(Column(f"{key}/{name}", LABELS[name], digits) for name in models), note=note)


ENSEMBLE = {"members": 5, "hidden": (50, 50), "lr": 0.01, "weight_decay": 0.1, "steps": 1000}
COMMON: dict[str, Any] = {"seed": 42, "folds": 5, "samples": 400, "ensemble": ENSEMBLE, "boosting": {}, "ngboost": {}}
TINY: dict[str, Any] = {"chains": 2, "num_draws": 4, "adam_steps": 100, "burn_in": 128, "num_steps": 128, "n_jobs": 1}
QUICK: dict[str, Any] = {
    "rows": 80, "gp_rows": 64, "samples": 40, "langevin": TINY, "boosting": {"max_iter": 5},
    "ensemble": {**ENSEMBLE, "members": 2, "steps": 50}, "ngboost": {"n_estimators": 5},
}  # fmt: skip
SCALES = (
    Scale("quick", {**COMMON, **QUICK}, num_seeds=2, seconds=4),
    Scale("short", {**COMMON, "rows": 1000, "gp_rows": 800, "langevin": {"n_jobs": 1}}, num_seeds=5, seconds=60),
    Scale("paper", {**COMMON, "rows": 3000, "gp_rows": 1000, "langevin": {"n_jobs": 2}}, num_seeds=5, seconds=120),
)
ABOUT = (
    "in five folds (seed 42) of at most 3,000 rows, with its defaults, beside others on the same folds. Tables are scikit-learn's, "
    "files of the UCI repository from the folder LANGEVIN_DATA, and generated ones with categories, times and missing values."
)
SETTINGS = (
    Setting("boosting", "scikit-learn's HistGradientBoosting with its defaults; for numbers at ten quantiles, .05 to .95, which "
            "give the CRPS by their mean pinball loss; its NLL is that of the Gaussian through the outer two, at the mean", "ours"),
    Setting("Gaussian process", "scikit-learn's, with a length scale per input (one for classes), up to 800 or 1,000 rows", "ours"),
    Setting("ensemble", "five networks of 50 and 50 units, 1,000 steps of AdamW over all rows", "ours"),
    Setting("NGBoost", "with its defaults, where it is installed; not for classes", "ours"),
    Setting("encoding", "networks, Gaussian processes and NGBoost have the inputs of `LangevinRegressor.columns_`", "ours"),
    Setting("seconds", "fit and predict, wall clock", "ours"),
)  # fmt: skip


def _methods(names: Any) -> tuple[Method, ...]:
    return tuple(Method(name, name, "msgld", {"table": name}, ("*",)) for name in names)


SCORING = Experiment(
    name="scoring",
    title="Sixteen tables with numbers to predict",
    section="Not in the paper: tables",
    about=f"`LangevinRegressor` {ABOUT}",
    methods=_methods([*UCI, *NUMBERS]),
    scales=SCALES,
    run=run_numbers,
    tables=(
        _table("Negative log-likelihood (NLL) of the test rows, in the units of y", "nll", 3, REGRESSORS),
        _table("CRPS, in the units of y", "crps", 4, REGRESSORS),
        _table("Test rows in their 90 % intervals, %", "coverage", 1, REGRESSORS),
        _table("RMSE, in the units of y", "rmse", 4, REGRESSORS),
        _table("Seconds", "seconds", 1, REGRESSORS),
    ),
    settings=SETTINGS,
    seeds_together=False,
)

SCORING_CLASSES = Experiment(
    name="scoring-classes",
    title="Eight tables with classes to predict",
    section="Not in the paper: tables",
    about=f"`LangevinClassifier` {ABOUT}",
    methods=_methods(CLASSES),
    scales=SCALES,
    run=run_classes,
    tables=(
        _table("Negative log-likelihood (NLL) of the test rows", "nll", 3, CLASSIFIERS),
        _table("Brier score, summed over classes", "brier", 4, CLASSIFIERS),
        _table("Accuracy, %", "accuracy", 1, CLASSIFIERS),
        _table("Seconds", "seconds", 1, CLASSIFIERS),
    ),
    settings=SETTINGS,
    seeds_together=False,
)
