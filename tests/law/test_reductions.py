"""Samplers that must coincide, reached by different code paths."""

from __future__ import annotations

import pytest
import torch
from sampler_table import TABLE, build
from stepping import step as step_by_hand

import langevin as lv
from langevin.kernels.drifts import Adam, Momentum, Total
from langevin.kernels.preconditioners import RMS, Fisher, Identity

TARGET = lv.targets.gaussian([[1.0, 0.9], [0.9, 1.0]])
ONE_STREAM = lv.random.stream(lv.random.Purpose.POSITION)


def start(chains=3, dim=2, dtype=torch.float64):
    return lv.random.normal(7, lv.random.streams(lv.random.Purpose.INIT, range(chains)), 0, dim, dtype=dtype)


def path(kernel, steps=50, position=None, gradient=None):
    """Return the positions after each step, (steps, chains, dim)."""
    position = start() if position is None else position
    gradient = (lambda theta: TARGET.evaluate(theta).gradient) if gradient is None else gradient
    streams = lv.random.streams(lv.random.Purpose.POSITION, range(len(position)))
    state, positions = kernel.init(position), []
    for step in range(steps):
        noise = lv.random.normal(0, streams, step, position.shape[-1], dtype=position.dtype)
        if kernel.traits.num_noises > 1:  # the paper's kernels have one noise; it belongs to the last slot, the velocity
            noise = torch.stack([torch.zeros_like(noise), noise])
        state = step_by_hand(kernel, state, gradient(state.position), noise)
        positions.append(state.position)
    return torch.stack(positions)


BIASED = [name for name, entry in TABLE.items() if "bias_factor" in entry.settings]


@pytest.mark.parametrize("name", [name for name in BIASED if build(name).traits.num_noises == 1])
def test_without_bias_it_is_sgld(name):
    assert torch.equal(path(build(name, 0.02, bias_factor=0.0)), path(lv.sgld(0.02)))


