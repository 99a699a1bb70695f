"""Coordinates of hierarchical parameters: the density is the model's, draws and initial positions are as written."""

from __future__ import annotations

import pickle
import warnings

import pytest
import torch
from torch import distributions as dist
from torch.distributions import HalfNormal, Normal

import langevin as lv
from langevin.adaptation.parameterisation import (
    describe_weights,
    estimate_weights,
    in_new_coordinates,
    in_own_coordinates,
    moved_metric,
)
from langevin.targets.conditionals import Weights
from langevin.targets.gradients import compiled, full
from langevin.targets.metric import Dense
from langevin.targets.parameterisation import Reparameterised

F64 = torch.float64
COUNT = 4
DATA = torch.tensor([0.3, -1.0, 2.0, 0.7], dtype=F64)


def logistic(m, s):
    base = dist.Uniform(torch.zeros_like(s), torch.ones_like(s))
    return dist.TransformedDistribution(base, [dist.transforms.SigmoidTransform().inv, dist.transforms.AffineTransform(m, s)])


def correlated(p):
    below = torch.full((COUNT, COUNT), 0.3, dtype=F64).tril(-1)
    factor = p["tau"] * (below + torch.eye(COUNT, dtype=F64))
    return dist.MultivariateNormal(p["mu"].expand(COUNT), scale_tril=factor)


# Priors of x given mu and tau, and what x is.
FAMILIES = {
    "normal": (lambda p: Normal(p["mu"], p["tau"]), lv.real),
    "independent normal": (lambda p: dist.Independent(Normal(p["mu"].expand(COUNT), p["tau"]), 1), lv.real),
    "Student's t": (lambda p: dist.StudentT(4.0, p["mu"], p["tau"]), lv.real),
    "Laplace": (lambda p: dist.Laplace(p["mu"], p["tau"]), lv.real),
    "Cauchy": (lambda p: dist.Cauchy(p["mu"], p["tau"]), lv.real),
    "Gumbel": (lambda p: dist.Gumbel(p["mu"], p["tau"]), lv.real),
    "logistic": (lambda p: logistic(p["mu"], p["tau"]), lv.real),
    "multivariate normal": (correlated, lv.real),
    "log-normal": (lambda p: dist.LogNormal(p["mu"], p["tau"]), lv.positive),
    "half-normal": (lambda p: HalfNormal(p["tau"]), lv.positive),
    "half-Cauchy": (lambda p: dist.HalfCauchy(p["tau"]), lv.positive),
    "exponential": (lambda p: dist.Exponential(p["tau"]), lv.positive),
    "Weibull": (lambda p: dist.Weibull(p["tau"], p["mu"].exp()), lv.positive),
    "gamma": (lambda p: dist.Gamma(p["mu"].exp(), p["tau"]), lv.positive),
    "inverse gamma": (lambda p: dist.InverseGamma(p["mu"].exp(), p["tau"]), lv.positive),
}


def model_of(family, **settings):
    prior, constraint = FAMILIES[family]
    return lv.Model.log_density(
        lambda p: Normal(p["x"], 1.5).log_prob(DATA).sum(),
        {"x": constraint(COUNT), "mu": lv.real(), "tau": lv.positive()},
        {"x": prior, "mu": Normal(0.0, 1.0), "tau": HalfNormal(1.0)},
        **settings,
    )


def some(*shape, seed=0):
    return torch.randn(*shape, dtype=F64, generator=torch.Generator().manual_seed(seed))


