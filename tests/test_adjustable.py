"""Settings as inputs of compiled code: kernels that differ in numbers share it, and their steps are those of eager blocks."""

from __future__ import annotations

import pytest
import torch

import langevin as lv
from langevin.adaptation import FORCE_LIMIT, sampler_at
from langevin.adaptation import warmup as warmup_module
from langevin.execution import Runner, run_blocks
from langevin.execution.settings import settings_of, structure_of, with_settings
from langevin.kernels import Scaled
from langevin.kernels.gradient_noise import DiagonalNoise
from langevin.targets.gradients import full
from langevin.targets.metric import Dense, Diagonal, LowRank

DIM = 3
ROOT = torch.tensor([[1.0, 0.0, 0.0], [0.3, 0.7, 0.0], [0.1, -0.2, 1.4]], dtype=torch.float64)
TARGET = lv.targets.gaussian((ROOT @ ROOT.mT).tolist())
GRADIENT = full(TARGET)
METRICS = {
    "dense": lambda k: Dense(k * ROOT),
    "diagonal": lambda k: Diagonal(k * torch.linspace(0.5, 2.0, DIM, dtype=torch.float64)),
    "low rank": lambda k: LowRank(
        torch.full((DIM,), k, dtype=torch.float64),
        torch.eye(DIM, 1, dtype=torch.float64),
        torch.full((1,), 1.5, dtype=torch.float64),
    ),
}


def kernel(metric, size=0.3, softness=0.8, noise=None):
    return Scaled.of(sampler_at(size, softness, 0.7, noise), metric, None if noise else FORCE_LIMIT)


def noise(k):
    one = torch.ones(DIM, dtype=torch.float64)
    return DiagonalNoise(k * one, one)


def positions(made, runner=None):
    start = torch.linspace(-1, 1, 4 * DIM, dtype=torch.float64).reshape(4, DIM)
    traces = run_blocks(made, GRADIENT, start, seed=3, chains=range(4), num_steps=20, runner=runner)
    return torch.cat([trace.positions for trace in traces])


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("noises", [(None, None), (0.1, 0.4)], ids=["exact", "noisy"])
def test_one_code_serves_kernels_that_differ_in_numbers_and_tensors(metric, noises):
    absorbed = [None if level is None else noise(level) for level in noises]
    first = kernel(METRICS[metric](1.0), noise=absorbed[0])
    second = kernel(METRICS[metric](1.7), size=0.05, softness=0.4, noise=absorbed[1])
    runner = Runner(first, GRADIENT, compiled=True, adjustable=True)
    torch.testing.assert_close(positions(first, runner), positions(first), rtol=1e-9, atol=1e-12)
    code = runner._code
    runner.adjust(second, GRADIENT)
    torch.testing.assert_close(positions(second, runner), positions(second), rtol=1e-9, atol=1e-12)
    assert runner._code is code  # nothing was recorded again
    assert runner.compiled
    assert not torch.allclose(positions(first), positions(second))


def test_another_structure_takes_other_code():
    dense = kernel(METRICS["dense"](1.0))
    runner = Runner(dense, GRADIENT, compiled=True, adjustable=True)
    positions(dense, runner)
    code = runner._code
    for other in (kernel(METRICS["diagonal"](1.0)), kernel(METRICS["diagonal"](1.0), noise=noise(0.1))):
        runner.adjust(other, GRADIENT)
        assert runner._code is not code
        code = runner._code
        torch.testing.assert_close(positions(other, runner), positions(other), rtol=1e-9, atol=1e-12)


def test_settings_leave_out_what_the_inputs_of_a_step_have():
    one, other = kernel(METRICS["dense"](1.0), size=0.3), kernel(METRICS["dense"](1.0), size=0.05)
    assert structure_of(one) == structure_of(other) != structure_of(kernel(METRICS["diagonal"](1.0)))
    again = with_settings(one, settings_of(other))
    assert [float(value.sum()) for value in settings_of(again)] == [float(value.sum()) for value in settings_of(other)]
    assert again.step_size == one.step_size


def test_the_compiled_warm_up_finds_what_the_eager_one_finds(monkeypatch, capsys):
    """On a Gaussian both have the same path up to rounding: the same report, and nearly the same draws."""
    found = []
    for compiled in (True, False):
        samples = lv.sample(TARGET, num_draws=50, chains=4, compile=compiled, progress=False)
        lines = capsys.readouterr().out.splitlines()
        found.append(([line for line in lines if "RMS" not in line], samples.draws))  # of rounding, on a Gaussian
    assert found[0][0] == found[1][0]
    torch.testing.assert_close(found[0][1], found[1][1], rtol=1e-5, atol=1e-6)
    made = []

    class Counting(Runner):
        def __init__(self, *args, **options):
            made.append(self)
            super().__init__(*args, **options)

    monkeypatch.setattr(warmup_module, "Runner", Counting)
    lv.sample(TARGET, num_draws=50, chains=4, compile=True, progress=False)
    assert len(made) == 1
    assert made[0].compiled


def test_a_step_that_cannot_be_compiled_warms_up_eagerly_without_a_word(recwarn):
    class Outside(lv.targets.Target):
        dim = 1

        def evaluate(self, position, batch=None):
            values = torch.from_numpy(position.detach().numpy() * 1.0)
            return lv.targets.Evaluation(0.5 * values.square().sum(-1), values)

    samples = lv.sample(Outside(), num_draws=100, chains=4, progress=False, compile=False)
    assert samples.draws.shape == (4, 100, 1)
    assert not [entry for entry in recwarn if "compil" in str(entry.message)]
