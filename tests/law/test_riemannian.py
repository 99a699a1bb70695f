"""SGRHMC where the metric moves: laws against quadrature and against a density that is known, order, limits and reductions.

Tolerances of laws: 5 standard errors over independent chains, and the O(eps) that a smaller step is to show.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from stepping import step as step_by_hand

import langevin as lv
from langevin.kernels import Scaled
from langevin.targets import Evaluation
from langevin.targets.metric import Dense


def noises(step, shape, seed=7):
    return lv.random.normal(
        seed, lv.random.streams(lv.random.Purpose.POSITION, range(shape[0])), step, shape[1], dtype=torch.float64
    )


def squares(kernel, start, gradient, steps, observe):
    """Return the mean over chains and the last half of the steps of what is observed, and its standard error over chains."""
    state, total = kernel.init(start), 0.0
    for step in range(steps):
        state = step_by_hand(kernel, state, gradient(state.position), noises(step, start.shape))
        if step >= steps // 2:
            total = total + observe(state.position) / (steps - steps // 2)
    return total.mean(0), total.std(0) / len(start) ** 0.5


# One dimension: log cosh 3x + x^2 / 4, the metric 1 / (1 + x^2), so that far out everything is faster.

CHAINS = 6_000


def steep(x):
    return np.log(np.cosh(3 * x)) + x * x / 4


MOMENTS = [quad(lambda x, p=p: x**p * np.exp(-steep(x)), -15, 15)[0] for p in (0, 2)]
TRUE = MOMENTS[1] / MOMENTS[0]


def error_on_steep(eps, **settings):
    """Return the relative error of E x^2, and the standard error of that."""
    kernel = lv.sgrhmc(eps, metric=lambda x: (1 / (1 + x * x))[:, None], beta=0.5, **settings)
    start = TRUE**0.5 * lv.random.normal(0, lv.random.streams(lv.random.Purpose.INIT, range(CHAINS)), 0, 1, dtype=torch.float64)
    found, chance = squares(kernel, start, lambda x: 3 * torch.tanh(3 * x) + x / 2, int(10 / eps), lambda x: x[:, 0] ** 2)
    return float(found) / TRUE - 1, float(chance) / TRUE


@pytest.mark.parametrize("friction", ["metric", "even"])
def test_the_error_is_of_first_order_and_vanishes_with_the_step_at_a_fixed_beta(friction):
    (large, chance), (small, _) = error_on_steep(0.08, friction=friction), error_on_steep(0.04, friction=friction)
    assert large > 0.1 > 8 * chance  # so there is an error to fall
    assert abs(small - large / 2) < 5 * chance + large / 8  # half the step, half the error, up to O(eps^2)
    assert abs(2 * small - large) < 5 * (5**0.5) * chance  # nothing is left where the step vanishes


def test_without_gamma_the_density_is_off():
    """By the factor 1 / R = (1 + x^2)^(-1/2), whatever the step."""
    moments = [quad(lambda x, p=p: x**p * (1 + x * x) ** -0.5 * np.exp(-steep(x)), -15, 15)[0] for p in (0, 2)]
    (large, chance), (small, _) = (error_on_steep(eps, friction="even", correction=False) for eps in (0.08, 0.04))
    assert abs(2 * small - large - (moments[1] / moments[0] / TRUE - 1)) < 5 * (5**0.5) * chance
    assert 2 * small - large < -0.1


# Two dimensions: x ~ N(0, 1), y ~ N(x^2, 1/4) given x, in the metric of its own Gauss-Newton matrix, which is never diagonal.

SHARP = 4.0


def banana(theta):
    x, y = theta[..., 0], theta[..., 1]
    bent = SHARP * (y - x * x)
    return torch.stack([x - 2 * x * bent, bent], -1)


def newton(theta):
    """Return J^T J for the residuals (x, 2 (y - x^2)) of the energy, and a unit matrix of a prior's kind."""
    x, one = theta[0], torch.ones_like(theta[0])
    jacobian = torch.stack([torch.stack([one, 0 * x]), SHARP**0.5 * torch.stack([-2 * x, one])])
    return jacobian.mT @ jacobian + torch.eye(2, dtype=theta.dtype)


@pytest.mark.parametrize("friction", ["metric", "even"])
def test_a_bent_density_in_a_metric_that_turns_has_its_moments(friction):
    x, noise = noises(0, (2_500, 2), seed=1).unbind(-1)
    start = torch.stack([x, x * x + noise / SHARP**0.5], -1)
    target = torch.tensor([1.0, 1.0, 1 / SHARP], dtype=torch.float64)  # E x^2, E y, E (y - x^2)^2

    def observe(theta):
        return torch.stack([theta[:, 0] ** 2, theta[:, 1], (theta[:, 1] - theta[:, 0] ** 2) ** 2], -1)

    found, chance = zip(
        *(
            squares(lv.sgrhmc(eps, metric=newton, beta=0.6, friction=friction), start, banana, int(10 / eps), observe)
            for eps in (0.1, 0.05)
        ),
        strict=True,
    )
    limit = 2 * found[1] - found[0]
    assert (abs(limit - target) < 5 * (4 * chance[1] ** 2 + chance[0] ** 2) ** 0.5 + 0.01 * target).all(), (found, chance)
    assert (chance[0] < 0.03 * target).all()


