"""The prior's scale and the temperature: evidence against closed forms and quadrature, validation against exact predictions."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.distributions import MultivariateNormal, Normal

import langevin as lv
from langevin.nn.choice import laplace, prior, scores, validation
from langevin.nn.choice.scores import Measured
from langevin.random import normal

STD = 0.5
LADDER = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)


def network(*layers):
    """Build layers, of which those given as two numbers are linear; torch's generator stays where it is."""
    with torch.random.fork_rng(devices=[]):
        built = [nn.Linear(*layer) if isinstance(layer, tuple) else layer for layer in layers]
    return nn.Sequential(*built)


def linear(columns=3):
    return network((columns, 1), nn.Flatten(0)).double()


def regression(rows=40, columns=3, seed=0):
    """Inputs, targets, and the design with its column of ones; the true coefficients are 1 and -1."""
    x = normal(seed, 0, 0, rows * columns, dtype=torch.float64).reshape(rows, columns)
    signs = torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(columns)[:columns]
    y = x @ signs + 0.3 + STD * normal(seed, 0, 2, rows, dtype=torch.float64)
    return x, y, torch.cat([x, torch.ones(rows, 1, dtype=torch.float64)], 1)


def exact_evidence(design, y, scale):
    covariance = STD**2 * torch.eye(len(y), dtype=torch.float64) + scale**2 * design @ design.T
    return float(MultivariateNormal(torch.zeros_like(y), covariance).log_prob(y))


def choose(model, likelihood, **settings):
    return lv.choose_prior(model, likelihood, progress=False, **settings)


def fit_of(model, likelihood, x, y, scale, num_steps=1000):
    posterior = lv.Posterior(model, likelihood, prior=lv.priors.gaussian(scale), num_data=len(x))
    return laplace.laplace_fit(posterior, x, y, posterior.init(2), num_steps, 0)


# -- the marginal likelihood


def test_the_evidence_of_a_linear_gaussian_model_is_exact_and_so_is_its_best_scale(capsys):
    x, y, design = regression()
    choice = choose(linear(), lv.likelihoods.gaussian(std=STD), data=(x, y), scales=LADDER)
    exact = [exact_evidence(design, y, scale) for scale in LADDER]
    assert [row.score for row in choice.table] == pytest.approx(exact, abs=1e-6)
    best = LADDER[exact.index(max(exact))]
    assert choice.scale == best == 1.0
    assert choice.prior == lv.priors.gaussian(best)
    assert choice.temperature == 1.0
    assert [row.worse for row in choice.table] == pytest.approx([max(exact) - value for value in exact], abs=1e-6)
    assert capsys.readouterr().out.startswith(choice.why)


def test_a_descent_that_ended_early_gives_the_same_evidence():
    """What a Newton step would still bring is added: on a quadratic energy the place does not matter."""
    x, y, design = regression()
    fit = fit_of(linear(), lv.likelihoods.gaussian(std=STD), x, y, 1.0, num_steps=2)
    assert fit.left > 0.1
    assert float(fit.log_evidences.mean()) == pytest.approx(exact_evidence(design, y, 1.0), abs=1e-6)


class ByElement(lv.targets.priors.Prior):
    """Gaussian, with stds of its own for every element, times a scale."""

    def __init__(self, scale):
        self.stds = scale * torch.tensor([0.1, 1.0, 3.0, 0.5], dtype=torch.float64)

    def energy(self, position):
        return -Normal(0.0, self.stds).log_prob(position).sum(-1)

    def gradient(self, position):
        return position / self.stds**2


def test_the_evidence_is_exact_where_the_prior_differs_between_elements():
    x, y, design = regression()
    choice = choose(linear(), lv.likelihoods.gaussian(std=STD), data=(x, y), scales=LADDER, family=ByElement)
    exact = [exact_evidence(design * ByElement(1.0).stds, y, scale) for scale in LADDER]
    assert [row.score for row in choice.table] == pytest.approx(exact, abs=1e-6)


def test_the_lowest_of_the_places_that_descents_found_is_taken():
    x, y, design = regression()
    posterior = lv.Posterior(linear(), lv.likelihoods.gaussian(std=STD), prior=lv.priors.gaussian(1.0), num_data=len(x))
    mode = torch.linalg.solve(design.T @ design / STD**2 + torch.eye(4).double(), design.T @ y / STD**2)
    starts = torch.stack([mode + 1, mode, mode - 1])
    assert laplace.laplace_fit(posterior, x, y, starts, 1, 0).left < 1e-9


