"""Improper posteriors: directions without data or prior are named before sampling; proper ones are never accused."""

from __future__ import annotations

import pytest
import torch
from torch.distributions import Bernoulli, Normal, StudentT

import langevin as lv
from langevin.adaptation.descent import descend, spread_starts
from langevin.adaptation.identified import check_identified, flat_directions
from langevin.adaptation.metric import curvature
from langevin.random import normal
from langevin.targets.gradients import full

X = normal(1, 0, range(60), 3, dtype=torch.float64)
X[:, 2] = X[:, 0] - 2 * X[:, 1]
Y = X[:, 0] + normal(2, 0, range(60), 1, dtype=torch.float64)[:, 0]
QUICK = {"progress": False, "num_draws": 20}


def regression(prior, scale=1.0):
    def log_likelihood(p, x, y):
        return Normal(p["a"] + x @ p["b"], scale).log_prob(y)

    return lv.Model(log_likelihood, {"a": lv.real(), "b": lv.real(3)}, prior), {"x": X, "y": Y}


def shifted():
    return lv.Model(
        lambda p, x, y: Normal(p["a"] + p["c"] + x[:, 0] * p["b"], 1.0).log_prob(y),
        {"a": lv.real(), "b": lv.real(), "c": lv.real()},
        {"b": Normal(0.0, 1.0)},
    ), {"x": X, "y": Y}


def logistic(prior=None):
    model = lv.Model(lambda p, x, y: Bernoulli(logits=x @ p["b"]).log_prob(y), {"b": lv.real(3)}, prior)
    return model, {"x": X, "y": (Y > 0).double()}


@pytest.mark.parametrize(
    ("case", "name"),
    [
        (lambda: regression(None), r"0\.5 b\[0\] - b\[1\] - 0\.5 b\[2\] is not identified"),
        (shifted, "a - c is not identified"),
        (logistic, r"b\[0\] - b\[1\] - 0\.5 b\[2\] is not identified"),
        (lambda: (lv.targets.energy(lambda t: t[0] ** 2 + 0 * t[1], dim=3), None), r"theta\[1\], theta\[2\] are not identified"),
        (
            lambda: (lv.targets.energy(lambda t: (t[:3].sum() - 1) ** 2 + t[3] ** 2, dim=4), None),
            r"theta\[0\] - theta\[1\], theta\[1\] - theta\[2\]",
        ),
    ],
    ids=["collinear", "shifted pair", "collinear logistic", "unused", "sum of three"],
)
def test_an_unidentified_direction_is_named_before_sampling(case, name):
    target, data = case()
    with pytest.raises(ValueError, match=name):
        lv.sample(target, data=data, **QUICK)


PROPER = {
    "Cauchy": lambda t: t.square().log1p().sum(),
    "flat between walls": lambda t: (t.abs() - 1e3).relu().square().sum(),
    "prior of sd 1e5 on a collinear pair": lambda t: 1e4 * (t[0] + t[1]) ** 2 + (t / 1e5).square().sum(),
    "condition number 1e16": lambda t: 1e8 * (t[0] + t[1]) ** 2 + 1e-8 * (t[0] - t[1]) ** 2,
    "funnel": lambda t: t[0] ** 2 / 2 + t[0] + t[1] ** 2 * (-2 * t[0]).exp() / 2,
    "horseshoe": lambda t: 0.5 * t[0] ** 2 + (1 + (2 * t[1]).exp()).log() - t[1] + (t[0] * t[1].exp() - 1) ** 2,
    "plateau in one direction only": lambda t: torch.sigmoid(t[0]) * 20 + t[0].relu().square() + (-t[0] - 50).relu() + t[1] ** 2,
}


@pytest.mark.parametrize("name", PROPER)
def test_a_proper_posterior_is_never_accused(name):
    gradient_fn = full(lv.targets.energy(PROPER[name], dim=2))
    like = torch.zeros(2, dtype=torch.float64)
    for seed in range(3):
        starts = spread_starts(gradient_fn, range(8), seed, like)
        for centre in descend(gradient_fn, starts).position:
            check_identified(flat_directions(gradient_fn, curvature(gradient_fn, centre, 8), centre, 8), str)


@pytest.mark.parametrize("prior", [Normal(0.0, 1e4), StudentT(1.0, 0.0, 2.5)], ids=["wide normal", "Cauchy"])
def test_a_wide_prior_identifies_collinear_columns(prior):
    for model, data in (regression({"a": prior, "b": prior}), logistic({"b": prior})):
        lv.sample(model, data=data, num_draws=20, progress=False)


def test_directions_are_exact_to_rounding_in_units_of_the_narrowest_width():
    """Columns of sizes 1 and 1e4 with noise 1e-3: the direction must be right to far below 1e-7."""
    x = torch.stack([X[:, 0], 1e4 * X[:, 0], X[:, 1]], 1)
    gradient_fn = full(lv.targets.energy(lambda b: 0.5e6 * (Y - x @ b).square().sum(), dim=3))
    centre = torch.tensor([0.7, 3e-5, 0.1], dtype=torch.float64)
    found = flat_directions(gradient_fn, curvature(gradient_fn, centre, 8), centre, 8)
    torch.testing.assert_close(found[0] / found[0, 0], torch.tensor([1.0, -1e-4, 0.0], dtype=torch.float64), atol=1e-12, rtol=1e-10)
