"""Closed-form gradients, known moments and priors, each against another way to the same number."""

from __future__ import annotations

import math

import pytest
import torch

import langevin as lv
from langevin.targets import Batch, Evaluation, Target

POSITION = torch.tensor([[0.3, -1.2], [2.0, 0.5], [-3.1, -2.7]], dtype=torch.float64)
RAVINE_DATA = lv.targets.ravine_data(50, seed=2)
CLOSED_FORMS = {
    "gaussian": (lv.targets.gaussian([[1.0, 0.9], [0.9, 1.0]], mean=[1.0, -1.0]), None),
    "mixture": (lv.targets.mixture(), None),
    "uneven mixture": (lv.targets.mixture([[0.0, 0.0], [1.0, 2.0]], std=0.7, weights=[1.0, 3.0]), None),
    "ravine, shared rows": (lv.targets.ravine(), Batch(RAVINE_DATA, 1000, per_chain=False)),
    "ravine, rows of its own": (
        lv.targets.ravine(),
        Batch(tuple(torch.stack([c, c.flip(0), c.roll(7)]) for c in RAVINE_DATA), 1000, per_chain=True),
    ),
}


@pytest.mark.parametrize("name", CLOSED_FORMS)
def test_closed_form_gradients_equal_automatic_ones(name):
    target, batch = CLOSED_FORMS[name]
    leaf = POSITION.clone().requires_grad_()
    (automatic,) = torch.autograd.grad(target.evaluate(leaf, batch).energy.sum(), leaf)
    torch.testing.assert_close(target.evaluate(POSITION, batch).gradient, automatic)


def test_the_mixture_is_the_density_of_section_4_2():
    """pi(theta) = sum_i exp(-|theta - mu_i|^2) / (10 pi) with the paper's means."""
    means = [(-3, -3), (-3, 0), (0, 0), (3, 0), (3, 3)]
    for theta in POSITION.tolist():
        density = sum(math.exp(-((theta[0] - a) ** 2) - (theta[1] - b) ** 2) for a, b in means) / (5 * math.pi)
        # The paper's factor 1 / (10 pi) integrates to 1/2; 1 / (5 pi) is the normalised density.
        energy = lv.targets.mixture().evaluate(torch.tensor([theta], dtype=torch.float64)).energy
        assert energy.item() == pytest.approx(-math.log(density), rel=1e-12)


def test_the_moments_of_the_mixture_are_those_of_its_density():
    target = lv.targets.mixture(std=0.6, weights=[1.0, 2.0, 3.0, 2.0, 1.0])
    axis = torch.linspace(-8, 8, 801, dtype=torch.float64)
    grid = torch.cartesian_prod(axis, axis)
    weight = torch.exp(-target.evaluate(grid).energy) * (axis[1] - axis[0]) ** 2
    assert weight.sum().item() == pytest.approx(1.0, abs=1e-9)
    mean = weight @ grid
    torch.testing.assert_close(target.mean, mean, rtol=0, atol=1e-8)
    torch.testing.assert_close(target.covariance, (weight[:, None] * (grid - mean)).T @ (grid - mean), rtol=0, atol=1e-8)


def test_nearest_mode_names_the_component():
    target = lv.targets.mixture()
    assert target.nearest_mode(target.means + 0.3).tolist() == [0, 1, 2, 3, 4]


def test_the_ravine_is_the_regression_of_section_4_3():
    x, y, theta = 0.7, 1.3, (20.0, 10.0)
    f = (x - 1) ** 2 + 2 * math.sin(theta[0] * x) + theta[0] / 30 + math.cos(theta[1] * x - 1) - theta[1] / 20
    prior = sum(0.5 * t**2 + 0.5 * math.log(2 * math.pi) for t in theta)
    expected = 10_000 * (0.5 * (y - f) ** 2 + 0.5 * math.log(2 * math.pi)) + prior
    row = tuple(torch.tensor([v], dtype=torch.float64) for v in (x, y))
    found = lv.targets.ravine().evaluate(torch.tensor([theta], dtype=torch.float64), Batch(row, 10_000, per_chain=False))
    assert found.energy.item() == pytest.approx(expected, rel=1e-12)


