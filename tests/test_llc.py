"""The local learning coefficient against exact answers: closed forms, quadrature, poles; and what it says when it is not one."""

from __future__ import annotations

import importlib.util
import itertools
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import langevin as lv
from langevin.nn.llc.limit import fit
from langevin.nn.llc.localised import Problem

path = Path(__file__).parents[1] / "benchmarks" / "llc.py"
spec = importlib.util.spec_from_file_location("benchmark_llc", path)
benchmark = importlib.util.module_from_spec(spec)
spec.loader.exec_module(benchmark)

QUIET = {"compile": False, "progress": False}
K = 4.5  # standard errors, from the spread of the chains' means: chance exceeds them in 7 of a million tests


def quiet(*args, **settings):
    """Run llc, whatever it has to say: `result.warnings` has it, too."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lv.TrustWarning)
        return lv.llc(*args, **{**QUIET, **settings})


def at_minimum(x, y):
    """Return the linear regression of y on x."""
    with torch.random.fork_rng():
        model = nn.Linear(x.shape[1], 1, bias=False, dtype=torch.float64)
    with torch.no_grad():
        model.weight.copy_(torch.linalg.lstsq(x, y).solution.mT)
    return model


def linear(num_rows=50, dim=3):
    """Return a linear regression at its minimum, its data, and the Hessian's eigenvalues of the mean squared error."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(num_rows, dim, generator=generator, dtype=torch.float64) * torch.tensor([0.3, 1.0, 3.0], dtype=torch.float64)
    y = torch.randn(num_rows, 1, generator=generator, dtype=torch.float64)
    return at_minimum(x, y), (x, y), torch.linalg.eigvalsh(2 * x.mT @ x / num_rows)


def exact_linear(curvatures, n_beta, gamma):
    """``sum 1/2 n β h / (n β h + γ)``: L is quadratic, w Gaussian."""
    return float((0.5 * n_beta * curvatures / (n_beta * curvatures + gamma)).sum())


def test_a_regular_model_has_half_its_dimension():
    model, data, curvatures = linear()
    found = quiet(model, "mse", data, localisation=0.05, chains=64, num_draws=200)
    exact = exact_linear(curvatures, 50 / np.log(50), 0.05)
    assert abs(exact - 1.5) < 0.02
    assert abs(found.estimate - exact) < K * found.error
    assert found.error < 0.05
    assert found.warnings == ()
    assert found.n_beta == pytest.approx(50 / np.log(50))


@pytest.mark.parametrize("sampler", [None, lv.sghmc(0.001, beta=0.9), lv.sgld(0.0004)], ids=["default", "sghmc", "sgld"])
def test_the_law_is_that_of_the_localised_density(sampler):
    """γ as strong as the loss: a wrong β, γ or factor of λ̂ shows."""
    model, data, curvatures = linear()
    found = quiet(model, "mse", data, beta=0.2, localisation=10.0, chains=100, num_draws=300, sampler=sampler, thin=8)
    exact = exact_linear(curvatures, 10.0, 10.0)
    assert abs(found.estimate - exact) < K * found.error
    for factor in (0.5, 2.0):
        assert abs(exact_linear(curvatures, 10.0 * factor, 10.0) - exact) > 2 * K * found.error
    gap = (exact_linear(curvatures, 10.0, 10.0 * np.e**0.01) - exact_linear(curvatures, 10.0, 10.0 / np.e**0.01)) / 0.02
    assert abs(found.rung.localisation_slope - gap) < K * found.rung.localisation_slope_error
    spread = float((10.0 / (10.0 * curvatures + 10.0)).mean())
    assert abs(found.rung.spread - spread) < K * found.rung.spread_error