def test_without_a_matrix_the_evidence_is_the_same_where_random_signs_are_exact(monkeypatch):
    """Columns at right angles make A diagonal; ``z^T f(A) z`` is then the trace for any signs z."""
    monkeypatch.setattr(laplace, "DENSE", 0)
    _, y, design = regression()
    x = torch.linalg.qr(design - design.mean(0)).Q[:, :3] * torch.tensor([5.0, 2.0, 1.0], dtype=torch.float64)
    design = torch.cat([x, torch.ones(len(x), 1, dtype=torch.float64)], 1)
    for scale in LADDER:
        fit = fit_of(linear(), lv.likelihoods.gaussian(std=STD), x, y, scale)
        assert len(fit.log_evidences) == 16
        assert fit.log_evidences.tolist() == pytest.approx([exact_evidence(design, y, scale)] * 16, abs=1e-6)


def test_lanczos_gives_traces_forms_and_roots_of_a_large_matrix():
    dim = 300
    turn = torch.linalg.qr(normal(0, 0, 0, dim * dim, dtype=torch.float64).reshape(dim, dim)).Q
    values = 10 ** torch.linspace(-4, 4, dim, dtype=torch.float64)
    matrix = turn * values @ turn.T
    probes = normal(0, range(16), 0, dim, dtype=torch.float64).sign()

    def product(vectors):
        return vectors @ matrix

    found, exact = laplace.lanczos(product, probes), laplace.dense(matrix, probes)
    for function in (torch.log1p, lambda value: value / (1 + value)):
        traces = found.traces(function)
        # 5 standard errors of the mean of 16 probes.
        assert abs(float(traces.mean() - exact.traces(function))) < 5 * float(traces.std()) / 4
        each = torch.stack([probe @ turn * function(values) @ turn.T @ probe for probe in probes])
        assert traces.tolist() == pytest.approx(each.tolist(), rel=5e-3)  # what 100 steps leave over eight decades
    assert float(exact.traces(torch.log1p)) == pytest.approx(float(torch.log1p(values).sum()))
    for spectrum in (exact, found):
        form = float(probes[0] @ spectrum.apply(lambda value: 1 / (1 + value), probes[:1])[0])
        assert form == pytest.approx(float(probes[0] @ turn * (1 / (1 + values)) @ turn.T @ probes[0]), rel=1e-2)
        roots = spectrum.apply(lambda value: (1 + value).rsqrt(), probes)
        energies = (roots.square().sum(-1) + (roots * product(roots)).sum(-1)).tolist()  # z^T z
        assert energies == pytest.approx([dim] * 16, rel=1e-6)


def test_an_exhausted_space_adds_nothing():
    """A of rank 2 in 10 dimensions: Lanczos ends after three steps."""
    direction = torch.linalg.qr(normal(0, 0, 0, 20, dtype=torch.float64).reshape(10, 2)).Q
    matrix = direction * torch.tensor([3.0, 7.0], dtype=torch.float64) @ direction.T
    probes = normal(0, range(4), 0, 10, dtype=torch.float64).sign()
    found = laplace.lanczos(lambda v: v @ matrix, probes)
    exact = ((probes @ direction).square() * torch.tensor([4.0, 8.0], dtype=torch.float64).log()).sum(-1)
    assert found.traces(torch.log1p).tolist() == pytest.approx(exact.tolist(), abs=1e-9)


@pytest.mark.parametrize("likelihood", ["categorical", "poisson", lv.likelihoods.gaussian("predicted")])
def test_the_gauss_newton_matrix_is_that_of_the_formula(likelihood):
    """For outputs linear in theta it is the Hessian of the whole negative log-likelihood, by another way of differentiating."""
    x = normal(0, 0, 0, 60, dtype=torch.float64).reshape(20, 3)
    y = {"categorical": torch.arange(20) % 4, "poisson": torch.arange(80).reshape(20, 4) % 3}.get(likelihood, x[:, :2])
    posterior = lv.Posterior(network((3, 4)).double(), likelihood, prior=lv.priors.gaussian(1.0), num_data=20)
    position = posterior.init(1)[0]
    hessian = torch.autograd.functional.hessian(lambda theta: -posterior.log_likelihood_fn(theta, x, y).sum(), position)
    torch.testing.assert_close(laplace._gauss_newton_times(posterior, position, x, y, torch.eye(16).double()), hessian)


