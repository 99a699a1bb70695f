"""Metrics against sums written out by hand, and the areas under curves by counting pairs."""

from __future__ import annotations

import math
import sys
from dataclasses import replace

import pytest
import torch
from predict_models import Regression, randn, seeded
from torch import nn

import langevin as lv

EXACT = Regression()
X = randn(200, 3, seed=3, dtype=torch.float64)
MODELS = [seeded(lambda: nn.Linear(3, 4).double(), seed) for seed in range(5)]
LABELS = torch.arange(200) * 7 % 4
CLASSES = lv.predict(None, MODELS, X, likelihood="categorical")


@pytest.mark.parametrize("bins", [15, 4])
def test_metrics_of_classes_are_those_written_out_by_hand(bins):
    found = lv.metrics(CLASSES, LABELS, bins=bins)
    rows = list(zip(CLASSES.probabilities.tolist(), LABELS.tolist(), strict=True))
    assert found.accuracy == pytest.approx(sum(p.index(max(p)) == k for p, k in rows) / 200)
    assert found.nll == pytest.approx(sum(-math.log(p[k]) for p, k in rows) / 200)
    assert found.brier == pytest.approx(sum(sum((q - (j == k)) ** 2 for j, q in enumerate(p)) for p, k in rows) / 200)
    held = [[] for _ in range(bins)]
    for p, k in rows:
        held[int(max(p) * bins)].append((max(p), p.index(max(p)) == k))
    ece = sum(abs(sum(c for c, _ in part) - sum(hit for _, hit in part)) / 200 for part in held)
    assert found.ece == pytest.approx(ece)
    assert (found.rows, found.bins, found.rmse, found.nll_gaussian, found.coverage) == (200, bins, None, None, {})
    assert f"ECE, {bins} bins" in str(found)
    assert f"{100 * found.accuracy:.2f} %" in str(found)


def test_the_density_that_predict_accumulated_is_taken_where_probabilities_underflow():
    sure = seeded(lambda: nn.Linear(1, 2))
    sure.load_state_dict({"weight": torch.tensor([[0.0], [300.0]]), "bias": torch.zeros(2)})
    x, y = torch.ones(1, 1), torch.zeros(1, dtype=torch.int64)
    assert lv.metrics(lv.predict(None, [sure], x, likelihood="categorical"), y).nll == math.inf
    found = lv.predict(None, [sure], x, y=y, likelihood="categorical")
    assert lv.metrics(found).nll == pytest.approx(300.0)
    assert lv.metrics(found, y.clone()).nll == pytest.approx(300.0)
    assert lv.metrics(found, 1 - y).nll == pytest.approx(0.0)  # not those that were given


def test_a_probability_that_rounding_put_above_one_is_not_taken_for_a_logit():
    mean = torch.tensor([[1 + 1e-7, -1e-9], [0.3, 0.7]], dtype=torch.float64)
    found = lv.metrics(replace(CLASSES, mean=mean), torch.tensor([0, 0]))
    assert found.ece == pytest.approx(0.35, abs=1e-6)  # half of |0 - .7|, and nothing


@pytest.mark.parametrize("questions", [1, 3])
def test_metrics_of_zeros_and_ones(questions):
    models = [seeded(lambda: nn.Linear(3, questions).double(), seed) for seed in range(5)]
    found = lv.predict(None, models, X, likelihood="bernoulli")
    y = (randn(200, questions, seed=5) > 0).long()
    measured, p = lv.metrics(found, y), found.probabilities
    log = torch.where(y == 1, p, 1 - p).log()
    assert measured.nll == pytest.approx(-log.sum(-1).mean().item())
    assert measured.accuracy == pytest.approx(((p > 0.5) == (y == 1)).double().mean().item())
    assert measured.brier == pytest.approx((p - y).square().mean().item())
    assert lv.metrics(lv.predict(None, models, X, y=y, likelihood="bernoulli")).nll == pytest.approx(measured.nll)
    pairs = list(zip(p.flatten().tolist(), y.flatten().tolist(), strict=True))
    held = [[(q, k) for q, k in pairs if int(q * 15) == number] for number in range(15)]
    ece = sum(abs(sum(q for q, _ in part) - sum(k for _, k in part)) / len(pairs) for part in held)
    assert measured.ece == pytest.approx(ece)


