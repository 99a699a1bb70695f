"""Minibatches that are right: white rows, what is learnt of their noise, and the laws of runs that absorb it."""

from __future__ import annotations

import copy
import re
import warnings
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn.functional import softplus

import langevin as lv
from langevin.adaptation import NoiseSource, estimate_noise
from langevin.kernels import Scaled
from langevin.kernels.gradient_noise import DenseNoise, DiagonalNoise, LowRankNoise
from langevin.random import Purpose, normal, stream, streams, white_rows
from langevin.sampling.noise_correction import correct_noise
from langevin.targets.gradients import control_variate, minibatch, of_each_row
from langevin.targets.metric import Dense, Diagonal

NUM_DATA, DIM, BATCH = 2000, 3, 20
QUICK = {"compile": False, "progress": False}


def regression(num_data=NUM_DATA, dim=DIM, dtype=torch.float64):
    """Return rotated columns of unequal widths, and y, of which the noise is 1."""
    x = normal(3, stream(Purpose.DATA), 0, num_data * dim, dtype=torch.float64).reshape(-1, dim)
    turn, _ = torch.linalg.qr(normal(4, stream(Purpose.DATA), 0, dim * dim, dtype=torch.float64).reshape(dim, dim))
    x = x * torch.logspace(0, -1, dim, dtype=torch.float64) @ turn
    y = x @ torch.ones(dim, dtype=torch.float64) + normal(5, stream(Purpose.DATA), 0, num_data, dtype=torch.float64)
    return x.to(dtype), y.to(dtype)


def target_of(dim=DIM):
    return lv.targets.likelihood(lambda theta, x, y: -0.5 * (y - x @ theta) ** 2, prior=lv.priors.gaussian(std=1.0), dim=dim)


X, Y = regression()
TARGET = target_of()
HESSIAN = X.mT @ X + torch.eye(DIM, dtype=torch.float64)
MEAN = torch.linalg.solve(HESSIAN, X.mT @ Y)


def variances(samples, mean=MEAN, hessian=HESSIAN):
    """Return variances over the posterior's own along its axes, the largest error of the mean in sds, and the fewest draws."""
    values, vectors = torch.linalg.eigh(hessian)
    along = (samples.draws.double() - mean) @ vectors * values**0.5
    size = float(lv.diagnostics.ess(along).min())
    return along.flatten(0, 1).var(0), float(along.mean((0, 1)).abs().max()), size


def check_law(samples, **truth):
    ratio, shift, size = variances(samples, **truth)
    assert size > 300
    assert ((ratio - 1).abs() < 0.01 + 4.5 * (2 / size) ** 0.5).all(), ratio
    assert shift < 4.5 / size**0.5


def test_white_rows_are_uniform_independent_and_have_addresses():
    rows = white_rows(0, streams(Purpose.ROWS, range(4)), range(300), 50, 10)
    assert rows.shape == (300, 4, 50)
    counts = torch.bincount(rows.flatten(), minlength=10).double()
    assert ((counts - 6000).abs() < 5 * (60_000 * 0.1 * 0.9) ** 0.5).all()
    means = rows.double().mean(-1).flatten(1)  # (steps, chains): white in steps and over chains
    together = torch.corrcoef(torch.cat([means[1:], means[:-1]], 1).mT) - torch.eye(8, dtype=torch.float64)
    assert together.abs().max() < 5 / 300**0.5
    assert torch.equal(white_rows(0, stream(Purpose.ROWS, 2), 7, 30, 10), rows[7, 2, :30])
    assert not torch.equal(white_rows(1, stream(Purpose.ROWS, 2), 7, 30, 10), rows[7, 2, :30])
    with pytest.raises(ValueError, match="num_data"):
        white_rows(0, 0, 0, 1, 2**31)


