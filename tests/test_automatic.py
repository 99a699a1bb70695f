"""`sample` without a sampler: what it finds is right, is said, is repeated, and is resumed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest
import torch

import langevin as lv
from langevin.random import normal

COVARIANCE = torch.tensor([[1.0, 0.95, 0.0], [0.95, 1.0, 0.0], [0.0, 0.0, 1e-4]], dtype=torch.float64)
GAUSSIAN = lv.targets.gaussian(COVARIANCE, mean=[3.0, -2.0, 100.0])
QUICK = {"compile": False, "progress": False}


def regression(rows=400):
    x = normal(7, 0, range(rows), 2, dtype=torch.float64)
    noise = normal(8, 0, range(rows), 1, dtype=torch.float64)[:, 0]
    return x * torch.tensor([1.0, 50.0], dtype=torch.float64), x @ torch.tensor([1.0, -2.0], dtype=torch.float64) + 0.5 * noise


def linear(p, x, y):
    return torch.distributions.Normal(x @ p["b"], p["sigma"]).log_prob(y)


MODEL = lv.Model(linear, {"b": lv.real(2), "sigma": lv.positive()}, {"b": torch.distributions.Normal(0.0, 10.0)})


def exact_mean_and_sd(x, y):
    """Return mean and sd of b for sigma at its estimate: with 400 rows the rest is 1 in 400."""
    b = torch.linalg.lstsq(x, y[:, None]).solution[:, 0]
    sigma = ((y - x @ b) ** 2).sum() / (len(y) - 2)
    return b, (sigma * torch.linalg.inv(x.mT @ x)).diagonal().sqrt()


def test_a_gaussian_of_any_shape_is_drawn_from():
    """Widths from 1 to 1 / 100, correlation .95, a mean far from the starts: all moments within 5 standard errors."""
    samples = lv.sample(GAUSSIAN, seed=3, **QUICK)
    draws, size = samples.draws.flatten(0, 1), samples.trust["bulk ESS"].value
    truth = COVARIANCE.diagonal()
    assert ((draws.mean(0) - torch.tensor([3.0, -2.0, 100.0])).abs() < 5 * (truth / size) ** 0.5).all()
    assert ((draws.var(0) / truth - 1).abs() < 5 * (2 / size) ** 0.5).all()
    assert (draws[:, :2].mT.corrcoef()[0, 1] - 0.95).abs() < 5 * (1 - 0.95**2) / size**0.5
    assert samples.trust.is_clean, samples.trust.warnings
    assert size > sum(status.steps for status in samples.status) / 3  # and fast: 2 steps an effective draw
    assert 500 < samples.warmup_gradients < 2000


def test_what_was_found_is_said_and_stored_and_repeated(capsys):
    first = lv.sample(GAUSSIAN, num_draws=50, chains=4, **QUICK)
    said = capsys.readouterr().out
    assert all(word in said for word in ("metric: dense", "step_size", "bias_factor", "beta", "effective sample", "4 chains"))
    assert said.splitlines()[1].strip() in first.description
    again = lv.sample(GAUSSIAN, num_draws=50, chains=4, **QUICK)
    assert torch.equal(first.draws, again.draws)
    assert first.draws.shape == (4, 50, 3)
    other = lv.sample(GAUSSIAN, num_draws=50, chains=4, seed=1, **QUICK)
    assert not torch.equal(first.draws, other.draws)


def test_no_two_chains_share_anything():
    draws = lv.sample(GAUSSIAN, num_draws=300, **QUICK).draws[..., 0]
    correlations = draws.corrcoef() - torch.eye(8, dtype=torch.float64)
    assert correlations.abs().max() < 0.5


@pytest.mark.parametrize("batch_size", [None, 50])
def test_a_model_with_data(batch_size):
    x, y = regression()
    samples = lv.sample(MODEL, data={"y": y, "x": x.numpy()}, batch_size=batch_size, **QUICK)
    mean, sd = exact_mean_and_sd(x, y)
    b, size = samples["b"].flatten(0, 1), samples.trust["bulk ESS"].value
    assert ((b.mean(0) - mean).abs() < 5 * sd / size**0.5).all()
    heat = 0.0 if batch_size is None else 0.05  # of the variance, which minibatches may cost
    assert ((b.var(0) / sd**2 - 1).abs() < heat + 0.01 + 5 * (2 / size) ** 0.5).all()
    assert samples.trust.is_clean, samples.trust.warnings


def test_starts():
    x, y = regression()
    settings = {"data": (x, y), "num_draws": 100, **QUICK}
    for init in ("spread", {"sigma": 2.0}, torch.zeros(3, dtype=torch.float64), torch.ones(5, 3, dtype=torch.float64)):
        samples = lv.sample(MODEL, init=init, **settings)
        assert len(samples.status) == (5 if isinstance(init, torch.Tensor) and init.ndim == 2 else 8)
        assert (samples["b"].mean((0, 1)) - exact_mean_and_sd(x, y)[0]).abs().max() < 0.05


def test_chains_of_worse_modes_are_gathered_unless_they_are_spread(capsys):
    """Two wells, 50 apart in energy: the one has no mass. Asked for spread starts, chains stay, and R-hat says so."""

    def wells(theta):
        return -torch.logsumexp(torch.stack([-50 * (theta[0] - 1.5) ** 2, -50.0 - 50 * (theta[0] + 1.5) ** 2]), 0)

    target = lv.targets.energy(wells, dim=1)
    samples = lv.sample(target, num_draws=200, **QUICK)
    assert "moved to the best mode" in capsys.readouterr().out
    assert (samples.draws > 0).all()
    with pytest.warns(lv.TrustWarning, match="chains disagree"):
        spread = lv.sample(target, num_draws=200, init="spread", **QUICK)
    assert (spread.draws > 0).any()
    assert (spread.draws < 0).any()


def test_two_modes_of_the_same_mass_are_said():
    wells = lv.targets.energy(lambda theta: -torch.logaddexp(-2 * (theta[0] - 2) ** 2, -2 * (theta[0] + 2) ** 2) * 5, dim=1)
    with pytest.warns(lv.TrustWarning, match="chains disagree"):
        lv.sample(wells, num_draws=200, **QUICK)


@pytest.mark.parametrize("scale", ["diagonal", "low_rank", COVARIANCE, COVARIANCE.diagonal()])
def test_scales(scale):
    samples = lv.sample(GAUSSIAN, metric=scale, num_draws=500, **QUICK)
    size = samples.trust["bulk ESS"].value
    assert ((samples.draws.flatten(0, 1).var(0) / COVARIANCE.diagonal() - 1).abs() < 5 * (2 / size) ** 0.5).all()


def test_many_dimensions_take_a_low_rank_scale(capsys):
    curvatures = torch.logspace(-2, 2, 600, dtype=torch.float64)
    target = lv.targets.energy(lambda theta: 0.5 * (curvatures * theta**2).sum(), dim=600)
    samples = lv.sample(target, num_draws=150, **QUICK)
    assert "diagonal" in capsys.readouterr().out
    ratio = (samples.draws.flatten(0, 1).square() * curvatures).mean()
    assert abs(float(ratio) - 1) < 0.05


@pytest.mark.parametrize(
    ("call", "error", "words"),
    {
        "no dim": (lambda: lv.sample(lv.targets.energy(lambda t: t @ t)), ValueError, r"init=.*target with a dim"),
        "steps": (lambda: lv.sample(GAUSSIAN, num_steps=100), TypeError, r"num_steps=.*sampler=.*100"),
        "a sampler second": (lambda: lv.sample(lv.sgld(0.1), sampler=GAUSSIAN), TypeError, "target="),
        "draws and steps": (
            lambda: lv.sample(GAUSSIAN, sampler=lv.sgld(0.1), num_draws=9, num_steps=9),
            ValueError,
            "num_draws=.*9",
        ),
        "no chains": (lambda: lv.sample(GAUSSIAN, chains=0), ValueError, "chains=.*0"),
        "chains and rows": (lambda: lv.sample(GAUSSIAN, chains=3, init=torch.zeros(2, 3)), ValueError, "chains=.*2 rows.*3"),
        "no draws": (lambda: lv.sample(GAUSSIAN, num_draws=0), ValueError, "num_draws=.*0"),
        "a word": (lambda: lv.sample(GAUSSIAN, init="mode"), ValueError, "init=.*'mode'"),
        "names": (lambda: lv.sample(GAUSSIAN, init={"a": 1.0}), TypeError, "init=.*for a Model"),
        "a scale": (lambda: lv.sample(GAUSSIAN, metric="full"), ValueError, "metric=.*'full'"),
        "a small scale": (lambda: lv.sample(GAUSSIAN, metric=torch.eye(2)), ValueError, "metric=.*3 dimensions.*2"),
        "not a target": (lambda: lv.sample("x"), TypeError, "target=.*'x'"),
    }.values(),
    ids=range(12),
)
def test_bad_input(call, error, words):
    with pytest.raises(error, match=words):
        call()


def test_a_log_density_of_the_wrong_sign_is_named():
    """The energy is unbounded below."""
    target = lv.targets.energy(lambda theta: -0.5 * theta @ theta, dim=2)
    with pytest.raises(ValueError, match="Did you pass a log density"):
        lv.sample(target, **QUICK)


def test_a_run_on_disk_goes_on(tmp_path):
    whole = lv.sample(GAUSSIAN, num_draws=40, chains=3, out=tmp_path / "run", **QUICK)
    for samples in (lv.resume(tmp_path / "run", GAUSSIAN), lv.load_samples(tmp_path / "run")):
        assert torch.equal(samples.draws, whole.draws)
        assert samples.warmup_gradients == whole.warmup_gradients
    with pytest.raises(TypeError, match=r"sampler=.*chose the sampler"):
        lv.resume(tmp_path / "run", GAUSSIAN, sampler=lv.sgld(0.1))
    given = {"num_steps": 60, "warmup": 20, **QUICK}
    start = torch.zeros(3, 3, dtype=torch.float64)
    whole = lv.sample(GAUSSIAN, sampler=lv.sgld("auto"), init=start, metric="auto", out=tmp_path / "given", **given)
    assert torch.equal(lv.resume(tmp_path / "given", GAUSSIAN, sampler=lv.sgld("auto")).draws, whole.draws)
    with pytest.raises(TypeError, match="the sampler of the run"):
        lv.resume(tmp_path / "given", GAUSSIAN)


SCRIPT = """
import sys, torch, langevin as lv
import langevin.sampling.loop as driver
driver._CHECKPOINT_SECONDS = 0.0
def energy(theta):
    return 0.5 * (theta @ theta) + 0.1 * (theta**4).sum()
