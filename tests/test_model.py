"""Models with named parameters: constraints, the law that was written, data, priors and results by name, errors in words."""

from __future__ import annotations

import math
import pickle
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import distributions as dist
from torch import nn
from torch.distributions import transforms

import langevin as lv
from langevin.diagnostics.arrays import evaluate_fully
from langevin.storage.arviz_data import import_arviz
from langevin.targets import Batch
from langevin.targets.automatic import validation

F64 = torch.float64


def free_numbers(size, seed=0, scale=1.5):
    return scale * lv.random.normal(seed, lv.random.stream(lv.random.Purpose.DATA), 0, size, dtype=F64)


def below_diagonal(value):
    return value[tuple(torch.tril_indices(len(value), len(value), -1))]


# A constraint, torch's own transform to it where there is one, and coordinates of its values as many as it has free numbers.
CONSTRAINTS = {
    "real": (lv.real(2, 2), transforms.identity_transform, torch.flatten),
    "positive": (lv.positive(3), dist.biject_to(dist.constraints.positive), torch.flatten),
    "unit": (lv.unit(3), dist.biject_to(dist.constraints.unit_interval), torch.flatten),
    "interval": (lv.interval(-1, 4, 3), dist.biject_to(dist.constraints.interval(-1.0, 4.0)), torch.flatten),
    "above": (lv.interval(2.0, None, 2), dist.biject_to(dist.constraints.greater_than(2.0)), torch.flatten),
    "below": (lv.interval(None, -3, 2), dist.biject_to(dist.constraints.less_than(-3.0)), torch.flatten),
    "ordered": (lv.ordered(4), None, torch.flatten),
    "ordered rows": (lv.ordered(3, 2), None, torch.flatten),
    "simplex": (lv.simplex(4), transforms.StickBreakingTransform(), lambda value: value[:-1]),
    "simplex rows": (lv.simplex(3, 2), None, lambda value: value[:, :-1].flatten()),
    "correlation_cholesky": (lv.correlation_cholesky(4), transforms.CorrCholeskyTransform(), below_diagonal),
}