def seen_in(model, seed=3):
    """Return a model in coordinates of random weights."""
    dim, start = model.dim, Reparameterised.of(model, {"x": 0.0})
    weights = Weights(some(dim, seed=seed).sigmoid(), some(dim, seed=seed + 1).sigmoid(), some(dim, seed=seed + 2))
    return start.with_weights(weights)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_density_of_z_is_the_models_with_the_jacobian_of_automatic_differentiation(family):
    model = model_of(family)
    seen, z = seen_in(model), some(3, model.dim)
    theta = seen.theta(z)
    jacobians = torch.stack([torch.autograd.functional.jacobian(lambda at: seen.substitute(at[None])[0][0], row) for row in z])
    log_det = torch.linalg.slogdet(jacobians).logabsdet
    found, own = seen.evaluate(z), model.evaluate(theta)
    torch.testing.assert_close(found.energy, own.energy - log_det)
    leaf = z.clone().requires_grad_()
    theta_of = seen.substitute(leaf)
    (pulled,) = torch.autograd.grad((theta_of[0] * own.gradient).sum() - theta_of[1].sum(), leaf)
    torch.testing.assert_close(found.gradient, pulled)
    torch.testing.assert_close(seen.position(theta), z)
    torch.testing.assert_close(seen.resolve(theta)[1], -log_det)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_gradient_of_z_is_that_of_finite_differences(family):
    seen, z, reach = seen_in(model_of(family)), some(1, COUNT + 2, seed=1), 1e-6
    steps = reach * torch.eye(z.shape[1], dtype=F64)
    slopes = (seen.evaluate(z + steps).energy - seen.evaluate(z - steps).energy) / (2 * reach)
    torch.testing.assert_close(seen.evaluate(z).gradient[0], slopes, rtol=1e-6, atol=1e-6)


def test_non_centred_is_location_plus_scale_times_z_and_centred_is_as_written():
    model, z = model_of("normal"), some(5, 6)
    mu, tau = z[:, 4:5], z[:, 5:].exp()
    torch.testing.assert_close(Reparameterised.of(model, {"x": 0.0}).theta(z)[:, :4], mu + tau * z[:, :4])
    torch.testing.assert_close(Reparameterised.of(model, {"x": 1.0}).theta(z), z)
    half = Reparameterised.of(model, {"x": [0.0, 1.0, 0.0, 1.0]}).theta(z)
    torch.testing.assert_close(half[:, 1::2][:, :2], z[:, 1:4:2])
    torch.testing.assert_close(half[:, :4:2], (mu + tau * z[:, :4])[:, ::2])


def test_with_the_datas_own_weights_z_is_standard_normal_given_the_hyperparameters():
    """The energy is ``|z|^2 / 2`` plus a function of mu and tau, whatever these are."""
    model = model_of("normal")
    data = torch.zeros(6, dtype=F64)
    data[:4] = 1 / 1.5**2
    weights = Weights(torch.ones(6, dtype=F64), data, torch.cat([DATA, torch.zeros(2, dtype=F64)]))
    seen = Reparameterised.of(model, {"x": 0.0}).with_weights(weights)
    z = some(50, 6)
    other = torch.cat([torch.zeros(50, 4, dtype=F64), z[:, 4:]], 1)
    rest = seen.evaluate(z).energy - seen.evaluate(other).energy
    torch.testing.assert_close(rest, 0.5 * z[:, :4].square().sum(1))


def test_the_same_holds_for_a_multivariate_normal_prior():
    model = model_of("multivariate normal")
    data = torch.zeros(6, dtype=F64)
    data[:4] = 1 / 1.5**2
    weights = Weights(torch.ones(6, dtype=F64), data, torch.cat([DATA, torch.zeros(2, dtype=F64)]))
    seen = Reparameterised.of(model, {"x": 0.0}).with_weights(weights)
    z = some(50, 6)
    other = torch.cat([torch.zeros(50, 4, dtype=F64), z[:, 4:]], 1)
    rest = seen.evaluate(z).energy - seen.evaluate(other).energy
    torch.testing.assert_close(rest, 0.5 * z[:, :4].square().sum(1))


