"""`langevin-paper check`: the tests accept what is right and refuse what is broken; the command says so by its exit code."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from langevin_paper.check import Report, Row, command, sequential_test, simultaneous_band
from langevin_paper.check.invariance import law_p_values
from langevin_paper.check.law import SMOOTH, gaussian_scores, smooth_scores
from langevin_paper.check.linear import GAUSSIANS, UNKNOWN, adaptive, linear_samplers, published
from langevin_paper.check.ranks import Regression, rank_p_values, reversed_in_time
from langevin_paper.check.start import state_of
from langevin_paper.check.twins import hot, turned_round
from langevin_paper.cli import app
from typer.testing import CliRunner

import langevin as lv
from langevin.random import Purpose, integers, normal, stream, streams

CORRELATED = GAUSSIANS["correlation .9"]
FORMS = ["msgld", "asgld", "adamax_sgld", "asgld_full"]


# The equations


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("share", [0.1, 0.9, 0.999])
def test_the_law_of_the_velocities_is_that_of_the_recursion(name, share):
    """A closed form against a Lyapunov equation; up to the limit of stability and not beyond."""
    for precision in GAUSSIANS.values():
        case = adaptive(precision, name, share=share)
        np.testing.assert_allclose(case.law, case.recursion.stationary(), rtol=1e-6, atol=1e-7)
    with pytest.raises(ValueError, match="a stable step"):
        adaptive(CORRELATED, name, share=1.001).recursion.stationary()


def test_turning_round_twice_changes_nothing_and_keeps_the_law():
    case = adaptive(CORRELATED, "asgld", share=0.7)
    h, k = case.strides
    zero, eye = np.zeros((2, 2)), np.eye(2)
    turn = np.block([[eye, zero, zero], [h @ CORRELATED, -eye, zero], [k * CORRELATED, zero, -eye]])
    np.testing.assert_allclose(turn @ case.law @ turn.T, case.law, atol=1e-12)
    np.testing.assert_allclose(turn @ turn, np.eye(6), atol=1e-12)
    # And the recursion is its own reversal in time: cov(z_1, z_0) turned round is cov(z_0, z_1).
    lagged = case.recursion.transition @ case.law
    np.testing.assert_allclose(turn @ lagged @ turn.T, lagged.T, atol=1e-10)
    z = normal(0, range(5), 0, 6, dtype=torch.float64)
    state = state_of(z, 2, case.frozen)
    turned = reversed_in_time(state, state.position @ torch.as_tensor(CORRELATED), case.strides)
    torch.testing.assert_close(torch.cat([turned.position, *turned.tensors[:2]], -1), z @ torch.as_tensor(turn).mT)


def test_what_has_no_exact_law_is_named():
    """A sampler that is new is named by the check as left out; those of the paper's equations stay in."""
    cases = [*linear_samplers(CORRELATED), *(adaptive(CORRELATED, name, share=0.5) for name in FORMS)]
    covered = {case.name.partition(",")[0] for case in cases}
    assert {"sgld", "psgld", "sgrld", "sghmc", *FORMS} <= covered <= set(lv.SAMPLERS) - set(UNKNOWN)


# Law


@pytest.mark.parametrize("case", list(linear_samplers(CORRELATED)), ids=lambda case: case.name)
def test_a_run_has_the_exact_law_and_a_hot_one_has_not(case):
    """5 standard errors of 4,000 chains; the twin's variance is 21 % too large, 9 of them."""
    assert np.abs(gaussian_scores(case, case.kernel, 3, range(4_000)).z).max() < 5
    factor = 1.3 if case.kernel.gradient_noise else 1.1  # most heat is the gradient's own, where that is absorbed
    assert np.abs(gaussian_scores(case, hot(case.kernel, factor), 3, range(4_000)).z).max() > 5


def test_wrong_signs_and_steps_do_not_have_the_law():
    case = published(CORRELATED)
    for kernel in (turned_round(case.kernel), case.kernel.with_step_size(2 * case.kernel.step_size(0))):
        assert np.abs(gaussian_scores(case, kernel, 3, range(4_000)).z).max() > 5


@pytest.mark.parametrize("target", list(SMOOTH.values()), ids=list(SMOOTH))
def test_small_steps_have_the_law_of_the_quadrature_and_the_published_ones_have_not(target):
    kernel = lv.msgld(0.02, invariant=True)
    assert np.abs(smooth_scores(kernel, target, 100, 0, 4_000).z).max() < 5
    for broken in (lv.msgld(0.02), hot(kernel, 1.2)):
        assert np.abs(smooth_scores(broken, target, 100, 0, 4_000).z).max() > 5