@pytest.mark.parametrize("centred", [False, True])
def test_what_rows_say_is_the_noise_of_white_minibatches(centred):
    place = MEAN + 0.05
    mode = MEAN if centred else None
    said = of_each_row(TARGET, (X, Y), torch.arange(NUM_DATA), place, mode)
    expected = (said - said.mean(0)).mT @ (said - said.mean(0)) / NUM_DATA / BATCH
    settings = {"seed": 0, "chains": range(50), "batches": "white"}
    estimate = control_variate(TARGET, (X, Y), BATCH, mode, **settings) if centred else minibatch(TARGET, (X, Y), BATCH, **settings)
    drawn = torch.stack([estimate(place.repeat(50, 1), step).gradient for step in range(200)]).flatten(0, 1)
    found = (drawn - drawn.mean(0)).mT @ (drawn - drawn.mean(0)) / len(drawn)
    widths = expected.diagonal() ** 0.5
    torch.testing.assert_close(found / widths[:, None] / widths, expected / widths[:, None] / widths, rtol=0, atol=5 * 0.015)
    exact = lv.gradients.full(TARGET, (X, Y))(place[None], 0).gradient[0]
    assert ((drawn.mean(0) - exact).abs() < 5 * widths / len(drawn) ** 0.5).all()


def test_the_energy_of_a_control_variate_is_that_whose_gradient_it_is():
    estimate = control_variate(TARGET, (X, Y), BATCH, MEAN + 0.1, seed=0, chains=range(1), batches="white")
    drawn = tuple(tensor[0] for tensor in estimate.draw(range(1)))
    place, reach = MEAN + 0.3, 1e-5
    along = torch.eye(DIM, dtype=torch.float64) * reach
    slopes = [
        (estimate.evaluate((place + step)[None], drawn).energy - estimate.evaluate((place - step)[None], drawn).energy)
        for step in along
    ]
    torch.testing.assert_close(
        torch.cat(slopes) / (2 * reach), estimate.evaluate(place[None], drawn).gradient[0], rtol=1e-5, atol=1e-4
    )


def test_a_dense_scale_is_turned_until_the_noise_is_diagonal():
    rows = NoiseSource(TARGET, (X, Y), BATCH, seed=0)
    root = torch.linalg.inv(torch.linalg.cholesky(HESSIAN)).mT  # R^T H R = 1
    places = MEAN.repeat(4, 1)
    learnt = estimate_noise(rows, places, Dense(root), torch.eye(DIM, dtype=torch.float64), has_metric=False)
    turned = learnt.metric.root
    torch.testing.assert_close(turned @ turned.mT, root @ root.mT)
    said = of_each_row(TARGET, (X, Y), torch.arange(NUM_DATA), MEAN)
    whole = (said - said.mean(0)).mT @ (said - said.mean(0)) / NUM_DATA / BATCH
    pulled = turned.mT @ whole @ turned
    assert isinstance(learnt.noise, DiagonalNoise)
    torch.testing.assert_close(pulled, torch.diag(learnt.noise.variance), rtol=1e-6, atol=1e-6 * float(pulled.max()))
    assert learnt.ratio == pytest.approx(float(pulled.diagonal().max()))
    assert learnt.ratio == pytest.approx(NUM_DATA / BATCH, rel=0.15)  # well specified: N / n
    assert learnt.error < 1e-6  # the same place four times, all rows
    assert learnt.varies < 1e-6


def test_the_turned_scale_is_the_one_that_runs():
    """Where noise is in proportion to the curvature no law would tell."""
    root = Dense(torch.linalg.inv(torch.linalg.cholesky(HESSIAN)).mT)
    places = MEAN.repeat(4, 1)
    learnt = estimate_noise(
        NoiseSource(TARGET, (X, Y), BATCH, seed=0), places, root, torch.eye(DIM, dtype=torch.float64), has_metric=False
    )
    kernel = Scaled.of(lv.msgld(0.01, invariant=True, noise="corrected"), root)
    made, said = correct_noise(kernel, SimpleNamespace(position=places, draws=places), learnt)
    assert made.scale is learnt.metric
    assert made.scale is not root
    assert made.gradient_noise is learnt.noise
    assert "corrected, which adds" in said