def test_the_gauss_newton_matrix_of_a_network_leaves_its_second_derivatives_out(monkeypatch):
    monkeypatch.setattr(laplace, "_MAX_ROWS", 200)  # a few rows at a time
    x, y = normal(0, 0, 0, 60, dtype=torch.float64).reshape(20, 3), torch.arange(20) % 3
    model = network((3, 4), nn.Tanh(), (4, 3)).double()
    posterior = lv.Posterior(model, "categorical", prior=lv.priors.gaussian(1.0), num_data=20)
    position = posterior.init(1)[0]
    jacobian = torch.autograd.functional.jacobian(lambda theta: posterior.output_fn(theta, x), position)
    p = posterior.output_fn(position, x).softmax(-1)
    curved = torch.diag_embed(p) - p[:, :, None] * p[:, None]
    expected = torch.einsum("nia,nij,njb->ab", jacobian, curved, jacobian)
    basis = torch.eye(len(position), dtype=torch.float64)
    torch.testing.assert_close(laplace._gauss_newton_times(posterior, position, x, y, basis), expected)


def quadrature(posterior, x, y, low, high, points=401):
    """log of the integral of exp(-U) over a rectangle, two parameters."""
    axes = [torch.linspace(a, b, points, dtype=torch.float64) for a, b in zip(low, high, strict=True)]
    grid = torch.cartesian_prod(*axes)
    logs = torch.cat([posterior_log(posterior, part, x, y) for part in grid.split(20_000)])
    return float(logs.logsumexp(0)) + sum(math.log(float(axis[1] - axis[0])) for axis in axes)


def posterior_log(posterior, positions, x, y):
    return torch.func.vmap(posterior.log_likelihood_fn, in_dims=(0, None, None))(positions, x, y).sum(-1) - posterior.prior.energy(
        positions
    )


class Slope(nn.Module):
    """One weight, no bias; and a second weight where asked."""

    def __init__(self, product=False):
        super().__init__()
        self.weight = nn.Parameter(torch.full((2 if product else 1,), 0.5, dtype=torch.float64))

    def forward(self, x):
        return x[:, 0] * self.weight.prod()


def test_the_evidence_is_near_that_of_quadrature_where_the_noise_is_learned():
    """The curvature has cross terms that cancel at the mode, and the posterior of 50 rows is nearly Gaussian: within 0.1 nats."""
    x, _, _ = regression(50, 1)
    y = 0.8 * x[:, 0] + 0.4 * normal(3, 0, 0, 50, dtype=torch.float64)
    for scale in (0.3, 1.0, 3.0):
        posterior = lv.Posterior(Slope(), "gaussian", prior=lv.priors.gaussian(scale), num_data=50)
        fit = fit_of(Slope(), "gaussian", x, y, scale)
        assert float(fit.log_evidences.mean()) == pytest.approx(quadrature(posterior, x, y, (-3.5, 0), (0.5, 1.6)), abs=0.1)
        assert 0.8 < fit.excess < 1.25
        assert 1.3 < fit.effective < 2


def test_the_evidence_of_a_network_is_that_of_laplace_torch():
    """Numbers of laplace-torch 0.2.2.2, hessian_structure="full", at the same place, which is no mode."""
    x = normal(0, 0, 0, 180, dtype=torch.float64).reshape(60, 3)
    y = (x[:, 0] * x[:, 1] > 0).long() + (x[:, 2] > 1).long()
    model = network((3, 8), nn.Tanh(), (8, 3)).double()
    for scale, theirs in ((0.3, -152.0758237), (1.0, -103.3490189), (3.0, -113.6620302)):
        posterior = lv.Posterior(model, "categorical", prior=lv.priors.gaussian(scale), num_data=60)
        fit = laplace.fit_at(posterior, x, y, 0.5 * normal(0, 0, 1, posterior.dim, dtype=torch.float64), 0)
        assert float(fit.log_evidences.mean()) - fit.left == pytest.approx(theirs, abs=1e-5)


