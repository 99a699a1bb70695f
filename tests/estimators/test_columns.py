"""Columns of every type become inputs of the network, and what cannot is refused in plain words."""

from __future__ import annotations

import datetime
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.model_selection import GridSearchCV, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from test_sklearn import TINY, TINY_REGRESSOR

import langevin as lv
from langevin.tabular import LangevinClassifier, LangevinRegressor
from langevin.tabular.columns import Columns

WIDTH = 12**0.5


def frame(rows=60, seed=0):
    """A table with a column of each type, and y that depends on most of them."""
    rng = np.random.default_rng(seed)
    size = rng.normal(size=rows)
    colour = rng.choice(["red", "green", "blue"], rows)
    is_new = rng.random(rows) < 0.5
    day = pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 700, rows), "D")
    city = rng.choice([f"city {k}" for k in range(30)], rows)
    y = size + 2.0 * (colour == "red") + is_new + 0.1 * rng.normal(size=rows)
    table = pd.DataFrame({"size": size, "colour": pd.Categorical(colour), "is_new": is_new, "day": day, "city": city, "one": 1.0})
    table.loc[::7, "size"] = np.nan
    table.loc[::11, "colour"] = None
    table.loc[::13, "day"] = pd.NaT
    return table, y


def test_columns_are_standardised_and_ranked():
    x = np.array([[0.0, 1.0, 5.0], [1.0, 10.0, 5.0], [0.0, 100.0, 5.0], [1.0, 1000.0, 5.0]])
    columns = Columns(x, np.zeros(4))
    assert columns.get_feature_names_out().tolist() == ["x0", "x1", "rank(x1)"]  # x2 is constant, x0 has two values
    inputs = columns(x, torch.float64)
    assert inputs[:, :2].mean(0).abs().max() < 1e-12
    assert inputs[:, :2].square().mean(0) == pytest.approx(np.ones(2))
    assert inputs[:, 2].tolist() == pytest.approx([WIDTH * (k / 3 - 0.5) for k in range(4)])
    assert columns(10 * x + 1e6)[:, 2].tolist() == pytest.approx([WIDTH / 2] * 4)  # beyond all values
    assert torch.equal(columns.training_inputs(), columns(x))


def test_weights_count_rows_again():
    x = np.array([[0.0], [1.0], [5.0]])
    weighted, twice = Columns(x, np.zeros(3), weights=np.array([1.0, 1.0, 2.0])), Columns(x[[0, 1, 2, 2]], np.zeros(4))
    torch.testing.assert_close(weighted(x)[:, 0], twice(x)[:, 0])


def test_every_type_of_column_is_encoded():
    table, y = frame()
    columns = Columns(table, y)
    names = columns.get_feature_names_out().tolist()
    assert names[0] == "size"
    assert {
        "is_new",
        "missing(size)",
        "day",
        "sin(day, year)",
        "cos(day, week)",
        "mean(city)",
        "colour=red",
        "colour=missing",
    } <= set(names)
    assert not any("one" in name or "(day, day)" in name for name in names)  # constant columns
    inputs = columns(table)
    assert inputs.shape == (60, len(names))
    assert torch.isfinite(inputs).all()
    by_name = dict(zip(names, inputs.T, strict=True))
    assert (by_name["missing(size)"] > 0).nonzero().flatten().tolist() == list(range(0, 60, 7))
    known = (table["colour"] == "red").to_numpy()
    assert by_name["colour=red"].numpy().tolist() == known.astype(float).tolist()
    again = Columns(table.astype({"colour": object}), y)(table.astype({"colour": object}))
    assert torch.equal(again, inputs)  # declared or not, text is a category


def test_a_category_with_many_levels_does_not_see_its_own_target():
    """Of pure noise, encodings of the training set must not predict y; those of other rows need not be the same."""
    rng = np.random.default_rng(0)
    table, y = pd.DataFrame({"id": [f"{k % 150}" for k in range(300)]}), rng.normal(size=300)
    columns = Columns(table, y)
    inside = columns.training_inputs()[:, 0].numpy()
    assert abs(np.corrcoef(inside, y)[0, 1]) < 0.2
    assert np.corrcoef(columns(table)[:, 0].numpy(), y)[0, 1] > 0.5
    labels = Columns(table, (y > 0).astype(int), "binary")
    assert labels.get_feature_names_out().tolist() == ["mean(id)", "rank(mean(id))"]
    several = Columns(table, np.stack([y, y], 1))  # no means of several targets: the most frequent levels
    assert len(several.get_feature_names_out()) <= 21


def test_unseen_levels_and_missing_values_of_later_rows_are_taken():
    table, y = frame()
    columns = Columns(table.iloc[:, :5].assign(size=np.arange(60.0)), y)
    later = table.iloc[:3, :5].assign(colour=["violet", "red", None], city="elsewhere", size=[np.nan, 1.0, 2.0])
    inputs = dict(zip(columns.get_feature_names_out(), columns(later).T, strict=True))
    colours = torch.stack([values for name, values in inputs.items() if name.startswith("colour=")])
    assert colours.sum(0).tolist() == [0.0, 1.0, 1.0]
    assert all(torch.isfinite(values).all() for values in inputs.values())


def test_levels_are_the_same_with_and_without_missing_values():
    whole = pd.DataFrame({"k": pd.Categorical([1, 2, 3, 1])})
    with_gaps = pd.DataFrame({"k": pd.Categorical([1.0, 2.0, np.nan, 1.0])})
    assert Columns(whole, np.zeros(4))(with_gaps).tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 0], [1, 0, 0]]


