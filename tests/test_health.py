"""A chain stops where its energy, gradient or position is not finite, or where the target raises; the others do not notice."""

from __future__ import annotations

import warnings

import pytest
import torch

import langevin as lv
from langevin.execution import runner
from langevin.execution.blocks import Trace
from langevin.execution.compiled import Pace
from langevin.execution.eager import run_eagerly
from langevin.sampling import loop

double = torch.float64
EYE = torch.eye(2, dtype=double)


def run(target, init, num_steps=300, kernel=None, **rest):
    """Run without the warnings, which have a test of their own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return lv.sample(
            target, sampler=kernel or lv.sgld(0.1), init=torch.as_tensor(init, dtype=double), num_steps=num_steps, **rest
        )


def on_the_half_line(theta):
    """U of a density x^2 exp(-x^2 / 2) on x > 0."""
    return 0.5 * theta @ theta - 2 * theta.log().sum()


@pytest.mark.parametrize("compile", [False, True])
def test_leaving_the_support_stops_a_chain_before_the_first_draw_outside(compile):
    init = torch.full((20, 1), 1.0, dtype=double)
    samples = run(lv.targets.energy(on_the_half_line), init, kernel=lv.sgld(0.3), compile=compile)
    stopped = [status for status in samples.status if not status.is_healthy]
    assert len(stopped) > 5
    for status, draws in zip(samples.status, samples.draws, strict=True):
        assert (draws[: status.draws] > 0).all()
        assert torch.isnan(draws[status.draws :]).all()
        assert status.draws == status.steps
        assert status.is_healthy == (status.draws == 300)
        assert status.is_healthy or status.reason == "the energy became nan"


def test_the_last_position_of_a_block_and_of_a_run_is_judged_too():
    """The walk is without noise and goes up by 1 in each step; the energy is bad from 256 on, the last position of a block."""

    def wall(height):
        return lv.targets.energy(lambda theta: torch.where(theta < height, -theta, torch.inf).sum())

    for height, num_steps in ((256, 600), (255, 600), (257, 600), (100, 100), (256, 256), (1, 1), (1, 300)):
        samples = run(wall(height), [[0.0]], num_steps, kernel=lv.sgld(1.0, temperature=0.0))
        assert samples.status[0][1:] == (height - 1, height - 1, "the energy became inf: outside the support"), height
        whole = torch.arange(1.0, height, dtype=double)
        assert torch.equal(samples.draws[0, : height - 1, 0], whole)
        assert torch.isnan(samples.draws[0, height - 1 :]).all()
        assert torch.isnan(samples.energy[0, height - 1 :]).all()
    assert run(wall(301), [[0.0]], kernel=lv.sgld(1.0, temperature=0.0)).status[0].is_healthy


def test_thinning_and_warm_up_count_the_draws_of_a_stopped_chain():
    target = lv.targets.energy(lambda theta: torch.where(theta < 256, -theta, torch.inf).sum())
    for warmup, thin in ((0, 1), (0, 2), (10, 3), (255, 1), (254, 1), (280, 1)):
        samples = run(target, [[0.0]], kernel=lv.sgld(1.0, temperature=0.0), warmup=warmup, thin=thin)
        expected = [float(value) for value in range(warmup + thin, 256, thin)]
        assert samples.draws[0, : samples.status[0].draws, 0].tolist() == expected
        assert torch.isnan(samples.draws[0, len(expected) :]).all()


class Edge(lv.targets.Target):
    """A ramp whose chains fail one after the other: energy, gradient or an exception, at -position = 10 times their number."""

    needs_data, gradient_noise = False, 0.0

    def __init__(self, kind):
        self.kind = kind

    def evaluate(self, position, batch=None):
        energy, gradient = 0.0 * position.sum(-1) + 1.0, torch.ones_like(position)
        bad = (position[:, 0] <= -10).nonzero().flatten()
        if self.kind == "raises" and len(bad):
            raise torch.linalg.LinAlgError("the matrix is not positive-definite\nand more")
        if self.kind == "energy":
            energy[bad] = torch.nan
        if self.kind == "gradient":
            gradient[bad] = torch.inf
        return lv.targets.Evaluation(energy, gradient)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("energy", "the energy became nan"),
        ("gradient", "the gradient became non-finite"),
        ("raises", "LinAlgError: the matrix is not positive-definite"),
    ],
)
@pytest.mark.parametrize("keep", ["positions", "moments"])
def test_every_way_to_fail_ends_its_chain_only(kind, reason, keep):
    init = torch.tensor([[1000.0], [20.0], [300.0], [4.0], [1000.0]], dtype=double)
    kernel = lv.sgld(1.0, temperature=1e-6)
    samples = run(Edge(kind), init, num_steps=400, kernel=kernel, keep=keep)
    calm = run(Edge("never"), init, num_steps=400, kernel=kernel)
    for index, status in enumerate(samples.status):
        path = calm.draws[index, :, 0]
        good = int((path > -10).int().argmin()) if (path <= -10).any() else 400
        assert (status.steps, status.draws) == (good, good)
        assert status.reason == (None if good == 400 else reason)
        if keep == "positions":
            assert torch.equal(samples.draws[index, :good, 0], path[:good])
            assert torch.isnan(samples.draws[index, good:]).all()
        else:
            assert samples.moments.num[index] == good
            torch.testing.assert_close(samples.moments.mean[index, 0], path[:good].mean(), rtol=1e-12, atol=0)
            torch.testing.assert_close(samples.moments.covariance[index, 0, 0], path[:good].var(), rtol=1e-9, atol=0)


def test_an_exception_on_every_chain_at_the_start_is_the_users_to_see():
    def broken(theta):
        return torch.linalg.cholesky(-torch.eye(2, dtype=double)).sum() + theta.sum()

    with pytest.raises(torch.linalg.LinAlgError):
        run(lv.targets.energy(broken), torch.zeros(3, 2))


def cholesky_energy(theta):
    matrix = EYE + theta[0] * EYE.flip(0)
    return torch.linalg.cholesky(matrix).diagonal().log().sum() + 20 * (theta**2).sum()


def test_a_cholesky_factor_that_fails_in_one_chain_leaves_the_others_their_bits():
    init = torch.tensor([[0.0], [0.995], [0.1]], dtype=double)
    kernel = lv.sgld(1e-3)
    samples = run(lv.targets.energy(cholesky_energy), init, num_steps=500, kernel=kernel)
    assert "LinAlgError" in samples.status[1].reason
    kept = samples.draws[1, : samples.status[1].draws]
    assert (kept.abs() < 1).all()
    calm = run(lv.targets.energy(cholesky_energy), init[[0, 0, 2]], num_steps=500, kernel=kernel)
    assert all(status.is_healthy for status in calm.status)
    torch.testing.assert_close(samples.draws[[0, 2]], calm.draws[[0, 2]], rtol=1e-9, atol=1e-12)


def test_a_compiled_block_that_raises_is_run_again_eagerly_and_the_run_stays_compiled(monkeypatch):
    """No compiler: what stands in for one takes a block's steps whole, or raises as the target does."""
    blocks = []

    def pretend(self, block, trace, *, every=None):
        whole = Trace(trace.state)
        run_eagerly(self._kernel, self._gradient_fn, block, whole, range(len(trace.state.position)))
        blocks.append(not whole.failed)
        if whole.failed:
            raise torch.linalg.LinAlgError("the matrix is not positive-definite")
        trace.__dict__.update(whole.__dict__)

    init = torch.tensor([[1000.0], [20.0], [700.0], [4.0], [2000.0]], dtype=double)
    kernel = lv.sgld(1.0, temperature=1e-6)
    expected = run(Edge("raises"), init, num_steps=1000, kernel=kernel, compile=False)
    monkeypatch.setattr(runner.Compiled, "run", pretend)
    monkeypatch.setattr(runner.Compiled, "prepare", lambda self, block, state: Pace(1, 256, None))
    samples = run(Edge("raises"), init, num_steps=1000, kernel=kernel, compile=True)
    assert blocks == [False, True, False, True]
    assert samples.compiled
    assert samples.status == expected.status
    torch.testing.assert_close(samples.draws, expected.draws, rtol=0, atol=0, equal_nan=True)


