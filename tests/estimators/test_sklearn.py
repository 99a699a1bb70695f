"""The estimators are scikit-learn's, and say what they do not know."""

from __future__ import annotations

import pickle
import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.datasets import load_iris, make_friedman1
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

from langevin.tabular import LangevinClassifier, LangevinRegressor

TINY = {
    "hidden": (8,),
    "chains": 2,
    "num_draws": 3,
    "adam_steps": 200,
    "burn_in": 64,
    "num_steps": 128,
    "n_jobs": 1,
    "prior_std": 1.0,
}
TINY_REGRESSOR = {**TINY, "noise": "predicted"}
WEIGHTS = "draws of chains with other rows are other draws: equal in law, not in bits"
EXPECTED = {"check_sample_weight_equivalence_on_dense_data": WEIGHTS, "check_sample_weight_equivalence_on_sparse_data": WEIGHTS}
RNG = np.random.default_rng(0)
X = RNG.uniform(-2, 2, (150, 2))
Y = np.sin(2 * X[:, 0]) + 0.1 * RNG.normal(size=150) * (1 + (X[:, 1] > 0) * 4)


def regressor(**more):
    return LangevinRegressor(**{**TINY_REGRESSOR, "num_draws": 10, "adam_steps": 1000, "burn_in": 1280, "num_steps": 640, **more})


@pytest.mark.parametrize(
    "estimator", [LangevinRegressor(**TINY_REGRESSOR), LangevinClassifier(**TINY)], ids=["regressor", "classifier"]
)
def test_scikit_learn_accepts_them(estimator):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its own, on what it skips
        check_estimator(estimator, expected_failed_checks=EXPECTED)


@pytest.fixture(scope="module")
def fitted():
    return regressor().fit(X, Y)


def test_noise_that_depends_on_the_row_is_found(fitted):
    mean, std, (lower, upper) = fitted.predict(X, return_std=True, return_interval=0.9)
    assert fitted.score(X, Y) > 0.7
    assert std[X[:, 1] > 0].mean() > 2 * std[X[:, 1] <= 0].mean()
    assert 0.8 < ((lower < Y) & (upper > Y)).mean() < 0.98
    assert (lower < mean).all()
    assert (mean < upper).all()


def test_what_is_far_from_the_data_is_less_sure(fitted):
    _, near = fitted.predict(X, return_std=True)
    _, far = fitted.predict(X + 6, return_std=True)
    assert far.mean() > 2 * near.mean()


@pytest.fixture(scope="module")
def friedman():
    """Few rows and much noise: single draws of a network that may predict any noise said 1e23 for a tenth of the test rows."""
    x, y = make_friedman1(450, noise=1.0, random_state=0)
    return (x[:250], y[:250]), (x[250:], y[250:])


def test_widths_are_sane_for_all_rows(friedman):
    (x, y), (unseen, truth) = friedman
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = regressor(hidden=(16, 16), prior_std=1.0, num_draws=20).fit(x, y)
        mean, std = model.predict(unseen, return_std=True)
    assert std.max() < 3 * y.std()
    nll = 0.5 * np.mean(((truth - mean) / std) ** 2 + np.log(2 * np.pi * std**2))
    assert nll < 0.5 * np.log(2 * np.pi * np.e * y.var())  # better than a Gaussian without inputs


def test_noise_stays_between_its_bounds_for_any_weights(fitted):
    wild = pickle.loads(pickle.dumps(fitted))
    for bias, bound in ((1000.0, 3.0), (-1000.0, 1e-3)):
        wild.draws_[..., -1] = bias  # of the log-variance
        _, std = wild.predict(X, return_std=True)
        noise = wild.y_std_ * bound
        assert std.min() > 0.9 * noise
        assert std.max() < 2 * noise + 2 * Y.std()


def test_the_scales_of_layers_are_found(friedman):
    """Noisy rows ask for small weights."""
    model = regressor(prior_std="auto", hidden=(16, 16)).fit(*friedman[0])
    assert model.prior_std_ == "layers"
    sizes = [10 * 2 * 16 + 16, 16 * 16 + 16]
    first, second, _ = model.draws_.flatten(0, 1).split([*sizes, 34], -1)
    assert max(first.square().mean().sqrt(), second.square().mean().sqrt()) < 0.6
    assert model.posterior_.dim == model.draws_.shape[-1]


def test_the_noise_model_is_the_one_that_predicts_held_out_rows_best(capsys):
    """Errors of Student's t with two degrees of freedom, and Gaussian ones."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(400, 1))
    settings = {"noise": "auto", "adam_steps": 600, "burn_in": 1200, "num_steps": 1200}
    heavy = regressor(**settings, verbose=1).fit(x, x[:, 0] + 0.3 * rng.standard_t(1.5, size=400))
    assert "held-out scores: ('predicted', 1.0) -" in capsys.readouterr().out
    assert heavy.noise_ in ("student_t", "mixture")
    light = regressor(**settings).fit(x, x[:, 0] + 0.3 * rng.normal(size=400))
    assert light.noise_ == "predicted"
    assert regressor(noise="auto").fit(X[:40], Y[:40]).noise_ == "predicted"  # too few rows to compare


def test_many_rows_come_in_minibatches():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(12_000, 3))
    y = x[:, 0] * x[:, 1] + 0.1 * rng.normal(size=12_000)
    model = regressor(hidden=(16, 16), adam_steps=600, burn_in=640, num_steps=320)
    assert model._settings(12_000).batch_size == 1000
    assert model._settings(10_000).batch_size is None
    mean, std = model.fit(x, y).predict(x, return_std=True)
    assert np.mean((mean - y) ** 2) < 0.03
    assert 0.07 < std.mean() < 0.2
    assert not model.warnings_
    assert regressor(batch_size=None)._settings(10**6).batch_size is None
    assert regressor(batch_size=200)._settings(150).batch_size is None


@pytest.mark.slow
def test_a_hundred_thousand_rows_take_minutes():
    """Half the chains and a tenth of the default lengths: a step takes a thousand rows, however many there are."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(100_000, 10))
    y = np.sin(2 * x[:, 0]) + x[:, 1] * x[:, 2] + 0.3 * rng.normal(size=100_000)
    model = LangevinRegressor(chains=5, adam_steps=2000, burn_in=2500, num_steps=2500, n_jobs=1).fit(x, y)
    mean, std = model.predict(x[:2000], return_std=True)
    assert np.mean((mean - y[:2000]) ** 2) < 0.11
    assert 0.27 < std.mean() < 0.36