def test_a_crossing_agrees_with_quadrature_and_so_do_its_slopes():
    found = quiet(benchmark.Crossing(1, 1), num_data=1000, localisation=1.0, chains=1500, num_draws=60)
    exact = benchmark.quadrature((1, 1), found.n_beta, 1200)
    assert abs(found.estimate - exact) < K * found.error
    assert found.error < 0.015 * exact
    more, less = (benchmark.quadrature((1, 1), found.n_beta * factor, 1200) for factor in (np.e**0.05, np.e**-0.05))
    assert abs(found.rung.beta_slope - (more - less) / 0.1) < K * found.rung.beta_slope_error
    # K scales with the fourth power of w: e times less γ is what e^2 times more β is.
    assert abs(-found.rung.localisation_slope - 2 * (more - less) / 0.1) < K * found.rung.localisation_slope_error
    assert any("depends on γ" in text for text in found.warnings)


def exact_regression(inputs, outputs, n_beta, points=500):
    """E[n β K] for K = |B A|^2 / 2 with two hidden units, A given B integrated out, the eigenvalues of B^T B by quadrature."""
    logs = np.linspace(-18 - np.log(n_beta), np.log(60.0), points)
    first, second = np.meshgrid(np.exp(logs), np.exp(logs), indexing="ij")
    log_weight = np.log(np.abs(first - second) + 1e-300)
    mean = 0.0
    for value in (first, second):
        log_weight = log_weight + (outputs - 3) / 2 * np.log(value) - value / 2 + np.log(value)
        log_weight = log_weight - inputs / 2 * np.log1p(n_beta * value)
        mean = mean + inputs / 2 * n_beta * value / (1 + n_beta * value)
    weight = np.exp(log_weight - log_weight.max())
    return float((weight * mean).sum() / weight.sum())


def test_a_reduced_rank_regression_agrees_with_its_eigenvalues():
    found = quiet(benchmark.ReducedRank(3, 2, 3, 0), num_data=1000, localisation=1.0, chains=200, num_draws=100)
    assert abs(found.estimate - exact_regression(3, 3, found.n_beta)) < K * found.error
    assert found.error < 0.03


def second_derivation(inputs, hidden, outputs, rank):
    """λ and m from the law of the eigenvalues ``t^-a_j`` of B^T B: each a_j is 0 or 1, whichever costs less.

    A given B is Gaussian: it leaves ``prod (1 + t^(1 - a_j))^(-M / 2)``. Their density has ``t^(-a_j (|N - H| + 2 j - 1) / 2)``.
    What the true rank takes is regular, and leaves a regression of rank 0 with r fewer inputs, hidden units and outputs.
    """
    m, h, n = inputs - rank, hidden - rank, outputs - rank
    costs = [abs(n - h) + 2 * j - 1 for j in range(1, min(n, h) + 1)]
    value = rank * (inputs + outputs - rank) / 2 + sum(min(m, cost) for cost in costs) / 2
    return value, 1 + sum(cost == m for cost in costs)


def test_the_formula_of_aoyagi_and_watanabe_has_a_second_derivation():
    for m, h, n in itertools.product(range(1, 8), repeat=3):
        for r in range(min(m, h, n) + 1):
            assert benchmark.truth_of_regression(m, h, n, r) == second_derivation(m, h, n, r)


def moments(value, spacing, weight, logs):
    """E[x] and E[x^2] of ``Z = t^-λ + c t^-(λ + δ)``, or ``t^-λ (log t + c)`` for δ = 0, by differentiating Z."""
    if spacing:
        terms, powers = torch.stack([torch.ones_like(logs), weight * (-spacing * logs).exp()]), torch.tensor([0.0, spacing]) + value
        share = terms / terms.sum(0)
        return (share * powers[:, None]).sum(0), (share * (powers * (powers + 1))[:, None]).sum(0)
    part = 1 / (logs + weight)
    return value - part, value * (value + 1) - (2 * value + 1) * part