def test_metrics_of_numbers_are_those_written_out_by_hand():
    draws, y = EXACT.draws(6), 2 * randn(200, seed=6, dtype=torch.float64)
    found = lv.predict(EXACT.posterior, draws, X, y=y, interval=[0.5, 0.9])
    measured = lv.metrics(found)
    means = draws @ torch.cat([X, torch.ones(200, 1, dtype=torch.float64)], 1).T
    assert measured.rmse == pytest.approx(math.sqrt(((y - means.mean(0)) ** 2).mean()))
    mixture = torch.distributions.Normal(means, EXACT.std).log_prob(y).exp().mean(0).log()
    assert measured.nll_mixture == pytest.approx(-mixture.mean().item())
    std = (EXACT.std**2 + means.var(0, correction=0)).sqrt()
    assert measured.nll_gaussian == pytest.approx(-torch.distributions.Normal(means.mean(0), std).log_prob(y).mean().item())
    inside = ((found.lower <= y) & (y <= found.upper)).double().mean(1)
    assert measured.coverage == {0.5: pytest.approx(inside[0].item()), 0.9: pytest.approx(inside[1].item())}
    assert "within 90 %" in str(measured)
    assert lv.metrics(lv.predict(EXACT.posterior, draws, X), y).nll_mixture is None


def test_intervals_of_an_exact_posterior_cover_what_they_say():
    """y drawn from the predictive law itself, 4 standard errors of a share."""
    x, num = randn(2000, 3, seed=11, dtype=torch.float64), 2000
    mean, spread = EXACT.law(x)
    y = mean + (spread + EXACT.std**2).sqrt() * randn(num, seed=12, dtype=torch.float64)
    measured = lv.metrics(lv.predict(EXACT.posterior, EXACT.draws(200), x, y=y, interval=0.9))
    assert abs(measured.coverage[0.9] - 0.9) < 4 * math.sqrt(0.09 / num)


def pairs(inside, outside):
    return sum((b > a) + 0.5 * (a == b) for a in inside for b in outside) / (len(inside) * len(outside))


@pytest.mark.parametrize("score", ["epistemic", "total", "max_probability"])
def test_the_area_is_the_share_of_pairs_in_order(score):
    near, far = (lv.predict(None, MODELS, x, likelihood="categorical") for x in (X[:40], 3 * X[40:90]))
    scores = [{"epistemic": p.epistemic, "total": p.total, "max_probability": 1 - p.mean.amax(-1)}[score] for p in (near, far)]
    assert lv.ood_auroc(near, far, score) == pytest.approx(pairs(*(part.tolist() for part in scores)))


def test_the_area_of_numbers_has_no_ties_where_scores_are_large():
    options = {"likelihood": lv.likelihoods.gaussian(std=1.0)}
    near, far = (lv.predict(None, MODELS, x, **options) for x in (1e3 * X[:40], 2e3 * X[:40]))
    found = lv.ood_auroc(near, far)
    assert found == pytest.approx(pairs(near.epistemic.sum(-1).tolist(), far.epistemic.sum(-1).tolist()))
    assert found > 0.6


BAD = {
    "no targets": (lambda: lv.metrics(CLASSES), TypeError, r"metrics\(y=.*got None"),
    "no prediction": (lambda: lv.metrics(X, LABELS), TypeError, r"metrics\(prediction=.*predict"),
    "labels out of range": (lambda: lv.metrics(CLASSES, LABELS + 1), ValueError, r"labels in \[0, 4\)"),
    "bins of zero": (lambda: lv.metrics(CLASSES, LABELS, bins=0), ValueError, r"metrics\(bins=.*0"),
    "another shape": (lambda: lv.metrics(NUMBERS, X), ValueError, r"metrics\(y=.*\(200,\), got \(200, 3\)"),
    "targets of NaN": (lambda: lv.metrics(NUMBERS, X[:, 0] * math.nan), ValueError, r"metrics\(y=.*finite"),
    "an unknown score": (lambda: lv.ood_auroc(CLASSES, CLASSES, "x"), ValueError, r"ood_auroc\(score=.*'x'"),
    "probabilities of numbers": (lambda: lv.ood_auroc(NUMBERS, NUMBERS, "max_probability"), AttributeError, "needs.*classes"),
}
NUMBERS = lv.predict(EXACT.posterior, EXACT.draws(3), X)


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_named_with_its_value(case):
    call, error, message = BAD[case]
    with pytest.raises(error, match=message):
        call()


def test_without_torchmetrics_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchmetrics.functional.classification", None)
    with pytest.raises(ImportError, match=r"metrics\(\) needs torchmetrics.*langevin\[metrics\]"):
        lv.metrics(CLASSES, LABELS)