def test_the_same_seed_gives_the_same_draws_whatever_the_number_of_threads():
    settings = {**TINY_REGRESSOR, "chains": 5}
    one, two = (LangevinRegressor(**{**settings, "n_jobs": jobs}).fit(X, Y) for jobs in (1, 2))
    assert np.array_equal(one.draws_, two.draws_)
    assert one.draws_.shape[0] == 5
    assert not np.array_equal(LangevinRegressor(**settings, random_state=1).fit(X, Y).draws_, one.draws_)


def test_pickles_and_clones(fitted):
    assert np.array_equal(pickle.loads(pickle.dumps(fitted)).predict(X), fitted.predict(X))
    assert clone(fitted).get_params() == fitted.get_params()
    assert not hasattr(clone(fitted), "draws_")


def test_units_of_the_targets_do_not_matter(fitted):
    mean, std = fitted.predict(X, return_std=True)
    other, other_std = regressor().fit(X, 1000 * Y + 7).predict(X, return_std=True)
    assert np.abs(other - (1000 * mean + 7)).max() < 50  # chains that round differently end elsewhere in the same posterior
    assert 0.8 < np.mean(other_std / std) / 1000 < 1.25


def test_a_row_of_weight_zero_is_not_there():
    weights = np.r_[np.ones(100), np.zeros(50)]
    assert np.array_equal(
        regressor(burn_in=128, num_steps=128).fit(X, Y, sample_weight=weights).draws_,
        regressor(burn_in=128, num_steps=128).fit(X[:100], Y[:100], sample_weight=np.ones(100)).draws_,
    )


def test_weights_count_in_the_likelihood():
    """All rows at x = 0: half of them say -1, with weight nine, half say 1."""
    x, y = np.zeros((40, 1)), np.r_[-np.ones(20), np.ones(20)]
    mean = regressor(noise="learned").fit(x, y, sample_weight=np.where(y < 0, 9.0, 1.0)).predict(x[:1])
    assert abs(mean[0] + 0.8) < 0.15


def test_more_rows_move_the_posterior():
    half = X[:, 0] < 0
    model = regressor().fit(X[half], Y[half])
    before = np.mean((model.predict(X[~half]) - Y[~half]) ** 2)
    model.partial_fit(X[~half], Y[~half])
    assert np.mean((model.predict(X[~half]) - Y[~half]) ** 2) < before / 2
    assert np.mean((model.predict(X[half]) - Y[half]) ** 2) < 0.2


def test_pipelines_searches_and_data_frames():
    frame = pd.DataFrame(X, columns=["a", "b"])
    model = make_pipeline(StandardScaler(), LangevinRegressor(**TINY_REGRESSOR))
    search = GridSearchCV(model, {"langevinregressor__prior_std": [0.01, 1.0]}, cv=2).fit(frame, Y)
    assert search.best_params_ == {"langevinregressor__prior_std": 1.0}
    assert LangevinRegressor(**TINY_REGRESSOR).fit(frame, Y).feature_names_in_.tolist() == ["a", "b"]


def test_classes_of_flowers():
    x, y = load_iris(return_X_y=True)
    names = np.array(["setosa", "versicolor", "virginica"])[y]
    model = LangevinClassifier(**{**TINY, "adam_steps": 500, "burn_in": 640, "num_steps": 320})
    assert cross_val_score(model, x, names, cv=3).mean() > 0.92
    probabilities = model.fit(x, names).predict_proba(x)
    assert probabilities.sum(-1) == pytest.approx(np.ones(150))
    assert -np.log(probabilities[range(150), y]).mean() < 0.15


def test_classes_may_come_later():
    x, y = load_iris(return_X_y=True)
    model = LangevinClassifier(**TINY).partial_fit(x[:100], y[:100], classes=[0, 1, 2])
    assert model.partial_fit(x[100:], y[100:]).score(x, y) > 0.9
    with pytest.raises(ValueError, match=r"classes among \[0, 1, 2\], got 7"):
        model.partial_fit(x[:1], [7])


BAD = {
    "chains": (0, r"LangevinRegressor\(chains=.*0"),
    "hidden": (3, r"hidden=.*a tuple of layer sizes, got 3"),
    "noise": ("white", r"one of \['auto', .*'mixture'.*, got 'white'"),
    "prior_std": (-1.0, r"prior_std=.*> 0, or \"auto\", got -1\.0"),
    "batch_size": ("small", r"batch_size=.*'small'"),
    "burn_in": ("long", r"burn_in=.*'long'"),
    "random_state": (-1, r"random_state=.*-1"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_settings_are_refused(name):
    value, words = BAD[name]
    with pytest.raises((TypeError, ValueError), match=words):
        LangevinRegressor(**{**TINY_REGRESSOR, name: value}).fit(X, Y)


def test_nothing_that_counts_is_refused():
    with pytest.raises(ValueError, match="at least one"):
        LangevinRegressor(**TINY_REGRESSOR).fit(X, Y, sample_weight=np.zeros(150))
