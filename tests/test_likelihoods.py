"""Likelihoods against torch.distributions and quadrature; scales that are learned or predicted."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.distributions import Bernoulli, Categorical, Normal, Poisson, StudentT

import langevin as lv
from langevin import likelihoods
from langevin.targets import Batch

GENERATOR = torch.Generator().manual_seed(0)


def linear(*sizes):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Linear(*sizes).double()


def draw(*shape):
    return torch.randn(*shape, generator=GENERATOR, dtype=torch.float64)


OUTPUT, TWICE = draw(7), draw(7, 2)
WIDE, WIDE_TWICE = draw(7, 3), draw(7, 6)
COUNTS, ONES = torch.tensor([0, 1, 2, 3, 5, 8, 13]), torch.tensor([0, 1, 1, 0, 1, 0, 0])

CASES = {  # likelihood, outputs, y, torch's law
    "categorical": ("categorical", WIDE, COUNTS % 3, Categorical(logits=WIDE)),
    "bernoulli": ("bernoulli", OUTPUT, ONES, Bernoulli(logits=OUTPUT)),
    "bernoulli, floats": ("bernoulli", WIDE, ONES[:, None].expand(7, 3).double(), Bernoulli(logits=WIDE)),
    "poisson": ("poisson", OUTPUT, COUNTS, Poisson(OUTPUT.exp())),
    "gaussian": (likelihoods.gaussian(0.3), WIDE, draw(7, 3), Normal(WIDE, 0.3)),
    "gaussian, predicted": (likelihoods.gaussian("predicted"), TWICE, draw(7), Normal(TWICE[:, 0], (0.5 * TWICE[:, 1]).exp())),
    "gaussian, three predicted": (
        likelihoods.gaussian("predicted"), WIDE_TWICE, draw(7, 3), Normal(WIDE_TWICE[:, :3], (0.5 * WIDE_TWICE[:, 3:]).exp()),
    ),
    "student_t": (likelihoods.student_t(3.5, 0.7), OUTPUT, draw(7), StudentT(3.5, OUTPUT, 0.7)),
    "student_t, predicted": (
        likelihoods.student_t(5.0, "predicted"), TWICE, draw(7), StudentT(5.0, TWICE[:, 0], (0.5 * TWICE[:, 1]).exp()),
    ),
    "own": (lambda output, y: Normal(output, 2.0).log_prob(y), OUTPUT, draw(7), Normal(OUTPUT, 2.0)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_likelihood_is_that_of_torch(name):
    given, output, y, law = CASES[name]
    likelihood = likelihoods.as_likelihood("test", given)
    likelihood.check(output, y)
    found = likelihood.log_likelihood(output, y)
    expected = law.log_prob(y if name == "categorical" else y.double()).reshape(7, -1).sum(-1)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(likelihood.loss(output, y), -expected.mean(), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", [name for name in CASES if name not in ("categorical", "own")])
def test_means_variances_and_distribution_functions_are_those_of_torch(name):
    given, output, y, law = CASES[name]
    likelihood = likelihoods.as_likelihood("test", given)
    torch.testing.assert_close(likelihood.mean(output), law.mean)
    if likelihood.predicts == "classes":
        assert likelihood.variance(output) is None
        torch.testing.assert_close(likelihood.entropy(law.probs), law.entropy().reshape(7, -1).sum(-1))
        return
    torch.testing.assert_close(likelihood.variance(output), law.variance)
    value = y.double() + 0.5
    found = likelihood.cdf(output, value)
    if name == "poisson":
        steps = torch.arange(14).double()[:, None]
        torch.testing.assert_close(found, law.log_prob(steps).exp().cumsum(0)[y, range(7)])
        assert likelihood.cdf(output, -torch.ones(7).double()).tolist() == [0.0] * 7
    else:  # the derivative of a distribution function is the density
        step = 1e-5
        slope = (likelihood.cdf(output, value + step) - likelihood.cdf(output, value - step)) / (2 * step)
        torch.testing.assert_close(slope, law.log_prob(value).exp(), rtol=1e-6, atol=1e-9)


def test_a_student_t_of_two_degrees_has_no_variance():
    assert likelihoods.student_t(2.0, 1.0).variance(OUTPUT).isinf().all()


def test_entropies_of_certainty_are_zero_and_of_ignorance_the_log_of_the_classes():
    likelihood = likelihoods.categorical()
    torch.testing.assert_close(
        likelihood.entropy(torch.tensor([[1.0, 0.0, 0.0], [1 / 3, 1 / 3, 1 / 3]])), torch.tensor([0.0, math.log(3)])
    )


def test_a_learned_scale_is_one_more_parameter_and_the_law_is_that_of_a_known_one():
    x, y = draw(7, 4), draw(7)
    posterior = lv.Posterior(linear(4, 1), "gaussian", prior=lv.priors.gaussian(std=1.0), num_data=7)
    assert posterior.space.names == ("log_scale", "model.weight", "model.bias")
    assert posterior.dim == 6
    position = draw(2, 6)
    weight, bias = position[:, 1:5], position[:, 5:]
    law = Normal((x @ weight.T + bias.T).T, (0.5 * position[:, :1]).exp())
    expected = -law.log_prob(y).sum(-1) - Normal(0.0, 1.0).log_prob(position).sum(-1)
    found = posterior.evaluate(position, Batch((x, y), 7, per_chain=False))
    torch.testing.assert_close(found.energy, expected)


def test_a_learned_scale_of_a_training_loop_is_that_of_the_posterior():
    likelihood, net = likelihoods.student_t(4.0), linear(4, 2)
    posterior = lv.Posterior(net, likelihood, prior=lv.priors.flat(), num_data=7)
    model, x, y = likelihood.wrap(net), draw(7, 4), draw(7, 2)
    with torch.no_grad():
        model.log_scale.fill_(0.3)
        loss = likelihood.loss(model(x), y)
    energy = posterior.evaluate(posterior.space.flatten(model)[None], Batch((x, y), 7, per_chain=False)).energy
    torch.testing.assert_close(7 * loss, energy[0])


BAD = {
    "y of another shape": (lambda: likelihoods.gaussian("predicted").check(TWICE, draw(7, 1)), r"gaussian\(y=.*\(7,\).*\(7, 1\)"),
    "no pairs": (lambda: likelihoods.gaussian("predicted").check(WIDE, draw(7)), r"\(n, 2\), mean and log-variance.*\(7, 3\)"),
    "half ones": (lambda: likelihoods.bernoulli().check(OUTPUT, 0.5 * torch.ones(7)), r"zeros and ones, got 0\.5"),
    "a column of ones": (lambda: likelihoods.bernoulli().check(OUTPUT, ONES[:, None]), r"bernoulli\(y=.*\(7,\).*\(7, 1\)"),
    "half counts": (lambda: likelihoods.poisson().check(OUTPUT, 0.5 * torch.ones(7)), r"counts 0, 1, 2, \.\.\., got 0\.5"),
    "NaN counts": (lambda: likelihoods.poisson().check(OUTPUT, torch.full((7,), torch.nan)), r"counts.*nan"),
    "infinite y": (lambda: likelihoods.student_t(4.0, 1.0).check(OUTPUT, draw(7) / 0), r"student_t\(y=.*finite"),
    "another word": (lambda: likelihoods.gaussian("auto"), r'gaussian\(std=.*"learned" or "predicted", got \'auto\''),
    "no degrees": (lambda: likelihoods.student_t(0.0), r"student_t\(df=.*0\.0"),
    "a sum": (
        lambda: likelihoods.OwnLikelihood(lambda output, y: output.sum()).check(OUTPUT, OUTPUT),
        r"one log-likelihood per row",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused(name):
    call, words = BAD[name]
    with pytest.raises((TypeError, ValueError), match=words):
        call()


def test_a_scale_within_bounds_saturates_smoothly_and_is_the_plain_one_between_them():
    bounded, plain = likelihoods.gaussian("predicted", within=(1e-3, 3.0)), likelihoods.gaussian("predicted")
    raw = torch.linspace(-40, 40, 801, dtype=torch.float64)
    output = torch.stack([torch.zeros_like(raw), raw], -1)
    std = bounded.variance(output).sqrt()
    assert (std.diff() >= 0).all()
    assert 1e-3 <= std.min() < 1.001e-3
    assert 2.999 < std.max() < 3.001
    between = (raw > 2 * math.log(0.01)) & (raw < 2 * math.log(0.5))
    torch.testing.assert_close(std[between], plain.variance(output).sqrt()[between], rtol=0.02, atol=0)
    y = torch.full_like(raw, 0.3)
    expected = Normal(0.0, std).log_prob(y)  # one std for the density, the variance and the intervals
    torch.testing.assert_close(bounded.log_likelihood(output, y), expected)
    torch.testing.assert_close(bounded.cdf(output, y), Normal(0.0, std).cdf(y))


@pytest.mark.parametrize(
    ("std", "within", "words"),
    [
        (1.0, (1e-3, 3.0), "None where std is a number"),
        ("predicted", (3.0, 1e-3), r"low < high, got \(3.0, 0.001\)"),
        ("predicted", 3.0, "a pair"),
        ("learned", (0.0, 1.0), "within"),
    ],
)
def test_bounds_of_a_scale_that_make_no_sense_are_refused(std, within, words):
    with pytest.raises((TypeError, ValueError), match=words):
        likelihoods.gaussian(std, within=within)
