"""What the estimators predict: quantiles, samples, densities and the split of uncertainty agree with each other."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.stats import kstest, norm, t
from test_sklearn import TINY, TINY_REGRESSOR, X, Y

from langevin.tabular import LangevinClassifier, LangevinRegressor, effects, plot_calibration, plot_effects
from langevin.tabular.noise import NOISES, NORMALS, Mixture, outputs_of, sample

MODELS = ("predicted", "student_t", "mixture", "learned")


@pytest.fixture(scope="module", params=MODELS)
def model(request):
    settings = {**TINY_REGRESSOR, "noise": request.param, "num_draws": 5, "burn_in": 320, "num_steps": 320}
    return LangevinRegressor(**settings).fit(X, 100 * Y + 3)


def test_quantiles_intervals_and_densities_are_those_of_one_distribution(model):
    rows = X[:3]
    _, std, (lower, upper), quantiles = model.predict(rows, True, 0.9, [0.05, 0.3, 0.95])
    np.testing.assert_allclose(quantiles[[0, 2]], [lower, upper], rtol=1e-6)
    np.testing.assert_allclose(model.cdf(rows, quantiles[1]), 0.3, rtol=1e-5)
    split = model.uncertainty(rows)
    np.testing.assert_allclose(split.total, std**2, rtol=1e-5)
    np.testing.assert_allclose(split.aleatoric + split.epistemic, split.total)
    for row in range(3):

        def density(y, row=row):
            return np.exp(model.log_prob(rows[row : row + 1], [y])[0])

        inside = quad(density, quantiles[1, row], quantiles[2, row], limit=60, epsrel=1e-4)[0]
        assert inside == pytest.approx(0.65, abs=1e-3)


def test_samples_have_the_predictive_distribution(model):
    """Their probabilities under the predicted distribution are uniform: samples of a row are independent."""
    row = X[:1]
    samples = model.sample_y(row, 400)
    assert samples.shape == (1, 400)
    levels = [model.cdf(row, [value])[0] for value in samples[0]]
    assert kstest(levels, "uniform").pvalue > 1e-4
    assert np.array_equal(samples, model.sample_y(row, 400))
    assert not np.array_equal(samples, model.sample_y(row, 400, random_state=1))


def test_the_mixture_is_a_distribution_of_two_gaussians():
    output = torch.tensor([[-1.0, 2.0, 2 * np.log(0.5), 2 * np.log(0.2), 0.0, np.log(3.0)]], dtype=torch.float64)
    parts, weights = [norm(-1, 0.5), norm(2, 0.2)], [0.25, 0.75]
    mixture, y = Mixture(2), torch.tensor([1.9], dtype=torch.float64)
    expected = sum(weight * part.pdf(1.9) for part, weight in zip(parts, weights, strict=True))
    assert float(mixture.log_likelihood(output, y).exp()) == pytest.approx(expected, rel=3e-3)  # bounds bend stds a little
    assert float(mixture.mean(output)) == pytest.approx(1.25)
    assert float(mixture.variance(output)) == pytest.approx(0.25 * 0.25 + 0.75 * 0.04 + 0.25 * 2.25**2 + 0.75 * 0.75**2, rel=1e-2)
    assert float(mixture.cdf(output, y)) == pytest.approx(0.25 + 0.75 * parts[1].cdf(1.9), rel=1e-3)


@pytest.mark.parametrize("name", ["predicted", "student_t", "mixture"])
def test_samples_of_a_noise_model_have_its_distribution(name):
    many, rng = 4000, np.random.default_rng(0)
    output = torch.as_tensor(rng.normal(size=(1, outputs_of(name, 1)))).repeat(many, 1)
    found = sample(NOISES[name], output, torch.as_tensor(rng.normal(size=(NORMALS, many))))
    assert kstest(NOISES[name].cdf(output, found).numpy(), "uniform").pvalue > 1e-3


def test_student_t_stays_within_its_bounds():
    wild = NOISES["student_t"]
    output = torch.tensor([[0.0, 1000.0], [0.0, -1000.0]], dtype=torch.float64)
    assert wild.variance(output).sqrt().tolist() == pytest.approx([3 * 2**0.5, 1e-3 * 2**0.5], rel=1e-3)
    exact = t(4, 0, 3).logpdf(1.0)
    assert float(wild.log_likelihood(output[:1], torch.ones(1, dtype=torch.float64))) == pytest.approx(exact, rel=1e-3)


@pytest.mark.parametrize("noise", ["predicted", "mixture"])
def test_several_targets_are_fitted_together(noise):
    y = np.stack([Y, 1000 - 50 * Y], 1)
    model = LangevinRegressor(**{**TINY_REGRESSOR, "noise": noise, "adam_steps": 800}).fit(X, y, sample_weight=np.full(150, 2.0))
    mean, std, (lower, upper), quantiles = model.predict(X, True, 0.9, [0.5])
    assert mean.shape == std.shape == lower.shape == (150, 2)
    assert quantiles.shape == (1, 150, 2)
    assert ((mean - y) ** 2).mean(0)[1] < 0.6 * y.var(0)[1]
    assert model.sample_y(X, 4).shape == (150, 2, 4)
    assert model.log_prob(X, y).shape == (150,)
    assert model.score(X, y) > 0.4
    assert (upper > lower).all()


def test_classes_are_sampled_and_their_uncertainty_splits():
    labels = np.array(["no", "yes"])[(Y > 0).astype(int)]
    model = LangevinClassifier(**{**TINY, "num_draws": 10}).fit(X, labels)
    probabilities = model.predict_proba(X)
    samples = model.sample_y(X, 2000)
    assert samples.shape == (150, 2000)
    error = np.sqrt(probabilities[:, 1] * probabilities[:, 0] / 2000) + 1e-3
    assert (np.abs((samples == "yes").mean(1) - probabilities[:, 1]) < 5 * error).all()
    split = model.uncertainty(X)
    entropy = -(probabilities * np.log(probabilities)).sum(-1)
    np.testing.assert_allclose(split.total, entropy, atol=1e-5)
    np.testing.assert_allclose(split.aleatoric + split.epistemic, split.total, atol=1e-6)
    np.testing.assert_allclose(
        model.log_prob(X, labels), np.log(probabilities[range(150), (labels == "yes").astype(int)]), atol=1e-5
    )


def test_an_interrupted_fit_keeps_its_draws(monkeypatch):
    from langevin.diagnostics.trust import TrustWarning
    from langevin.tabular import base

    whole = base.run_chains

    def interrupted(*given, settings, go_on, **more):
        last = settings.total - settings.num_steps // 2
        return whole(*given, settings=settings, go_on=lambda steps: go_on(steps) and steps < last, **more)

    monkeypatch.setattr(base, "run_chains", interrupted)
    model = LangevinRegressor(**{**TINY_REGRESSOR, "num_draws": 10, "num_steps": 640})
    with pytest.warns(TrustWarning, match="interrupted: 5 of 10 draws of 2 chains are kept"):
        model.fit(X, Y)
    assert model.draws_.shape[:2] == (2, 5)
    assert np.isfinite(model.predict(X)).all()


def test_plots_show_calibration_and_effects(model):
    pytest.importorskip("matplotlib").use("Agg")
    axes = plot_calibration(model, X, 100 * Y + 3)
    assert len(axes.lines) == 2
    values, means = effects(model, X, 0)
    assert means.shape == (10, len(values))
    changed = X.copy()
    changed[:, 0] = values[3]
    assert means.mean(0)[3] == pytest.approx(model.predict(changed).mean(), rel=1e-4)
    assert plot_effects(model, X, 0, axes=axes) is axes
    labels = LangevinClassifier(**TINY).fit(X, Y > 0)
    assert plot_calibration(labels, X, Y > 0).lines
    assert plot_effects(labels, X, 1).get_ylabel() == "P(True)"


@pytest.mark.parametrize("level", [0.0, 1.0, "half"])
def test_a_quantile_is_a_probability(model, level):
    with pytest.raises((TypeError, ValueError), match=r"quantiles=.*0 < quantile < 1"):
        model.predict(X, quantiles=[level])