def test_matrices_and_directions_of_their_own():
    unit, signal = Diagonal(torch.ones(DIM, dtype=torch.float64)), HESSIAN
    rows, places = NoiseSource(TARGET, (X, Y), BATCH, seed=0), MEAN.repeat(2, 1)
    dense = estimate_noise(rows, places, unit, signal, has_metric=False)
    assert isinstance(dense.noise, DenseNoise)
    said = of_each_row(TARGET, (X, Y), torch.arange(NUM_DATA), MEAN)
    whole = (said - said.mean(0)).mT @ (said - said.mean(0)) / NUM_DATA / BATCH
    torch.testing.assert_close(dense.noise.pushed @ dense.noise.vectors.mT, whole)
    own = estimate_noise(rows, places, unit, signal, has_metric=True)
    assert isinstance(own.noise, DiagonalNoise)
    assert own.skew == pytest.approx(float(torch.linalg.eigvalsh(torch.corrcoef(said.mT))[-1]), rel=1e-6)
    low = estimate_noise(rows, places, unit, signal.diagonal(), has_metric=False)
    assert isinstance(low.noise, LowRankNoise)
    rebuilt = torch.diag(low.noise.variance) + low.noise.vectors * low.noise.along @ low.noise.vectors.mT
    torch.testing.assert_close(rebuilt.diagonal(), whole.diagonal(), rtol=0.01, atol=0)
    assert float(low.noise.along.max()) == pytest.approx(float(torch.linalg.eigvalsh(whole)[-1]), rel=0.02)


