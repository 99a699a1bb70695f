"""Credible intervals are quantiles of the mixture: against SciPy's root finder, and by counting."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.optimize
import scipy.stats
import torch
from predict_models import randn

from langevin.nn.predictive.prediction import quantile
from langevin.targets import likelihoods

OUTPUTS = 3 * randn(5, 4, 2, seed=1, dtype=torch.float64)  # five draws, four rows, mean and log-variance
PROBABILITIES = [0.001, 0.05, 0.5, 0.9, 0.999]


def by_scipy(cdfs, probability, low=-1e4, high=1e4):
    return scipy.optimize.brentq(lambda value: np.mean([cdf(value) for cdf in cdfs]) - probability, low, high, xtol=1e-12)


@pytest.mark.parametrize("probability", PROBABILITIES)
def test_a_gaussian_mixture_has_the_quantiles_of_scipy(probability):
    found = quantile("test", likelihoods.gaussian("predicted"), OUTPUTS, probability)
    for row in range(4):
        parts = [scipy.stats.norm(mean, np.exp(log / 2)).cdf for mean, log in OUTPUTS[:, row].tolist()]
        assert found[row].item() == pytest.approx(by_scipy(parts, probability), rel=1e-7, abs=3e-7)


@pytest.mark.parametrize("df", [1.0, 5.0])
def test_tails_of_a_student_mixture_are_found_with_and_without_a_variance(df):
    for probability in PROBABILITIES:
        found = quantile("test", likelihoods.student_t(df, "predicted"), OUTPUTS, probability)
        for row in range(4):
            parts = [scipy.stats.t(df, mean, np.exp(log / 2)).cdf for mean, log in OUTPUTS[:, row].tolist()]
            assert found[row].item() == pytest.approx(by_scipy(parts, probability, -1e6, 1e6), rel=1e-7, abs=3e-7)


@pytest.mark.parametrize("probability", PROBABILITIES)
def test_counts_have_the_first_whole_number_that_is_enough(probability):
    rates = OUTPUTS[..., 0]
    found = quantile("test", likelihoods.poisson(), rates, probability)
    counts = np.arange(0, 100_000)
    for row in range(4):
        below = np.mean([scipy.stats.poisson(np.exp(rate)).cdf(counts) for rate in rates[:, row].tolist()], 0)
        assert found[row].item() == counts[np.argmax(below >= probability)]


def test_several_targets_a_row_and_many_rows_are_each_their_own(monkeypatch):
    outputs = randn(7, 5, 3, seed=2, dtype=torch.float64)
    whole = quantile("test", likelihoods.gaussian(0.3), outputs, 0.8)
    monkeypatch.setattr("langevin.nn.predictive.prediction._NUMBERS_AT_ONCE", 1)
    torch.testing.assert_close(quantile("test", likelihoods.gaussian(0.3), outputs, 0.8), whole)
    one = quantile("test", likelihoods.gaussian(0.3), outputs[:, 2, 1:2], 0.8)
    torch.testing.assert_close(whole[2, 1:2], one)


def test_two_far_modes_have_no_gaussian_interval():
    """A mixture of N(-10, .01) and N(10, .01): 90 percent lie in it, and its ends are in the modes."""
    outputs = torch.tensor([[-10.0], [10.0]], dtype=torch.float64)
    low, high = (quantile("test", likelihoods.gaussian(0.1), outputs, p).item() for p in (0.05, 0.95))
    exact = scipy.stats.norm(10, 0.1).ppf(0.9)
    assert (low, high) == (pytest.approx(-exact), pytest.approx(exact))


def test_what_is_not_finite_has_no_quantile_and_the_others_have():
    outputs = torch.tensor([[0.0, torch.nan], [1.0, 2.0]], dtype=torch.float64)
    found = quantile("test", likelihoods.gaussian(1.0), outputs, 0.5)
    assert found[0].item() == pytest.approx(0.5)
    assert torch.isnan(found[1])
