"""Targets of the Inference Gym and exact ones: their densities against formulas written again, and the check that runs them."""

from __future__ import annotations

import itertools
import json
import math

import pytest
import torch
from langevin_paper.check.database import ROOT, read_reference, suite
from langevin_paper.check.posteriors import ANALYTIC, GYM
from langevin_paper.check.reference import check_suite
from scipy import stats

from langevin.random import Purpose, normal, stream
from langevin.targets.gradients import full


def log_density(reference, values):
    """Return the model's log density of values, without the Jacobian of its constraints."""
    model, data = reference.posterior.model, reference.posterior.data
    position = model.unconstrain(values)[None]
    energy = full(model, data)(position, 0).energy
    return float(-energy - model.space.constrain(position[0])[1])


def numbers(count, index=0):
    return normal(1, stream(Purpose.DATA), index, count, dtype=torch.float64)


def difference(name, log_prob, first, second):
    """Return the errors of the log density's change between two points: constants cancel."""
    reference = read_reference(name)
    change = log_density(reference, first) - log_density(reference, second)
    return abs(change - (log_prob(first) - log_prob(second))) / max(1.0, abs(change))


def walk(name):
    data = [None if value is None else float(value) for value in content(name)["y"]]

    def log_prob(v):
        total, before = 0.0, 0.0
        for value, observed in zip(v["locs"].tolist(), data, strict=True):
            total += stats.norm.logpdf(value, before, v["innovation_noise_scale"])
            before = value
            if observed is not None:
                total += stats.norm.logpdf(observed, value, v["observation_noise_scale"])
        for scale in ("innovation_noise_scale", "observation_noise_scale"):
            total += stats.lognorm.logpdf(v[scale], 2.0)
        return total

    return log_prob


def content(name):
    return json.loads((ROOT / "tests" / "evidence" / "inference_gym" / f"{name}.json").read_text())["data"]


def test_brownian_motion_is_a_walk_observed_with_noise():
    points = [
        {"innovation_noise_scale": a, "observation_noise_scale": b, "locs": numbers(30, i)}
        for i, (a, b) in enumerate([(0.1, 0.2), (0.5, 0.3)])
    ]
    assert difference("brownian_motion_unknown_scales", walk("brownian_motion_unknown_scales"), *points) < 1e-10


def test_stochastic_volatility_is_autoregressive_and_starts_stationary():
    y = content("volatility_small")["y"]

    def log_prob(v):
        path, mean, scale, phi = (
            v["log_volatility"].tolist(),
            v["mean_log_volatility"],
            v["white_noise_shock_scale"],
            v["persistence_of_volatility"],
        )
        total = stats.norm.logpdf(path[0], mean, scale / math.sqrt(1 - phi**2))
        total += sum(stats.norm.logpdf(b, mean + phi * (a - mean), scale) for a, b in itertools.pairwise(path))
        total += sum(stats.norm.logpdf(r, 0, math.exp(h / 2)) for r, h in zip(y, path, strict=True))
        return (
            total
            + stats.cauchy.logpdf(mean, 0, 5)
            + stats.halfcauchy.logpdf(scale, 0, 2)
            + stats.beta.logpdf((phi + 1) / 2, 20, 1.5)
        )

    points = [
        {
            "persistence_of_volatility": 0.9,
            "mean_log_volatility": 1.0,
            "white_noise_shock_scale": 0.4,
            "log_volatility": numbers(100),
        },
        {
            "persistence_of_volatility": 0.3,
            "mean_log_volatility": -1.0,
            "white_noise_shock_scale": 1.4,
            "log_volatility": numbers(100, 1),
        },
    ]
    assert difference("volatility_small", log_prob, *points) < 1e-10


def test_the_cox_process_has_a_matern_kernel():
    data = content("cox_process")
    x, counts, extent = (torch.tensor(data[name], dtype=torch.float64).numpy() for name in ("x", "count", "extent"))
    mean = (torch.tensor(counts).log() - torch.tensor(extent).log()).mean()

    def log_prob(v):
        distance = ((x[:, None] - x) ** 2).sum(-1) ** 0.5 * 3**0.5 / (v["length_scale"] + 0.001)
        kernel = (v["amplitude"] + 0.001) ** 2 * (1 + distance) * torch.exp(-torch.tensor(distance)).numpy()
        kernel += 1e-6 * torch.eye(100, dtype=torch.float64).numpy()
        total = stats.multivariate_normal(100 * [float(mean)], kernel).logpdf(v["log_intensity"].numpy())
        total += stats.poisson.logpmf(counts, extent * v["log_intensity"].exp().numpy()).sum()
        return (
            total
            + stats.lognorm.logpdf(v["amplitude"], 0.5, scale=math.exp(-1))
            + stats.lognorm.logpdf(v["length_scale"], 1.0, scale=math.exp(-1))
        )

    points = [
        {"amplitude": 0.4, "length_scale": 0.7, "log_intensity": mean + 0.3 * numbers(100)},
        {"amplitude": 0.8, "length_scale": 1.5, "log_intensity": mean + 0.1 * numbers(100, 1)},
    ]
    assert difference("cox_process", log_prob, *points) < 1e-8