def test_ravine_data_has_the_stated_law():
    """Tolerances: 5 standard errors of the mean and variance of 20,000 draws."""
    x, y = lv.targets.ravine_data(20_000, seed=5)
    assert x.min() >= -2
    assert x.max() <= 4
    assert abs(x.mean().item() - 1) < 5 * math.sqrt(3 / 20_000)
    batch = Batch((x, y), 20_000, per_chain=False)
    residual_energy = (
        lv.targets.ravine(prior=lv.priors.flat()).evaluate(torch.tensor([[20.0, 10.0]], dtype=torch.float64), batch).energy
    )
    chi_square = 2 * (residual_energy.item() - 0.5 * 20_000 * math.log(2 * math.pi))
    assert abs(chi_square / 20_000 - 1) < 5 * math.sqrt(2 / 20_000)
    assert not torch.equal(x, lv.targets.ravine_data(20_000, seed=6)[0])


def test_energy_and_likelihood_agree_with_the_closed_form():
    precision = torch.linalg.inv(torch.tensor([[1.0, 0.9], [0.9, 1.0]], dtype=torch.float64))
    by_hand = lv.targets.energy(lambda theta: 0.5 * theta @ precision @ theta).evaluate(POSITION)
    closed = lv.targets.gaussian([[1.0, 0.9], [0.9, 1.0]]).evaluate(POSITION)
    torch.testing.assert_close(by_hand.gradient, closed.gradient)
    torch.testing.assert_close(by_hand.energy, closed.energy)


@pytest.mark.parametrize("per_chain", [False, True])
def test_likelihood_scales_the_batch_and_counts_the_prior_once(per_chain):
    x = torch.tensor([1.0, 3.0, 5.0], dtype=torch.float64)
    target = lv.targets.likelihood(lambda theta, x: -0.5 * (x - theta[0]) ** 2, prior=lv.priors.gaussian(std=2.0))
    position = torch.tensor([[2.0], [0.0]], dtype=torch.float64)
    batch = Batch((x.expand(2, 3) if per_chain else x,), 30, per_chain)
    # 10 * sum_i (theta - x_i) + theta / 4
    expected = [10 * (1 - 1 - 3) + 0.5, 10 * (-9.0)]
    assert target.evaluate(position, batch).gradient[:, 0].tolist() == expected


PRIORS = {
    "gaussian": lv.priors.gaussian(std=0.7),
    "spike and slab": lv.priors.spike_slab(slab_weight=0.3, slab_std=1.0, spike_std=0.1),
    "paper's spike and slab": lv.priors.spike_slab(slab_weight=1e-7, slab_std=0.02**0.5, spike_std=1e-5**0.5),
}


@pytest.mark.parametrize("name", PRIORS)
def test_prior_gradients_equal_automatic_ones_and_densities_integrate_to_one(name):
    prior = PRIORS[name]
    theta = torch.linspace(-0.2, 0.2, 41, dtype=torch.float64)[:, None].requires_grad_()
    (automatic,) = torch.autograd.grad(prior.energy(theta).sum(), theta)
    torch.testing.assert_close(prior.gradient(theta.detach()), automatic)
    grid = torch.linspace(-8, 8, 2_000_001, dtype=torch.float64)[:, None]
    assert torch.trapezoid(torch.exp(-prior.energy(grid)), grid[:, 0]).item() == pytest.approx(1.0, abs=1e-9)


def test_the_flat_prior_is_zero():
    assert lv.priors.flat().energy(POSITION).tolist() == [0.0] * 3
    assert not lv.priors.flat().gradient(POSITION).any()