def test_a_chain_that_is_out_is_not_shown_to_the_target_again():
    class Picky(lv.targets.Target):
        """Chain 1 goes NaN early; from call 300 on, in the second block, NaN is no longer borne."""

        needs_data, gradient_noise, calls = False, 0.0, 0

        def evaluate(self, position, batch=None):
            self.calls += 1
            if self.calls > 300 and not torch.isfinite(position).all():
                raise ValueError("NaN")
            gradient = torch.where(position < -10, torch.nan, torch.ones_like(position))
            return lv.targets.Evaluation(gradient[:, 0], gradient)

    init = torch.tensor([[9000.0], [20.0], [9000.0]], dtype=double)
    samples = run(Picky(), init, num_steps=800, kernel=lv.sgld(1.0, temperature=1e-6))
    assert [status.reason for status in samples.status] == [None, "the energy became nan", None]


def test_an_error_that_no_chain_raises_alone_stops_all_and_keeps_their_draws():
    class Moody(lv.targets.Target):
        needs_data, gradient_noise, calls = False, 0.0, 0

        def evaluate(self, position, batch=None):
            self.calls += 1
            if self.calls == 50:
                raise RuntimeError("out of memory")
            return lv.targets.Evaluation((position**2).sum(-1) / 2, position)

    samples = run(Moody(), torch.ones(3, 2))
    assert {status[1:] for status in samples.status} == {(47, 47, "RuntimeError: out of memory")}