def test_the_call_without_settings(capsys):
    """With minibatches of a hundredth: control variates, and what is left of the noise absorbed; nothing is warned of."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        samples = lv.sample(TARGET, data=(X, Y), batch_size=BATCH, **QUICK)
    said = capsys.readouterr().out
    assert "control variates" in said
    assert "corrected, which adds" in said
    assert samples.trust.is_clean
    check_law(samples)


def test_the_call_without_settings_and_without_control_variates(capsys):
    samples = lv.sample(TARGET, data=(X, Y), batch_size=BATCH, control_variate=None, num_draws=80, chains=64, **QUICK)
    assert "control variates" not in capsys.readouterr().out
    assert samples.trust["temperature"].is_fine
    check_law(samples)


SAMPLERS = {
    "nasgld": (lambda: lv.nasgld(), None),
    "nasgld, tempered, in a scale": (lambda: lv.nasgld(temperature=0.5), "auto"),
    "msgld, own step": (lambda: lv.msgld(1e-4, bias_factor=30.0, beta=0.9, invariant=True, noise="corrected"), None),
    "asgld, in a scale": (lambda: lv.asgld(0.02, bias_factor=200.0, invariant=True, noise="corrected"), "auto"),
    "low rank": (lambda: lv.nasgld(), "low_rank"),
    "own scale": (lambda: lv.nasgld(), torch.diag(torch.tensor([4e-3, 1e-3, 2e-3], dtype=torch.float64)) + 5e-4),
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_sampler_that_learns_its_noise(name, capsys):
    build, scale = SAMPLERS[name]
    kernel = build()
    start = MEAN.repeat(64, 1)  # many chains instead of long ones: Sigma / K is 100
    samples = lv.sample(
        TARGET,
        sampler=kernel,
        init=start,
        num_steps=3000,
        warmup=500,
        thin=20,
        data=(X, Y),
        batch_size=BATCH,
        metric=scale,
        **QUICK,
    )
    assert "gradient noise" in capsys.readouterr().out
    assert "corrected, which adds" in samples.description
    check_law(samples, hessian=HESSIAN / kernel.temperature)


def test_reshuffled_batches_and_corrections_exclude_each_other():
    start = MEAN.repeat(2, 1)
    settings = {"data": (X, Y), "batch_size": BATCH, **QUICK}
    with pytest.raises(ValueError, match="reshuffled epochs cancels"):
        lv.sample(TARGET, sampler=lv.nasgld(), init=start, num_steps=10, batches="reshuffled", **settings)
    with pytest.raises(ValueError, match="one of auto, reshuffled, white"):
        lv.sample(TARGET, sampler=lv.sgld(1e-5), init=start, num_steps=10, batches="shuffled", **settings)
    with pytest.raises(ValueError, match="without a batch_size"):
        lv.sample(TARGET, sampler=lv.sgld(1e-5), init=start, num_steps=10, batches="white", data=(X, Y), **QUICK)
    with pytest.raises(ValueError, match='"auto" or None without a sampler'):
        lv.sample(TARGET, control_variate=MEAN, **settings)


def test_white_batches_for_any_sampler():
    """By default each datum comes once per epoch, as before; asked for, rows come with replacement."""
    start, settings = MEAN.repeat(2, 1), {"num_steps": 30, "data": (X, Y), "batch_size": BATCH, **QUICK}
    by_default = lv.sample(TARGET, sampler=lv.sgld(1e-5), init=start, **settings).draws
    assert torch.equal(by_default, lv.sample(TARGET, sampler=lv.sgld(1e-5), init=start, batches="reshuffled", **settings).draws)
    assert not torch.equal(by_default, lv.sample(TARGET, sampler=lv.sgld(1e-5), init=start, batches="white", **settings).draws)


def test_white_batches_have_no_epoch_for_the_temperature_to_cancel_over():
    """Weights 4 - 6 u of the share u of an epoch would treat some rows of white minibatches as worth less than nothing."""
    kernel = lv.msgld(1e-4, invariant=True, noise=(HESSIAN * NUM_DATA / BATCH, HESSIAN))
    start, settings = MEAN.repeat(2, 1), {"num_steps": 60, "warmup": 10, "data": (X, Y), "batch_size": BATCH, **QUICK}
    weights = {
        batches: lv.sample(TARGET, sampler=lv.sgld(1e-5), init=start, batches=batches, **settings).heat["heat_weights"]
        for batches in lv.gradients.BATCHES
    }
    corrected = lv.sample(TARGET, sampler=kernel, init=start, **settings).heat["heat_weights"]
    assert torch.equal(weights["white"][:, 0], weights["white"][:, 1])  # each gradient counts once
    assert torch.equal(weights["white"], corrected)
    assert not torch.equal(weights["reshuffled"][:, 0], weights["reshuffled"][:, 1])


def test_reshuffled_epochs_without_settings_are_cooled():
    samples = lv.sample(TARGET, data=(X, Y), batch_size=200, batches="reshuffled", num_draws=500, **QUICK)
    ratio, _, size = variances(samples)
    assert ((ratio - 1).abs() < 0.05 + 4.5 * (2 / size) ** 0.5).all()


def test_exact_gradients_have_nothing_to_absorb():
    start = MEAN.repeat(4, 1)
    settings = {"num_steps": 50, "data": (X, Y), **QUICK}
    plain = lv.sample(TARGET, sampler=lv.msgld(1e-4, invariant=True), init=start, **settings)
    corrected = lv.sample(TARGET, sampler=lv.msgld(1e-4, invariant=True, noise="corrected"), init=start, **settings)
    assert torch.equal(plain.draws, corrected.draws)


def test_a_noise_that_is_given_goes_with_nothing_that_is_found():
    known = (100 * HESSIAN, HESSIAN)
    start, settings = MEAN.repeat(2, 1), {"num_steps": 5, "data": (X, Y), **QUICK}
    with pytest.raises(ValueError, match="is given in the coordinates of theta"):
        lv.sample(
            TARGET, sampler=lv.msgld(1e-4, invariant=True, noise=known), init=start, metric="auto", batch_size=BATCH, **settings
        )
    with pytest.raises(ValueError, match="would lower the temperature"):
        lv.sample(TARGET, sampler=lv.msgld(1e-4, invariant=True, noise=known), init=start, **settings)
    with pytest.raises(ValueError, match="or a number as step_size"):
        lv.sample(TARGET, sampler=lv.msgld("auto", invariant=True, noise=known), init=start, batch_size=BATCH, **settings)
    with pytest.raises(ValueError, match="separates their noise from the signal"):
        lv.sample(TARGET, data=(X, Y), batch_size=BATCH, metric=torch.ones(DIM, dtype=torch.float64), **QUICK)


def test_settings_side_by_side_are_not_reshuffled():
    one = torch.ones(DIM, dtype=torch.float64)
    both = lv.side_by_side([lv.msgld(eps, invariant=True, noise=(one, one)) for eps in (1e-4, 2e-4)])
    settings = {"num_steps": 5, "data": (X, Y), "batch_size": BATCH, **QUICK}
    with pytest.raises(ValueError, match="reshuffled epochs cancels"):
        lv.sample(TARGET, sampler=both, init=MEAN.repeat(2, 1), batches="reshuffled", **settings)
    with pytest.raises(ValueError, match="gradient noise given"):
        lv.side_by_side([lv.nasgld(0.1, bias_factor=1.0)] * 2)


def test_a_run_that_had_nothing_to_absorb_is_resumed(tmp_path):
    target = lv.targets.gaussian([[1.0, 0.5], [0.5, 1.0]])
    start = torch.zeros(4, 2, dtype=torch.float64)
    kernel = copy.deepcopy(lv.msgld(0.1, invariant=True, noise="corrected"))  # a copy of what is open is open
    whole = lv.sample(target, sampler=kernel, init=start, num_steps=50, out=tmp_path / "run", **QUICK)
    assert torch.equal(lv.resume(tmp_path / "run", target, sampler=kernel, progress=False).draws, whole.draws)


def test_noise_is_looked_at_at_so_many_places_that_chance_is_no_change():
    rows = NoiseSource(TARGET, (X, Y), BATCH, seed=0)
    many = (MEAN + 1e-3 * normal(0, range(5000), 0, DIM, dtype=torch.float64)).contiguous()
    learnt = estimate_noise(rows, many, Diagonal(torch.ones(DIM, dtype=torch.float64)), HESSIAN.diagonal(), has_metric=False)
    assert learnt.varies < 0.25
    assert learnt.rows <= 200_000
    wide = torch.zeros(300, 20_000, dtype=torch.float64)
    assert rows.max_positions(wide) * rows.count(wide[: rows.max_positions(wide)]) * 20_000 <= 2**27


def test_a_noise_that_is_given_gets_the_dtype_of_the_run():
    kernel = lv.msgld(1e-4, invariant=True, noise=(100 * HESSIAN, HESSIAN))
    x, y = X.float(), Y.float()
    settings = {"num_steps": 5, "data": (x, y), "batch_size": BATCH, **QUICK}
    assert lv.sample(TARGET, sampler=kernel, init=MEAN.float().repeat(2, 1), **settings).draws.dtype == torch.float32
    with pytest.raises(ValueError, match="2 dimensions, those of a position"):
        lv.sample(lv.targets.gaussian([[1.0, 0.0], [0.0, 1.0]]), sampler=kernel, init=torch.zeros(2, 2), num_steps=5, **QUICK)


def test_the_artificial_noise_of_a_target_is_absorbed():
    target = lv.targets.gaussian([[1.0, 0.9], [0.9, 1.0]], gradient_noise=3.0)
    samples = lv.sample(target, num_draws=300, chains=32, **QUICK)
    check_law(
        samples,
        mean=torch.zeros(2, dtype=torch.float64),
        hessian=torch.linalg.inv(torch.tensor([[1.0, 0.9], [0.9, 1.0]], dtype=torch.float64)),
    )


def test_one_row_at_a_time():
    """n = 1: there is no variance inside a batch, but there is one over the rows."""
    samples = lv.sample(TARGET, data=(X, Y), batch_size=1, num_draws=150, chains=16, **QUICK)
    check_law(samples)


def test_noise_that_float32_cannot_tell_from_the_signal_is_refused():
    x, y = regression(200, dtype=torch.float32)
    kernel = lv.msgld(2e-3, bias_factor=30.0, invariant=True, noise="corrected")
    with pytest.raises(ValueError, match=r"not lost to rounding in torch\.float32"):  # residuals 1,000 times those expected
        lv.sample(TARGET, sampler=kernel, init=torch.zeros(4, DIM), num_steps=10, data=(x, 1e3 * y.roll(7)), batch_size=1, **QUICK)


def test_rows_that_are_not_finite_by_themselves_are_named():
    def square_root(theta, x, y):  # of all rows together finite, of one alone not
        return -0.5 * (y - x @ theta) ** 2 + 0.0 * (theta.sum() * (len(x) - 1)) ** 0.5

    target = lv.targets.likelihood(square_root, prior=lv.priors.gaussian(std=1.0), dim=DIM)
    with pytest.raises(ValueError, match="whose gradients are finite"):
        estimate_noise(
            NoiseSource(target, (X, Y), BATCH, seed=0), MEAN.repeat(2, 1), Diagonal(torch.ones(DIM, dtype=torch.float64)), HESSIAN,
            has_metric=False,
        )  # fmt: skip


def test_a_noise_that_turns_is_said_and_bounds_the_step():
    """A network's: what stands still is right up to a heat of about 1 (docs/benchmarks/kronecker.txt)."""
    x = normal(3, stream(Purpose.DATA), 0, 900, dtype=torch.float64).reshape(-1, 3)
    y = torch.sin(2 * x.sum(1, keepdim=True)) + 0.3 * normal(5, stream(Purpose.DATA), 0, 300, dtype=torch.float64)[:, None]
    with torch.random.fork_rng():
        net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    posterior = lv.Posterior(net, lv.likelihoods.gaussian(std=0.3), prior=lv.priors.gaussian(std=1.0), num_data=300)
    kernel = lv.msgld(1e-3, bias_factor=300.0, beta=0.9, invariant=True, noise="corrected")
    with pytest.warns(lv.TrustWarning, match="between positions"):
        lv.sample(posterior, sampler=kernel, init=posterior.init(4), num_steps=20, data=(x, y), batch_size=5, **QUICK)


