"""Priors: densities against torch, scipy and quadrature, gradients against autograd, and which parameter gets which."""

from __future__ import annotations

import json
import math
import re

import mpmath
import numpy as np
import pytest
import torch
from scipy import integrate, special

import langevin as lv
from langevin.targets import priors
from langevin.targets.elementwise_priors import pull, scaled_e1

F64 = torch.float64
THETA = torch.cat([torch.linspace(-6, 6, 301, dtype=F64), torch.tensor([1e-9, -1e-5, 1e-3, 70.0, -4e4], dtype=F64)])


def log_ratio(prior, theta):
    """Return log of the slab's share over the spike's at theta."""
    slab = torch.distributions.Normal(0.0, prior.slab_std).log_prob(theta) + torch.tensor(prior.slab_weight).log()
    spike = torch.distributions.Normal(0.0, prior.spike_std).log_prob(theta) + torch.tensor(1 - prior.slab_weight).log()
    return slab - spike


@pytest.mark.parametrize("slab_weight", [1e-7, 0.01, 0.3, 0.5, 0.66])
def test_at_the_threshold_both_are_as_likely(slab_weight):
    prior = priors.spike_slab(slab_weight=slab_weight, slab_std=1.0, spike_std=0.5)
    assert prior.log_odds > 0
    assert prior.threshold > 0
    assert log_ratio(prior, torch.tensor(prior.threshold)).item() == pytest.approx(0.0, abs=1e-4)


@pytest.mark.parametrize("slab_weight", [0.67, 0.9, 0.999])
def test_where_the_slab_is_always_the_likelier_every_weight_counts(slab_weight):
    prior = priors.spike_slab(slab_weight=slab_weight, slab_std=1.0, spike_std=0.5)
    assert prior.log_odds < 0
    assert log_ratio(prior, torch.zeros(())) > 0
    assert prior.threshold == 0.0


# Densities and gradients