def test_the_lorenz_bridge_takes_steps_of_euler():
    data = content("lorenz_bridge")
    step, (innovation, observation) = data["step"], data["scales"]

    def log_prob(v):
        path = v["latents"].tolist()
        total = stats.norm.logpdf(path[0]).sum()
        for (x, y, z), after in itertools.pairwise(path):
            drift = (10 * (y - x), x * (28 - z) - y, x * y - 8 * z / 3)
            total += sum(
                stats.norm.logpdf(b, a + step * d, innovation * step**0.5) for a, b, d in zip((x, y, z), after, drift, strict=True)
            )
        return total + sum(stats.norm.logpdf(o, at[0], observation) for o, at in zip(data["y"], path, strict=True) if o is not None)

    points = [{"latents": numbers(90, index).reshape(30, 3)} for index in range(2)]
    assert difference("lorenz_bridge", log_prob, *points) < 1e-10


def test_item_response_has_one_answer_per_row():
    reference = read_reference("item_response")
    assert {name: len(column) for name, column in reference.posterior.data.items()} == dict.fromkeys(
        ("student", "question", "correct"), 30012
    )
    assert reference.posterior.model.dim == len(reference.quantities) == 501


@pytest.mark.parametrize("name", ANALYTIC)
def test_exact_moments_belong_to_the_density(name):
    """Direct draws have them, and obey Stein's identity ``E x_i dU/dx_i = 1``."""
    mean, sd = (torch.tensor(values) for values in ANALYTIC[name]()[1:])
    reference = read_reference(name)
    assert len(mean) == len(sd) == len(reference.quantities)
    draws = exact_draws(name, 20_000)
    if draws is None:
        return
    found = reference.report(draws)
    error = found.std(0) / len(found) ** 0.5
    assert ((found.mean(0) - mean).abs() < 5 * error).all()
    spread = ((found - mean).square().std(0) / len(found) ** 0.5) / (2 * sd)
    assert ((found.std(0) - sd).abs() < 5 * spread).all()
    energy, gradient = full(reference.posterior.model)(draws, 0)
    identity = draws * gradient  # E x dU/dx = 1 for every element
    assert torch.isfinite(energy).all()
    assert ((identity.mean(0) - 1).abs() < 5 * identity.std(0) / len(draws) ** 0.5).all()


def exact_draws(name, count):
    """Return independent draws in the model's coordinates; None for the rotated Gaussian, whose law is its matrix."""
    if name == "banana":
        x = 10 * numbers(count)
        return torch.stack([x, 0.03 * (x.square() - 100) + numbers(count, 1)], -1)
    if name == "rosenbrock":
        x = 1 + numbers(18 * count).reshape(count, 18)
        return torch.cat([x, x.square() + 0.1**0.5 * numbers(18 * count, 1).reshape(count, 18)], -1)
    if name == "funnel":
        v = 3 * numbers(count)[:, None]
        return torch.cat([v, (v / 2).exp() * numbers(9 * count, 1).reshape(count, 9)], -1)
    if name == "ill_conditioned_gaussian_50":
        return torch.logspace(-1, 1, 50, dtype=torch.float64) * numbers(50 * count).reshape(count, 50)
    if name == "student_t":
        chi = numbers(50 * count, 1).reshape(count, 10, 5).square().sum(-1)
        return numbers(10 * count).reshape(count, 10) * (5 / chi).sqrt()
    return None


def test_the_suite_has_all_targets_and_names_what_it_lacks():
    names = suite()
    assert len(names) == len(set(names))
    assert {*GYM, *ANALYTIC} < set(names)
    with pytest.raises(ValueError, match=r"needs one of .*'unknown'"):
        read_reference("unknown")


def test_a_few_targets_of_the_suite_are_right_or_warned_of():
    report = check_suite(quick=True)
    assert report.passed
    assert len(report.rows) == 5  # with the broken twin
