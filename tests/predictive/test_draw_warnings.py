"""Draws that hardly differ are named; healthy ones are not, however narrow their posterior."""

from __future__ import annotations

import importlib

import pytest
import torch
from predict_models import Regression, randn, seeded
from torch import nn

import langevin as lv
from langevin.nn.predictive.averages import effective_draws

PREDICT = importlib.import_module("langevin.nn.predictive.predict")  # the attribute of the package is the function
EXACT = Regression()
X = randn(6, 3, seed=9, dtype=torch.float64)


def correlated(num, rho, seed):
    """Return draws of the posterior as a stationary AR(1) chain."""
    noise, root = randn(num, 4, seed=seed, dtype=torch.float64), torch.linalg.cholesky(EXACT.covariance)
    state, draws = noise[0], []
    for fresh in noise:
        state = rho * state + (1 - rho**2) ** 0.5 * fresh
        draws.append(state)
    return EXACT.mean + torch.stack(draws) @ root.T


def found_warnings(draws, x=X):
    return lv.predict(EXACT.posterior, draws, x).warnings


def test_the_same_draw_again_and_again_is_named():
    (sentence,) = found_warnings(EXACT.draws(1).repeat(5, 1))
    assert sentence.startswith("the same draw 5 times")
    with pytest.warns(lv.TrustWarning, match="predict: the same draw 5 times"):
        found_warnings(EXACT.draws(1).repeat(5, 1))


def test_a_strongly_autocorrelated_chain_is_named_with_its_effective_draws():
    (sentence,) = found_warnings(correlated(200, 0.999, seed=5))
    assert sentence.startswith("draws that hardly differ")
    walk = EXACT.mean + 1e-9 * randn(100, 4, seed=6, dtype=torch.float64).cumsum(0)  # a cold chain that has just begun
    assert found_warnings(walk)[0].startswith("draws that hardly differ")


def test_healthy_draws_are_not_named():
    """Banks of 2 to 400 independent or mildly correlated draws, 20 of each: of no output a word."""
    one = X[:1]  # a single row is the hardest case: nothing averages out
    for num in (2, 5, 10, 20, 30, 100, 400):
        for seed in range(20):
            assert found_warnings(EXACT.draws(num, seed=100 + seed), one) == ()
    assert found_warnings(correlated(400, 0.8, seed=7)) == ()
    assert found_warnings(EXACT.draws(1)) == ()


def test_a_narrow_posterior_is_not_named():
    """A million times as many data: predictions agree to seven digits, and are none the worse."""
    draws = EXACT.mean + 1e-7 * (EXACT.draws(50) - EXACT.mean)
    assert found_warnings(draws) == ()


@pytest.mark.parametrize("at_once", [1, 3, 100])
def test_neighbours_are_compared_across_draws_that_are_evaluated_together(monkeypatch, at_once):
    seen = []
    monkeypatch.setattr("langevin.nn.predictive.draws._DRAWS_AT_ONCE", at_once)
    monkeypatch.setattr(PREDICT, "draw_warnings", lambda *sums: (seen.append(sums), ())[1])
    draws = EXACT.draws(10)
    lv.predict(EXACT.posterior, draws, X, batch_size=4)
    values = draws @ torch.cat([X, torch.ones(6, 1, dtype=torch.float64)], 1).T
    ((_, spread, jumps, num),) = seen
    assert spread == pytest.approx(float((values - values.mean(0)).square().sum()))
    assert jumps == pytest.approx(float(values.diff(dim=0).square().sum()))
    assert num == 10


def test_an_ensemble_and_modules_in_float32_are_not_named():
    models = [seeded(lambda: nn.Linear(3, 2), seed) for seed in range(5)]
    assert lv.predict(None, models, X.float(), likelihood="categorical").warnings == ()


def test_predictions_that_are_not_finite_are_named():
    x = X.clone()
    x[3, 1] = torch.nan
    (sentence,) = found_warnings(EXACT.draws(20), x)
    assert sentence.startswith("not finite: the predictions of 1 of 6 rows, row 3 the first")


def test_effective_draws_of_an_autoregressive_chain():
    """The exact one is n (1 - rho) / (1 + rho); 5 standard errors of 1 - rho, which has sqrt((1 - rho^2) / n)."""
    num = 100_000
    for rho in (0.0, 0.5, 0.9):
        chain = randn(num, seed=8, dtype=torch.float64).tolist()
        for k in range(1, num):
            chain[k] = rho * chain[k - 1] + (1 - rho**2) ** 0.5 * chain[k]
        values = torch.tensor(chain, dtype=torch.float64)
        found = effective_draws(float((values - values.mean()).square().sum()), float(values.diff().square().sum()), num)
        error = ((1 - rho**2) / num) ** 0.5
        low, high = (num * (1 - r) / (1 + r) for r in (rho + 5 * error, rho - 5 * error))
        assert low < found < min(high, num) + 1e-6