def test_a_poor_fit_is_said_and_a_good_one_is_not():
    """One row with outputs a b x: the posterior of (a, b) is a pair of hyperbolas, no Gaussian."""
    x, y = torch.ones(1, 1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    likelihood = lv.likelihoods.gaussian(std=0.01)
    with pytest.warns(lv.TrustWarning, match="the Laplace fit is poor"):
        choose(Slope(product=True), likelihood, data=(x, y), scales=(0.1, 1.0, 10.0))
    x, y, _ = regression()
    assert choose(linear(), lv.likelihoods.gaussian(std=STD), data=(x, y), scales=LADDER).warnings == ()


def test_a_mode_that_was_not_reached_is_said():
    x, y, _ = regression()
    with pytest.warns(lv.TrustWarning, match="the mode was not reached in 2 steps"):
        choose(linear(), lv.likelihoods.gaussian(std=STD), data=(x, y), scales=LADDER, num_steps=2)


@pytest.mark.parametrize(
    ("ladder", "text"), [((2.0, 5.0, 10.0), "smallest that was tried"), ((0.02, 0.05, 0.1), "largest that was")]
)
def test_a_best_scale_at_an_end_of_the_ladder_is_said(ladder, text):
    x, y, _ = regression()
    with pytest.warns(lv.TrustWarning, match=text):
        choose(linear(), lv.likelihoods.gaussian(std=STD), data=(x, y), scales=ladder)


class Corner(lv.targets.priors.Prior):
    """A Laplace prior, whose energy is not curved."""

    def __init__(self, scale):
        self.scale = scale

    def energy(self, position):
        return (position.abs() / self.scale + math.log(2 * self.scale)).sum(-1)

    def gradient(self, position):
        return position.sign() / self.scale


def test_a_prior_without_curvature_has_no_fit_but_a_validation():
    x, y, _ = regression()
    likelihood = lv.likelihoods.gaussian(std=STD)
    with pytest.raises(ValueError, match=r"choose_prior\(family=...\) needs priors .* got 'no Laplace fit"):
        choose(linear(), likelihood, data=(x, y), scales=(0.1, 1.0), family=Corner)
    choice = choose(linear(), likelihood, data=(x, y), scales=(0.01, 1.0), family=Corner, by="validation", num_steps=50)
    assert choice.scale == 1.0
    assert isinstance(choice.prior, Corner)


# -- validation


def exact_nll(design, y, unseen, targets, scale, temperature):
    """Of each unseen row, under the posterior at a temperature, whose covariance is that much larger."""
    precision = design.T @ design / STD**2 + torch.eye(design.shape[1], dtype=torch.float64) / scale**2
    covariance = torch.linalg.inv(precision)
    mean = covariance @ design.T @ y / STD**2
    variance = STD**2 + temperature * (unseen @ covariance * unseen).sum(-1)
    return -Normal(unseen @ mean, variance.sqrt()).log_prob(targets)


def test_the_held_out_nll_is_that_of_the_exact_posterior():
    x, y, design = regression(60)
    data, unseen = (x[:20], y[:20]), (x[20:], y[20:])
    likelihood = lv.likelihoods.gaussian(std=STD)
    exact, found = [], []
    for scale, temperature in ((0.1, 1.0), (1.0, 10.0)):
        posterior = lv.Posterior(linear(), likelihood, prior=lv.priors.gaussian(scale), num_data=20)
        losses = validation.held_out_nll(
            posterior, data, unseen, chains=8, temperature=temperature, num_steps=1000, seed=1, report=lambda done: None
        )
        assert losses.shape == (40,)
        found.append(float(losses.mean()))
        exact.append(float(exact_nll(design[:20], y[:20], design[20:], y[20:], scale, temperature).mean()))
    assert found == pytest.approx(exact, abs=0.03)  # of 400 draws; what scale and temperature do is several times that
    plain = float(exact_nll(design[:20], y[:20], design[20:], y[20:], 1.0, 1.0).mean())
    assert min(abs(value - plain) for value in exact) > 0.1


def test_rows_held_out_are_a_share_and_no_row_is_in_both_parts():
    column = torch.arange(50)
    seen, unseen = validation.split((column, 2 * column), 0.2, seed=3)
    assert len(seen[0]) == 40
    assert sorted([*seen[0].tolist(), *unseen[0].tolist()]) == column.tolist()
    assert torch.equal(unseen[1], 2 * unseen[0])
    assert not torch.equal(unseen[0], validation.split((column,), 0.2, seed=4)[1][0])


def test_validation_finds_the_good_setting_and_repeats_bit_for_bit_on_any_ladder():
    x, y, _ = regression(60, 10)
    settings = {"data": (x, y), "by": "validation", "num_steps": 60}
    model, likelihood = linear(10), lv.likelihoods.gaussian(std=STD)
    start = [parameter.clone() for parameter in model.parameters()]
    choice = choose(model, likelihood, scales=(0.01, 1.0), temperatures=(1.0, 100.0), **settings)
    assert (choice.scale, choice.temperature) == (1.0, 1.0)
    assert [(row.scale, row.temperature) for row in choice.table] == [(0.01, 1.0), (0.01, 100.0), (1.0, 1.0), (1.0, 100.0)]
    again = choose(model, likelihood, scales=(1.0, 0.01), **settings)
    assert again.table == tuple(row for row in choice.table if row.temperature == 1.0)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), start, strict=True))