# Invariance


def test_the_sequential_test_keeps_its_level_and_uses_all_of_it():
    """For one uniform p-value the bound is sharp: level .2 refuses a fifth, within 4 standard errors."""
    uniform = (integers(1, stream(Purpose.DATA), 0, 40_000, (2**30,)).numpy() + 0.5) / 2**30
    given, tests = iter(uniform), 4_000
    refused = sum(not sequential_test(lambda count, first: next(given), level=0.2).accepted for _ in range(tests))
    assert abs(refused / tests - 0.2) < 4 * (0.2 * 0.8 / tests) ** 0.5
    given = iter(uniform.reshape(-1, 4))
    assert sum(not sequential_test(lambda count, first: next(given), level=0.2).accepted for _ in range(2_000)) < 0.2 * 2_000


def test_the_sequential_test_asks_for_fresh_chains_and_more_of_them():
    asked, doubtful = [], iter([1e-3, 1e-3, 0.9])
    done = sequential_test(lambda count, first: asked.append((count, first)) or np.array([next(doubtful)]), first=7)
    assert asked == [(1000, 7), (4000, 1007), (4000, 5007)]
    assert done == (True, 3, 0.9)
    assert sequential_test(lambda count, first: np.array([np.nan, 0.5])) == (False, 1, 0.0)


@pytest.mark.parametrize("share", [0.3, 0.99])
def test_the_invariant_form_keeps_its_law_and_the_broken_ones_do_not(share):
    case = adaptive(CORRELATED, "asgld", share=share)

    def accepts(kernel, law=case.law):
        return sequential_test(lambda count, first: law_p_values(case, kernel, law, 20, 5, count, first)).accepted

    assert accepts(case.kernel)
    assert not accepts(hot(case.kernel))
    assert not accepts(turned_round(case.kernel))
    apart = case.law.copy()
    apart[:2, 2:] = apart[2:, :2] = 0  # velocities that do not know the position: not the law where theta is recorded
    assert not accepts(case.kernel, apart)


def test_ranks_of_the_truth_are_uniform_and_those_of_a_broken_sampler_are_not():
    p = np.concatenate([rank_p_values("msgld", 0.7, None, 2, 2_000, first) for first in (0, 2_000)])
    assert p.min() > 1e-4
    for breaking in (hot, turned_round):
        assert rank_p_values("msgld", 0.7, breaking, 2, 2_000, 0).min() < 1e-6


# Simulation-based calibration


MODEL = Regression.standard(0)


def simulate(replications, seed):
    slopes, y = MODEL.simulate(seed, range(replications))
    return slopes, [MODEL.features.expand(replications, -1, -1), y]


TARGET = lv.targets.likelihood(lambda b, x, y: -0.5 * ((y - x @ b) / 0.7) ** 2, prior=lv.priors.gaussian(std=1.0))


def test_sbc_accepts_the_invariant_form_and_refuses_the_published_one():
    curvature = float(torch.linalg.eigvalsh(MODEL.precision).max())
    settings = {"replications": 400, "num_draws": 31, "warmup": 100, "seed": 0}
    kernel = lv.msgld(0.6 / curvature, bias_factor=10.0, invariant=True)
    good = lv.diagnostics.sbc(simulate, TARGET, kernel, **settings)
    assert good.ranks.shape == (400, 4)
    assert good.ranks.min() >= 0
    assert good.ranks.max() <= 31
    assert good.p_value > 1e-3
    again = lv.diagnostics.sbc(simulate, TARGET, kernel, **settings)
    assert np.array_equal(good.ranks, again.ranks)
    cold = lv.diagnostics.sbc(simulate, TARGET, lv.msgld(0.1 / curvature), **settings)
    assert cold.p_value < 1e-6
    assert lv.diagnostics.sbc(simulate, TARGET, hot(kernel, 1.3), **settings).p_value < 1e-6
    wild = lv.diagnostics.sbc(simulate, TARGET, lv.sgld(50 / curvature), **settings)
    assert wild.lost == 400
    assert wild.p_value == 0