def test_weights_and_anchors_of_normal_data_are_exact_wherever_the_draws_lie():
    model = model_of("normal")
    for seen in (Reparameterised.of(model, {"x": 0.0}), seen_in(model)):
        z = 0.3 * some(40, 6)
        thetas, slopes = in_own_coordinates(seen, z, seen.evaluate(z).gradient)
        torch.testing.assert_close(slopes, model.evaluate(thetas).gradient)
        found = estimate_weights(seen, ["x"], thetas, slopes)
        torch.testing.assert_close(found.data[:4], torch.full((4,), 1 / 1.5**2, dtype=F64))
        torch.testing.assert_close(found.prior[:4], torch.ones(4, dtype=F64))
        torch.testing.assert_close(found.anchor[:4], DATA)
        new = seen.with_weights(found)
        there, gradients = in_new_coordinates(new, thetas, slopes)
        torch.testing.assert_close(gradients, new.evaluate(there).gradient)


def test_the_metric_moves_with_the_coordinates():
    model = model_of("normal")
    old, new = Reparameterised.of(model, {"x": 0.0}), seen_in(model)
    root, centre = torch.eye(6, dtype=F64) + 0.1 * some(6, 6), some(6)
    metric = moved_metric(Dense(root), old, new, centre)
    at = old.position(centre[None])
    there = new.position(old.theta(at + 1e-6 * root.mT)) - new.position(old.theta(at - 1e-6 * root.mT))
    torch.testing.assert_close(metric.root.mT, there / 2e-6, rtol=1e-6, atol=1e-6)


def two_levels(**settings):
    """Return a model whose parameters are not in the order of their dependence."""
    return lv.Model.log_density(
        lambda p: Normal(p["leaf"], 1.0).log_prob(torch.ones(2, 3, dtype=F64)).sum(),
        {"leaf": lv.real(2, 3), "node": lv.real(2), "s": lv.positive(), "mu": lv.real(), "tau": lv.positive()},
        {
            "leaf": lambda p: Normal(p["node"][:, None], p["s"]),
            "node": lambda p: Normal(p["mu"], p["tau"]),
            "s": HalfNormal(1.0),
            "tau": HalfNormal(1.0),
            "mu": Normal(0.0, 1.0),
        },
        **settings,
    )


def test_parameters_are_substituted_after_those_that_their_priors_read():
    model = two_levels()
    seen, z = Reparameterised.of(model, {"leaf": 0.0, "node": 0.0}), some(7, model.dim)
    assert seen.names == ["node", "leaf"]
    leaf, node, s, mu, tau = z.split([6, 2, 1, 1, 1], 1)
    node = mu + tau.exp() * node
    leaf = node.repeat_interleave(3, 1) + s.exp() * leaf
    torch.testing.assert_close(seen.theta(z), torch.cat([leaf, node, s, mu, tau], 1))


def test_priors_without_location_and_scale_stay_as_written_and_say_why():
    model = lv.Model.log_density(
        lambda p: -p["a"].square().sum(),
        {"a": lv.real(), "rate": lv.unit(), "b": lv.real(), "c": lv.real(), "d": lv.real(), "e": lv.real(), "f": lv.positive()},
        {
            "a": Normal(0.0, 1.0),
            "rate": lambda p: dist.Beta(p["a"].exp(), 1.0),
            "b": lambda p: -((p["b"] - p["a"]) ** 2),
            "c": lambda p: Normal(p["d"], 1.0),
            "d": lambda p: Normal(p["c"], 1.0),
            "e": lambda p: Normal(p["e"], 1.0),
            "f": lambda p: Normal(p["a"], 1.0),
        },
    )
    found = model.conditionals
    assert list(found.priors) == ["c"]
    assert found.left == {
        "rate": "Beta on values in (0.0, 1.0) of shape () has no location and scale",
        "b": "its prior reads it",
        "e": "its prior reads it",
        "f": "Normal on values in (0.0, inf) of shape () has no location and scale",
        "d": "priors that read each other",
    }
    text = describe_weights(found, None, some(3, model.dim))
    assert text.startswith("parameterisation: c as written (1 of 1); rate as written, since Beta on")


def test_fixed_priors_are_no_conditionals_and_nothing_is_reported():
    model = lv.Model.log_density(lambda p: -(p["a"] ** 2), {"a": lv.real()}, {"a": lambda p: Normal(0.0, 1.0)})
    assert not model.conditionals.priors
    assert describe_weights(model.conditionals, None, some(3, 1)) == ""


