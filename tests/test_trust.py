"""`samples.trust`: a wrong stationary distribution fails a check; a correct one passes without warnings."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch

import langevin as lv
from langevin.diagnostics.convergence import mixing
from langevin.diagnostics.running import add_heat, batch_ratio, epoch_weights, no_heat, read_heat
from langevin.diagnostics.trust import MAX_RESIDUAL
from langevin.kernels import Scaled
from langevin.storage.arviz_data import import_arviz
from langevin.targets.metric import Diagonal

double = torch.float64


def starts(chains=8, dim=1, scale=0.5):
    return scale * lv.random.normal(3, range(chains), 0, dim, dtype=double)


def run(kernel, target, chains=8, dim=1, num_steps=2500, warmup=500, scale=0.5, **rest):
    """Run eagerly, without warnings."""
    target = target if isinstance(target, lv.targets.Target) else lv.targets.energy(target)
    settings = {"num_steps": num_steps, "warmup": warmup, "compile": False, **rest}
    init = settings.pop("init", starts(chains, dim, scale))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lv.TrustWarning)
        return lv.sample(target, sampler=kernel, init=init, **settings)


def said(samples):
    return {sentence.split(":")[0] for sentence in samples.trust.warnings}


# Wrong stationary distributions

X = lv.random.normal(9, 0, 0, 200 * 3, dtype=double).reshape(200, 3)
MEAN = lv.targets.likelihood(lambda theta, x: -0.5 * ((x - theta) ** 2).sum(-1), prior=lv.priors.gaussian(std=100.0))
SCALES = torch.logspace(-1, 1, 5, dtype=double)
WRONG = {
    "a step near the limit of stability": (lambda: run(lv.sgld(1.9), lv.targets.gaussian([[1.0]])), "temperature too high"),
    "exp(x) - x": (lambda: run(lv.msgld(1.0, invariant=True), lambda x: (x.exp() - x).sum()), "temperature too high"),
    "sqrt(x^2 + .01)": (lambda: run(lv.msgld(1.0, invariant=True), lambda x: (x * x + 0.01).sqrt().sum()), "temperature too high"),
    "a quartic, hot": (lambda: run(lv.msgld(0.3, invariant=True), lambda x: (x**4 / 4).sum()), "temperature too high"),
    "a quartic, chains stop": (lambda: run(lv.msgld(0.5, invariant=True), lambda x: (x**4 / 4).sum()), "stopped chains"),
    "published msgld": (
        lambda: run(lv.msgld(0.05, bias_factor=3.0), lv.targets.gaussian(torch.eye(3).tolist()), dim=3),
        "temperature too low",
    ),
    "psgld on several scales": (
        lambda: run(lv.psgld(0.1), lv.targets.gaussian(torch.diag(SCALES**2)), dim=5, num_steps=3000),
        "temperature too high",
    ),
    "minibatch heat": (
        lambda: run(lv.sgld(4e-4), MEAN, data=(X,), batch_size=8, init=X.mean(0).repeat(64, 1), num_steps=1500),
        "temperature too high",
    ),
    "outside the support": (
        lambda: run(lv.sgld(0.3), lambda x: (x * x / 2 - 2 * x.log()).sum(), init=1 + 0 * starts()),
        "stopped chains",
    ),
    "wrong sign, far": (lambda: run(lv.sgld(0.5), lambda x: -(x * x).sum() / 2, num_steps=1500), "the energy fell"),
    "wrong sign, on the way": (
        lambda: run(lv.sgld(0.1), lambda x: -(x * x).sum() / 2, num_steps=400, warmup=0),
        "appears unbounded below",
    ),
    "wrong sign, early": (lambda: run(lv.sgld(0.1), lambda x: -(x * x).sum() / 2, num_steps=100, warmup=20), "decreases outwards"),
    "still on the way": (
        lambda: run(lv.sgld(2e-4), lv.targets.gaussian([[1.0]]), init=torch.full((8, 1), 9.0, dtype=double)),
        "energy drift",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_no_wrong_distribution_passes_without_a_warning(name):
    make, words = WRONG[name]
    assert any(words in sentence for sentence in make().trust.warnings)


def test_one_hot_direction_among_many_is_named():
    """The mean of 40 temperatures is within 5 percent: 39 elements at 1, one near 2."""
    curvature = torch.ones(40, dtype=double)
    curvature[17] = 20.0
    samples = run(lv.sgld(0.05), lv.targets.gaussian(torch.diag(1 / curvature)), dim=40, num_steps=5000)
    trust = samples.trust
    assert trust["temperature"].value < 1.1
    assert trust["worst temperature"].value == pytest.approx(1 / (1 - 0.5), rel=0.1)
    (sentence,) = [sentence for sentence in trust.warnings if "temperature too high" in sentence]
    assert "element 17" in sentence or not trust["temperature"].is_fine


def test_draws_of_the_hot_start_of_a_cycle_are_named():
    schedule = lv.schedules.cyclical(1.5, cycle_length=500, exploration=0.1)
    samples = run(lv.sgld(schedule), lv.targets.gaussian(torch.eye(2).tolist()), dim=2, num_steps=4000, warmup=0)
    check = samples.trust["draws of large steps"]
    assert check.is_fine is False
    assert "excess energy at large steps" in check.sentence
    calm = lv.schedules.cyclical(0.1, cycle_length=500, exploration=0.1)
    assert (
        run(lv.sgld(calm), lv.targets.gaussian(torch.eye(2).tolist()), dim=2, num_steps=4000, warmup=0)
        .trust["draws of large steps"]
        .is_fine
    )


def test_the_temperature_expected_is_the_target_s():
    cold = run(lv.sgld(0.05, temperature=0.1), lv.targets.gaussian([[1.0]]), num_steps=4000, thin=3, scale=0.1)
    assert cold.temperature == 0.1
    assert cold.trust["temperature"].is_fine
    optimizer = run(lv.sgld(0.05, temperature=0.0), lv.targets.gaussian([[1.0]]))
    assert optimizer.trust["temperature"].value is None
    mixed = lv.side_by_side([lv.sgld(0.05), lv.sgld(0.05, temperature=0.5)], 4)
    assert run(mixed, lv.targets.gaussian([[1.0]])).temperature is None


# The numbers


def test_the_temperature_is_that_of_the_draws_themselves():
    """T = mean of (theta - m)(theta - m') over all steps for U = theta^2 / 2, with m the mean of the other chains."""
    samples = run(lv.sgld(0.5), lv.targets.gaussian([[1.0]]), chains=3, num_steps=64 * 8 + 501)
    draws = samples.draws[:, :-1].double()  # where steps after the warm-up began; the last draw begins none
    means = draws.mean(1, keepdim=True)
    others = (means.sum(0) - means) / 2
    assert samples.trust["temperature"].value == pytest.approx(float(((draws - others) * draws).mean()), rel=1e-12)


def test_a_lone_chain_is_centred_half_by_half():
    """U = (theta - 5)^2 / 2: centred at its own mean it would come out low, at 0 far off."""
    samples = run(lv.sgld(0.5), lambda x: ((x - 5) ** 2).sum() / 2, init=torch.full((1, 1), 5.0, dtype=double), num_steps=501 + 64)
    draws = samples.draws[0, :-1, 0]
    first, second = draws[:32], draws[32:]
    exact = torch.cat([(first - second.mean()) * (first - 5), (second - first.mean()) * (second - 5)]).mean()
    assert samples.trust["temperature"].value == pytest.approx(float(exact), rel=1e-9)


def test_the_error_covers_whatever_the_autocorrelation():
    """Of AR(1) chains as positions and gradients: z has variance near 1, and is rarely beyond 4."""
    for rho in (0.0, 0.9, 0.95):
        deviations = []
        noise = lv.random.normal(1, range(400), range(1000), 1, dtype=double)
        path = [noise[0]]
        for row in noise[1:]:
            path.append(rho * path[-1] + (1 - rho**2) ** 0.5 * row)
        positions = torch.stack(path)
        for first in range(0, 400, 4):
            part = positions[:, first : first + 4]
            found = read_heat(summed(part, part), range(4), 1).temperature
            deviations.append(float((found.value - 1) / found.error))
        assert 0.6 < np.std(deviations) < 1.35
        assert abs(np.mean(deviations)) < 0.6  # an estimate that came out low has a low error
        assert np.mean(np.abs(deviations) > 4) < 0.03


def summed(positions, gradients, cuts=(), weights=None):
    weights = torch.ones(len(positions), dtype=double) if weights is None else weights
    heat, good = no_heat(positions[0]), torch.ones(positions.shape[1], dtype=torch.bool)
    for begin, end in zip((0, *cuts), (*cuts, len(positions)), strict=True):
        heat = add_heat(heat, positions[begin:end], gradients[begin:end], weights[begin:end], positions[:0, :, 0], good)
    return heat


def test_sums_cut_anywhere_have_the_same_bits():
    positions, gradients = lv.random.normal(1, range(3), range(700), 10, dtype=double).split(5, -1)
    whole = summed(positions, gradients)
    for cuts in [(1,), (64, 65), (129, 500, 699)]:
        for name, tensor in summed(positions, gradients, cuts).items():
            assert torch.equal(tensor, whole[name]), name
    assert int(whole["heat_count"]) == 700
    assert whole["heat_weights"][:, 1].sum() == 700
    torch.testing.assert_close(whole["heat_sums"][:, 1].sum(0), gradients.sum(0))


def test_an_error_is_that_of_independent_batches():
    products = lv.random.normal(1, range(4), range(64), 1, dtype=double)
    found = batch_ratio(products, torch.ones(64, 4, dtype=double))
    assert found.value.item() == pytest.approx(products.mean().item())
    assert found.error.item() == pytest.approx(1 / 16, rel=0.35)


def test_weights_of_an_epoch_find_the_intercept_of_a_line():
    for batch_size, num_data in ((20, 200), (30, 200), (100, 200), (7, 200)):
        steps = range(13, 13 + 200)  # whole epochs
        weights = epoch_weights(steps, batch_size, num_data)
        shares = torch.tensor([step * batch_size % num_data / num_data for step in steps], dtype=double)
        assert weights.mean().item() == pytest.approx(1)
        assert (weights * (3 + 5 * shares)).mean().item() == pytest.approx(3)
    assert (epoch_weights(range(5), None, 1) == 1).all()
    assert (epoch_weights(range(5), 200, 200) == 1).all()


def test_minibatches_without_replacement_are_not_taken_for_hot():
    """The noise cancels over an epoch: the chains have temperature 1.04, and unweighted gradients would say 1.20."""
    init = X.mean(0).repeat(64, 1)
    samples = run(lv.sgld(2e-4), MEAN, data=(X,), batch_size=20, init=init, num_steps=2000, warmup=200)
    truth = float(((samples.draws - X.mean(0)) ** 2).mean()) * 200
    check = samples.trust["temperature"]
    assert check.value == pytest.approx(truth, abs=4 * check.error)
    assert check.error < 0.025
    assert check.value < 1.1


def test_an_energy_residual_above_the_limit_is_warned_of_only_where_the_warm_up_found_the_step():
    samples = run(lv.msgld(1.3, invariant=True), lambda x: (x.exp() - x).sum())
    value = samples.trust["energy residual"].value
    assert value > MAX_RESIDUAL
    assert "step size too large in the tails" not in said(samples)
    found = dataclasses.replace(samples, warmup_gradients=1000)
    assert "step size too large in the tails" in said(found)
    sentence = found.trust["energy residual"].sentence
    assert f"{value:.2g}" in sentence
    fine = dataclasses.replace(run(lv.msgld(0.2, invariant=True), lambda x: (x.exp() - x).sum()), warmup_gradients=1000)
    assert fine.trust["energy residual"].is_fine


@pytest.mark.parametrize("dim", [1, 3])
def test_limited_forces_are_counted_and_warned_of(dim):
    """With a limit of 2.5 standard deviations each of the elements of a Gaussian's gradient exceeds it in 1.2 % of the steps."""
    inner = lv.msgld(0.1, invariant=True)
    shares = []
    for limit in (2.5, 7.0):
        kernel = Scaled.of(inner, Diagonal(torch.full((dim,), 2.0, dtype=double)), (limit, 0.0))
        samples = run(kernel, lv.targets.gaussian((4 * torch.eye(dim)).tolist()), chains=50, dim=dim, num_steps=3000)
        shares.append(samples.trust["limited forces"].value)
        assert ("forces were clipped" in " ".join(samples.trust.warnings)) == (limit < 7)
    assert 0.7 < shares[0] / (1 - (1 - 0.0124) ** dim) < 1.4
    assert shares[1] == 0
    assert run(inner, lv.targets.gaussian([[1.0]])).trust["limited forces"].value == 0


def test_the_energy_residual_is_zero_on_a_quadratic_and_not_beyond():
    assert run(lv.sgld(0.3), lv.targets.gaussian([[1.0]])).trust["energy residual"].value < 1e-12
    assert run(lv.sgld(0.3), lambda x: (x.exp() - x).sum()).trust["energy residual"].value > 1e-3
    noisy = lv.targets.gaussian([[1.0]], gradient_noise=0.1)
    assert np.isnan(run(lv.sgld(0.1), noisy).trust["energy residual"].value)


@pytest.mark.parametrize("draws", [4, 5, 7, 50, 101])
@pytest.mark.parametrize("chains", [1, 2, 4])
def test_r_hat_and_ess_are_arviz_s(chains, draws):
    noise = lv.random.normal(draws, range(chains), range(draws), 6, dtype=double).transpose(0, 1)
    values = noise.clone()
    for t in range(1, draws):
        values[:, t, :3] = torch.tensor([0.9, -0.7, 0.5], dtype=double) * values[:, t - 1, :3] + noise[:, t, :3]
    values[..., 3] = values[..., 3].mul(3).round()  # ties
    values[..., 4] += torch.arange(chains)[:, None] * 0.3
    values[..., 5] = 1.0  # constant
    found, arviz = mixing(values), import_arviz()
    assert all(number[5].isnan() for number in found)
    data = arviz.convert_to_dataset({"theta": values[..., :5].numpy()})
    with np.errstate(all="ignore"):
        expected = [arviz.rhat(data), arviz.ess(data, method="bulk"), arviz.ess(data, method="tail")]
    for ours, theirs in zip(found, expected, strict=True):
        if chains == 1 and ours is found.rhat:
            assert ours.isnan().all()
        else:
            np.testing.assert_allclose(ours[:5].numpy(), theirs["theta"].values, rtol=1e-8)


# The words


def test_sample_warns_once_with_all_sentences_where_it_was_called():
    with pytest.warns(lv.TrustWarning) as caught:
        samples = lv.sample(lv.targets.gaussian([[1.0]]), sampler=lv.sgld(1.9), init=starts(1), num_steps=2000, compile=False)
    (warning,) = caught
    assert warning.filename == __file__
    assert len(samples.trust.warnings) == 3  # one chain, temperature, excursions
    assert all(sentence in str(warning.message) for sentence in samples.trust.warnings)
    assert issubclass(lv.TrustWarning, UserWarning)


def test_a_correct_run_raises_no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kernel = lv.msgld(0.5, invariant=True)
        samples = lv.sample(lv.targets.gaussian([[1.0]]), sampler=kernel, init=starts(), num_steps=3000, warmup=100, compile=False)
    assert samples.trust.is_clean
    assert samples.trust.warnings == []


def test_the_table_shows_every_check_and_the_summary_the_warnings():
    samples = run(lv.sgld(1.9), lv.targets.gaussian([[1.0]]))
    text = str(samples.trust)
    for name in ("R-hat", "bulk ESS", "tail ESS", "temperature", "stopped chains", "energy drift", "! temperature too high"):
        assert name in text
    table = samples.summary()
    assert repr(table).startswith("! temperature too high")
    assert "! temperature too high" in table._repr_html_()
    assert "r_hat" in table.columns
    with pytest.raises(KeyError, match="'heat' is none of stopped chains"):
        samples.trust["heat"]


def test_a_run_on_disk_knows_the_same(tmp_path):
    settings = {"num_steps": 3000, "warmup": 100, "compile": False}
    target, kernel = lv.targets.gaussian([[1.0]]), lv.sgld(1.9, temperature=0.5)
    with pytest.warns(lv.TrustWarning, match="temperature too high"):
        memory = lv.sample(target, sampler=kernel, init=starts(), **settings)
    with pytest.warns(lv.TrustWarning, match="temperature too high"):
        lv.sample(target, sampler=kernel, init=starts(), out=tmp_path / "run", **settings)
    assert lv.load_samples(tmp_path / "run").trust == memory.trust
    with pytest.warns(lv.TrustWarning, match="temperature too high"):
        lv.resume(tmp_path / "run", target, sampler=kernel)


def test_a_run_that_was_cut_knows_the_same_to_the_last_bit(tmp_path, monkeypatch):
    class Cut(Exception):
        """Ends a run."""

    def cut(done, total):
        if done > 600:
            raise Cut

    settings = {"num_steps": 1500, "warmup": 100, "compile": False}
    target, kernel = lv.targets.energy(lambda x: (x.exp() - x).sum()), lv.sgld(0.3)
    whole = lv.sample(target, sampler=kernel, init=starts(), **settings)
    monkeypatch.setattr("langevin.sampling.loop._CHECKPOINT_SECONDS", 0.0)
    with pytest.raises(Cut):
        lv.sample(target, sampler=kernel, init=starts(), out=tmp_path / "run", progress=cut, **settings)
    again = lv.resume(tmp_path / "run", target, sampler=kernel)
    assert again.trust == whole.trust
    for name, tensor in whole.heat.items():
        assert torch.equal(tensor, again.heat[name])


def test_many_draws_and_elements_are_looked_at_in_part(tmp_path):
    """What is read from disk, some draws and elements at a time, is what memory gives."""
    settings = {"num_steps": 700, "compile": False, "thin": 1}
    target = lv.targets.gaussian(torch.eye(300).tolist())
    memory = run(lv.sgld(0.1), target, dim=300, **settings)
    disk = run(lv.sgld(0.1), target, dim=300, out=tmp_path / "run", **settings)
    assert disk.trust == memory.trust
    pick = torch.tensor([0, 7, 299])
    for every in (1, 3, 7):
        expected = memory.draws[:, ::every][..., pick]
        assert torch.equal(memory.arrays.some("draws", every, pick), expected)
        assert torch.equal(disk.arrays.some("draws", every, pick), expected)


def test_moments_alone_still_have_a_temperature():
    samples = run(lv.sgld(1.9), lv.targets.gaussian([[1.0]]), keep="moments")
    assert said(samples) == {"temperature too high"}


def test_sample_imports_neither_arviz_nor_pandas():
    code = (
        "import sys, torch, warnings, langevin as lv\nwarnings.simplefilter('ignore')\n"
        "lv.sample(lv.targets.gaussian([[1.0]]), sampler=lv.sgld(0.1), init=torch.zeros(4, 1), num_steps=300).trust\n"
        "print({'arviz', 'pandas', 'scipy.stats'} & set(sys.modules))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "set()"


def test_a_chain_that_stopped_does_not_count():
    samples = run(lv.sgld(0.5), lv.targets.gaussian([[1.0]]))
    ends = (samples.status[0]._replace(reason="the position became non-finite"), *samples.status[1:])
    apart = dataclasses.replace(samples, status=ends, heat={**samples.heat, "heat_sums": samples.heat["heat_sums"].clone()})
    apart.heat["heat_sums"][:, :, 0] = torch.nan
    assert not np.isnan(apart.trust["temperature"].value)
    assert said(apart) >= {"stopped chains"}
