"""Draws from Pyro models: moments of Pyro's own NUTS, outputs, minibatches, folders."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro_models import MODELS, logistic, normals, uniforms

import langevin as lv
from langevin.diagnostics import ess

RECORD = json.loads(Path(__file__).with_name("nuts_moments.json").read_text())
WORST = 5.0  # standard errors; 2 x 117 comparisons in all


def errors_of(ours, exact, exact_error):
    """Return differences in standard errors of (chain, draw, ...) and recorded numbers."""
    flat = ours.flatten(2) if ours.ndim > 2 else ours[..., None]
    exact, exact_error = torch.tensor(exact).double(), torch.tensor(exact_error).double()
    varies = exact_error > 0
    flat, exact, exact_error = flat[..., varies], exact[varies], exact_error[varies]
    error = flat.std((0, 1)) / ess(flat).sqrt()
    return (flat.mean((0, 1)) - exact) / (error**2 + exact_error**2).sqrt()


@pytest.mark.parametrize("name", RECORD)
def test_means_and_variances_are_those_of_pyros_nuts(name):
    model, args = MODELS[name]
    samples = lv.sample(lv.from_pyro(model, *args), progress=False)
    for site, exact in RECORD[name].items():
        values = samples[site]
        means = errors_of(values, exact["mean"], exact["mean_error"])
        assert means.abs().max() < WORST, (site, "mean", means)
        about = torch.tensor(exact["mean"]).double().reshape(values.shape[2:])
        squares = errors_of((values - about) ** 2, exact["variance"], exact["variance_error"])
        assert squares.abs().max() < WORST, (site, "variance", squares)


def conjugate(x, y, subsample_size=None):
    b = pyro.sample("b", dist.Normal(torch.zeros(x.shape[1]), 1.0).to_event(1))
    with pyro.plate("data", len(x), subsample_size=subsample_size) as rows:
        mean = pyro.deterministic("mean", x[rows] @ b, event_dim=0)
        pyro.sample("y", dist.Normal(mean, 0.5), obs=y[rows])


@pytest.mark.parametrize("batch_size", [None, 40])
def test_minibatches_of_a_subsampled_plate_have_the_exact_posterior(batch_size):
    """A linear regression: the posterior is a Gaussian in closed form."""
    x = normals(400, 3)
    y = x @ torch.tensor([1.0, -0.5, 0.2]).double() + 0.5 * normals(400, shift=9.1)
    precision = torch.eye(3).double() + x.mT @ x / 0.25
    mean, variance = torch.linalg.solve(precision, x.mT @ y / 0.25), torch.linalg.inv(precision).diagonal()
    samples = lv.sample(lv.from_pyro(conjugate, x, y, 40), batch_size=batch_size, progress=False)
    draws = samples["b"]
    size = ess(draws)
    assert ((draws.mean((0, 1)) - mean).abs() < 5 * (variance / size).sqrt()).all()
    ratio = draws.var((0, 1)) / variance
    # A minibatch's noise is known up to an estimate of its covariance: 5 percent of an sd.
    assert ((ratio - 1).abs() < 5 * (2 / size).sqrt() + (0.1 if batch_size else 0.0)).all(), ratio


def test_outputs_have_names_shapes_and_axes():
    x, y = normals(12, 2), normals(12, shift=0.5)
    samples = lv.sample(lv.from_pyro(conjugate, x, y, 4), num_draws=50, progress=False)
    assert samples["mean"].shape == (8, 50, 12)
    torch.testing.assert_close(samples["mean"], samples["b"] @ x.mT)
    with pytest.raises(KeyError, match=r"one of \['b', 'mean'\]"):
        samples["y"]
    data = samples.to_arviz(log_likelihood=True)
    assert data.posterior["mean"].dims == ("chain", "draw", "data")
    assert data.posterior["b"].dims == ("chain", "draw", "b_dim_0")
    exact = dist.Normal(samples["mean"], 0.5).log_prob(y)
    torch.testing.assert_close(torch.from_numpy(data.log_likelihood["obs"].values), exact)


def test_an_output_follows_its_draw_also_for_nested_plates():
    samples = lv.sample(lv.from_pyro(*_with_args("nested")), num_draws=20, progress=False)
    data = samples.to_arviz()
    assert data.posterior["c"].dims == ("chain", "draw", "inner", "outer")
    assert data.posterior["b"].dims == ("chain", "draw", "inner", "b_dim_1")


def _with_args(name):
    model, args = MODELS[name]
    return model, *args


def test_only_the_missing_elements_of_a_masked_observation_are_sampled():
    """Imputed: y_0 given the rest; the other elements of y_unobserved would have a flat density."""
    y = torch.tensor([0.0, 1.3, 0.7]).double()

    def model(y):
        mu = pyro.sample("mu", dist.Normal(0.0, 1.0))
        with pyro.plate("row", 3):
            pyro.sample("y", dist.Normal(mu, 1.0), obs=y, obs_mask=torch.tensor([False, True, True]))

    target = lv.from_pyro(model, y)
    assert (target.dim, target.space.element(1)) == (2, "y_unobserved[0]")
    samples = lv.sample(target, progress=False)
    assert (samples["y"][..., 1:] == y[1:]).all()
    # mu given two observations is N(2/3, 1/3), and the missing one N(mu, 1).
    for draws, variance in ((samples["mu"], 1 / 3), (samples["y"][..., 0], 4 / 3)):
        size = ess(draws[..., None])
        assert abs(draws.mean() - 2 / 3) < 5 * (variance / size) ** 0.5
        assert abs(draws.var() / variance - 1) < 5 * (2 / size) ** 0.5


def test_a_run_in_a_folder_is_continued_and_read_again(tmp_path):
    x, y = MODELS["logistic"][1]
    target = lv.from_pyro(logistic, x, y, 10)
    settings = {"sampler": lv.sgld(0.01), "num_steps": 40, "batch_size": 10, "progress": False, "chains": 2}
    samples = lv.sample(target, out=tmp_path / "run", **settings)
    again = lv.load_samples(tmp_path / "run", target=lv.from_pyro(logistic, x, y, 10))
    assert torch.equal(again["b"], samples["b"])
    assert torch.equal(lv.resume(tmp_path / "run", target, sampler=settings["sampler"]).draws, samples.draws)
    assert torch.equal(lv.sample(target, **settings).draws, samples.draws)


def test_a_target_is_pickled_with_its_model():
    x, y = MODELS["logistic"][1]
    target = lv.from_pyro(logistic, x, y)
    position = uniforms(2, 3)
    before = target.evaluate(position)
    copy = pickle.loads(pickle.dumps(target))
    assert torch.equal(copy.evaluate(position).energy, before.energy)
