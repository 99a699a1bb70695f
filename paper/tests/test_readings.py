"""Readings of what the paper leaves open: each is the formula that its row says, and the library's own where nothing is changed."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from langevin_paper.batched import mean_positions
from langevin_paper.chains import normal_starts
from langevin_paper.curvature import WithCurvature
from langevin_paper.experiments.landsat import LANDSAT
from langevin_paper.experiments.landsat_readings import LANDSAT_READINGS, READINGS
from langevin_paper.experiments.ravine import RAVINE, stacked_data
from langevin_paper.experiments.ravine_defaults import RAVINE_DEFAULTS
from langevin_paper.experiments.ravine_readings import LITERAL, RAVINE_READINGS, SHARED, STATED, kernel_of
from langevin_paper.models import mlp
from langevin_paper.psgld import PSGLDReading
from langevin_paper.spec import Scale
from langevin_paper.worker import Cell, execute

import langevin as lv
from langevin.kernels import StepInputs
from langevin.kernels.schedules import step_decay
from langevin.targets import Batch, Evaluation, ravine

EPSILON, TAU, N = 0.01, 0.3, 50.0


pytestmark = pytest.mark.usefixtures("one_thread")


def walk(kernel, factor=1.0, num_steps=5):
    """Return the positions of a walk on ``factor * (θ^4 + 2 θ^2)``, with given noise."""
    state, path = kernel.init(torch.tensor([[0.9, -0.4, 1.3]], dtype=torch.float64)), []
    noise = torch.linspace(-1, 1, num_steps * 3, dtype=torch.float64).view(num_steps, 1, 1, 3)
    for step in range(num_steps):
        θ = state.position
        gradient = factor * (4 * θ**3 + 4 * θ)
        state = kernel.step(state, Evaluation(torch.zeros(1, dtype=θ.dtype), gradient), noise[step])
        path.append(state.position)
    return torch.cat(path).numpy()


def by_hand(num_steps=5, *, num_data=1.0, zero=False, before=False, inside=False, power=0.5, precision=0.0, factor=1.0):
    θ, path, average = np.array([0.9, -0.4, 1.3]), [], np.zeros(3)
    noise, step = np.linspace(-1, 1, num_steps * 3).reshape(num_steps, 3), factor * EPSILON
    for t in range(num_steps):
        gradient = 4 * θ**3 + 4 * θ - precision * θ
        square = (gradient / num_data) ** 2
        newest = 0.9 * average + 0.1 * square if t or zero else square
        known = average if before and (t or zero) else newest
        metric = 1 / (np.sqrt(known + 1e-3) if inside else 1e-3 + np.sqrt(known))
        θ = θ - step * (metric * gradient + precision * θ) + math.sqrt(2 * step * TAU) * metric**power * noise[t]
        average = newest
        path.append(θ)
    return np.array(path)


@pytest.mark.parametrize(
    ("settings", "hand"),
    [
        ({}, {}),
        ({"num_data": N}, {"num_data": N}),
        ({"start_at": "zero"}, {"zero": True}),
        ({"order": "before"}, {"before": True}),
        ({"order": "before", "start_at": "zero"}, {"before": True, "zero": True}),
        ({"root": "inside"}, {"inside": True}),
        ({"spread": "plain"}, {"power": 0}),
        ({"spread": "squared"}, {"power": 1}),
        ({"prior_precision": 2.0}, {"precision": 2.0}),
        ({"step_factor": 0.5}, {"factor": 0.5}),
    ],
    ids=str,
)
def test_a_reading_of_psgld_is_its_formula(settings, hand):
    found = walk(PSGLDReading("psgld", EPSILON, TAU, beta=0.9, eps=1e-3, **settings))
    np.testing.assert_allclose(found, by_hand(**hand), rtol=1e-12)


def test_with_nothing_changed_it_is_the_librarys_psgld():
    library = lv.psgld(EPSILON, beta=0.9, eps=1e-3, num_data=N, temperature=TAU)
    np.testing.assert_allclose(walk(PSGLDReading("psgld", EPSILON, TAU, beta=0.9, eps=1e-3, num_data=N)), walk(library), rtol=1e-12)


def test_gamma_is_the_slope_of_the_metric():
    kernel = PSGLDReading("psgld", EPSILON, TAU, beta=0.9, eps=1e-3, num_data=N, gamma=True)
    plain = PSGLDReading("psgld", EPSILON, TAU, beta=0.9, eps=1e-3, num_data=N)
    θ = torch.tensor([[0.9, -0.4, 1.3]], dtype=torch.float64)
    average = torch.tensor([[0.3, 0.1, 2.0]], dtype=torch.float64)
    noise = torch.tensor([[[0.5, -1.0, 0.2]]], dtype=torch.float64)
    inputs = StepInputs(EPSILON, TAU)

    def metric(θ):
        return 1 / (1e-3 + (0.9 * average + 0.1 * ((4 * θ**3 + 4 * θ) / N) ** 2).sqrt())

    slope = torch.func.vjp(metric, θ)[1](torch.ones_like(θ))[0]
    gradient, curvature, nothing = 4 * θ**3 + 4 * θ, 12 * θ**2 + 4, torch.zeros_like(θ)
    energy = torch.zeros(1, dtype=θ.dtype)
    without, _ = plain.update(θ, Evaluation(energy, gradient), noise, (average,), inputs)
    doubled = [torch.cat(pair, -1) for pair in ((θ, nothing), (gradient, curvature), (average, nothing))]
    found, _ = kernel.update(doubled[0], Evaluation(energy, doubled[1]), torch.cat([noise, noise], -1), (doubled[2],), inputs)
    torch.testing.assert_close(found, torch.cat([without + EPSILON * TAU * slope, nothing], -1), rtol=1e-12, atol=0)
    with pytest.raises(ValueError, match=r"gamma=\.\.\.\) needs False where order"):
        PSGLDReading("psgld", EPSILON, TAU, order="before", gamma=True)


@pytest.mark.parametrize("per_chain", [False, True])
def test_the_diagonal_is_that_of_the_hessian(per_chain):
    sizes, chains, n, num_data, std = (5, 4, 4, 3), 2, 7, 70, 0.5
    network = mlp(*sizes).double()
    posterior = lv.Posterior(network, "categorical", prior=lv.priors.gaussian(std=std), num_data=num_data)
    target = WithCurvature(posterior, sizes, std)
    start = target.init(chains, seed=3)
    assert start.shape == (chains, 2 * posterior.dim)
    x = torch.linspace(-2, 3, chains * n * 5, dtype=torch.float64).sin().view(chains, n, 5)
    y = torch.arange(chains * n).view(chains, n) % 3
    batch = Batch((x, y), num_data, True) if per_chain else Batch((x[0], y[0]), num_data, False)
    _, gradient = target.evaluate(start, batch)
    for chain in range(chains):
        own = chain if per_chain else 0

        def alone(θ, own=own):
            logits = posterior.output_fn(θ, x[own])
            loss = torch.nn.functional.cross_entropy(logits, y[own], reduction="sum")
            return num_data / n * loss + (θ * θ).sum() / (2 * std**2)

        θ = start[chain, : posterior.dim]
        hessian = torch.func.jacrev(torch.func.grad(alone))(θ)
        wanted = torch.cat([torch.func.grad(alone)(θ), hessian.diagonal()])
        torch.testing.assert_close(gradient[chain], wanted, rtol=1e-9, atol=1e-9)


def test_a_cell_with_gamma_runs_as_one_without(tmp_path):
    scale = Scale("tiny", {**LANDSAT.scale("quick").settings, "epochs": 1, "averaged_steps": 50, "compile": False}, 1, 1.0)
    found = {
        name: execute(Cell(LANDSAT_READINGS, scale, LANDSAT_READINGS.method(name), range(1)), tmp_path / name, lambda share: None)
        for name in ("mean", "gamma")
    }
    assert {outcome.error for outcome in found.values()} == {None}
    plain, gamma = (outcome.results[0]["train_error"] for outcome in found.values())
    assert plain.shape == gamma.shape
    assert np.isfinite(gamma).all()


def test_a_word_that_is_not_known_is_refused():
    with pytest.raises(ValueError, match=r"order=\.\.\.\) needs one of newest, before"):
        PSGLDReading("psgld", EPSILON, TAU, order="after")


def test_the_readings_of_landsat_change_what_they_say_and_no_more():
    schedule = step_decay(EPSILON, factor=0.5, every=2)
    kernels = {method.name: method.kernel(step_size=schedule, temperature=TAU) for method in READINGS}
    assert len(set(map(str, kernels.values()))) == len(READINGS)
    assert {name for name, kernel in kernels.items() if kernel.step_size(4) != EPSILON / 4} == {"constant"}
    mean = LANDSAT.method("psgld-mean").kernel(step_size=schedule, temperature=TAU)
    np.testing.assert_allclose(walk(kernels["mean"]), walk(mean), rtol=1e-12)
    assert LANDSAT_READINGS.scale("paper") == LANDSAT.scale("paper")


@pytest.mark.parametrize("name", STATED)
@pytest.mark.parametrize("factor", [2.0, 0.01])
def test_a_factor_of_the_energy_is_the_same_steps_on_the_energy(name, factor):
    reading = {**LITERAL, "energy_factor": factor, "temperature": TAU, "decay": {"factor": 0.5, "every": 2}}
    stated = {key: value for key, value in STATED[name].items() if key not in ("sampler", "step_size")}
    steps = step_decay(STATED[name]["step_size"], factor=0.5, every=2)
    plain = getattr(lv, STATED[name]["sampler"])(step_size=steps, temperature=TAU, **stated)
    np.testing.assert_allclose(walk(kernel_of(STATED[name], reading)), walk(plain, factor), rtol=1e-9)


def test_the_literal_reading_has_the_appendixs_settings():
    for name, stated in STATED.items():
        plain = RAVINE.method(name).kernel(temperature=1.0)
        np.testing.assert_allclose(walk(kernel_of(stated, LITERAL)), walk(plain), rtol=1e-12)


def test_batches_with_replacement_are_others_and_repeat_rows():
    sets = range(2)
    given = {"chains": sets, "num_steps": 20, "warmup": 5, "batch_size": 50, "seed": 0, "progress": lambda share: None}
    data = tuple(column[:60] for column in stacked_data(sets))
    starts = normal_starts(sets, 2, seed=0)
    once, again, other = (
        mean_positions([lv.sgld(1e-5)], ravine(), starts, data, replace=replace, **given) for replace in (True, True, False)
    )
    assert torch.equal(once, again)
    assert not torch.allclose(once, other)


TINY = {"num_steps": 30, "warmup": 10}


@pytest.mark.parametrize("name", ["literal", "halved", "truth", "replacement"])
def test_a_cell_of_readings_has_a_number_for_every_sampler(name, tmp_path):
    scale = Scale("tiny", {**SHARED, **TINY}, 2, 1.0)
    outcome = execute(Cell(RAVINE_READINGS, scale, RAVINE_READINGS.method(name), range(2)), tmp_path, lambda share: None)
    assert outcome.error is None
    assert set(outcome.results[1]) == set(STATED)
    for found in outcome.results[1].values():
        assert found["distance"] == pytest.approx(math.dist((found["theta_1"], found["theta_2"]), (20, 10)))
    if name == "truth":
        assert outcome.results[0]["psgld"]["near"] == 1  # it hardly moves


def test_the_defaults_run_and_say_what_they_found(tmp_path):
    scale = Scale("tiny", {**RAVINE_DEFAULTS.scale("quick").settings, **TINY, "chains": 2}, 1, 1.0)
    outcome = execute(
        Cell(RAVINE_DEFAULTS, scale, RAVINE_DEFAULTS.method("msgld-invariant"), range(1)), tmp_path, lambda share: None
    )
    assert outcome.error is None
    assert outcome.results[0]["told"]
    assert outcome.results[0]["chains_near"] == 0