def test_sghmc_without_inertia_is_sgld():
    # theta + (0 v - eps g + noise) rounds differently from (theta - eps g) + noise
    torch.testing.assert_close(path(lv.sghmc(0.02, beta=0.0)), path(lv.sgld(0.02)), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("name", BIASED)
def test_a_bias_factor_that_is_a_schedule_is_that_of_each_step(name):
    schedule = lv.schedules.polynomial(4.0, power=0.6)
    annealed = build(name, 0.02, bias_factor=schedule)
    state = annealed.init(start())
    for step in range(6):
        noise = lv.random.normal(7, range(annealed.traits.num_noises), step, 6, dtype=torch.float64).reshape(-1, 3, 2)
        gradient = TARGET.evaluate(state.position).gradient
        expected = step_by_hand(build(name, 0.02, bias_factor=schedule(step)), state, gradient, noise)
        state = step_by_hand(annealed, state, gradient, noise)
        torch.testing.assert_close(state.position, expected.position, rtol=1e-13, atol=1e-13)


def test_sgld_at_temperature_zero_is_gradient_descent():
    theta = torch.nn.Parameter(start())
    optimizer = torch.optim.SGD([theta], lr=0.02)
    expected = []
    for _ in range(50):
        theta.grad = TARGET.evaluate(theta.detach()).gradient
        optimizer.step()
        expected.append(theta.detach().clone())
    torch.testing.assert_close(path(lv.sgld(0.02, temperature=0.0)), torch.stack(expected), rtol=1e-13, atol=1e-13)


def test_sghmc_at_temperature_zero_is_sgd_with_momentum():
    """torch: b' = beta b + g, theta' = theta - lr b': our velocity is -lr b."""
    theta = torch.nn.Parameter(start())
    optimizer = torch.optim.SGD([theta], lr=0.02, momentum=0.9)
    expected = []
    for _ in range(50):
        theta.grad = TARGET.evaluate(theta.detach()).gradient
        optimizer.step()
        expected.append(theta.detach().clone())
    torch.testing.assert_close(path(lv.sghmc(0.02, beta=0.9, temperature=0.0)), torch.stack(expected), rtol=1e-12, atol=1e-12)


def test_psgld_at_temperature_zero_is_rmsprop():
    """torch starts V at 0, ours at the first squared gradient: V is set so that both agree."""
    theta = torch.nn.Parameter(start())
    optimizer = torch.optim.RMSprop([theta], lr=0.02, alpha=0.9, eps=1e-5)
    theta.grad = TARGET.evaluate(theta.detach()).gradient
    optimizer.state[theta] = {"step": torch.tensor(0.0), "square_avg": theta.grad**2}
    expected = []
    for _ in range(50):
        theta.grad = TARGET.evaluate(theta.detach()).gradient
        optimizer.step()
        expected.append(theta.detach().clone())
    found = path(lv.psgld(0.02, beta=0.9, eps=1e-5, temperature=0.0))
    torch.testing.assert_close(found, torch.stack(expected), rtol=1e-11, atol=1e-11)


def test_asgld_at_temperature_zero_with_a_huge_bias_is_adam_without_correction_one_step_late():
    """With a -> infinity and a * eps fixed only the bias moves theta: Adam's direction from the gradients before this step."""
    scale = 1e12
    theta, average, square = start(), torch.zeros(3, 2, dtype=torch.float64), torch.zeros(3, 2, dtype=torch.float64)
    expected = []
    for _ in range(20):
        gradient = TARGET.evaluate(theta).gradient
        theta = theta - 0.02 * average / (square + 1e-5).sqrt()
        average.lerp_(gradient, 0.1)
        square.lerp_(gradient.square(), 0.001)
        expected.append(theta)
    found = path(lv.asgld(0.02 / scale, bias_factor=scale, temperature=0.0), steps=20)
    torch.testing.assert_close(found, torch.stack(expected), rtol=1e-9, atol=1e-9)


def test_a_batch_of_all_data_is_the_full_gradient():
    x, y = lv.targets.ravine_data(200, seed=3)
    target = lv.targets.ravine()
    position = start()
    whole = lv.gradients.full(target, (x, y))(position, 0)
    batch = lv.gradients.minibatch(target, (x, y), 200, seed=0, chains=range(3))(position, 5)
    torch.testing.assert_close(batch.gradient, whole.gradient, rtol=1e-10, atol=1e-8)
    torch.testing.assert_close(batch.energy, whole.energy, rtol=1e-12, atol=0)


def test_minibatch_gradients_average_to_the_full_gradient_over_an_epoch():
    x, y = lv.targets.ravine_data(200, seed=3)
    target, position = lv.targets.ravine(), start()
    estimate = lv.gradients.minibatch(target, (x, y), 20, seed=0, chains=range(3))
    mean = torch.stack([estimate(position, step).gradient for step in range(10)]).mean(0)
    torch.testing.assert_close(mean, lv.gradients.full(target, (x, y))(position, 0).gradient, rtol=1e-10, atol=1e-8)


def test_the_general_form_with_unit_diffusion_is_sgld():
    general = lv.complete_recipe(0.02, diffusion=lambda xi: torch.eye(2, dtype=xi.dtype))
    torch.testing.assert_close(path(general), path(lv.sgld(0.02)), rtol=1e-12, atol=1e-12)


def test_the_general_form_with_a_curl_is_sghmc():
    """D = diag(0, C I), Q = [[0, -I], [I, 0]] (section 2) with time step h = sqrt(eps) and C = (1 - beta) / h."""
    step_size, beta = 0.02, 0.9
    h = step_size**0.5
    friction = (1 - beta) / h

    def diffusion(xi):
        return torch.diag(torch.tensor([0.0, 0.0, friction, friction], dtype=xi.dtype))

    def curl(xi):
        zero, eye = torch.zeros(2, 2, dtype=xi.dtype), torch.eye(2, dtype=xi.dtype)
        return torch.cat([torch.cat([zero, -eye], 1), torch.cat([eye, zero], 1)])

    general = lv.complete_recipe(h, diffusion=diffusion, curl=curl, num_auxiliary=1)
    torch.testing.assert_close(path(general), path(lv.sghmc(step_size, beta=beta)), rtol=1e-11, atol=1e-11)


def position_dependent_information(theta):
    return torch.diag(1 + theta**2) + 0.1 * torch.ones(2, 2, dtype=theta.dtype)


def test_the_general_form_with_an_inverse_metric_is_sgrld_up_to_the_root_of_the_noise():
    """Both roots R of G have R R^T = G; without noise the paths are the same, Gamma included."""
    general = lv.complete_recipe(0.02, diffusion=lambda xi: torch.linalg.inv(position_dependent_information(xi)))
    riemann = lv.sgrld(0.02, metric=position_dependent_information)
    quiet = torch.zeros(3, 2, dtype=torch.float64)
    a, b = general.init(start()), riemann.init(start())
    for _ in range(20):
        a = step_by_hand(general, a, TARGET.evaluate(a.position).gradient, quiet)
        b = step_by_hand(riemann, b, TARGET.evaluate(b.position).gradient, quiet)
    torch.testing.assert_close(a.position, b.position, rtol=1e-11, atol=1e-11)


def test_sgrld_with_the_unit_metric_is_sgld():
    riemann = lv.sgrld(0.02, metric=lambda theta: torch.eye(2, dtype=theta.dtype))
    torch.testing.assert_close(path(riemann), path(lv.sgld(0.02)), rtol=1e-12, atol=1e-12)


def test_the_noise_of_sgrld_has_the_inverse_metric_as_covariance():
    theta = torch.tensor([0.3, -1.2], dtype=torch.float64)
    fisher = Fisher(position_dependent_information)
    factor = fisher.metric((), theta[None])
    columns = torch.stack([fisher.spread(factor, e[None])[0] for e in torch.eye(2, dtype=torch.float64)], 1)
    torch.testing.assert_close(columns @ columns.T, torch.linalg.inv(position_dependent_information(theta)))


DRIFTS = {"momentum": Momentum(2.0), "adam": Adam(1.5), "both": Total((Momentum(2.0), Adam(1.5)))}
METRICS = {"identity": Identity(), "rms": RMS(), "fisher": Fisher(TARGET.metric)}


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("drift", DRIFTS)
def test_any_drift_goes_with_any_preconditioner(drift, metric):
    """The step is the sum of its parts: the plain preconditioned step minus eps G a A_t."""
    bias, preconditioner = DRIFTS[drift], METRICS[metric]
    kernel = lv.compose(0.02, drift=bias, preconditioner=preconditioner)
    plain = lv.compose(0.02, preconditioner=preconditioner)
    state = kernel.init(start())
    noise = lv.random.normal(1, lv.random.streams(lv.random.Purpose.POSITION, range(3)), 0, 2, dtype=torch.float64)
    for _ in range(3):
        gradient = TARGET.evaluate(state.position).gradient
        split = len(bias.state_names)
        averages, rest = state.tensors[:split], state.tensors[split:]
        without = step_by_hand(plain, state._replace(tensors=rest), gradient, noise)
        updated = preconditioner.update(rest, gradient, float(state.step > 0))
        push = preconditioner.apply(preconditioner.metric(updated, state.position), bias.bias(averages))
        state = step_by_hand(kernel, state, gradient, noise)
        torch.testing.assert_close(state.position, without.position - 0.02 * push, rtol=1e-12, atol=1e-12)


def test_the_sum_of_drifts_adds_their_biases():
    total = Total((Momentum(2.0), Momentum(3.0)))
    torch.testing.assert_close(path(lv.compose(0.02, drift=total)), path(lv.msgld(0.02, bias_factor=5.0)), rtol=1e-12, atol=1e-12)
    assert total.cooling() == 6.0
