"""Modes: what the search finds, what it says of Laplace weights, and no silent run on mixtures."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from torch.distributions import HalfNormal, Normal

import langevin as lv
from langevin.adaptation.descent import descend
from langevin.adaptation.modes import allocate, explore, find_modes, labels, rarely_crossed, wide_starts
from langevin.targets.gradients import full


def mixture(distance, dim, weights, sds=(1.0, 1.0), along=None):
    """Return a mixture of two normals, `distance` apart along the diagonal or one axis."""
    axis = torch.ones(dim, dtype=torch.float64) / dim**0.5 if along is None else torch.eye(dim, dtype=torch.float64)[along]
    means = torch.stack([-0.5 * distance * axis, 0.5 * distance * axis])
    sds, shares = torch.tensor(sds, dtype=torch.float64), torch.tensor(weights, dtype=torch.float64)

    def energy(theta):
        logs = shares.log() - dim * sds.log() - 0.5 * ((theta - means) / sds[:, None]).square().sum(1)
        return -logs.logsumexp(0)

    return lv.targets.energy(energy, dim=dim)


def found_in(target, dim, count=64):
    gradient_fn = full(target)
    starts = wide_starts(count, 0, torch.zeros(dim, dtype=torch.float64))
    return find_modes(gradient_fn, [explore(gradient_fn, starts)], chains=8)


def sampled(target, seed=0, **settings):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        samples = lv.sample(target, seed=seed, progress=False, **{"num_draws": 200, **settings})
    return samples, [str(each.message) for each in caught if issubclass(each.category, lv.TrustWarning)]


@pytest.mark.parametrize("dim", [1, 5, 20])
@pytest.mark.parametrize("weights", [(0.5, 0.5), (0.7, 0.3), (0.95, 0.05)])
@pytest.mark.parametrize("distance", [8.0, 20.0])
def test_laplace_weights_of_separate_normals_are_their_weights(distance, weights, dim):
    """At distance 8 the overlap is e^-32: both approximations are exact up to differences of gradients."""
    found = found_in(mixture(distance, dim, weights), dim)
    assert len(found.modes) == 2
    torch.testing.assert_close(found.weights, torch.tensor(weights, dtype=torch.float64), atol=2e-3, rtol=0)
    assert abs(found.distance(1) - distance) < 0.01 * distance


def test_weights_count_the_width_of_a_mode_and_the_temperature():
    """A mode half as wide, .4 of the mass, has the lower energy; at temperature 2 its depth counts half: w^(1/2) s."""
    gradient_fn, dim = full(mixture(12.0, 2, (0.6, 0.4), (1.0, 0.5))), 2
    starts = wide_starts(64, 0, torch.zeros(dim, dtype=torch.float64))
    for temperature in (1.0, 2.0):
        found = find_modes(gradient_fn, [explore(gradient_fn, starts, temperature)], 8, temperature)
        exact = torch.tensor([(w / s**dim) ** (1 / temperature) * s**dim for w, s in ((0.6, 1.0), (0.4, 0.5))])
        torch.testing.assert_close(found.weights, (exact / exact.sum()).double(), atol=2e-3, rtol=0)


SHAPES = {
    "normal": lambda t: t.square().sum(),
    "Rosenbrock": lambda t: (t[1] - t[0] ** 2) ** 2 * 5 + (1 - t[0]) ** 2 / 20,
    "Student's t": lambda t: (t[0] ** 2 + t[1] ** 2).log1p() * 2,
    "peak": lambda t: (t**2 + 0.01).sqrt().sum(),
    "plateau": lambda t: t.square().sum().clamp(min=4.0),
}


@pytest.mark.parametrize("name", SHAPES)
def test_plateaus_tails_and_curved_valleys_are_no_second_modes(name):
    assert len(found_in(lv.targets.energy(SHAPES[name], dim=2), 2).modes) <= 1


def test_starts_follow_priors_parents_first():
    """Means and sds of 400 draws within 4 standard errors: a normal given a half-normal, a Laplace prior, a flat one."""
    model = lv.Model.log_density(
        lambda p: p["mu"] * 0,
        {"mu": lv.real(), "tau": lv.positive(), "b": lv.real(2), "flat": lv.real()},
        {"mu": lambda p: Normal(30.0, p["tau"]), "tau": HalfNormal(2.0), "b": lv.priors.laplace(scale=3.0)},
    )
    drawn = model.explore(400, seed=5)
    assert torch.equal(drawn[:100], model.explore(100, seed=5))
    values = model.constrain(drawn)
    ratio = (values["mu"] - 30) / values["tau"]
    assert abs(float(ratio.mean())) < 4 / 20
    assert abs(float(ratio.std()) - 1) < 4 / 800**0.5
    assert abs(float(values["tau"].square().mean()) / 4 - 1) < 4 * (2 / 400) ** 0.5
    assert abs(float(values["b"].abs().mean()) / 3 - 1) < 4 / 800**0.5
    assert 10 < float(values["flat"].abs().max()) <= 20


def test_searches_that_stopped_too_early_do_not_count():
    gradient_fn = full(mixture(8.0, 2, (0.5, 0.5)))
    starts = wide_starts(16, 0, torch.zeros(2, dtype=torch.float64))
    assert len(find_modes(gradient_fn, [descend(gradient_fn, starts, max_evaluations=2)], 8).modes) == 0


def test_all_orders_of_labels_are_modes_of_the_same_weight():
    """Three exchangeable means have 3! = 6 modes."""
    points = torch.tensor([-5.0, 0.0, 5.0], dtype=torch.float64).repeat_interleave(10) + torch.linspace(
        -1, 1, 30, dtype=torch.float64
    )

    def energy(theta):
        return -(-0.5 * (points[:, None] - theta) ** 2).logsumexp(1).sum() + 0.005 * theta.square().sum()

    found = found_in(lv.targets.energy(energy, dim=3), 3)
    whole = found.weights[:6]
    assert len(found.modes) >= 6
    torch.testing.assert_close(whole, whole.mean().expand(6), rtol=0.05, atol=0)


def test_chains_are_shared_out_by_weight():
    assert allocate(torch.tensor([0.5, 0.5]), 8).tolist() == [0] * 4 + [1] * 4
    assert allocate(torch.tensor([0.95, 0.05]), 8).tolist() == [0] * 8
    assert allocate(torch.tensor([0.4, 0.35, 0.25]), 1).tolist() == [0]


def test_a_visit_is_a_change_of_the_densest_mode_by_a_margin():
    found = found_in(mixture(8.0, 1, (0.5, 0.5)), 1)
    at = [float(mode.position) for mode in found.modes]
    path = torch.tensor([at[0], 0.01 * at[1], at[1], 0.01 * at[0], at[0]], dtype=torch.float64)[:, None, None]
    assert labels(found, path, torch.zeros(1, dtype=torch.long), 1.0)[:, 0].tolist() == [0, 0, 1, 1, 0]


@pytest.mark.parametrize(
    ("weight", "distance", "matters"), [(0.001, 25.0, True), (0.001, 4.0, False), (0.05, 20.0, True), (1e-5, 8.0, False)]
)
def test_a_mode_that_is_never_reached_matters_by_its_part_in_the_variance(weight, distance, matters):
    found = found_in(mixture(distance, 1, (1 - weight, weight)), 1)
    path = torch.zeros(100, 8, dtype=torch.long)
    path[:, 1::2] = 1
    assert bool(rarely_crossed(found, path, 10**5)) is matters if len(found.modes) > 1 else not matters


def test_the_longer_the_run_the_rarer_may_crossings_be():
    """Chains leave after 20 steps on average: n = w r steps visits, and an error of sqrt(2 / n) of the weight."""
    found = found_in(mixture(6.0, 1, (0.5, 0.5)), 1)
    path = (torch.arange(400) // 20 % 2)[:, None].repeat(1, 8)
    assert rarely_crossed(found, path, 2_000) == [1]
    assert rarely_crossed(found, path, 200_000) == []


# distance, weights, sds: none of them was used to choose a constant.
HELD_OUT = [
    (7.0, (0.6, 0.4), (1.0, 1.0)), (9.0, (0.9, 0.1), (1.0, 1.0)), (11.0, (0.8, 0.2), (0.5, 0.5)),
    (13.0, (0.95, 0.05), (2.0, 2.0)), (17.0, (0.5, 0.5), (1.5, 1.5)), (20.0, (0.75, 0.25), (0.2, 0.2)),
]  # fmt: skip


@pytest.mark.parametrize("dim", [1, 5, 20])
@pytest.mark.parametrize(("distance", "weights", "sds"), HELD_OUT)
def test_no_mixture_is_silent(distance, weights, sds, dim):
    _, told = sampled(mixture(distance, dim, weights, sds, along=dim - 1), seed=dim)
    assert told
    if distance > 8 * max(sds):
        assert "2 modes between which chains hardly cross" in told[0]
        assert ", ".join(f"{weight:.2g}" for weight in weights) in told[0]


def test_narrow_and_wide_modes_on_the_line_are_reported():
    _, told = sampled(mixture(8.0, 1, (0.5, 0.5), (0.3, 1.0)))
    assert "2 modes" in told[0]


@pytest.mark.parametrize("dim", [5, 20])
def test_a_narrow_mode_beside_a_wide_one_is_not_found_in_many_dimensions(dim):
    """The limit that docs/modes.md states: almost everywhere the energy falls towards the wide mode."""
    assert len(found_in(mixture(8.0, dim, (0.5, 0.5), (0.3, 1.0)), dim).modes) == 1


@pytest.mark.parametrize("seed", [1, 2])
def test_modes_that_chains_cross_are_right_and_not_reported(seed):
    samples, told = sampled(mixture(4.0, 1, (0.5, 0.5)), seed=seed, num_draws=1000)
    assert not told
    error = 4 * 5**0.5 / samples.trust["bulk ESS"].value ** 0.5
    assert abs(float(samples.draws.mean())) < error
    assert abs(float(samples.draws.std()) / math.sqrt(5) - 1) < 0.05


def test_modes_within_the_prior_but_far_from_zero_are_found_by_name():
    """Two values of |a| fit data at 40: uniform starts on (-2, 2) see neither, draws from N(0, 50) see both."""
    x = torch.full((20,), 40.0, dtype=torch.float64)
    model = lv.Model(
        lambda p, x: Normal(p["a"].abs(), p["s"]).log_prob(x),
        {"a": lv.real(), "s": lv.positive()},
        {"a": Normal(3.0, 50.0), "s": HalfNormal(1.0)},
    )
    x = x + torch.linspace(-1, 1, 20, dtype=torch.float64)
    _, told = sampled(model, data={"x": x})
    assert "2 modes" in told[0]
    assert "mostly in a" in told[0]


def test_a_rarely_visited_mode_that_no_search_knows_makes_the_spread_uncertain():
    """R-hat and ESS are of ranks: 20 of 8,000 draws at 40 sds do not change them, but nearly double the sd."""
    draws = lv.random.normal(0, range(8), range(1000), 1, dtype=torch.float64).transpose(0, 1).contiguous()
    assert float(lv.diagnostics.convergence.sd_error(draws)) < 0.02
    draws[3, 500:520] += 40
    assert float(lv.diagnostics.convergence.sd_error(draws)) > 0.1
    assert float(lv.diagnostics.rhat(draws)) < 1.01


def test_a_search_that_ends_on_a_plateau_has_found_no_mode():
    def energy(theta):
        x = theta[0]
        return 3 * (1 - (-0.5 * x**2).exp()) + 3 * (-0.5 * (x - 5) ** 2).exp()  # flat behind a barrier

    gradient_fn = full(lv.targets.energy(energy, dim=1))
    ends = descend(gradient_fn, torch.tensor([[0.1], [14.0]], dtype=torch.float64))
    assert ends.is_done.all()
    found = find_modes(gradient_fn, [ends], chains=8)
    assert len(found.modes) == 1
    assert abs(float(found.modes[0].position)) < 0.01