DISTRIBUTIONS = {
    "gaussian": (priors.gaussian(0.7), torch.distributions.Normal(0.0, torch.tensor(0.7, dtype=F64))),
    "laplace": (priors.laplace(0.3), torch.distributions.Laplace(0.0, torch.tensor(0.3, dtype=F64))),
    "student_t": (priors.student_t(3.5, 0.4), torch.distributions.StudentT(torch.tensor(3.5, dtype=F64), 0.0, 0.4)),
    "cauchy": (priors.student_t(1, 2), torch.distributions.Cauchy(0.0, torch.tensor(2.0, dtype=F64))),
}
HEAVY = {
    "laplace": priors.laplace(0.3),
    "student_t": priors.student_t(3.5, 0.4),
    "horseshoe": priors.horseshoe(0.5),
    "horseshoe with a wide floor": priors.horseshoe(2.0, floor=1.5),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_energies_are_those_of_torch(name):
    prior, distribution = DISTRIBUTIONS[name]
    torch.testing.assert_close(prior.energy(THETA[:, None]), -distribution.log_prob(THETA))
    torch.testing.assert_close(prior.energy(THETA.reshape(2, 153)), -distribution.log_prob(THETA.reshape(2, 153)).sum(-1))


@pytest.mark.parametrize("name", HEAVY)
def test_gradients_are_the_automatic_ones(name):
    prior, leaf = HEAVY[name], THETA[THETA != 0].clone().requires_grad_()
    (automatic,) = torch.autograd.grad(prior.energy(leaf), leaf)
    torch.testing.assert_close(prior.gradient(leaf.detach()), automatic, rtol=1e-8, atol=1e-12)
    assert prior.gradient(torch.zeros(3)).tolist() == [0.0] * 3
    single = prior.gradient(leaf.detach().float())
    torch.testing.assert_close(single.double(), automatic, rtol=2e-6, atol=1e-7)


def test_the_exponential_integral_is_scipys():
    x = np.geomspace(1e-12, 600, 20_001)
    expected = torch.from_numpy(np.exp(x) * special.exp1(x))
    torch.testing.assert_close(scaled_e1(torch.from_numpy(x)), expected, rtol=1e-10, atol=0.0)
    torch.testing.assert_close(scaled_e1(torch.from_numpy(x).float()).double(), expected, rtol=1e-6, atol=0.0)


def test_the_pull_is_right_far_out_too_where_its_two_terms_cancel():
    x = np.geomspace(1e-12, 1e5, 201)
    with mpmath.workdps(40):
        exact = [float(1 / (v * mpmath.exp(v) * mpmath.e1(v)) - 1) for v in map(mpmath.mpf, x)]
    expected = torch.tensor(exact, dtype=F64)
    torch.testing.assert_close(pull(torch.from_numpy(x)), expected, rtol=1e-10, atol=0.0)
    torch.testing.assert_close(pull(torch.from_numpy(x).float()).double(), expected, rtol=1e-6, atol=0.0)


@pytest.mark.parametrize(("scale", "floor"), [(1.0, 0.01), (0.2, 0.5), (3.0, 1e-4)])
def test_the_horseshoe_is_the_mixture_that_its_docstring_names(scale, floor):
    """Quadrature over the half-Cauchy λ, times exp(-(floor / λ)^2 / 2), against the closed form; and the integral is 1."""
    prior = priors.horseshoe(scale, floor=floor)

    def density(theta):
        return math.exp(-prior.energy(torch.tensor([theta], dtype=F64)).item())

    def mixture(theta):
        def part(log_lambda):  # over log λ: the mass near λ = floor is narrow
            lam = math.exp(log_lambda)
            normal = math.exp(-0.5 * (theta / (scale * lam)) ** 2) / (scale * lam * math.sqrt(2 * math.pi))
            return lam * normal / (1 + lam * lam) * math.exp(-0.5 * (floor / lam) ** 2)

        return integrate.quad(part, -25, 25, limit=500, points=[math.log(floor), 0.0])[0]

    whole = integrate.quad(
        lambda u: 2 * math.exp(u) * density(math.exp(u)), -40, 30, limit=1000, points=[math.log(scale * floor), 0]
    )[0]
    assert whole == pytest.approx(1.0, abs=1e-6)
    ratios = [mixture(theta) / density(theta) for theta in (0.0, 0.3 * scale * floor, 0.1 * scale, scale, 20 * scale)]
    assert ratios == pytest.approx([ratios[0]] * 5, rel=1e-6)


BAD = {
    "scale": (lambda: priors.laplace(0.0), ValueError, r"priors\.laplace\(scale=.*1e-150 <= scale.*0\.0"),
    "df": (lambda: priors.student_t(0.0, 1.0), ValueError, r"student_t\(df=.*0\.0"),
    "floor": (lambda: priors.horseshoe(1.0, floor=0.0), ValueError, r"horseshoe\(floor=.*0\.0"),
    "fan_in": (lambda: priors.fan_in(-1.0), ValueError, r"fan_in\(std=.*-1\.0"),
    "bias": (lambda: priors.fan_in(bias_std="a"), TypeError, r"fan_in\(bias_std=.*'a'"),
    "no dict": (lambda: priors.by_name([priors.gaussian(1.0)]), TypeError, r"by_name\(priors=.*a dict"),
    "empty": (lambda: priors.by_name({}), TypeError, r"by_name\(priors=.*\{\}"),
    "no prior": (lambda: priors.by_name({"*": 1.0}), TypeError, r"for '\*', got 1\.0"),
    "no pattern": (lambda: priors.by_name({1: priors.flat()}), TypeError, "patterns of names.*got 1"),
    "in one another": (lambda: priors.by_name({"*": priors.by_name({"*": priors.flat()})}), TypeError, "no by_name itself"),
    "for any element": (
        lambda: lv.targets.likelihood(lambda theta, x: x, prior=priors.fan_in()), TypeError, "by_name and fan_in are for Posterior"
    ),
    "for a model": (
        lambda: lv.Model(lambda p, x: x, parameters={"a": lv.real()}, prior={"a": priors.fan_in()}), TypeError, "for 'a', got FanIn"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_with_its_value(name):
    call, error, message = BAD[name]
    with pytest.raises(error, match=message):
        call()


# By name and shape


def test_fan_in_is_that_of_torchs_initialisation():
    shapes = {"linear": (7, 5), "convolution": (4, 3, 2, 2), "bias": (9,), "number": ()}
    found = {name: priors.fan_in(2.0, bias_std=0.3).prior_for(name, torch.Size(shape)) for name, shape in shapes.items()}
    for name in ("linear", "convolution"):
        fan = torch.nn.init._calculate_correct_fan(torch.empty(shapes[name]), "fan_in")
        assert found[name] == priors.gaussian(2.0 / math.sqrt(fan))
    assert found["bias"] == found["number"] == priors.gaussian(0.3)


NAMES = ["features.0.weight", "features.0.bias", "head.weight", "head.bias"]


def test_the_first_pattern_wins():
    prior = priors.by_name({"head.*": priors.laplace(0.1), "*.bias": priors.gaussian(1.0), "*": priors.fan_in()})
    prior.check_names(NAMES)
    kinds = [prior.prior_for(name, torch.Size([3, 4])) for name in NAMES]
    assert kinds == [priors.gaussian(0.5), priors.gaussian(1.0), priors.laplace(0.1), priors.laplace(0.1)]


def test_a_name_without_a_pattern_and_a_pattern_without_a_name_are_errors_that_list_names():
    some = priors.by_name({"*.bias": priors.gaussian(1.0)})
    with pytest.raises(ValueError, match=re.escape("for ['features.0.weight', 'head.weight'] too, got ['*.bias']")):
        some.check_names(NAMES)
    shadowed = priors.by_name({"*": priors.flat(), "feature.*": priors.flat(), "head.*": priors.flat()})
    with pytest.raises(ValueError, match=re.escape(f"the names are {NAMES}, got ['feature.*', 'head.*']")):
        shadowed.check_names(NAMES)
    with pytest.raises(ValueError, match=r"and 5 more"):
        some.check_names([f"{k}.weight" for k in range(25)])


EVERY = {
    "flat": priors.flat(),
    "gaussian": priors.gaussian(2.0),
    "spike_slab": priors.spike_slab(slab_weight=0.1, slab_std=0.3, spike_std=0.05),
    "laplace": priors.laplace(0.5),
    "student_t": priors.student_t(3.0, 0.5),
    "horseshoe": priors.horseshoe(0.5, floor=0.02),
    "fan_in": priors.fan_in(2.0, bias_std=0.5),
}
EVERY["by_name"] = priors.by_name({f"{name}.*": prior for name, prior in EVERY.items()})


@pytest.mark.parametrize("name", EVERY)
def test_every_prior_comes_back_from_a_file(name):
    assert priors.from_plain(json.loads(json.dumps(priors.to_plain(EVERY[name])))) == EVERY[name]
    assert set(priors.KINDS.values()) == {type(prior) for prior in EVERY.values()}


@pytest.mark.parametrize(
    "damage", [{"priors": 3}, {"priors": [["*"]]}, {"priors": [], "more": 1}, {}, {"priors": [["*", {"kind": "x"}]]}]
)
def test_a_damaged_prior_by_name_is_refused(damage):
    with pytest.raises((TypeError, ValueError), match=r"from_plain|by_name"):
        priors.from_plain({"kind": "ByName", **damage})