def test_at_the_threshold_spike_and_slab_are_equally_likely():
    weight, slab, spike = 1e-7, 0.02**0.5, 1e-5**0.5
    threshold = lv.priors.spike_slab(slab_weight=weight, slab_std=slab, spike_std=spike).threshold
    log_slab = math.log(weight) - math.log(slab) - threshold**2 / (2 * slab**2)
    log_spike = math.log1p(-weight) - math.log(spike) - threshold**2 / (2 * spike**2)
    assert log_slab == pytest.approx(log_spike, rel=1e-10)
    paper = math.sqrt(math.log((1 - weight) / weight * slab / spike) * 2 * spike**2 * slab**2 / (slab**2 - spike**2))
    assert threshold == pytest.approx(paper, rel=1e-12)


def test_spike_and_slab_does_not_overflow_in_float32():
    prior = PRIORS["paper's spike and slab"]
    theta = torch.tensor([[-30.0, -0.02, 0.0, 1e-6, 5.0]])
    assert torch.isfinite(prior.gradient(theta)).all()
    assert torch.isfinite(prior.energy(theta)).all()


class Bowl(Target):
    """A third party's target: `evaluate`, and what it has to say of its data."""

    def __init__(self):
        self.asked = []

    def evaluate(self, position, batch=None):
        return Evaluation(0.5 * (position**2).sum(-1), position)

    def check_data(self, columns):
        self.asked.append(columns)


def test_a_target_says_only_what_differs_from_the_defaults():
    bowl = Bowl()
    assert (bowl.needs_data, bowl.gradient_noise, bowl.dim, bowl.has_closed_form) == (False, 0.0, None, False)
    assert lv.sample(bowl, sampler=lv.sgld(0.1), init=POSITION, num_steps=3, compile=False).draws.shape == (3, 3, 2)
    with pytest.raises(TypeError, match=r"abstract method '?evaluate"):
        Target()


def test_data_are_shown_to_the_target_once_before_a_run():
    bowl, x = Bowl(), torch.ones(4, dtype=torch.float64)
    bowl.needs_data = True
    lv.sample(bowl, sampler=lv.sgld(0.1), init=POSITION, num_steps=3, data=x, batch_size=2, compile=False)
    assert len(bowl.asked) == 1
    assert bowl.asked[0][0] is x


def test_positions_have_as_many_elements_as_a_target_that_knows():
    bowl = Bowl()
    bowl.dim = 3
    with pytest.raises(ValueError, match=r"sample\(init=.*3 elements.*got 2"):
        lv.sample(bowl, sampler=lv.sgld(0.1), init=POSITION, num_steps=3)


@pytest.mark.parametrize("name", CLOSED_FORMS)
def test_closed_forms_say_so_and_know_their_elements(name):
    target, _ = CLOSED_FORMS[name]
    assert (target.has_closed_form, target.dim) == (True, 2)


def test_what_is_no_subclass_of_target_is_refused():
    class Alike:
        needs_data, gradient_noise, dim, evaluate = False, 0.0, None, Bowl.evaluate

    for value in (Alike(), Bowl):
        with pytest.raises(TypeError, match=r"sample\(target=.*a subclass of targets\.Target"):
            lv.sample(value, sampler=lv.sgld(0.1), init=POSITION, num_steps=3)


def test_a_prior_is_any_object_with_the_two_methods_but_no_class():
    class Quartic:
        def energy(self, position):
            return (position**4).sum(-1)

        def gradient(self, position):
            return 4 * position**3

    def made(prior):
        return lv.targets.likelihood(lambda theta, x: 0 * x * theta[0], prior=prior)

    batch = Batch((torch.ones(2, dtype=torch.float64),), 2, per_chain=False)
    torch.testing.assert_close(made(Quartic()).evaluate(POSITION, batch).gradient, 4 * POSITION**3)
    with pytest.raises(TypeError, match=r"likelihood\(prior=.*a prior"):
        made(Quartic)