@pytest.mark.parametrize("name", CONSTRAINTS)
def test_a_constraint_is_torchs_transform_with_the_log_jacobian_of_finite_differences(name):
    constraint, transform, coordinates = CONSTRAINTS[name]
    free = free_numbers(constraint.size)
    value, log_jacobian = constraint.constrain(free, {})
    assert value.shape == constraint.shape
    if transform is not None:
        like = free.view(value.shape) if value.numel() == free.numel() else free
        torch.testing.assert_close(value, transform(like), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(log_jacobian, transform.log_abs_det_jacobian(like, value).sum(), rtol=1e-10, atol=1e-10)

    def at(shift):
        return coordinates(constraint.constrain(free + shift, {})[0])

    steps = 1e-6 * torch.eye(len(free), dtype=F64)
    numerical = torch.stack([(at(step) - at(-step)) / 2e-6 for step in steps], -1)
    torch.testing.assert_close(log_jacobian, torch.linalg.slogdet(numerical).logabsdet, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(constraint.unconstrain(value, {}), free, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", CONSTRAINTS)
def test_the_gradient_at_zero_and_elsewhere_is_that_of_finite_differences(name):
    constraint = CONSTRAINTS[name][0]

    def number(free):  # a function of the value with a gradient that differs by element
        value, log_jacobian = constraint.constrain(free, {})
        return (value.flatten() * torch.arange(1, value.numel() + 1, dtype=F64)).sum() + log_jacobian

    for free in (torch.zeros(constraint.size, dtype=F64), free_numbers(constraint.size, 1)):
        steps = 1e-6 * torch.eye(len(free), dtype=F64)
        numerical = torch.stack([(number(free + step) - number(free - step)) / 2e-6 for step in steps])
        torch.testing.assert_close(torch.func.grad(number)(free), numerical, rtol=1e-6, atol=1e-6)


# Priors that are infinite or undefined at a bound, which the value must not reach.
SHARP = {
    "positive": (lv.positive(2), dist.Gamma(3.0, 2.0)),
    "unit": (lv.unit(2), dist.Beta(3.0, 2.0)),
    "interval": (lv.interval(5, 7, 2), lambda p: dist.Beta(2.0, 3.0).log_prob((p["x"] - 5) / 2)),
    "negative": (lv.interval(-2, 0), lambda p: (-p["x"]).log()),
    "above": (lv.interval(5, None), lambda p: (p["x"] - 5).log() - p["x"]),
    "bound by another": (lv.interval(lambda p: 3.0, None), lambda p: (p["x"] - 3).log() - p["x"]),
    "simplex": (lv.simplex(4), dist.Dirichlet(torch.tensor([2.0, 3.0, 4.0, 5.0]))),
    "correlation_cholesky": (lv.correlation_cholesky(3), dist.LKJCholesky(3, 2.0)),
}


@pytest.mark.parametrize("name", SHARP)
@pytest.mark.parametrize("far", [-50.0, 50.0])
def test_energies_are_finite_far_out(name, far):
    constraint, prior = SHARP[name]
    model = lv.Model.log_density(lambda p: 0.0 * p["x"].sum(), {"x": constraint}, {"x": prior})
    energy, gradient = model.evaluate(torch.full((1, model.dim), far, dtype=F64))
    assert energy.isfinite().all()
    assert gradient.isfinite().all()


def moments(model, functions, end=40.0, points=4001):
    """Return the integral of exp(-U) of a model with one or two free numbers, and means of functions of the values."""
    axis = torch.linspace(-end, end, points, dtype=F64)
    theta = torch.cartesian_prod(*[axis] * model.dim).reshape(-1, model.dim)
    weight = torch.cat([(-model.evaluate(part).energy).exp() for part in theta.split(2**20)]) * (axis[1] - axis[0]) ** model.dim
    values = model.constrain(theta)
    return [float(weight.sum())] + [float((weight * function(values)).sum() / weight.sum()) for function in functions]


def nothing(p):
    return 0.0 * sum(value.sum() for value in p.values())


def test_the_law_of_each_constraint_is_the_density_that_was_written():
    """Each expected value is a textbook one of the density of the value; a wrong or missing Jacobian changes all of them."""

    def check(constraint, prior, expected, *functions, **grid):
        model = lv.Model.log_density(nothing, {"x": constraint}, {"x": prior})
        np.testing.assert_allclose(moments(model, functions, **grid), expected, rtol=1e-6)

    def x(p):
        return p["x"]

    check(lv.positive(), dist.Gamma(3.0, 2.0), [1, 1.5, 3.0], x, lambda p: p["x"] ** 2)
    check(lv.unit(), dist.Beta(2.0, 5.0), [1, 2 / 7, 6 / 56], x, lambda p: p["x"] ** 2)
    check(lv.interval(-1, 2), dist.Uniform(-1.0, 2.0), [1, 0.5, 1.0], x, lambda p: p["x"] ** 2)
    check(lv.interval(2, None), lambda p: 2 - p["x"], [1, 3.0], x)
    check(lv.interval(None, 2), lambda p: p["x"] - 2, [1, 1.0], x)
    coarse = {"end": 20.0, "points": 1001}
    shares = dist.Dirichlet(torch.tensor([2.0, 3.0, 4.0]))
    check(lv.simplex(3), shares, [1, 2 / 9, 3 / 9, 4 / 9], *(lambda p, k=k: p["x"][:, k] for k in range(3)), **coarse)
    normals = [0.5, -1 / math.sqrt(math.pi), 1 / math.sqrt(math.pi)]
    check(lv.ordered(2), dist.Normal(0.0, 1.0), normals, lambda p: p["x"][:, 0], lambda p: p["x"][:, 1], **coarse)
    check(lv.correlation_cholesky(2), dist.LKJCholesky(2, 2.0), [1, 1 / 5], lambda p: p["x"][:, 1, 0] ** 2)


def test_a_bound_that_depends_on_another_parameter_gives_the_flat_law_on_the_triangle():
    parameters = {"alpha": lv.unit(), "beta": lv.interval(0, lambda p: 1 - p["alpha"])}
    model = lv.Model.log_density(nothing, parameters)
    found = moments(model, [lambda p: p["alpha"], lambda p: p["beta"], lambda p: p["alpha"] * p["beta"]], end=30.0, points=1001)
    np.testing.assert_allclose(found, [1 / 2, 1 / 3, 1 / 3, 1 / 12], rtol=1e-6)
    torch.testing.assert_close(model.constrain(model.unconstrain({"alpha": 0.7, "beta": 0.2}))["beta"].item(), 0.2)
    with pytest.raises(ValueError, match=r"'beta': values in \(0.0, a function\)"):
        model.unconstrain({"alpha": 0.7, "beta": 0.4})
    torch.testing.assert_close(model.constrain(model.init_from({"alpha": 0.8}, 2))["beta"], torch.full((2,), 0.1, dtype=F64))


NUM = 60
X = free_numbers(NUM * 2, 3, 1.0).reshape(NUM, 2)
Y = 0.5 + X @ torch.tensor([1.0, -2.0], dtype=F64) + free_numbers(NUM, 4, 0.7)


def normal_rows(p, x, y):
    return dist.Normal(p["a"] + x @ p["b"], p["sigma"]).log_prob(y)


def regression(**changes):
    given = {
        "log_likelihood": normal_rows,
        "parameters": {"a": lv.real(), "b": lv.real(2), "sigma": lv.positive()},
        "prior": {"b": lv.priors.gaussian(std=1.0), "sigma": dist.HalfNormal(1.0)},
    }
    return lv.Model(**given | changes)


MODEL = regression(dims={"b": ["feature"]}, coords={"feature": ["width", "height"]})
THETA = free_numbers(12, 5, 0.4).reshape(3, 4)


def by_hand(theta, x=X, y=Y, scale=1.0):
    """Return U of the regression, written out."""
    a, b, log_sigma = float(theta[0]), theta[1:3].numpy(), float(theta[3])
    sigma, total = math.exp(log_sigma), 0.0
    for row, target in zip(x.numpy(), y.numpy(), strict=True):
        total -= scale * (-0.5 * ((target - a - row @ b) / sigma) ** 2 - math.log(sigma) - 0.5 * math.log(2 * math.pi))
    total -= sum(-0.5 * value**2 - 0.5 * math.log(2 * math.pi) for value in b)
    total -= 0.5 * math.log(2 / math.pi) - 0.5 * sigma**2
    return total - log_sigma


def test_the_energy_of_a_regression_is_that_of_a_sum_by_hand():
    energy, gradient = MODEL.evaluate(THETA, Batch((X, Y), NUM, per_chain=False))
    np.testing.assert_allclose(energy, [by_hand(theta) for theta in THETA], rtol=1e-12)
    steps = 1e-5 * torch.eye(4, dtype=F64)
    numerical = [[(by_hand(theta + step) - by_hand(theta - step)) / 2e-5 for step in steps] for theta in THETA]
    np.testing.assert_allclose(gradient, numerical, rtol=1e-6, atol=1e-6)


def test_minibatches_are_unbiased_and_each_chains_own():
    whole = MODEL.evaluate(THETA, Batch((X, Y), NUM, per_chain=False))
    rows = torch.stack([torch.roll(torch.arange(NUM), 7 * k) for k in range(3)]).reshape(3, 6, 10)  # six batches of each chain
    parts = [MODEL.evaluate(THETA, Batch((X[rows[:, k]], Y[rows[:, k]]), NUM, per_chain=True)) for k in range(6)]
    for name in ("energy", "gradient"):
        torch.testing.assert_close(torch.stack([getattr(part, name) for part in parts]).mean(0), getattr(whole, name))
    assert not torch.allclose(parts[0].energy, whole.energy, rtol=1e-3)
    np.testing.assert_allclose(parts[0].energy[1], by_hand(THETA[1], X[rows[1, 0]], Y[rows[1, 0]], 6.0), rtol=1e-12)


PRIORS = {
    "scalar": (lv.real(3), dist.Normal(1.0, 2.0)),
    "one per element": (lv.real(3), dist.Normal(torch.arange(3.0), torch.ones(3))),
    "rows": (lv.real(2, 3), dist.Normal(torch.arange(3.0), 1.0)),
    "multivariate": (lv.real(3), dist.MultivariateNormal(torch.zeros(3), 2 * torch.eye(3))),
    "independent": (lv.real(3), dist.Independent(dist.Normal(torch.zeros(3), 1.0), 1)),
    "transformed": (lv.positive(2), dist.LogNormal(0.5, 2.0)),
    "wider than the constraint": (lv.positive(2), dist.Normal(0.0, 1.0)),
    "mixture": (lv.real(2), dist.MixtureSameFamily(dist.Categorical(torch.ones(2)), dist.Normal(torch.tensor([-1.0, 1.0]), 0.5))),
    "validated": (lv.positive(), dist.Gamma(2.0, 3.0, validate_args=True)),
    "rows of shares": (lv.simplex(3, 2), dist.Dirichlet(torch.ones(3))),
    "heavy": (lv.positive(), dist.HalfCauchy(2.0)),
    "student": (lv.real(2), dist.StudentT(3.0, 0.0, 2.5)),
}


@pytest.mark.parametrize("name", PRIORS)
def test_a_prior_of_torch_is_its_log_density_of_the_value(name):
    constraint, prior = PRIORS[name]
    model = lv.Model.log_density(nothing, {"x": constraint}, {"x": prior})
    theta = free_numbers(model.dim, 6)
    value, log_jacobian = constraint.constrain(theta, {})
    expected = -(prior.log_prob(value.float()).double().sum() + log_jacobian)
    energies = model.evaluate(torch.stack([theta, 2 * theta])).energy
    torch.testing.assert_close(energies[0], expected, rtol=1e-5, atol=1e-5)  # torch's in float32
    assert energies.dtype == F64


def test_a_chain_that_went_wrong_has_no_energy_and_the_others_have_theirs():
    """Where `torch.distributions` validate, one chain's NaN is an error for all of them."""
    validated = lv.Model.log_density(nothing, {"x": lv.positive()}, {"x": PRIORS["validated"][1]})
    with validation(True):
        found = [
            validated.evaluate(torch.tensor([[0.3], [math.nan]], dtype=F64)).energy,
            MODEL.evaluate(torch.stack([THETA[0], THETA[0] * math.nan]), Batch((X, Y), NUM, per_chain=False)).energy,
        ]
    assert [energy.isfinite().tolist() for energy in found] == [[True, False]] * 2


def test_a_hierarchical_prior_is_a_function_of_the_parameters():
    parameters = {"mu": lv.real(), "tau": lv.positive(), "b": lv.real(4)}
    model = lv.Model.log_density(nothing, parameters, {"b": lambda p: dist.Normal(p["mu"], p["tau"]), "tau": dist.HalfNormal(1.0)})
    theta = free_numbers(6, 7)
    tau = theta[1].exp()
    expected = (
        dist.Normal(theta[0], tau).log_prob(theta[2:]).sum() + dist.HalfNormal(torch.ones((), dtype=F64)).log_prob(tau) + theta[1]
    )
    torch.testing.assert_close(model.evaluate(theta[None]).energy[0], -expected)


def test_compiled_energies_and_gradients_of_every_constraint_and_kind_of_prior_are_the_eager_ones(request):
    if "pyro" in sys.modules:  # it patches torch.distributions, which torch.compile then cannot trace
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", request.node.nodeid]
        done = subprocess.run(command, cwd=request.config.rootpath, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout
        return
    names = (
        "one per element",
        "multivariate",
        "transformed",
        "mixture",
        "validated",
        "heavy",
        "unit",
        "simplex",
        "correlation_cholesky",
    )
    parts = {name: (PRIORS | SHARP)[name] for name in names}
    parameters = {name: constraint for name, (constraint, _) in parts.items()}
    parameters |= {"order": lv.ordered(3), "last": lv.interval(0, lambda p: p["heavy"])}
    prior = {name: prior for name, (_, prior) in parts.items()} | {"order": lambda p: dist.Normal(p["last"], 1.0)}
    model = lv.Model.log_density(nothing, parameters, prior)
    theta = free_numbers(2 * model.dim, 8, 0.5).reshape(2, -1)
    compiled = torch.compile(model.evaluate, fullgraph=True, backend="aot_eager")(theta)
    for found, expected in zip(compiled, model.evaluate(theta), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


def run(model=MODEL, data=(X, Y), **changes):
    settings = {"num_steps": 40, "warmup": 10, "data": data, "compile": False} | changes
    return lv.sample(model, sampler=lv.sghmc(step_size=1e-3), init=model.init_from({"sigma": 1.0}, 3), **settings)


SAMPLES = run(num_steps=340, warmup=40)


def test_a_compiled_run_is_the_eager_one():
    eager, compiled = (run(num_steps=20, batch_size=15, compile=choice) for choice in (False, True))
    assert compiled.compiled
    torch.testing.assert_close(compiled.draws, eager.draws, rtol=1e-9, atol=1e-9)


def test_the_law_of_a_run_is_the_posterior():
    """For y ~ N(m, 1 / t), p(m, t) ~ 1 / t: (m - mean(y)) sqrt(n) / s is Student's with n - 1, t (n - 1) s^2 chi-squared."""
    model = lv.Model(
        lambda p, y: dist.Normal(p["m"], p["t"] ** -0.5).log_prob(y),
        {"m": lv.real(), "t": lv.positive()}, {"t": lambda p: -p["t"].log()},
    )  # fmt: skip
    y = Y[:20]
    samples = lv.sample(
        model, sampler=lv.sghmc(step_size=5e-3), init=model.init_from({"t": 1.0}, 60), num_steps=1500, warmup=300, thin=3, data=y
    )
    sd, df = float(y.std()), len(y) - 1
    expected = {"m": (float(y.mean()), sd / 20**0.5 * (df / (df - 2)) ** 0.5), "t": (1 / sd**2, (2 / df) ** 0.5 / sd**2)}
    for name, (mean, spread) in expected.items():
        of_chains = samples[name].mean(1)
        assert abs(of_chains.mean() - mean) < 4 * of_chains.std() / 60**0.5
        variances = ((samples[name] - mean) ** 2).mean(1)
        assert abs(variances.mean() - spread**2) < 4 * variances.std() / 60**0.5 + 0.03 * spread**2


FRAME = pd.DataFrame({"y": Y.numpy(), "group": np.arange(NUM) % 3, "other": ["text"] * NUM})


@pytest.mark.parametrize(
    "data",
    [
        [X.float().double(), Y],
        {"y": Y, "x": X},
        {"x": X.numpy(), "y": Y.numpy()},
        (pd.DataFrame(X.numpy()), FRAME["y"]),
        {"x": X.tolist(), "y": FRAME["y"][::1]},
        (X.numpy()[::-1][::-1], Y),
    ],
)
def test_data_by_place_and_by_name_from_torch_numpy_and_pandas_are_the_same(data):
    columns = MODEL.as_columns("test", data)
    torch.testing.assert_close(columns, (X, Y), rtol=1e-6, atol=1e-6)
    assert [column.dtype for column in columns] == [F64, F64]
    assert run(data=data, num_steps=12).draws.isfinite().all()


def test_a_frame_is_read_by_the_names_of_the_arguments_and_whole_numbers_are_indices():
    model = lv.Model(lambda p, y, group: dist.Normal(p["a"][group], 1.0).log_prob(y), {"a": lv.real(3)})
    y, group = model.as_columns("test", FRAME)
    assert group.dtype == torch.int64
    torch.testing.assert_close(y, Y)
    energy = evaluate_fully("test", model, torch.zeros(1, 3, dtype=F64), FRAME).energy
    torch.testing.assert_close(energy[0], -dist.Normal(0.0, 1.0).log_prob(Y).sum())
    assert regression(dtype=torch.float32).as_columns("test", (X, Y))[0].dtype == torch.float32


def test_draws_have_names_and_are_values():
    torch.testing.assert_close(SAMPLES["b"], SAMPLES.draws[..., 1:3])
    torch.testing.assert_close(SAMPLES["sigma"], SAMPLES.draws[..., 3].exp())
    assert list(SAMPLES.summary().index) == ["a", "b[width]", "b[height]", "sigma"]
    np.testing.assert_allclose(SAMPLES.summary()["mean"]["sigma"], SAMPLES["sigma"].mean())
    assert [MODEL.space.element(k) for k in range(4)] == ["a", "b[0]", "b[1]", "sigma"]
    with pytest.raises(KeyError, match=r"one of \['a', 'b', 'sigma'\], got 'c'"):
        SAMPLES["c"]
    with pytest.raises(KeyError, match="target with names"):
        run(keep=lambda theta: theta[:1])["a"]


def test_arviz_has_variables_by_name_with_coords_and_on_request_lp_log_likelihood_and_predictions():
    def simulate(p, x, y):
        return dist.Normal(p["a"] + x @ p["b"], p["sigma"]).sample()

    data = SAMPLES.to_arviz(lp=True, log_likelihood=True, posterior_predictive=simulate, seed=1)
    assert data.posterior["b"].dims == ("chain", "draw", "feature")
    assert list(data.posterior["feature"].values) == ["width", "height"]
    # The energy of a step is that of the draw before it.
    np.testing.assert_allclose(data.sample_stats["lp"].values[:, :-1], -SAMPLES.energy[:, 1:], rtol=1e-12)
    a, b, sigma = (SAMPLES[name] for name in ("a", "b", "sigma"))
    rows = dist.Normal(a[..., None] + b @ X.mT, sigma[..., None])
    np.testing.assert_allclose(data.log_likelihood["obs"], rows.log_prob(Y), rtol=1e-12)
    assert np.isfinite(import_arviz().loo(data, pointwise=True).elpd_loo)
    errors = ((data.posterior_predictive["obs"].values - rows.mean.numpy()) / rows.stddev.numpy()).ravel()
    assert abs(errors.mean()) < 4 / len(errors) ** 0.5
    assert abs((errors**2).mean() - 1) < 4 * (2 / len(errors)) ** 0.5
    state = torch.random.get_rng_state()
    again = SAMPLES.to_arviz(posterior_predictive=lambda p, x, y: {"one": simulate(p, x, y), "two": p["a"]}, seed=1)
    np.testing.assert_array_equal(again.posterior_predictive["one"], data.posterior_predictive["obs"])
    np.testing.assert_allclose(again.posterior_predictive["two"], a)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert not {"log_likelihood", "posterior_predictive"} & set(SAMPLES.to_arviz().groups())
    with pytest.raises(ValueError, match="log-likelihood per row"):
        lv.sample(lv.targets.gaussian([[1.0]]), sampler=lv.sgld(0.1), init=torch.zeros(1, 1), num_steps=5).to_arviz(
            log_likelihood=True
        )


def test_a_run_on_disk_a_pickle_and_a_resumed_run_have_names_where_they_are_given_the_target(tmp_path):
    samples = run(out=tmp_path / "run", num_steps=340, warmup=40)
    torch.testing.assert_close(samples["b"], SAMPLES["b"])
    for bare in (lv.load_samples(tmp_path / "run"), pickle.loads(pickle.dumps(SAMPLES))):
        assert bare.to_arviz().posterior["theta"].shape == (3, 300, 4)
        with pytest.raises(ValueError, match="no target"):
            bare.to_arviz(lp=True)
        torch.testing.assert_close(bare.with_target(MODEL)["b"], SAMPLES["b"])
        with pytest.raises(ValueError, match="no data"):
            bare.with_target(MODEL).to_arviz(lp=True)
    loaded = lv.load_samples(tmp_path / "run", target=MODEL, data={"x": X, "y": Y})
    np.testing.assert_allclose(loaded.to_arviz(lp=True).sample_stats["lp"], SAMPLES.to_arviz(lp=True).sample_stats["lp"])
    resumed = lv.resume(tmp_path / "run", MODEL, sampler=lv.sghmc(step_size=1e-3), data={"x": X.numpy(), "y": Y.numpy()})
    torch.testing.assert_close(resumed["sigma"], SAMPLES["sigma"])
    with pytest.raises(ValueError, match="positions of 1 elements"):
        lv.load_samples(tmp_path / "run", target=lv.Model.log_density(nothing, {"a": lv.real()}))


def test_the_parameters_of_a_module_are_names_too():
    with torch.random.fork_rng():
        linear = nn.Linear(2, 1).double()
    posterior = lv.Posterior(linear, lv.likelihoods.gaussian(std=1.0), prior=lv.priors.gaussian(std=1.0), num_data=NUM)
    samples = lv.sample(posterior, sampler=lv.sgld(1e-3), init=posterior.init(2), num_steps=10, data=(X, Y[:, None]))
    assert samples["weight"].shape == (2, 10, 1, 2)
    assert samples.to_arviz(log_likelihood=True).log_likelihood["obs"].shape == (2, 10, NUM)
    torch.testing.assert_close(samples["bias"], samples.draws[..., 2:])
    assert list(samples.summary().index) == ["weight[0, 0]", "weight[0, 1]", "bias[0]"]


def test_starts_by_name_and_spread_ones():
    start = MODEL.init_from({"sigma": 2.0, "b": [1, 2]}, 3)
    values = MODEL.constrain(start)
    torch.testing.assert_close(values["sigma"], torch.full((3,), 2.0, dtype=F64))
    torch.testing.assert_close(values["b"][1], torch.tensor([1.0, 2.0], dtype=F64))
    assert (values["a"] == 0).all()
    spread = MODEL.init(1000, seed=1)
    assert spread.abs().max() < 2
    assert abs(spread.var() - 16 / 12) < 0.1
    torch.testing.assert_close(MODEL.init(5, seed=1, first_chain=3), spread[3:8])


def test_observations_outside_the_support_are_named_although_chains_do_not_validate():
    model = lv.Model(lambda p, y: dist.Poisson(p["rate"]).log_prob(y), {"rate": lv.positive()})
    with pytest.raises(ValueError, match=r"Model\(data=\.\.\.\) needs values in the support.*IntegerGreaterThan"):
        run_one(model, torch.tensor([1, -2, 3]))
    run_one(model, torch.tensor([1, 2, 3]))


def run_one(model, data=None):
    return lv.sample(model, sampler=lv.sgld(1e-3), init=torch.zeros(2, model.dim, dtype=F64), num_steps=3, data=data)


def density(function, parameters=None, prior=None):
    return run_one(lv.Model.log_density(function, parameters or {"a": lv.real(), "b": lv.real(2)}, prior))


def filled(p):
    out = torch.zeros(2, dtype=F64)
    out[0] = p["a"]
    return out.sum()


ABC = {"a": lv.real(), "b": lv.real(2), "sigma": lv.positive()}
NORMAL = dist.Normal(0.0, 1.0)
BAD = {
    "no names": (lambda: lv.Model(normal_rows, [lv.real()]), TypeError, "a dict of constraints by name"),
    "no constraint": (
        lambda: regression(parameters={"a": 3}),
        TypeError,
        "a constraint such as real() or positive(3) for 'a', got 3",
    ),
    "class": (lambda: regression(prior={"a": dist.Normal}), TypeError, "a torch.distributions object, or a function"),
    "unknown prior": (lambda: regression(prior={"c": NORMAL}), ValueError, "names among ['a', 'b', 'sigma'], got 'c'"),
    "support": (lambda: regression(prior={"a": dist.HalfNormal(1.0)}), ValueError, "support has all values that 'a' takes"),
    "narrow": (
        lambda: regression(prior={"sigma": dist.Uniform(0.0, 9.0)}),
        ValueError,
        "support has all values that 'sigma' takes",
    ),
    "discrete": (lambda: regression(prior={"a": dist.Poisson(1.0)}), ValueError, "support has all values that 'a' takes"),
    "prior shape": (
        lambda: regression(prior={"b": dist.Normal(torch.zeros(3), 1.0)}),
        ValueError,
        "a distribution for 'b' of shape (2,), got 'Normal(loc: torch.Size([3]), scale: torch.Size([3])) of shape (3,)'",
    ),
    "prior rank": (lambda: regression(prior={"a": dist.Normal(torch.zeros(2), 1.0)}), ValueError, "for 'a' of shape ()"),
    "event shape": (
        lambda: regression(prior={"b": dist.MultivariateNormal(torch.zeros(1), torch.eye(1))}),
        ValueError,
        "shape (2,)",
    ),
    "function prior": (
        lambda: density(nothing, prior={"a": lambda p: dist.Normal(p["b"], 1.0)}),
        ValueError,
        "for 'a' of shape ()",
    ),
    "function prior type": (
        lambda: density(nothing, prior={"a": lambda p: 3}),
        TypeError,
        "a distribution or its log density, got 3",
    ),
    "unused": (lambda: density(lambda p: -(p["a"] ** 2)), ValueError, "unused: ['b']"),
    "misspelt": (lambda: density(lambda p: p["c"]), ValueError, "reads the parameters ['a', 'b'], got 'c'"),
    "rows": (
        lambda: density(lambda p: p["b"]),
        ValueError,
        "take the .sum(), or use Model, which takes one number per row, got (2,)",
    ),
    "sum": (
        lambda: run_one(regression(log_likelihood=lambda p, x, y: normal_rows(p, x, y).sum()), (X, Y)),
        ValueError,
        "one number per row, a tensor of shape (60,); leave out .mean() and .sum()",
    ),
    "matrix": (lambda: run_one(regression(log_likelihood=lambda p, x, y: x * p["a"]), (X, Y)), ValueError, "got 'shape (60, 2)'"),
    "a float": (lambda: density(lambda p: 1.0), ValueError, "one number, a tensor of shape (), got 'float'"),
    "columns": (lambda: run_one(MODEL, (X,)), ValueError, "2 columns, ['x', 'y'], or a dict by these names, got '1 columns'"),
    "column names": (
        lambda: run_one(MODEL, {"x": X, "z": Y}),
        ValueError,
        "names of the function's arguments, ['x', 'y'], got ['x', 'z']",
    ),
    "lengths": (lambda: run_one(MODEL, (X, Y[:5])), ValueError, "x: 60 rows, y: 5 rows"),
    "constant": (lambda: run_one(MODEL, (X, 3.0)), ValueError, "constants belong inside the function"),
    "NaN": (lambda: run_one(MODEL, (X, Y.clone().index_fill(0, torch.tensor([7]), math.nan))), ValueError, "in 'y' (row 7 is not"),
    "missing": (lambda: run_one(MODEL, {"x": X, "y": pd.Series([1, None] * 30)}), ValueError, "in 'y' (row 1 is not"),
    "text": (lambda: run_one(MODEL, {"x": X, "y": FRAME["other"]}), TypeError, "numbers in 'y'"),
    "labels": (
        lambda: run_one(
            regression(log_likelihood=lambda p, x, y: dist.Bernoulli(logits=x @ p["b"]).log_prob(y)), (X, (Y > 0).long())
        ),
        ValueError,
        "write y.double()",
    ),
    "shapes": (
        lambda: run_one(MODEL, (X[:, :1], Y)),
        ValueError,
        "(given a: (), b: (2,), sigma: (), x: (60, 1) torch.float64, y: (60,)",
    ),
    "arguments": (lambda: run_one(lv.Model(lambda p, *c, k: c[0], ABC), X), ValueError, "a function that takes 2 arguments"),
    "init names": (lambda: MODEL.init_from({"c": 1.0}, 2), ValueError, "names among ['a', 'b', 'sigma'], got ['c']"),
    "init support": (
        lambda: MODEL.init_from({"sigma": -1.0}, 2),
        ValueError,
        "'sigma': values in (0.0, inf) of shape (), got -1.0",
    ),
    "init shape": (lambda: MODEL.init_from({"b": 1.0}, 2), ValueError, "'b' of shape (2,), got ()"),
    "incomplete": (lambda: MODEL.unconstrain({"a": 1.0}), ValueError, "a value for 'b', got ['a']"),
    "no simplex": (
        lambda: lv.Model.log_density(nothing, {"x": lv.simplex(2)}).unconstrain({"x": [0.5, 0.6]}),
        ValueError,
        "sum to 1 along",
    ),
    "dims": (
        lambda: regression(dims={"b": ["p", "q"]}),
        ValueError,
        "names of all axes of a parameter, by its name, got {'b': ['p', 'q']}",
    ),
    "coords": (lambda: regression(dims={"b": ["p"]}, coords={"p": [1]}), ValueError, "got {'p': [1]}"),
    "bounds": (lambda: lv.interval(2, 2), ValueError, "interval(high=...) needs more than low = 2, got 2"),
    "infinite bound": (lambda: lv.interval(0, math.inf), ValueError, "or None, got inf"),
    "shape of a bound": (
        lambda: density(nothing, {"b": lv.real(2), "c": lv.interval(0, lambda p: p["b"].exp())}),
        ValueError,
        "bounds of 'c' for its shape ()",
    ),
    "if": (
        lambda: density(lambda p: p["a"] if p["a"] > 0 else p["b"].sum()),
        ValueError,
        "torch.where(condition, a, b) instead of `if`",
    ),
    "item": (lambda: density(lambda p: p["a"] * p["b"].sum() * p["b"][0].item()), ValueError, "no .item(), float()"),
    "math": (lambda: density(lambda p: p["b"].sum() + p["a"] * math.exp(p["a"])), ValueError, "torch.exp, torch.stack"),
    "random": (
        lambda: density(lambda p: p["b"].sum() + dist.Normal(p["a"], 1.0).rsample()),
        ValueError,
        "noise belongs to the sampler",
    ),
    "in place": (lambda: density(filled, {"a": lv.real()}), ValueError, "in a list and torch.stack them"),
    "added in place": (
        lambda: density(lambda p: torch.zeros(2).double().add_(p["b"]).sum() + p["a"]),
        ValueError,
        "instead of `total += x`",
    ),
    "numpy": (lambda: density(lambda p: p["b"].sum() + p["a"] * float(np.exp(p["a"].detach()))), ValueError, "torch"),
    "mask": (
        lambda: density(lambda p: p["b"][p["b"] > 0].sum() + p["a"]),
        ValueError,
        "torch.where(mask, x, 0.0) instead of x[mask]",
    ),
    "energy": (
        lambda: lv.targets.energy(lambda theta: theta[0] if theta[0] > 0 else -theta[0]).evaluate(torch.ones(2, 1)),
        ValueError,
        "energy(energy_fn=...) needs torch.where(condition, a, b) instead of `if`",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_wrong_is_said_with_the_value(case):
    call, error, text = BAD[case]
    with pytest.raises(error, match=re.escape(text)):
        call()


def test_the_page_on_models_runs(capsys):
    blocks = re.findall(r"```python\n(.*?)```", (Path(__file__).parents[1] / "docs" / "models.md").read_text(), re.S)
    names = {}
    for block in blocks:
        exec(block, names)
    assert len(blocks) >= 3
    assert names["samples"]["b"].shape[0] == 8