@pytest.mark.parametrize(("value", "spacing", "weight"), [(0.5, 0.0, 1.0), (1.5, 0.5, -0.9), (0.25, 0.25, -0.8)])
def test_the_limit_recovers_two_poles(value, spacing, weight):
    logs = torch.log(torch.tensor([1e2, 1e3, 1e4, 1e5], dtype=torch.float64))
    first, second = moments(value, spacing, weight, logs)
    tight = 1e-6 * torch.tensor([[1.0, 1.5], [1.5, 4.0]], dtype=torch.float64).expand(4, 2, 2)
    found = fit(logs, first, second, tight * value)
    assert found.estimate == pytest.approx(value, rel=0.02)
    assert found.spacing == pytest.approx(spacing, abs=0.05)
    assert abs(found.estimate - value) < 4 * found.error
    assert found.misfit < 1


def test_the_limit_goes_beyond_the_plain_estimate():
    """Multiplicity two: λ̂ is more than 10 percent low here, 0.5 is not beyond the error of the limit."""
    found = [quiet(benchmark.Crossing(1, 1), num_data=1000, beta=b, localisation=1.0, chains=600, num_draws=60) for b in (0.1, 1.0)]
    limit = lv.llc_limit(found)
    assert found[-1].estimate + K * found[-1].error < 0.45
    assert abs(limit.estimate - 0.5) < 3 * limit.error
    assert limit.error < 0.06
    assert limit.estimate > found[-1].estimate + 3 * found[-1].error
    assert "learning coefficient" in str(limit)


def test_minibatches_leave_the_estimate():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(400, 2, generator=generator, dtype=torch.float64)
    y = x.sum(1, keepdim=True) + 0.3 * torch.randn(400, 1, generator=generator, dtype=torch.float64)
    found = quiet(at_minimum(x, y), "mse", (x, y), localisation=0.01, chains=32, num_draws=400, batch_size=100)
    assert abs(found.estimate - 1.0) < K * found.error + 0.05  # the step size bounds heat by 5 percent
    assert found.error < 0.05


def test_a_point_that_is_no_minimum_is_named():
    model, data, _ = linear()
    with torch.no_grad():
        model.weight.add_(2.0)
    with pytest.warns(lv.TrustWarning, match="not a minimum"):
        found = lv.llc(model, "mse", data, localisation=1.0, chains=8, num_draws=100, **QUIET)
    assert found.estimate < 0
    assert "! w* is not a minimum" in str(found)


class Hill(nn.Module):
    """A loss that falls on both sides of w* = 0, to its minima at -3 and 3."""

    def __init__(self):
        """Start on the top."""
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1, dtype=torch.float64))

    def forward(self):
        """Return the loss."""
        return 0.02 * (self.w[0] ** 2 - 9) ** 2


def test_chains_that_leave_are_named_and_the_tighter_rung_is_kept():
    found = quiet(Hill(), num_data=20, localisation=1.0, chains=32, num_draws=200)
    assert found.rung.has_left
    assert any("left the neighbourhood" in text for text in found.warnings)
    ladder = quiet(Hill(), num_data=20, localisation=(1.0, 300.0), chains=32, num_draws=200)
    assert [rung.localisation for rung in ladder.rungs] in ([300.0], [300.0, 1.0])
    assert ladder.localisation == 300.0


def test_a_ladder_stops_where_the_localisation_no_longer_counts():
    model, data, _ = linear()
    found = quiet(model, "mse", data, localisation=(100.0, 1.0, 0.1, 0.01), chains=32, num_draws=60)
    tried = [rung.localisation for rung in found.rungs]
    assert tried == [100.0, 1.0, 0.1, 0.01][: len(tried)]
    assert found.localisation == tried[-1]
    assert len(tried) in (2, 3)
    assert found.rung.is_flat
    assert not found.rungs[0].is_flat