@pytest.mark.parametrize("times", [0.5, 1.0, 2.0])
def test_a_noise_that_is_another_in_the_end_is_said(times):
    """Given wrongly, here; one that is learnt far from where chains end up is as wrong."""
    said = of_each_row(TARGET, (X, Y), torch.arange(NUM_DATA), MEAN)
    whole = (said - said.mean(0)).mT @ (said - said.mean(0)) / NUM_DATA / BATCH
    kernel = lv.msgld(1e-4, bias_factor=30.0, beta=0.9, invariant=True, noise=(times * whole, HESSIAN))
    settings = {"num_steps": 300, "warmup": 100, "data": (X, Y), "batch_size": BATCH, **QUICK}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        lv.sample(TARGET, sampler=kernel, init=MEAN.repeat(8, 1), **settings)
    said = [str(warning.message) for warning in caught if "noise has changed" in str(warning.message)]
    assert len(said) == (times != 1.0)
    for text in said:
        assert float(re.search(r"it is ([\d.]+) ±", text)[1]) == pytest.approx(1 / times, rel=0.15)


@pytest.mark.parametrize("found", [True, False])
def test_a_run_is_resumed_with_its_noise(found, tmp_path):
    settings = {"data": (X, Y), "batch_size": BATCH, "seed": 3, **QUICK}
    kernel, start = lv.nasgld(), MEAN.repeat(4, 1)

    def run(**more):
        if found:
            return lv.sample(TARGET, num_draws=30, chains=4, control_variate=None, **{**settings, **more})
        return lv.sample(TARGET, sampler=kernel, init=start, num_steps=900, warmup=100, **{**settings, **more})

    def stop(done, _):
        if done > 400:
            raise KeyboardInterrupt

    whole = run(out=tmp_path / "whole")
    with pytest.warns(UserWarning, match="interrupted"):
        cut = run(out=tmp_path / "cut", progress=stop)
    assert cut.draws.shape[1] < whole.draws.shape[1]
    again = lv.resume(tmp_path / "cut", TARGET, sampler=None if found else kernel, data=(X, Y), progress=False)
    assert torch.equal(again.draws, whole.draws)
    assert "corrected, which adds" in again.description


def test_logistic_regression_off_its_gaussian():
    """Few data, so that the posterior is skewed: against the same call with all data."""
    x = 1.5 * X[:150]
    y = (normal(6, stream(Purpose.DATA), 0, 150, dtype=torch.float64) < x @ torch.ones(DIM, dtype=torch.float64)).double()
    target = lv.targets.likelihood(
        lambda theta, x, y: y * (x @ theta) - softplus(x @ theta), prior=lv.priors.gaussian(std=3.0), dim=DIM
    )
    exact = lv.sample(target, data=(x, y), num_draws=500, chains=32, **QUICK)
    rough = lv.sample(target, data=(x, y), batch_size=10, num_draws=200, chains=64, seed=1, control_variate=None, **QUICK)
    sizes = [float(lv.diagnostics.ess(samples.draws).min()) for samples in (exact, rough)]
    ratio = rough.draws.flatten(0, 1).var(0) / exact.draws.flatten(0, 1).var(0)
    chance = sum(3 / size for size in sizes) ** 0.5  # heavier than normal tails
    assert ((ratio - 1).abs() < 0.05 + 4 * chance).all(), (ratio, sizes)