target = lv.targets.energy(energy, dim=2)
if __name__ == "__main__":
    print("ready", flush=True)
    lv.sample(target, num_draws=int(sys.argv[2]), chains=4, out=sys.argv[1], compile=False, progress=False)
"""


def test_a_run_that_is_killed_goes_on_with_the_same_bits(tmp_path, monkeypatch):
    """A real process, a real kill; the scale and the settings that it had found are in the folder."""
    script = tmp_path / "killed.py"
    script.write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen([sys.executable, script, tmp_path / "run", "3000"], env=environment)
    state = tmp_path / "run" / "state.safetensors"
    deadline, first = time.monotonic() + 120, None
    while time.monotonic() < deadline and process.poll() is None:
        now = state.stat().st_mtime_ns if state.exists() else None
        if now is not None and first is not None and now != first:
            break
        first = first or now
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    monkeypatch.syspath_prepend(str(tmp_path))
    import killed

    so_far = lv.load_samples(tmp_path / "run")
    assert so_far.draws.shape[1] < 3000
    resumed = lv.resume(tmp_path / "run", killed.target, progress=False)
    whole = lv.sample(killed.target, num_draws=3000, chains=4, **QUICK)
    assert torch.equal(resumed.draws, whole.draws)
    assert Path(resumed.path or "").name == "run"


def test_more_elements_than_a_block_takes():
    target = lv.targets.energy(lambda theta: 0.5 * theta @ theta, dim=45_000)
    samples = lv.sample(target, num_draws=10, chains=4, **QUICK)
    assert abs(float(samples.draws.square().mean()) - 1) < 0.02


def test_an_energy_with_jumps_is_named_and_one_with_kinks_is_not():
    """Gradients do not see jumps, so the law is another: variance 1 instead of .55 here."""
    jumps = lv.targets.energy(lambda theta: 0.5 * theta @ theta + torch.floor(theta.abs().sum()), dim=1)
    with pytest.warns(lv.TrustWarning, match="discontinuities"):
        lv.sample(jumps, num_draws=100, **QUICK)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "the energy has jumps", lv.TrustWarning)
        laplace = lv.sample(lv.targets.energy(lambda theta: theta.abs().sum(), dim=1), num_draws=600, **QUICK)
    assert abs(float(laplace.draws.var()) / 2 - 1) < 0.05 + 5 * (5 / laplace.trust["bulk ESS"].value) ** 0.5


class Raising(lv.targets.Target):
    """A Gaussian that raises where half of the random starts are."""

    dim = 1

    def evaluate(self, position, batch=None):
        if (position > 0).any():
            raise RuntimeError("too far")
        return lv.targets.Evaluation(0.5 * (position + 8).square().sum(-1), position + 8)


def test_starts_at_which_the_target_raises_are_drawn_again():
    samples = lv.sample(Raising(), num_draws=400, **QUICK)
    assert abs(float(samples.draws.mean()) + 8) < 0.2
    assert all(status.is_healthy for status in samples.status)


def test_tensors_of_another_dtype_are_named():
    x = torch.ones(5, 2)
    target = lv.targets.energy(lambda theta: ((x @ theta) ** 2).sum(), dim=2)
    with pytest.raises(TypeError, match=r"init=.*dtype of the target's own tensors"):
        lv.sample(target, **QUICK)
    samples = lv.sample(lv.targets.energy(lambda theta: ((x @ theta) ** 2).sum() + theta @ theta), init=torch.zeros(2), **QUICK)
    assert samples.draws.dtype == torch.float32


def test_what_is_not_wrong_is_not_said(recwarn):
    lv.sample(lv.targets.gaussian([[1.0]]), keep="moments", num_draws=300, **QUICK)
    assert not [warning for warning in recwarn if issubclass(warning.category, lv.TrustWarning)]


def test_a_flat_direction_is_named():
    target = lv.targets.energy(lambda theta: 0.5 * theta[0] ** 2 + 0 * theta[1], dim=2)
    with pytest.raises(ValueError, match=r"theta\[1\] is not identified"):
        lv.sample(target, num_draws=500, **QUICK)


def test_the_warm_up_shares_no_number_with_the_run_nor_with_itself(monkeypatch):
    """Every address of a normal is drawn once: starts, jitter, windows, the search after them, and the run."""
    import langevin.adaptation.descent as descent
    import langevin.adaptation.metric as metric
    import langevin.adaptation.probe as walk
    import langevin.adaptation.warmup as warmup
    import langevin.execution.blocks as blocks

    seen = []

    def watched(seed, stream, step, size, **settings):
        streams = stream if isinstance(stream, range) else range(stream, stream + 1)
        steps = step if isinstance(step, range) else range(step, step + 1)
        seen.extend((one, each) for one in streams for each in steps)
        return normal(seed, stream, step, size, **settings)

    for module in (descent, metric, walk, warmup):
        monkeypatch.setattr(module, "normal", watched)
    monkeypatch.setitem(blocks.KINDS, "normal", watched)
    noisy = lv.targets.energy(lambda theta: 0.5 * theta @ theta, dim=2, gradient_noise=0.5)
    lv.sample(noisy, num_draws=30, chains=2, **QUICK)
    start = torch.zeros(2, 2, dtype=torch.float64)
    settings = {"num_steps": 30, "warmup": 10, "metric": "low_rank", "seed": 0, "first_chain": 2, **QUICK}
    lv_given = lv.sample(noisy, sampler=lv.sgld("auto"), init=start, **settings)
    assert len(lv_given.draws) == 2
    assert len(seen) == len(set(seen))


def test_the_neck_of_a_funnel_is_not_taken_for_a_mode():
    """Eight schools as they are first written: the density grows without bound where tau falls to 0; the mass is elsewhere."""
    effects = torch.tensor([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0], dtype=torch.float64)
    errors = torch.tensor([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0], dtype=torch.float64)
    model = lv.Model.log_density(
        lambda p: torch.distributions.Normal(p["theta"], errors).log_prob(effects).sum(),
        {"mu": lv.real(), "tau": lv.positive(), "theta": lv.real(8)},
        {
            "mu": torch.distributions.Normal(0.0, 5.0),
            "tau": torch.distributions.HalfCauchy(5.0),
            "theta": lambda p: torch.distributions.Normal(p["mu"], p["tau"]),
        },
        centredness=1.0,  # as written
    )
    with pytest.warns(lv.TrustWarning):  # the step that its neck asks for is too small for the rest
        samples = lv.sample(model, num_draws=300, **QUICK)
    assert 1 < float(samples["tau"].median()) < 6  # posteriordb has a median of 2.7


ROW = (torch.zeros(1, dtype=torch.float64),)


def test_a_stopped_chain_is_named_and_left_out_of_its_parameters():
    """ArviZ, summary() and samples["x"] have the same chains; NaN is only in `draws`."""

    def inside(p, y):
        return torch.where(p["x"] < 2.5, 0.0 * y, -torch.inf)

    model = lv.Model(inside, {"x": lv.real()}, {"x": torch.distributions.Normal(0.0, 1.0)})
    start = torch.zeros(12, 1, dtype=torch.float64)
    with pytest.warns(lv.TrustWarning, match=r"chain \d+ stopped at step \d+: the energy became inf"):
        samples = lv.sample(model, sampler=lv.sgld(0.1), init=start, data=ROW, num_steps=400, seed=1, **QUICK)
    alive = [status.is_healthy for status in samples.status]
    assert 0 < sum(alive) < 12
    with pytest.warns(lv.TrustWarning, match=rf"samples\['x'\] has {sum(alive)} of 12 chains; left out: chain \d+ stopped at step"):
        x = samples["x"]
    assert x.shape == (sum(alive), 400)
    assert torch.equal(x, samples.draws[torch.tensor(alive), :, 0])
    assert torch.isfinite(x.mean())
    assert samples.draws.shape == (12, 400, 1)
    assert samples.draws.isnan().any()
    assert samples.to_arviz().posterior["x"].shape == tuple(x.shape)


def test_parameters_of_a_run_whose_chains_all_stopped_are_an_error():
    def wall(p, y):
        return torch.where(p["x"] < 0.5, 0.0 * y, -torch.inf)

    model = lv.Model(wall, {"x": lv.real()}, {"x": torch.distributions.Normal(0.0, 1.0)})
    samples = lv.sample(model, sampler=lv.sgld(0.5), init=torch.zeros(2, 1, dtype=torch.float64), data=ROW, num_steps=200, **QUICK)
    with pytest.raises(ValueError, match=r"samples\['x'\] needs a chain that ran to its end, got: chain 0 stopped"):
        samples["x"]


def test_parameters_of_healthy_chains_come_without_a_warning():
    model = lv.Model(lambda p, y: 0.0 * p["x"] * y, {"x": lv.real()}, {"x": torch.distributions.Normal(0.0, 1.0)})
    samples = lv.sample(model, sampler=lv.sgld(0.1), init=torch.zeros(2, 1, dtype=torch.float64), data=ROW, num_steps=50, **QUICK)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert samples["x"].shape == (2, 50)
