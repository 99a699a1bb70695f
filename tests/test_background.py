"""`sample(..., blocking=False)` returns at once: progress, draws so far, errors, and draws after a cancel."""

from __future__ import annotations

import signal
import threading
import time

import pytest
import torch

import langevin as lv
from langevin.targets import Evaluation

pytestmark = pytest.mark.core
TARGET = lv.targets.gaussian([[1.0, 0.5], [0.5, 1.0]])
SETTINGS = {"sampler": lv.msgld(0.1, invariant=True), "init": torch.zeros(4, 2), "compile": False, "progress": False}


class Paced(lv.targets.Target):
    """A Gaussian that waits at one evaluation until it is told to go on."""

    needs_data, gradient_noise = False, 0.0

    def __init__(self, at):
        self.at, self.calls, self.reached, self.go_on = at, 0, threading.Event(), threading.Event()

    def evaluate(self, position, batch=None):
        self.calls += 1
        if self.calls == self.at:
            self.reached.set()
            assert self.go_on.wait(60)
        return Evaluation((position**2).sum(-1) / 2, position)


def wait_for(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)


@pytest.mark.parametrize("where", ["memory", "disk", "blocks", "blocks on disk"])
def test_a_run_in_another_thread_gives_the_bits_of_a_call(tmp_path, where):
    more = {"engine": "local", "block_size": 2} if "blocks" in where else {}
    run = lv.sample(TARGET, num_draws=200, blocking=False, out=tmp_path / "run" if "disk" in where else None, **SETTINGS, **more)
    samples = run.wait(60)
    assert torch.equal(samples.draws, lv.sample(TARGET, num_draws=200, **SETTINGS, **more).draws)
    assert run.is_done
    assert run.steps == run.num_steps == (400 if more else 200)
    assert run.samples is run.wait() is samples
    assert "done, " in repr(run)


@pytest.mark.parametrize("where", ["memory", "disk"])
def test_draws_so_far_are_a_part_of_the_whole(tmp_path, where, monkeypatch):
    monkeypatch.setattr("langevin.sampling.loop._CHECKPOINT_SECONDS", 0.0)
    target = Paced(at=400)
    out = tmp_path / "run" if where == "disk" else None
    run = lv.sample(target, num_steps=600, blocking=False, out=out, **SETTINGS)
    assert target.reached.wait(60)
    part = run.samples
    (draws,) = {status.draws for status in part.status}
    assert 0 < draws == run.steps < 400
    assert run.num_steps == 600
    assert not run.is_done
    assert "running, " in repr(run)
    before = part.draws.clone()
    assert part.summary().index == ("theta[0]", "theta[1]")
    target.go_on.set()
    whole = run.wait()
    assert torch.equal(whole.draws[:, :draws], before)


@pytest.mark.parametrize("where", ["memory", "disk", "blocks"])
def test_a_cancelled_run_keeps_its_draws(tmp_path, where):
    more = {"engine": lv.distributed.Local(seconds=0.01), "block_size": 2} if where == "blocks" else {}
    out, num_steps = tmp_path / "run" if where == "disk" else None, 10**6
    # in the thread of the run, where Python's warnings are errors
    with pytest.warns(UserWarning, match=r"interrupted at step \d+; it returns \d+ draws"):  # noqa: PT031
        run = lv.sample(TARGET, num_steps=num_steps, blocking=False, out=out, **SETTINGS, **more)
        wait_for(lambda: run.steps > 0)
        samples = run.cancel()
    (draws,) = {status.draws for status in samples.status}
    assert 0 < draws < num_steps
    assert samples.draws.isfinite().all()
    assert torch.equal(samples.draws, lv.sample(TARGET, num_steps=draws, **SETTINGS, **more).draws)
    assert run.cancel() is samples  # nothing is left to cancel


@pytest.mark.parametrize("extra", [-1, 0, 1, 2])
def test_a_run_may_be_cancelled_after_any_step(extra):
    """Also after one step of a block, which has no energy error: there is no next gradient."""
    ends = []
    lv.sample(Paced(at=0), num_steps=600, **{**SETTINGS, "progress": lambda done, total: ends.append(done)})
    assert len(ends) > 1
    steps = ends[0] + extra
    target = Paced(at=1 + steps)  # the first call is the check before the run
    with pytest.warns(UserWarning, match=f"interrupted at step {steps}; it returns {steps} draws"):  # noqa: PT031
        run = lv.sample(target, num_steps=600, blocking=False, **SETTINGS)
        assert target.reached.wait(60)
        threading.Timer(0.1, target.go_on.set).start()
        samples = run.cancel()
    assert samples.draws.shape == (4, steps, 2)


def test_an_error_is_raised_by_wait():
    class Failing(Paced):
        def evaluate(self, position, batch=None):
            raise LookupError("no such row")

    run = lv.sample(Failing(0), num_steps=10, blocking=False, **SETTINGS)
    for _ in range(2):
        with pytest.raises(LookupError, match="no such row"):
            run.wait()
    assert "failed: LookupError" in repr(run)
    assert run.samples is None
    run = lv.sample(TARGET, num_draws=0, blocking=False, **SETTINGS)
    with pytest.raises(ValueError, match=r"sample\(num_draws=\.\.\.\) needs an int >= 1"):
        run.wait()


def test_a_wait_that_is_too_short_leaves_the_run_going():
    target = Paced(at=5)
    run = lv.sample(target, num_steps=10, blocking=False, **SETTINGS)
    assert target.reached.wait(60)
    with pytest.raises(TimeoutError, match=r"wait\(\) timed out after 0\.01 s: <sampling: running"):
        run.wait(0.01)
    target.go_on.set()
    assert run.wait().draws.shape == (4, 10, 2)
    with pytest.raises(ValueError, match=r"wait\(timeout=\.\.\.\) needs >= 0"):
        run.wait(-1)
    with pytest.raises(TypeError, match=r"sample\(blocking=\.\.\.\) needs True or False"):
        lv.sample(TARGET, num_steps=10, blocking="no", **SETTINGS)


def test_control_c_in_wait_cancels_the_run_and_keeps_its_draws():
    with pytest.warns(UserWarning, match="interrupted at step"):  # noqa: PT031
        run = lv.sample(TARGET, num_steps=10**6, blocking=False, **SETTINGS)
        wait_for(lambda: run.steps > 0)
        timer = threading.Timer(0.2, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT))
        timer.start()
        samples = run.wait()
        timer.join()
    assert samples.draws.shape[1] == run.steps > 0