def test_bounds_that_are_functions_keep_their_order():
    model = lv.Model.log_density(
        lambda p: -(p["high"] ** 2),
        {"tau": lv.positive(), "x": lv.real(), "high": lv.interval(lambda p: p["x"], None)},
        {"tau": HalfNormal(1.0), "x": lambda p: Normal(0.0, p["tau"]), "high": lambda p: dist.Cauchy(0.0, p["tau"])},
    )
    assert model.conditionals.order.index("high") == 2
    assert list(model.conditionals.priors) == ["x"]
    seen, z = Reparameterised.of(model, {"x": 0.0}), some(4, 3)
    torch.testing.assert_close(seen.position(seen.theta(z)), z)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (2.0, "centredness=.* needs numbers in"),
        ("no", "centredness=.* needs numbers in"),
        ({"y": 0.0}, "needs names among"),
        ({"x": [0.0, 1.0]}, "for 'x'"),
        ({"x": -0.1}, "for 'x'"),
        ({"x": "yes"}, "for 'x'"),
    ],
)
def test_an_unsuitable_centredness_is_rejected(given, message):
    with pytest.raises((ValueError, TypeError), match=message):
        model_of("normal", centredness=given)


def test_centredness_of_a_parameter_that_cannot_be_moved_is_rejected_by_sample():
    model = model_of("normal", centredness={"mu": 0.0})
    with pytest.raises(ValueError, match="needs 1 for 'mu': its prior does not depend on other parameters"):
        lv.sample(model)


RUN = {"num_draws": 40, "progress": False, "chains": 4}


@pytest.fixture(scope="module")
def model():
    return model_of("normal")


@pytest.fixture(scope="module")
def samples(model):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lv.TrustWarning)
        return lv.sample(model, **RUN)


def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9, equal_nan=True)


@pytest.mark.filterwarnings("ignore::langevin.TrustWarning")
def test_the_choice_is_printed_and_stored(model, capsys):
    samples = lv.sample(model, **RUN)
    line = "parameterisation: x non-centred (4 of 4)"
    assert line in capsys.readouterr().out
    assert line in samples.description


@pytest.mark.filterwarnings("ignore::langevin.TrustWarning")
def test_results_of_keep_and_moments_are_as_written(model, samples):
    kept = lv.sample(model, **RUN, keep=lambda theta: theta.square())
    close(kept.draws, samples.draws.square())
    moments = lv.sample(model, **RUN, keep="moments").moments
    close(moments.mean, samples.draws.mean(1))


@pytest.mark.filterwarnings("ignore::langevin.TrustWarning")
def test_engines_and_folders_give_the_same_draws_and_a_run_resumes_in_its_coordinates(model, samples, tmp_path):
    close(lv.sample(model, **RUN, engine="local", block_size=4).draws, samples.draws)
    folder = tmp_path / "run"
    close(lv.sample(model, **RUN, out=folder).draws, samples.draws)
    close(lv.load_samples(folder, target=model)["x"], samples["x"])
    close(lv.resume(folder, model).draws, samples.draws)


@pytest.mark.filterwarnings("ignore::langevin.TrustWarning")
def test_a_run_that_was_interrupted_continues_with_the_same_bits(model, samples, tmp_path, monkeypatch):
    from langevin.sampling import loop

    monkeypatch.setattr(loop, "_CHECKPOINT_SECONDS", 0.0)
    folder, calls = tmp_path / "run", []

    def stop(done, total):
        calls.append(done)
        if done > 0:
            raise KeyboardInterrupt

    with pytest.warns(UserWarning, match="interrupted"):
        half = lv.sample(model, **{**RUN, "num_draws": 400, "progress": stop}, out=folder)
    assert half.draws.shape[1] < 400 or half.draws.isnan().any()
    whole = lv.resume(folder, model, progress=False)
    expected = lv.sample(model, **{**RUN, "num_draws": 400})
    assert torch.equal(whole.draws, expected.draws)