# Reductions

START = torch.tensor([[0.3, -1.2], [1.0, 0.4]], dtype=torch.float64)
TARGET = lv.targets.gaussian([[1.0, 0.9], [0.9, 1.0]])


def path(kernel, start=START, gradient=None):
    state, positions = kernel.init(start), []
    for step in range(10):
        force = TARGET.evaluate(state.position).gradient if gradient is None else gradient(state.position)
        state = step_by_hand(kernel, state, force, noises(step, start.shape))
        positions.append(state.position)
    return torch.stack(positions)


@pytest.mark.parametrize("friction", ["metric", "even"])
@pytest.mark.parametrize("beta", [0.0, 0.9])
def test_in_the_unit_metric_it_is_sghmc(friction, beta):
    flat = lv.sgrhmc(0.02, metric=lambda theta: torch.eye(2, dtype=theta.dtype), beta=beta, friction=friction, temperature=0.7)
    torch.testing.assert_close(path(flat), path(lv.sghmc(0.02, beta=beta, temperature=0.7)), rtol=1e-12, atol=1e-12)


def test_in_a_constant_diagonal_metric_each_element_is_sghmc_with_its_own_step_and_beta():
    eps, beta, metric = 0.02, 0.8, torch.tensor([3.0, 0.2], dtype=torch.float64)
    found = path(lv.sgrhmc(eps, metric=lambda theta: torch.diag(metric), beta=beta), gradient=torch.sin)
    for i, entry in enumerate(metric.tolist()):
        drag = (1 - beta) / (1 + beta) / entry
        own = (1 - drag) / (1 + drag)
        alone = lv.sghmc(2 * eps / (1 + beta) / entry * (1 + own) / 2, beta=own)
        torch.testing.assert_close(found[..., i], path(alone, gradient=torch.sin)[..., i], rtol=1e-12, atol=1e-12)


def test_with_even_friction_in_a_constant_matrix_it_is_sghmc_in_that_scale():
    metric = torch.tensor([[2.0, 0.7], [0.7, 0.5]], dtype=torch.float64)
    root = torch.linalg.inv(torch.linalg.cholesky(metric)).mT
    riemann = lv.sgrhmc(0.02, metric=lambda theta: metric, friction="even")
    torch.testing.assert_close(path(riemann), path(Scaled.of(lv.sghmc(0.02), Dense(root))), rtol=1e-12, atol=1e-12)


def test_for_small_steps_it_is_the_general_form_with_its_d_and_q():
    """Without noise and at temperature 1, so that Gamma counts: steps differ by O(h^2), by two ways of differentiating."""
    friction, gap = 3.0, []

    def root(theta):
        return torch.linalg.inv(torch.linalg.cholesky(newton(theta))).mT

    def diffusion(xi):
        corner = friction * root(xi[:2]).mT @ root(xi[:2])
        return torch.block_diag(torch.zeros_like(corner), corner)

    def curl(xi):
        zero, at = torch.zeros(2, 2, dtype=xi.dtype), root(xi[:2])
        return torch.cat([torch.cat([zero, -at], 1), torch.cat([at.mT, zero], 1)])

    position, velocity = START, torch.tensor([[0.5, -1.0], [0.2, 0.9]], dtype=torch.float64)
    evaluation, silent = Evaluation(torch.tensor(torch.nan), banana(position)), torch.zeros(2, 2, 2, dtype=torch.float64)
    for h in (2e-3, 1e-3):
        drag = friction * h / 2
        beta = (1 - drag) / (1 + drag)
        ours = lv.sgrhmc(h * h * (1 + beta) / 2, metric=newton, beta=beta)
        general = lv.complete_recipe(h, diffusion=diffusion, curl=curl, num_auxiliary=1)
        moved = [
            kernel.update(position, evaluation, silent[: kernel.traits.num_noises], (velocity,), kernel.inputs(0))
            for kernel in (ours, general)
        ]
        gap.append(max(float((moved[0][0] - moved[1][0]).abs().max()), float((moved[0][1][0] - moved[1][1][0]).abs().max())))
        assert float((moved[0][1][0] - velocity).abs().max()) > 100 * gap[-1]
    assert gap[0] / gap[1] == pytest.approx(4.0, rel=0.1)


def test_a_chain_that_is_not_finite_does_not_stop_the_others():
    dead = torch.tensor([[1.0], [torch.nan]], dtype=torch.float64)
    moved = path(lv.sgrhmc(0.02, metric=newton), gradient=lambda theta: dead * banana(theta))
    assert moved[:, 0].isfinite().all()
    assert not moved[:, 1].isfinite().any()
