"""The invariant form beyond Gaussians: order in the step size, reductions between code paths, freezing, annealing."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sampler_table import TABLE, build
from scipy.integrate import quad
from stepping import step as step_by_hand

import langevin as lv
from langevin.execution.blocks import stack_inputs
from langevin.kernels import KernelState
from langevin.kernels.base import inputs_of

NUM_CHAINS = 200_000
TARGET = lv.targets.gaussian([[1.0, 0.9], [0.9, 1.0]])


def noises(count, step, size, dtype=torch.float64):
    return lv.random.normal(7, range(count), step, size, dtype=dtype)


def steep(x):
    """An energy whose curvature falls from 9.5 in the middle to 0.5 outside."""
    return np.log(np.cosh(3 * x)) + x * x / 4


def second_moment_error(kernel, eps):
    """Return the error of E theta^2 under `steep` over independent chains, and its standard error."""
    moments = [quad(lambda x, p=p: x**p * np.exp(-steep(x)), -15, 15)[0] for p in (0, 2, 4)]
    true, fourth = moments[1] / moments[0], moments[2] / moments[0]
    state = kernel.init(true**0.5 * lv.random.normal(0, lv.random.stream(lv.random.Purpose.INIT), 0, NUM_CHAINS))
    for step in range(int(5 / eps)):
        noise = noises(kernel.traits.num_noises, step, NUM_CHAINS, torch.float32)
        gradient = 3 * torch.tanh(3 * state.position) + state.position / 2
        state = step_by_hand(kernel, state, gradient, noise)
    return state.position.double().square().mean().item() - true, ((fourth - true**2) / NUM_CHAINS) ** 0.5


def test_the_error_is_of_second_order_at_least_where_sgld_has_first():
    error = {eps: second_moment_error(lv.msgld(eps, beta=0.5, invariant=True), eps) for eps in (0.16, 0.08)}
    (large, chance), (small, _) = error[0.16], error[0.08]
    assert large > 10 * chance  # so there is an error to fall
    assert abs(small) < large / 4 + 5 * chance
    sgld, _ = second_moment_error(lv.sgld(0.08), 0.08)
    assert sgld > 10 * (abs(small) + 5 * chance)


def path(kernel, steps=8, position=None, noise_fn=None, gradient_fn=None):
    state = kernel.init(torch.tensor([[0.3, -1.2], [1.0, 0.4]], dtype=torch.float64) if position is None else position)
    positions = []
    for step in range(steps):
        noise = noises(kernel.traits.num_noises, step, state.position.numel()).reshape(-1, *state.position.shape)
        noise = noise if noise_fn is None else noise_fn(noise)
        gradient = (gradient_fn or (lambda at: TARGET.evaluate(at).gradient))(state.position)
        state = step_by_hand(kernel, state, gradient, noise)
        positions.append(state.position)
    return torch.stack(positions)


@pytest.mark.parametrize("name", [name for name in TABLE if name.endswith(", invariant") and "bias_factor" in TABLE[name].settings])
def test_without_bias_it_is_the_method_of_leimkuhler_and_matthews(name):
    eps, state, last = 0.03, torch.tensor([[0.3, -1.2], [1.0, 0.4]], dtype=torch.float64), 0.0
    found = path(build(name, eps, bias_factor=0.0))
    for step in range(8):
        eta = noises(2, step, 4)[0].reshape(2, 2)
        state = state - eps * state @ TARGET.precision + (eps / 2) ** 0.5 * (last + eta)
        last = eta
        torch.testing.assert_close(found[step], state, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("a", [1.0, 10.0])
def test_with_a_momentum_that_forgets_at_once_the_bias_only_lengthens_the_step(a):
    """At beta 0 the two velocities are one, of stride (1 + a) eps, for noises that are one."""
    angle = math.atan(a**0.5)
    both = path(
        lv.msgld(0.01, bias_factor=a, beta=0.0, invariant=True),
        noise_fn=lambda n: torch.stack([n[0] * math.cos(angle), n[0] * math.sin(angle)]),
    )
    alone = path(lv.msgld(0.01 * (1 + a), bias_factor=0.0, invariant=True))
    torch.testing.assert_close(both, alone, rtol=1e-11, atol=1e-11)


def test_for_large_a_it_is_underdamped_langevin_by_baoab():
    """With a eps fixed and eps to 0 only the lasting velocity is left: BAOAB of time step h."""
    beta, h = 0.8, 0.2
    found = path(lv.msgld(1e-14, bias_factor=h**2 * (1 + beta) / (2 * (1 - beta)) / 1e-14, beta=beta, invariant=True))
    theta, v = torch.tensor([[0.3, -1.2], [1.0, 0.4]], dtype=torch.float64), 0.0
    for step in range(8):
        xi = noises(2, step, 4)[1].reshape(2, 2)
        v = v - h * theta @ TARGET.precision
        theta = theta + h / 2 * v
        v = beta * v + (1 - beta**2) ** 0.5 * xi
        theta = theta + h / 2 * v
        torch.testing.assert_close(found[step], theta, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("invariant", [False, True])
def test_the_matrix_form_in_one_dimension_is_the_diagonal_one(invariant):
    settings = {"bias_factor": 2.0, "betas": (0.8, 0.95), "invariant": invariant}
    start = torch.tensor([[0.3], [1.5]], dtype=torch.float64)
    paths = [path(recipe(0.03, **settings), position=start, gradient_fn=lambda at: 2 * at) for recipe in (lv.asgld, lv.asgld_full)]
    torch.testing.assert_close(*paths, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("invariant", [False, True])
def test_the_matrix_form_turns_with_the_axes_and_the_diagonal_one_does_not(invariant):
    turn = torch.tensor([[0.8, 0.6], [-0.6, 0.8]], dtype=torch.float64)
    start = torch.tensor([[0.3, -1.2], [1.0, 0.4]], dtype=torch.float64)
    settings = {"bias_factor": 2.0, "invariant": invariant}
    for recipe, is_same in ((lv.asgld_full, True), (lv.asgld, False)):
        plain = path(recipe(0.03, **settings))
        turned = path(
            recipe(0.03, **settings),
            position=start @ turn,
            noise_fn=lambda n: n @ turn,
            gradient_fn=lambda at: at @ turn.T @ TARGET.precision @ turn,
        )
        assert torch.allclose(turned, plain @ turn, rtol=1e-9, atol=1e-9) == is_same


def test_the_matrix_form_survives_a_singular_average_and_a_dead_chain():
    """In 60 dimensions V has rank one after the first step; a chain that is not finite must not stop the others."""
    start = lv.random.normal(1, range(2), 0, 60, dtype=torch.float64)
    alive = torch.tensor([[1.0], [math.nan]], dtype=torch.float64)
    moved = path(lv.asgld_full(1e-3), position=start, gradient_fn=lambda at: alive * at, steps=5)
    assert moved[:, 0].isfinite().all()
    assert not moved[:, 1].isfinite().any()


def test_the_scale_is_frozen_after_the_warm_up_of_sample():
    kernel = lv.asgld(0.01, bias_factor=2.0, betas=(0.9, 0.99), invariant=True)
    frozen = kernel.for_run(50, torch.ones(3, 2))
    assert frozen.adapt_steps == 50
    assert [frozen.inputs(step).adapting for step in (0, 49, 50, 1000)] == [1.0, 1.0, 0.0, 0.0]
    state = frozen.init(torch.ones(3, 2))
    for step in range(60):
        state = step_by_hand(frozen, state, state.position.sin() + step, torch.zeros(2, 3, 2))
        if step == 49:
            at_freezing = state.tensors[2]
    assert torch.equal(state.tensors[2], at_freezing)
    assert "guaranteed from step 50 on" in frozen.description
    assert "follows the gradients until sample() freezes it" in kernel.description


def test_the_scale_follows_again_in_exploration_phases():
    schedule = lv.schedules.cyclical(0.01, cycle_length=100, exploration=0.5)
    kernel = lv.asgld(schedule, bias_factor=2.0, betas=(0.9, 0.99), invariant=True).for_run(150, torch.ones(3, 2))
    assert [kernel.inputs(step).adapting for step in (0, 60, 149, 150, 199, 200, 249, 250)] == [1, 1, 1, 0, 0, 1, 1, 0]


def test_annealing_restores_the_law_of_the_published_form():
    """a_t = 3 (1 + t/20)^-0.9 is 0.03 after 3,000 steps; the covariance is then that of SGLD, within 5 standard errors."""
    kernel = lv.msgld(0.05, bias_factor=lv.schedules.polynomial(3.0, power=0.9, offset=20))
    target = lv.targets.gaussian([[1.0]])
    draws = lv.sample(target, sampler=kernel, init=torch.zeros(20_000, 1), num_steps=3_000, warmup=2_999, compile=False).draws
    exact = 1 / (1 + kernel.annealing(3000)) / (1 - 0.05 / 2)
    assert draws.var().item() == pytest.approx(exact, abs=5 * exact * (2 / 20_000) ** 0.5 + 0.02)
    assert kernel.effective_temperature is None
    assert "tends to effective temperature 1" in kernel.description
    assert draws.var().item() > 0.9  # a constant a = 3 gives 0.26


@pytest.mark.parametrize(
    "kernel", [lv.msgld(0.03, bias_factor=5.0, beta=0.8, temperature=0.7, invariant=True), lv.sgld(0.03), lv.sghmc(0.03)]
)
def test_noise_scale_is_the_spread_that_one_step_gives_a_chain_at_rest(kernel):
    """What `describe()` prints; 5 standard errors of 200,000 elements."""
    size, at = 200_000, lv.random.stream(lv.random.Purpose.POSITION)
    noise = torch.stack([lv.random.normal(0, at, step, size, dtype=torch.float64) for step in range(3)])
    rest = torch.zeros(size, dtype=torch.float64)
    memory = [torch.zeros_like(rest) for _ in kernel.state_names]
    if "passing_velocity" in kernel.state_names:
        memory[kernel.state_names.index("passing_velocity")] = kernel.temperature**0.5 * noise[2]
    moved = step_by_hand(kernel, KernelState(rest, tuple(memory), 1), rest, noise[: kernel.traits.num_noises]).position
    assert abs(moved.std().item() / kernel.noise_scale(kernel.inputs(1)) - 1) < 5 / (2 * size) ** 0.5


def test_a_given_step_size_takes_the_place_of_the_schedule_and_its_phases():
    """An optimizer has a learning rate, and tuning tries steps: neither explores."""
    schedule = lv.schedules.cyclical(0.01, cycle_length=10, exploration=0.5)
    kernel = lv.msgld(schedule, temperature=0.7)
    assert kernel.inputs(2)[:2] == (schedule(2), 0.0)
    assert kernel.inputs(2, step_size=0.3)[:2] == (0.3, 0.7)
    assert kernel.inputs(7)[:2] == (schedule(7), 0.7)


@pytest.mark.parametrize(
    "kernel",
    [
        lv.sgld(0.01),
        lv.sgld(lambda step: 0.01),
        lv.msgld(0.01, bias_factor=lv.schedules.polynomial(2.0)),
        lv.msgld(lv.schedules.cyclical(0.01, cycle_length=10, exploration=0.5)),
        lv.asgld(0.01, invariant=True, adapt_steps=37),
        lv.side_by_side([lv.sgld(0.01), lv.sgld(0.02)]),
    ],
    ids=["constant", "function", "annealed", "cycles", "freezing", "side by side"],
)
@pytest.mark.parametrize("steps", [range(1), range(50), range(1, 30), range(30, 60), range(37, 60), range(36, 38)])
def test_the_inputs_of_a_block_are_those_of_its_steps(kernel, steps):
    """And what is the same is one object, by which the engines know it."""
    found = inputs_of(kernel, steps)
    assert [str(inputs) for inputs in found] == [str(kernel.inputs(step)) for step in steps]
    is_steady = len({str(inputs) for inputs in found}) == 1 and kernel.is_steady
    assert (found[0] is found[-1]) == (is_steady or len(steps) == 1)
    numbers, by_chain = stack_inputs(found, torch.zeros(2, 2, dtype=torch.float64))
    for field, expected in enumerate(zip(*found, strict=True)):
        values = by_chain.get(field, numbers[:, field])
        assert field not in by_chain or numbers[:, field].isnan().all()
        for value, given in zip(values, expected, strict=True):
            assert torch.equal(value, torch.as_tensor(given, dtype=torch.float64).expand_as(value))


def test_a_kernel_with_inputs_of_its_own_is_asked_at_every_step():
    class Tempered(type(lv.sgld(0.1))):
        def inputs(self, step, **given):
            return super().inputs(step, **given)._replace(temperature=float(step % 5 == 0))

    kernel = Tempered("tempered", lv.schedules.constant(0.1))
    assert sum(inputs.temperature for inputs in inputs_of(kernel, range(256, 512))) == 51