def test_rows_for_validation_may_be_given():
    x, y, _ = regression(60)
    told = []
    choice = lv.choose_prior(
        linear(), lv.likelihoods.gaussian(std=STD), data=(x[:40], y[:40]), holdout=(x[40:], y[40:]), scales=(0.01, 1.0),
        by="validation", num_steps=20, progress=lambda done, total: told.append((done, total)),
    )  # fmt: skip
    assert "40 rows and 20 held out" in choice.why
    assert told[-1] == (2 * 1220, 2 * 1220)
    assert [done for done, _ in told] == sorted(done for done, _ in told)


# -- the rule


def measured(scale, temperature, losses):
    return Measured(scale, temperature, None if losses is None else torch.tensor(losses, dtype=torch.float64))


def test_a_difference_counts_in_standard_errors_of_the_same_rows():
    """Losses differ by 0.1 in every row, which vary by far more: the difference has no error, and is seen."""
    best, other = measured(1.0, 1.0, [0.0, 5.0, 9.0]), measured(2.0, 1.0, [0.1, 5.1, 9.1])
    assert scores.versus(other, best) == (pytest.approx(0.1), pytest.approx(0.0, abs=1e-12))
    assert scores.as_good([best, other], 0.0) == [best]
    assert scores.as_good([best, other], 0.2) == [best, other]
    noisy = measured(2.0, 1.0, [0.5, 4.9, 8.9])  # gaps 0.5, -0.1, -0.1: mean 0.1, standard deviation 0.346
    assert scores.versus(noisy, best) == (pytest.approx(0.1), pytest.approx(0.2))
    assert scores.as_good([best, noisy], 0.0) == [best, noisy]


def test_of_settings_that_cannot_be_told_apart_the_temperature_nearest_one_is_taken():
    cold, warm = measured(1.0, 0.1, [0.0, 1.0]), measured(2.0, 1.0, [0.3, 0.9])
    worse = measured(3.0, 1.0, [0.5, 0.8])
    lost = measured(4.0, 1.0, None)
    assert scores.choose([cold, warm, worse, lost], 0.0) is warm
    assert scores.choose([cold, measured(2.0, 1.0, [0.3, 1.3]), lost], 0.0) is cold
    table = scores.scores([cold, warm, lost], warm, 1)
    assert [row.is_chosen for row in table] == [False, True, False]
    assert math.isnan(table[2].score)
    lines = scores.describe(table, "held-out NLL", 4)
    assert [line[0] for line in lines] == [" ", " ", "*", " "]
    assert "nearest 1" in scores.verdict(table, [cold, warm], warm, 4)[1]


def test_ends_of_the_ladders_are_said_but_not_temperature_one():
    settings = [measured(scale, heat, [0.0]) for scale in (1.0, 2.0, 3.0) for heat in (0.1, 1.0)]
    assert scores.end_of_ladder(settings, settings[3]) == []
    assert len(scores.end_of_ladder(settings, settings[2])) == 1
    assert len(scores.end_of_ladder(settings, settings[0])) == 2
    assert "larger" in scores.end_of_ladder(settings, settings[5])[0]


# -- Ctrl-C, bad values, words