def test_objects_nullable_numbers_and_dates():
    table = pd.DataFrame(
        {
            "nullable": pd.array([1, None, 3, 4], dtype="Int64"),
            "flag": pd.array([True, False, None, True], dtype="boolean"),
            "date": [datetime.date(2024, 1, k) for k in (1, 2, 3, 4)],
            "mixed": [1, 2.5, None, True],
        }
    )
    names = Columns(table, np.zeros(4)).get_feature_names_out().tolist()
    assert {"nullable", "missing(nullable)", "flag", "date", "sin(date, week)", "mixed", "missing(mixed)"} <= set(names)


def test_infinite_values_and_text_among_numbers_are_refused():
    table, y = frame()
    model = LangevinRegressor(**TINY_REGRESSOR)
    with pytest.raises(ValueError, match="Input X contains infinity"):
        model.fit(table.assign(size=np.inf), y)
    with pytest.raises(ValueError, match="Input y contains NaN"):
        model.fit(table, np.where(y > 2, np.nan, y))
    model.fit(table, y)
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(table.rename(columns={"size": "sise"}))
    with pytest.raises(ValueError, match="X needs numbers in column 'size': could not convert string to float: 'big'"):
        model.predict(table.assign(size="big"))
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        model.fit(table, y[:-1])
    with pytest.raises(ValueError, match="0 sample"):
        model.fit(table.head(0), [])
    with pytest.raises(ValueError, match=r"at least two classes, got \"1 class: \['a'\]"):
        LangevinClassifier(**TINY).fit(table, ["a"] * 60)


def test_a_frame_is_fitted_as_it_is():
    table, y = frame(300)
    model = LangevinRegressor(
        **{**TINY_REGRESSOR, "hidden": (16,), "adam_steps": 800, "burn_in": 640, "num_steps": 640, "num_draws": 10}
    )
    unseen, truth = frame(200, seed=1)
    assert model.fit(table, y).score(unseen, truth) > 0.7
    assert model.n_features_in_ == 6
    assert len(model.get_feature_names_out()) == model.n_inputs_
    red = model.predict(unseen.assign(colour="red")) - model.predict(unseen.assign(colour="blue"))
    assert 1.5 < red.mean() < 2.5
    weights = np.r_[np.zeros(100), np.ones(200)]  # rows of a frame are left out by position
    shuffled = table.sample(frac=1, random_state=0)
    parts = clone(model).fit(shuffled, y, sample_weight=weights), clone(model).fit(shuffled.iloc[100:], y[100:], np.ones(200))
    assert np.array_equal(parts[0].draws_, parts[1].draws_)


@pytest.mark.parametrize("shape", [(20, 3), (40, 300), (30, 0)])
def test_tiny_wide_and_constant_tables(shape):
    rows, columns = shape
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, columns)) if columns else np.ones((rows, 2))
    y = rng.normal(size=rows)
    model = LangevinRegressor(**TINY_REGRESSOR).fit(x, y)
    mean, std = model.predict(x, return_std=True)
    assert np.isfinite(mean).all()
    assert (std > 0).all()


def test_a_constant_target_is_said_and_predicted():
    x = np.linspace(-1, 1, 40)[:, None]
    model = LangevinRegressor(**{**TINY_REGRESSOR, "adam_steps": 600})
    with pytest.warns(UserWarning, match="y is constant, and so are predictions"):
        model.fit(x, np.full(40, 7.0))
    assert np.abs(model.predict(x) - 7).max() < 0.5


def test_many_classes_and_rare_ones():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 2))
    y = np.minimum((10 * (x[:, 0] + 3)).astype(int), 59)  # some sixty classes, some with one row
    model = LangevinClassifier(**{**TINY, "adam_steps": 500}).fit(x, y)
    assert model.predict_proba(x).shape == (400, len(np.unique(y)))
    rare = LangevinClassifier(**{**TINY, "adam_steps": 500}).fit(x, (x[:, 0] > 2).astype(int))
    found = rare.predict_proba(x)[:, 1]
    assert found.mean() == pytest.approx((x[:, 0] > 2).mean(), abs=0.02)


def test_pipelines_of_frames_searches_and_routing():
    table, y = frame()
    small = LangevinRegressor(**{**TINY_REGRESSOR, "burn_in": 64, "num_steps": 64})
    scaled = make_column_transformer((StandardScaler(), ["size"]), remainder="passthrough", verbose_feature_names_out=False)
    model = make_pipeline(scaled.set_output(transform="pandas"), small).fit(table, y)
    assert "colour=red" in model[-1].get_feature_names_out()
    search = GridSearchCV(small, {"prior_std": [0.5, "auto"]}, cv=2, n_jobs=2).fit(table, y)
    assert set(search.best_params_) == {"prior_std"}
    import sklearn

    with sklearn.config_context(enable_metadata_routing=True), warnings.catch_warnings():
        routed = clone(small).set_fit_request(sample_weight=True).set_score_request(sample_weight=False)
        found = cross_validate(routed, table, y, cv=2, params={"sample_weight": np.ones(60)}, error_score="raise")
    assert len(found["test_score"]) == 2
    assert lv.crps(small.fit(table, y).sample_y(table, 50), y).shape == (60,)