def test_a_stopped_chain_is_resumed_as_stopped(tmp_path, monkeypatch):

    monkeypatch.setattr(loop, "_CHECKPOINT_SECONDS", -1.0)
    init = torch.tensor([[1000.0], [20.0], [300.0]], dtype=double)
    kernel = lv.sgld(1.0, temperature=1e-6)
    for keep in ("positions", "moments"):
        whole = run(Edge("raises"), init, num_steps=600, kernel=kernel, keep=keep, out=tmp_path / keep)
        memory = run(Edge("raises"), init, num_steps=600, kernel=kernel, keep=keep)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            again = lv.resume(tmp_path / keep, Edge("raises"), sampler=kernel)
        for samples in (memory, again, lv.load_samples(tmp_path / keep)):
            assert samples.status == whole.status
            torch.testing.assert_close(samples.draws, whole.draws, rtol=0, atol=0, equal_nan=True)
            if keep == "moments":
                for ours, theirs in zip(samples.moments, whole.moments, strict=True):
                    assert torch.equal(ours, theirs)


def test_moments_of_a_chain_without_draws_are_nan_and_the_others_untouched():
    init = torch.tensor([[1000.0], [5.0]], dtype=double)
    samples = run(Edge("energy"), init, num_steps=100, warmup=50, kernel=lv.sgld(1.0, temperature=1e-6), keep="moments")
    assert samples.moments.num.tolist() == [50, 0]
    assert torch.isnan(samples.moments.mean[1]).all()
    assert torch.isnan(samples.moments.covariance[1]).all()
    assert torch.isfinite(samples.moments.mean[0]).all()


def test_bad_starts_are_refused_with_chain_and_value():
    target = lv.targets.energy(on_the_half_line)
    with pytest.raises(ValueError, match=r"sample\(init=...\) needs a finite energy and gradient where chain 6 starts.*energy nan"):
        lv.sample(target, sampler=lv.sgld(0.1), init=torch.tensor([[1.0], [-1.0]]), num_steps=5, first_chain=5)
    with pytest.raises(ValueError, match=r"chain 0 starts.*energy inf"):
        lv.sample(target, sampler=lv.sgld(0.1), init=torch.zeros(1, 1), num_steps=5)
    with pytest.raises(ValueError, match=r"chain 0 starts.*gradient \[inf"):
        lv.sample(lv.targets.energy(lambda theta: theta.sqrt().sum()), sampler=lv.sgld(0.1), init=torch.zeros(1, 1), num_steps=5)


def test_a_log_density_given_as_energy_gets_a_hint_at_the_sign():
    upside_down = lv.targets.energy(lambda theta: -0.5 * theta @ theta)
    start = torch.ones(2, 1, dtype=double)
    with pytest.warns(UserWarning, match=r"chains \[3, 4\] diverged.*U = -log p"):
        samples = lv.sample(upside_down, sampler=lv.sgld(0.1), init=start, num_steps=400, first_chain=3)
    assert all(status.is_healthy for status in samples.status)
    with pytest.warns(UserWarning, match=r"(?s)the energy became -inf; \d+ draws kept.*log density.*U = -log p"):
        lv.sample(upside_down, sampler=lv.sgld(0.1), init=start, num_steps=8000)


def test_large_energies_and_far_positions_alone_are_no_reason_for_a_hint():
    far = lv.targets.energy(lambda theta: 0.5 * (theta - 1e9) @ (theta - 1e9))
    low = lv.targets.energy(lambda theta: 0.5 * theta @ theta - 1e12)
    for target, start in ((far, 1e9), (low, 0.0)):
        samples = lv.sample(target, sampler=lv.sgld(0.1), init=torch.full((2, 1), start, dtype=double), num_steps=50)
        assert samples.trust["sign"].is_fine


def test_what_is_kept_may_be_whole_numbers_although_a_chain_stops():
    init = torch.tensor([[1000.0], [4.0]], dtype=double)
    samples = run(
        Edge("raises"), init, num_steps=1000, kernel=lv.sgld(1.0, temperature=1e-6), keep=lambda theta: (theta > 0).long()
    )
    assert not samples.status[0].is_healthy or not samples.status[1].is_healthy
    assert samples.draws.dtype == double
