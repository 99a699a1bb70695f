"""The pictures show the numbers: bins, risks and bands are read back from the axes."""

from __future__ import annotations

from dataclasses import replace

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from predict_models import Regression, randn, seeded
from torch import nn

import langevin as lv
from langevin.nn.predictive.plots import calibration_bins, regression_band, reliability_diagram, risk_coverage, risks

EXACT = Regression()
X = randn(300, 3, seed=3, dtype=torch.float64)
LABELS = torch.arange(300) * 7 % 4
MODELS = [seeded(lambda: nn.Linear(3, 4).double(), seed) for seed in range(5)]
CLASSES = lv.predict(None, MODELS, X, y=LABELS, likelihood="categorical")
ONES = lv.predict(None, MODELS, X, likelihood="bernoulli")
ANSWERS = (randn(300, 4, seed=8) > 0).long()
NUMBERS = lv.predict(EXACT.posterior, EXACT.draws(20), X, interval=[0.5, 0.9])
TRUTH = randn(300, seed=5, dtype=torch.float64)


@pytest.fixture(autouse=True)
def figures_are_closed():
    yield
    plt.close("all")


@pytest.mark.parametrize("bins", [15, 6])
@pytest.mark.parametrize(("prediction", "y"), [(CLASSES, LABELS), (ONES, ANSWERS)])
def test_the_bins_are_those_of_the_calibration_error(prediction, y, bins):
    found = calibration_bins(prediction, y, bins=bins)
    gaps = ((found.accuracy - found.confidence).abs() * found.share).nan_to_num(0.0)
    assert gaps.sum().item() == pytest.approx(lv.metrics(prediction, y, bins=bins).ece)


def test_a_confidence_of_one_is_in_the_last_bin():
    mean = torch.tensor([[1.0, 0.0], [0.05, 0.95], [0.25, 0.75]], dtype=torch.float64)
    found = calibration_bins(replace(CLASSES, mean=mean, y=None), torch.tensor([0, 0, 1]), bins=10)
    np.testing.assert_allclose(found.share[[7, 9]], [1 / 3, 2 / 3])
    np.testing.assert_allclose([found.confidence[9], found.accuracy[9]], [0.975, 0.5])


def test_a_reliability_diagram_shows_the_bins_that_have_predictions():
    panel = reliability_diagram(CLASSES, bins=10)
    found = calibration_bins(CLASSES, bins=10)
    seen = found.share > 0
    diagonal, line = panel.lines
    np.testing.assert_allclose(line.get_xdata(), found.confidence[seen])
    np.testing.assert_allclose(line.get_ydata(), found.accuracy[seen])
    np.testing.assert_array_equal(diagonal.get_xdata(), diagonal.get_ydata())
    again = reliability_diagram(CLASSES, label="again", axes=panel)
    assert again is panel
    assert len(panel.lines) == 3  # one diagonal
    assert panel.lines[2].get_color() != line.get_color()
    assert reliability_diagram(ONES, ANSWERS).get_ylabel() == "share of ones"


def test_the_risk_is_that_of_the_rows_kept():
    coverage, risk = risks(CLASSES, score="max_probability")
    order = CLASSES.probabilities.amax(-1).argsort(descending=True)
    wrong = (CLASSES.labels != LABELS)[order]
    for kept in (1, 30, 150, 300):
        assert coverage[kept - 1].item() == pytest.approx(kept / 300)
        assert risk[kept - 1].item() == pytest.approx(wrong[:kept].double().mean().item())
    coverage, risk = risks(NUMBERS, TRUTH, score="epistemic")
    order = NUMBERS.epistemic.argsort()
    square = (NUMBERS.mean - TRUTH).square()[order]
    assert risk[99].item() == pytest.approx(square[:100].mean().sqrt().item())
    assert risk[-1].item() == pytest.approx(lv.metrics(NUMBERS, TRUTH).rmse)


def test_a_risk_coverage_curve_ends_at_the_risk_of_all():
    panel = risk_coverage(CLASSES)
    curve = panel.lines[-1]
    assert curve.get_xdata()[-1] == 1.0
    assert curve.get_ydata()[-1] == pytest.approx(1 - lv.metrics(CLASSES).accuracy)
    assert panel.get_ylabel() == "error"
    assert risk_coverage(NUMBERS, TRUTH).get_ylabel() == "RMSE"


def edges(collection):
    """Return the lower and upper edge of a band, at each x."""
    points = collection.get_paths()[0].vertices
    at = np.unique(points[:, 0])
    return at, [points[points[:, 0] == x, 1].min() for x in at], [points[points[:, 0] == x, 1].max() for x in at]


def test_a_band_is_the_widest_interval_and_the_spread_of_the_means():
    x = X[:, :1]
    panel = regression_band(x, NUMBERS, data=(x[:5], TRUTH[:5]))
    order = x[:, 0].argsort()
    outer, inner = panel.collections
    at, low, high = edges(outer)
    np.testing.assert_allclose(at, x[order, 0])
    np.testing.assert_allclose(low, NUMBERS.lower[1][order])
    np.testing.assert_allclose(high, NUMBERS.upper[1][order])
    _, low, high = edges(inner)
    np.testing.assert_allclose((np.array(high) - low) / 2, 1.6448536 * NUMBERS.epistemic.sqrt()[order], rtol=1e-5)
    np.testing.assert_allclose(panel.lines[0].get_ydata(), NUMBERS.mean[order])
    assert len(panel.lines[1].get_xdata()) == 5
    plain = regression_band(x[:, 0], lv.predict(EXACT.posterior, EXACT.draws(5), X))
    assert [text.get_text() for text in plain.get_legend().get_texts()] == ["y, 2 sd", "draws' means, 2 sd", "mean"]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: reliability_diagram(NUMBERS, TRUTH), AttributeError, "needs a likelihood of classes"),
        (lambda: reliability_diagram(CLASSES, bins=0), ValueError, r"bins=.*0"),
        (lambda: reliability_diagram(CLASSES, axes=3), TypeError, r"reliability_diagram\(axes="),
        (lambda: risk_coverage(CLASSES, score="x"), ValueError, r"score=.*'x'"),
        (lambda: regression_band(X, NUMBERS), ValueError, r"regression_band\(x=.*\(n,\), got \(300, 3\)"),
        (lambda: regression_band(X[:9, 0], NUMBERS), ValueError, r"regression_band\(prediction=.*9 inputs"),
        (lambda: regression_band(X[:, 0], CLASSES), ValueError, r"regression_band\(prediction="),
        (lambda: regression_band(X[:, 0], NUMBERS, data=(X[:3, 0], X[:4, 0])), ValueError, r"regression_band\(data=.*\[3, 4\]"),
    ],
)
def test_bad_input_is_named_with_its_value(call, error, message):
    with pytest.raises(error, match=message):
        call()