def test_ctrl_c_returns_the_choice_among_two_settings_and_is_raised_before(monkeypatch):
    x, y, _ = regression()
    count = 0

    def interrupted(*given):
        nonlocal count
        count += 1
        if count == last:
            raise KeyboardInterrupt
        return laplace.laplace_fit(*given)

    monkeypatch.setattr(prior, "laplace_fit", interrupted)
    last = 4
    with pytest.warns(lv.TrustWarning, match="interrupted: 3 of 6 settings were measured"):
        choice = choose(linear(), lv.likelihoods.gaussian(std=STD), data=(x, y), scales=LADDER)
    assert [row.scale for row in choice.table] == list(LADDER[:3])
    count, last = 0, 2
    with pytest.raises(KeyboardInterrupt):
        choose(linear(), lv.likelihoods.gaussian(std=STD), data=(x, y), scales=LADDER)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"scales": (1.0,)}, r"choose_prior\(scales=...\) needs at least 2 different positive numbers, got \[1.0\]"),
        ({"scales": (1.0, -1.0)}, r"choose_prior\(scales=...\) needs at least 2 different positive numbers, got -1.0"),
        ({"scales": "0.1"}, r"choose_prior\(scales=...\) needs"),
        ({"temperatures": (0.0, 1.0)}, r"choose_prior\(temperatures=...\) needs positive numbers, got 0.0"),
        ({"temperatures": ()}, r"choose_prior\(temperatures=...\) needs positive numbers, got \[\]"),
        ({"temperatures": (0.1, 1.0)}, r'choose_prior\(temperatures=...\) needs \(1.0,\) with by="marginal likelihood"'),
        ({"by": "guess"}, r'choose_prior\(by=...\) needs "marginal likelihood" or "validation", got \'guess\''),
        ({"holdout": 0.1}, r"choose_prior\(holdout=...\) needs None with by"),
        ({"by": "validation", "holdout": 1.0}, r"choose_prior\(holdout=...\) needs 0 < holdout < 1, got 1.0"),
        ({"by": "validation", "holdout": 0.01}, r"choose_prior\(holdout=...\) needs two of the 40 rows"),
        ({"family": 3}, r"choose_prior\(family=...\) needs a function of one scale that returns a prior, got 3"),
        ({"family": lambda scale: scale}, r"Posterior\(prior=...\) needs a prior"),
        ({"num_steps": 0}, r"choose_prior\(num_steps=...\) needs an int >= 1, got 0"),
        ({"chains": 0}, r"choose_prior\(chains=...\) needs an int >= 1, got 0"),
        ({"seed": -1}, r"choose_prior\(seed=...\) needs an int in"),
        ({"data": (torch.ones(3, 3).double(),)}, r"Posterior\(data=...\) needs two columns"),
        (
            {"data": (torch.ones(3, 3).double(), torch.ones(2).double())},
            r"choose_prior\(data=...\) needs columns of the same length",
        ),
    ],
)
def test_bad_values_fail_in_words(changed, message):
    x, y, _ = regression()
    with pytest.raises((ValueError, TypeError), match=message):
        choose(linear(), lv.likelihoods.gaussian(std=STD), **{"data": (x, y), "scales": (0.1, 1.0), **changed})


def test_the_page_runs_as_it_stands(capsys):
    page = (Path(__file__).parents[1] / "docs" / "choose_prior.md").read_text()
    (block,) = re.findall(r"```python\n(.*?)```", page, re.S)
    found: dict = {}
    with torch.random.fork_rng(devices=[]):
        exec(block, found)
    (shown,) = re.findall(r"```text\n(.*?)```", page, re.S)
    printed, shown = capsys.readouterr().out.splitlines(), shown.splitlines()
    assert len(printed) == len(shown)
    assert [printed[0], printed[-3]] == [shown[0], shown[-3]]  # modes of networks, and so the numbers, differ between machines
    assert found["opt"].param_groups[0]["prior"] == found["posterior"].prior == found["choice"].prior


@pytest.mark.slow
def test_on_digits_the_chosen_prior_predicts_nearly_as_well_as_the_best_of_the_ladder():
    """Test NLL of the runs; priors at the ends are much worse."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
    (x, y), test = validation.split((x, y), 0.3, seed=7)
    model = network((64, 16), nn.Tanh(), (16, 10))
    ladder = (0.05, 0.3, 1.0, 3.0, 20.0)
    nll = {}
    for scale in ladder:
        posterior = lv.Posterior(model, "categorical", prior=lv.priors.gaussian(scale), num_data=len(x))
        losses = validation.held_out_nll(
            posterior, (x, y), test, chains=2, temperature=1.0, num_steps=500, seed=0, report=lambda done: None
        )
        nll[scale] = float(losses.mean())
    assert max(nll.values()) > 2
    for by in ("marginal likelihood", "validation"):
        choice = choose(model, "categorical", data=(x, y), scales=ladder, by=by)
        assert nll[choice.scale] < min(nll.values()) + 0.05
