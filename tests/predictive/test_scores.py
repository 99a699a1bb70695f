"""CRPS and interval score, against `properscoring` 0.1, closed forms and what makes a score proper."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import norm

import langevin as lv


def test_crps_is_that_of_properscoring():
    """``properscoring.crps_ensemble(y, samples)`` of these numbers, run once outside the tests."""
    rng = np.random.RandomState(7)
    samples = rng.standard_normal((4, 25)).round(3) * np.array([[1], [2], [0.1], [5]])
    found = lv.crps(samples, [0.2, -3.0, 1.0, 40.0])
    assert found.tolist() == pytest.approx([0.1987328, 1.4541792, 0.93960192, 36.683744], rel=1e-12)


def test_crps_of_many_samples_is_that_of_their_gaussian():
    samples = norm.ppf((np.arange(4000) + 0.5) / 4000)[None].repeat(3, 0)
    y = np.array([-1.0, 0.0, 2.5])
    exact = y * (2 * norm.cdf(y) - 1) + 2 * norm.pdf(y) - np.pi**-0.5  # Gneiting and Raftery (2007)
    assert lv.crps(samples, y).tolist() == pytest.approx(exact, abs=1e-3)


def test_crps_takes_several_targets_and_is_in_units_of_y():
    rng = np.random.default_rng(0)
    samples, y = (torch.as_tensor(rng.normal(size=shape)) for shape in ((5, 2, 7), (5, 2)))
    assert lv.crps(samples, y).shape == (5, 2)
    torch.testing.assert_close(lv.crps(10 * samples + 3, 10 * y + 3), 10 * lv.crps(samples, y))


def test_the_interval_score_is_smallest_at_the_quantiles():
    y = torch.as_tensor(norm.ppf((np.arange(10_000) + 0.5) / 10_000))

    def score(width):
        ends = torch.full_like(y, width)
        return float(lv.nn.predictive.interval_score(-ends, ends, y, 0.9).mean())

    best = norm.ppf(0.95)
    assert score(best) < min(score(0.9 * best), score(1.1 * best))
    assert score(best) == pytest.approx(2 * norm.pdf(best) / 0.05, rel=1e-3)  # 2 z + (2 / .1) E[(|y| - z)+], in closed form


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: lv.crps([1.0, 2.0], [1.0, 2.0]), r"crps\(samples=...\) needs shape \(\*\(2,\), samples\).*got \(2,\)"),
        (lambda: lv.crps([[np.nan]], [1.0]), r"crps\(samples=...\) needs finite numbers, got nan"),
        (lambda: lv.crps([["a"]], [1.0]), r"crps\(samples=...\) needs numbers, got 'list'"),
        (lambda: lv.interval_score([2.0], [1.0], [1.0], 0.9), r"lower=...\) needs at most upper, got 2"),
        (lambda: lv.interval_score([0.0], [1.0], [1.0], 90), r"level=...\) needs 0 < level < 1, got 90"),
        (lambda: lv.interval_score([0.0], [1.0, 2.0], [1.0], 0.9), r"upper=...\) needs the shape of y, \(1,\), got \(2,\)"),
    ],
)
def test_bad_scores_are_refused(call, words):
    with pytest.raises((TypeError, ValueError), match=words):
        call()
