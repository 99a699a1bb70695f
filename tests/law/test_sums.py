"""Sums of averages and a preconditioner in the invariant form: exact laws, reductions between code paths, and what is refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from exact import stationary
from scipy.integrate import quad
from stepping import step as step_by_hand

import langevin as lv
from langevin.kernels import Scaled
from langevin.kernels.drifts import Adadelta, Adam, AdamFull, Momentum, Total
from langevin.kernels.gradient_noise import FollowedNoise
from langevin.kernels.preconditioners import RMS
from langevin.targets import Evaluation
from langevin.targets.metric import Diagonal

DIM = 3
ROOT = lv.random.normal(5, range(DIM), 0, DIM, dtype=torch.float64)
PRECISION = ROOT @ ROOT.mT + 0.2 * torch.eye(DIM, dtype=torch.float64)
SUM = Total((Momentum(2.0, beta=0.5), Adam(30.0, betas=(0.95, 0.999), eps_root=0.3), Momentum(8.0, beta=0.99)))
FULL = Total((Momentum(2.0, beta=0.5), AdamFull(5.0, betas=(0.9, 0.99), eps_root=0.3)))


def recursion(kernel, frozen):
    """Return A and the noise's B of z' = A z + B n for (theta, velocities) at scales that stand still, by unit vectors.

    The gradient's own noise stands first among the n.
    """
    count, inputs = kernel.traits.num_noises, kernel.inputs(10**6)

    def respond(z, gradient_noise, noise):
        position, *velocities = z.reshape(1 + count, DIM)
        evaluation = Evaluation(torch.tensor(torch.nan), PRECISION @ position + gradient_noise)
        moved, memory = kernel.update(position, evaluation, noise.reshape(count, DIM), (*velocities, *frozen), inputs)
        return torch.cat([moved, *memory[:count]])

    sizes = [(1 + count) * DIM, DIM, count * DIM]
    columns = [respond(*row.split(sizes)) for row in torch.eye(sum(sizes), dtype=torch.float64)]
    matrix = torch.stack(columns, 1).numpy()
    return matrix[:, : sizes[0]], matrix[:, sizes[0] :]


def frozen_memory(kernel):
    """Return scales, and a preconditioner, of quite different entries."""
    start = kernel.start(torch.ones(DIM, dtype=torch.float64))[kernel.traits.num_noises :]
    given = [torch.tensor([0.1, 2.0, 30.0], dtype=torch.float64), torch.tensor([7.0, 0.5, 0.02], dtype=torch.float64)]
    return tuple(given[k] if tensor.ndim == 1 else ROOT.mT @ ROOT for k, tensor in enumerate(start))


def largest_step(build, frozen):
    """Return the step at which the largest eigenvalue of S K is 4, with S from its formula."""
    kernel, eye, size = build(1.0), torch.eye(DIM, dtype=torch.float64), 0.0
    frozen = list(frozen)
    for part in kernel.parts:
        own = tuple(frozen.pop(0) for _ in part.scale_names)
        size = size + 2 * part.bias_factor * (1 - part.smoothing) / (1 + part.smoothing) * part.scale(own, eye)
    root = 1.0 if not frozen else (0.1 + frozen[0] ** 0.5) ** -0.5
    size = root * (size + 2 * eye) * (root if not frozen else root[:, None])
    return 4 / float(torch.linalg.eigvals(size @ PRECISION).real.max())


CASES = {
    "three averages": {"drift": SUM},
    "and a preconditioner": {"drift": SUM, "preconditioner": RMS(eps=0.1)},
    "one average, preconditioned": {"drift": Momentum(10.0, beta=0.9), "preconditioner": RMS(eps=0.1)},
    "with a matrix": {"drift": FULL, "preconditioner": RMS(eps=0.1)},
}


def build(name, eps, **rest):
    return lv.compose(eps, **CASES[name], invariant=True, adapt_steps=1, **rest)


@pytest.mark.parametrize("share", [0.05, 0.5, 0.98])
@pytest.mark.parametrize("name", CASES)
def test_the_law_is_the_target_for_any_stable_step(name, share):
    """By the discrete Lyapunov equation of the kernel's own step, G_i, P and the curvature sharing no axis."""
    frozen = frozen_memory(build(name, 1.0))
    limit = largest_step(lambda eps: build(name, eps), frozen)
    transition, noises = recursion(build(name, share * limit, temperature=0.7), frozen)
    beyond, _ = recursion(build(name, 1.01 * limit), frozen)
    assert np.abs(np.linalg.eigvals(beyond)).max() > 1  # so it is the limit
    found = stationary(transition, noises[:, DIM:] @ noises[:, DIM:].T)
    np.testing.assert_allclose(found[:DIM, :DIM], 0.7 * np.linalg.inv(PRECISION.numpy()), rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(found[DIM:, DIM:], 0.7 * np.eye(len(found) - DIM), rtol=1e-8, atol=1e-8)  # velocities, too


@pytest.mark.parametrize("strength", [0.3, 30.0])
@pytest.mark.parametrize("name", ["three averages", "and a preconditioner", "one average, preconditioned"])
def test_given_noise_is_absorbed_in_sums_and_with_a_preconditioner(name, strength, monkeypatch):
    """Diagonal noise and curvature for scales that are diagonals."""
    curvature = torch.tensor([3.0, 0.4, 1.5], dtype=torch.float64)
    variance = strength * torch.tensor([1.0, 5.0, 0.2], dtype=torch.float64)
    monkeypatch.setattr("test_sums.PRECISION", torch.diag(curvature))
    frozen = frozen_memory(build(name, 1.0))
    kernel = build(name, 0.05, noise=(variance, 0.7 * curvature), temperature=0.7)
    transition, noises = recursion(kernel, frozen)
    noises[:, :DIM] *= variance.numpy() ** 0.5
    found = stationary(transition, noises @ noises.T)
    np.testing.assert_allclose(found[:DIM, :DIM], np.diag(0.7 / curvature.numpy()), rtol=1e-9, atol=1e-10)
    heated = build(name, 0.05, temperature=0.7)
    transition, noises = recursion(heated, frozen)
    noises[:, :DIM] *= variance.numpy() ** 0.5
    assert np.diag(stationary(transition, noises @ noises.T))[:DIM].max() > 1.02 * 0.7 / 0.4


def test_a_full_noise_is_absorbed_by_a_sum_of_momenta():
    """S is a number; the noise and the curvature share no axis."""
    noise = 20.0 * ROOT.mT @ ROOT
    kernel = lv.compose(
        0.02, drift=Total((Momentum(2.0, beta=0.5), Momentum(40.0, beta=0.98))), invariant=True, noise=(noise, PRECISION)
    )
    transition, noises = recursion(kernel, ())
    noises[:, :DIM] = noises[:, :DIM] @ np.linalg.cholesky(noise.numpy())
    found = stationary(transition, noises @ noises.T)[:DIM, :DIM]
    np.testing.assert_allclose(found, np.linalg.inv(PRECISION.numpy()), rtol=1e-9, atol=1e-9)


# Reductions

START = lv.random.normal(1, range(4), 0, DIM, dtype=torch.float64)


def path(kernel, noise_fn=lambda noise: noise, start=START, steps=12):
    state, positions = kernel.init(start), []
    for step in range(steps):
        noise = noise_fn(lv.random.normal(7, range(3 * 4), step, DIM, dtype=torch.float64).reshape(3, 4, DIM))
        state = step_by_hand(kernel, state, state.position @ PRECISION + state.position**3 / 5, noise[: kernel.traits.num_noises])
        positions.append(state.position)
    return torch.stack(positions)


@pytest.mark.parametrize(
    ("drift", "recipe", "settings"),
    [
        (Momentum(3.0, beta=0.8), lv.msgld, {"beta": 0.8}),
        (Adam(3.0, betas=(0.8, 0.9)), lv.asgld, {"betas": (0.8, 0.9), "adapt_steps": 5}),
        (AdamFull(3.0, betas=(0.8, 0.9)), lv.asgld_full, {"betas": (0.8, 0.9), "adapt_steps": 5}),
    ],
)
def test_a_sum_of_one_is_the_invariant_form_bit_for_bit(drift, recipe, settings):
    expected = path(recipe(0.03, bias_factor=3.0, invariant=True, **settings))
    for form in (drift, Total((drift,))):
        found = path(lv.compose(0.03, drift=form, invariant=True, adapt_steps=settings.get("adapt_steps")))
        assert torch.equal(found, expected)


def test_two_averages_of_one_memory_are_one_of_both_factors():
    """For noises of the two that are one: h_1 xi_1 + h_2 xi_2 = h xi."""
    both = lv.compose(0.03, drift=Total((Momentum(1.0, beta=0.8), Momentum(3.0, beta=0.8))), invariant=True)
    split = torch.tensor([1.0, 0.5, 3.0**0.5 / 2], dtype=torch.float64)[:, None, None]
    found = path(both, noise_fn=lambda noise: split * noise[[0, 1, 1]])
    torch.testing.assert_close(found, path(lv.msgld(0.03, bias_factor=4.0, beta=0.8, invariant=True)), rtol=1e-12, atol=1e-12)


def test_without_factors_it_is_the_method_of_leimkuhler_and_matthews():
    nothing = Total((Momentum(0.0, beta=0.5), Momentum(0.0, beta=0.9)))
    expected = path(lv.msgld(0.03, bias_factor=0.0, invariant=True))
    torch.testing.assert_close(path(lv.compose(0.03, drift=nothing, invariant=True)), expected, rtol=1e-12, atol=1e-12)


def test_a_preconditioner_that_stands_still_is_a_scale():
    """A beta next to one keeps V at the first squared gradients; the scale is then P^(1/2), by other code."""
    drift, first = Total((Momentum(2.0, beta=0.5), Momentum(9.0, beta=0.9))), START[:1]
    gradient = first @ PRECISION + first**3 / 5
    metric = 1 / (0.1 + gradient[0].abs())
    inside = lv.compose(0.03, drift=drift, preconditioner=RMS(eps=0.1), invariant=True, adapt_steps=1)
    outside = Scaled.of(lv.compose(0.03, drift=drift, invariant=True), Diagonal(metric**0.5))
    found, expected = (path(kernel, noise_fn=lambda noise: noise[:, :1], start=first) for kernel in (inside, outside))
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


# Off Gaussians


def test_off_gaussians_a_sum_is_of_second_order():
    """E x^2 under log cosh 3x + x^2/4, against quadrature; 5 standard errors, and the step of msgld beside it."""
    moments = [quad(lambda x, p=p: x**p * np.exp(-np.log(np.cosh(3 * x)) - x * x / 4), -15, 15)[0] for p in (0, 2, 4)]
    true, fourth = moments[1] / moments[0], moments[2] / moments[0]
    size, errors = 60_000, {}
    for eps in (0.16, 0.08):
        kernel = lv.compose(eps, drift=Total((Momentum(1.0, beta=0.5), Momentum(1.0, beta=0.8))), invariant=True)
        state = kernel.init(true**0.5 * lv.random.normal(0, lv.random.stream(lv.random.Purpose.INIT), 0, size))
        for step in range(int(6 / eps)):
            gradient = 3 * torch.tanh(3 * state.position) + state.position / 2
            state = step_by_hand(kernel, state, gradient, lv.random.normal(7, range(3), step, size))
        errors[eps] = state.position.double().square().mean().item() / true - 1
    chance = ((fourth - true**2) / size) ** 0.5 / true
    assert errors[0.16] > 8 * chance
    assert abs(errors[0.08]) < errors[0.16] / 4 + 5 * chance


# Runs


def test_sample_freezes_scales_and_preconditioner_after_the_warm_up():
    kernel = lv.compose(0.02, drift=SUM, preconditioner=RMS(eps=0.1), invariant=True)
    assert kernel.state_names == (
        "velocity_0", "velocity_1", "velocity_2", "passing_velocity", "square_average_1", "metric_average"
    )  # fmt: skip
    frozen = kernel.for_run(50, START)
    assert frozen.adapt_steps == 50
    state = frozen.init(START)
    for step in range(60):
        state = step_by_hand(frozen, state, state.position.sin() + step, torch.zeros(4, 4, DIM, dtype=torch.float64))
        if step == 49:
            at_freezing = state.tensors[4:]
    assert all(torch.equal(now, then) for now, then in zip(state.tensors[4:], at_freezing, strict=True))
    assert "guaranteed from step 50 on" in frozen.description
    assert "dθ = -P (grad U" in frozen.description
    with pytest.raises(ValueError, match=r"warmup=.*in which the scale is estimated"):
        kernel.for_run(0, START)


RUN = {"num_steps": 80, "warmup": 30}
PARTS = {"drift": SUM, "preconditioner": RMS(eps=0.1), "invariant": True}
WIDE = lv.targets.gaussian(torch.diag(torch.tensor([1.0, 0.1, 0.01])))


@pytest.mark.slow
def test_compiled_steps_equal_eager_ones():
    eager, compiled = (
        lv.sample(WIDE, sampler=lv.compose(0.005, **PARTS), init=START, compile=compile, **RUN) for compile in (False, True)
    )
    torch.testing.assert_close(eager.draws, compiled.draws, rtol=1e-9, atol=1e-9)


def test_auto_finds_a_step_for_a_sum_with_a_preconditioner(capsys):
    samples = lv.sample(WIDE, sampler=lv.compose("auto", **PARTS), init=START, compile=False, **RUN)
    assert "step_size" in capsys.readouterr().out
    assert samples.draws.isfinite().all()


def test_noise_scale_and_reach_are_sums():
    kernel = lv.compose(0.03, drift=Total((Momentum(2.0, beta=0.5), Momentum(8.0, beta=0.9))), invariant=True)
    inputs = kernel.inputs(0)
    assert kernel.noise_scale(inputs) == pytest.approx(math.sqrt(0.03 * (1 + 2 * 0.25 / 2 + 8 * 0.01 / 2)))
    assert float(kernel.total_response(kernel.start(torch.zeros(1)), inputs)) == pytest.approx(0.03 * (1 + 10))


REFUSED = {
    "no drift": ({"drift": None}, TypeError, r"drift=.*scaled average.*None"),
    "a drift that is no average": ({"drift": Total((Momentum(), Adadelta()))}, TypeError, r"drift=.*scaled average"),
    "a metric that moves": (
        {"drift": SUM, "preconditioner": lv.preconditioners.Fisher(torch.diag)},
        ValueError,
        r"preconditioner=.*does not depend on the position.*Fisher",
    ),
    "noise to be learnt": ({"drift": SUM, "noise": "corrected"}, ValueError, r"noise=.*one average only.*corrected"),
    "noise beside a matrix": (
        {"drift": FULL, "noise": FollowedNoise()},
        ValueError,
        r"noise=.*None for a sum with a scale that is a matrix",
    ),
    "a factor left open": ({"drift": SUM, "annealing": "auto"}, ValueError, r"annealing=.*'auto'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_covered_is_refused_in_words(case):
    settings, error, message = REFUSED[case]
    with pytest.raises(error, match=message):
        lv.compose(0.1, invariant=True, **settings)
    with pytest.raises(ValueError, match=r"noise=.*published"):
        lv.compose(0.1, noise="corrected")