def test_sbc_ranks_what_it_is_asked_to():
    def sums(position):
        return position.sum(-1, keepdim=True)

    found = lv.diagnostics.sbc(
        simulate, TARGET, lv.sgld(1e-3), replications=40, num_draws=3, warmup=5, quantities=sums, names=["sum"]
    )
    assert found.names == ("sum", "energy")
    with pytest.raises(ValueError, match="1 names"):
        lv.diagnostics.sbc(simulate, TARGET, lv.sgld(1e-3), replications=40, num_draws=3, quantities=sums, names=["a", "b"])
    with pytest.raises(ValueError, match=r"truths \(40, dim\)"):
        lv.diagnostics.sbc(lambda count, seed: simulate(50, seed), TARGET, lv.sgld(1e-3), replications=40)


def test_the_band_holds_the_whole_ecdf_as_often_as_it_says():
    count, values = 300, 32
    low, high = simultaneous_band(count, values, 0.9, seed=1)
    drawn = integers(2, streams(Purpose.DATA, range(1000)), 0, count, (values,))[..., 0].numpy()
    ecdf = np.stack([np.cumsum(np.bincount(row, minlength=values))[:-1] for row in drawn]) / count
    inside = ((ecdf >= low - 1e-12) & (ecdf <= high + 1e-12)).all(1).mean()
    assert abs(inside - 0.9) < 0.045  # 3 standard errors of both simulations, and counts are whole


# The command


def report(*rows):
    return lambda **given: Report("law", "a test", given["seed"], rows)


GOOD, BAD, TWIN, BLIND = (
    Row("good", {"p": 0.5}, True),
    Row("bad", {"p": 0.0}, False),
    Row("twin", {"p": 0.0}, False, True),
    Row("twin", {"p": 0.5}, True, True),
)


@pytest.mark.parametrize(
    ("rows", "code", "words"),
    [
        ((GOOD, TWIN), 0, "law: passed: 1 accepted, 1 broken on purpose and refused"),
        ((GOOD, BAD, TWIN), 1, "law: FAILED: bad"),
        ((GOOD, BLIND), 1, "NOT REFUSED"),
    ],
)
def test_the_exit_code_is_the_verdict(monkeypatch, rows, code, words):
    monkeypatch.setattr("langevin_paper.check.law.check_law", report(*rows))
    done = CliRunner().invoke(app, ["check", "law", "--seed", "3"])
    assert done.exit_code == code
    assert words in done.output


def test_all_runs_every_part_and_one_failure_fails_it(monkeypatch):
    monkeypatch.setattr("langevin_paper.check.law.check_law", report(GOOD))
    monkeypatch.setattr("langevin_paper.check.invariance.check_invariance", report(BLIND))
    monkeypatch.setattr("langevin_paper.check.calibration.check_sbc", report(GOOD))
    monkeypatch.delitem(command.CHECKS, command.Part.reference)
    done = CliRunner().invoke(app, ["check"])
    assert done.exit_code == 1
    assert "check: FAILED: law passed, invariance FAILED, sbc passed" in done.output
    assert CliRunner().invoke(app, ["check", "laws"]).exit_code == 2


def test_a_part_that_is_not_there_fails_with_a_word(monkeypatch):
    monkeypatch.setitem(command.CHECKS, command.Part.reference, ("langevin_paper.check.nowhere", "check_reference"))
    done = CliRunner().invoke(app, ["check", "reference"])
    assert done.exit_code == 1
    assert "has no langevin_paper.check.nowhere" in done.output


def test_the_command_runs_writes_its_record_and_repeats_bit_for_bit(tmp_path):
    """In a process of its own, and in this one."""
    command = [sys.executable, "-c", "from langevin_paper.cli import main; main()", "check", "invariance", "--quick", "--out"]
    done = subprocess.run([*command, str(tmp_path / "first")], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "invariance: passed: 20 accepted, 6 broken on purpose and refused" in done.stdout
    again = CliRunner().invoke(app, ["check", "invariance", "--quick", "--out", str(tmp_path / "second")])
    assert again.exit_code == 0
    first, second = ((tmp_path / folder / "invariance.json").read_bytes() for folder in ("first", "second"))
    assert first == second
    record = json.loads(first)
    assert record["passed"]
    assert len(record["rows"]) == 26
    assert (tmp_path / "first" / "invariance.png").stat().st_size > 10_000


@pytest.mark.slow
@pytest.mark.parametrize("part", ["law", "sbc"])
def test_the_other_parts_pass_too(part, tmp_path):
    done = CliRunner().invoke(app, ["check", part, "--quick", "--seed", "1", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert (tmp_path / f"{part}.png").exists()