def test_losses_are_those_of_torch_and_the_model_is_left_alone():
    generator = torch.Generator().manual_seed(0)
    x, labels = torch.randn(30, 4, generator=generator), torch.arange(30) % 3
    with torch.random.fork_rng():
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    before = [parameter.clone() for parameter in model.parameters()]
    with torch.no_grad():
        expected, squares = float(nn.functional.cross_entropy(model(x), labels)), model(x)
    for loss in ("cross_entropy", lv.likelihoods.categorical(), lambda o, y: nn.functional.cross_entropy(o, y, reduction="none")):
        assert Problem(model, loss, (x, labels), None).loss_at_start == pytest.approx(expected, rel=1e-5)
    y = torch.randn(30, 3, generator=generator)
    assert Problem(model, "mse", (x, y), None).loss_at_start == pytest.approx(float(nn.functional.mse_loss(squares, y)), rel=1e-5)
    problem = Problem(model, "mse", (x, y), None)
    few, many = problem.watch(10), problem.watch(2**22)  # rows at once, and one by one
    assert torch.allclose(few(problem.start), many(problem.start))
    found = quiet(model, "cross_entropy", (x, labels), localisation=100.0, chains=4, num_draws=50)
    assert all(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
    assert found.loss_at_start == pytest.approx(expected, rel=1e-5)
    assert found.dim == 67


def test_the_same_call_gives_the_same_bits():
    model, data, _ = linear()
    first, second = (quiet(model, "mse", data, localisation=1.0, chains=4, num_draws=30, seed=7) for _ in range(2))
    assert first.estimate == second.estimate
    assert quiet(model, "mse", data, localisation=1.0, chains=4, num_draws=30, seed=8).estimate != first.estimate


MODEL, DATA, _ = linear()
BAD = {
    "no module": (lambda: lv.llc(3.0, "mse", DATA), TypeError, r"llc\(model=.*nn\.Module"),
    "an unknown loss": (lambda: lv.llc(MODEL, "mae", DATA), ValueError, r"llc\(loss=.*'mae'"),
    "a loss that is a mean": (lambda: lv.llc(MODEL, lambda o, y: (o - y).square().mean(), DATA), ValueError, r"per row, \(50,\)"),
    "a loss without data": (lambda: lv.llc(MODEL, "mse"), ValueError, r"llc\(data="),
    "no loss": (lambda: lv.llc(MODEL, None, DATA), TypeError, r"llc\(loss=.*None"),
    "targets of another shape": (lambda: lv.llc(MODEL, "mse", (DATA[0], DATA[1][:, 0])), ValueError, r"llc\(y="),
    "one column": (lambda: lv.llc(MODEL, "mse", (DATA[0],)), ValueError, r"two columns"),
    "rows counted twice": (lambda: lv.llc(MODEL, "mse", DATA, num_data=3), ValueError, r"llc\(num_data="),
    "no number of rows": (lambda: lv.llc(Hill()), TypeError, r"llc\(num_data=.*None"),
    "a model that needs x": (lambda: lv.llc(MODEL, num_data=10), ValueError, r"takes no arguments"),
    "beta of zero": (lambda: lv.llc(MODEL, "mse", DATA, beta=0.0), ValueError, r"llc\(beta=.*> 0, got 0"),
    "no localisation": (lambda: lv.llc(MODEL, "mse", DATA, localisation=()), ValueError, r"llc\(localisation="),
    "a negative one": (lambda: lv.llc(MODEL, "mse", DATA, localisation=(1.0, -1.0)), ValueError, r"localisation=.*> 0, got -1"),
    "one chain": (lambda: lv.llc(MODEL, "mse", DATA, chains=1), ValueError, r"llc\(chains=.*>= 4, got 1"),
    "a sampler's name": (lambda: lv.llc(MODEL, "mse", DATA, sampler="sgld"), TypeError, r"llc\(sampler="),
    "a cold sampler": (lambda: lv.llc(MODEL, "mse", DATA, sampler=lv.sgld(0.1, temperature=0.5)), ValueError, r"sampler=.*0\.5"),
    "batches of nothing": (lambda: lv.llc(Hill(), num_data=10, batch_size=3), ValueError, r"llc\(batch_size="),
    "a limit of one": (lambda: lv.llc_limit([]), TypeError, r"llc_limit\(results="),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused(name):
    call, error, match = BAD[name]
    with pytest.raises(error, match=match):
        call()