@pytest.mark.filterwarnings("ignore::langevin.TrustWarning")
def test_a_folder_needs_a_target_whose_priors_are_known(model, tmp_path):
    lv.sample(model, **RUN, out=tmp_path / "run")
    plain = lv.targets.energy(lambda theta: theta.square().sum(), dim=6)
    with pytest.raises(TypeError, match=r"resume.target=.* needs the run's own"):
        lv.resume(tmp_path / "run", plain)


@pytest.mark.filterwarnings("ignore::langevin.TrustWarning")
def test_with_a_sampler_the_model_is_as_written_unless_its_centredness_is_fixed(model, capsys):
    settings = {"sampler": lv.sgld(0.01), "num_steps": 5, "chains": 2, "progress": False, "compile": False}
    init = {"x": [1.0, 2.0, 3.0, 4.0], "mu": 1.0, "tau": 2.0}
    plain = lv.sample(model, init=init, **settings)
    as_written = lv.sample(model_of("normal", centredness=1.0), init=init, **settings)
    moved = lv.sample(model_of("normal", centredness={"x": 0.0}), init=init, **settings)
    assert torch.equal(plain.draws, as_written.draws)
    assert "parameterisation" not in plain.description
    assert "parameterisation: x non-centred (4 of 4)" in moved.description
    # One step of SGLD in z from the same place, by hand: g = dU/dz, the noise is that of the plain run's first step.
    start = model.unconstrain(init)
    seen = Reparameterised.of(model, {"x": 0.0})
    z = seen.position(start[None])
    noise = plain.draws[:, 0] - (start - 0.01 * model.evaluate(start[None]).gradient)
    close(moved.draws[:, 0], seen.theta(z - 0.01 * seen.evaluate(z).gradient + noise))


@pytest.mark.filterwarnings("ignore::langevin.TrustWarning")
def test_initial_values_and_positions_are_as_written(model):
    init = {"x": [1.0, 2.0, 3.0, 4.0], "mu": 1.0, "tau": 2.0}
    by_name = lv.sample(model, **RUN, init=init)
    by_position = lv.sample(model, **{**RUN, "chains": None}, init=model.unconstrain(init).repeat(4, 1))
    assert torch.equal(by_name.draws, by_position.draws)


@pytest.mark.filterwarnings("ignore::langevin.TrustWarning")
def test_a_given_metric_is_that_of_the_model_as_written(model):
    assert "x as written (4 of 4)" in lv.sample(model, **RUN, metric=torch.ones(6, dtype=F64)).description


def test_other_weights_reuse_the_compiled_code(monkeypatch):
    """Weights are arguments of the code: only their first use calls the compiler."""
    from langevin.compiler import build

    model, z = model_of("normal"), some(2, 6)
    seen = seen_in(model)
    compiled(full(seen), 2)(z, 0)

    def fail(*given):
        raise AssertionError("compiled again")

    monkeypatch.setattr(build, "compile_source", fail)
    other = seen_in(model, seed=4)
    gradient_fn = compiled(full(other), 2)
    torch.testing.assert_close(gradient_fn(z, 0).gradient, other.evaluate(z).gradient)
    assert gradient_fn.evaluate._code is not None


def _prior(p):
    return Normal(p["mu"], p["tau"])


def _density(p):
    return -p["x"].square().sum()


def test_the_target_in_other_coordinates_can_be_pickled():
    shapes = {"x": lv.real(4), "mu": lv.real(), "tau": lv.positive()}
    model = lv.Model.log_density(_density, shapes, {"x": _prior, "tau": HalfNormal(1.0), "mu": Normal(0.0, 1.0)})
    seen = Reparameterised.of(model, {"x": 0.0})
    back, z = pickle.loads(pickle.dumps(seen)), some(2, 6)
    assert torch.equal(back.evaluate(z).energy, seen.evaluate(z).energy)
