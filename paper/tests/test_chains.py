"""Chains of experiments go on after a kill or a full disk, and delete nothing whatever they find."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field

import pytest
import torch
from langevin_paper import chains
from langevin_paper.chains import normal_starts, run_chains
from toys import ENVIRONMENT

import langevin as lv
from langevin.sampling import loop

STEPS = 2_000


@dataclass(frozen=True)
class Counted(lv.targets.Target):
    """N(0, I), which counts its evaluations."""

    calls: list = field(default_factory=list)

    def evaluate(self, position, batch=None):
        self.calls.append(1)
        return lv.targets.base.Evaluation(0.5 * position.square().sum(-1), position)


@pytest.fixture(autouse=True)
def checkpoint_often(monkeypatch):
    monkeypatch.setattr(loop, "_CHECKPOINT_SECONDS", 0.0)


def run(out, progress=lambda share: None, target=None, **changed):
    options = {"chains": range(2), "seed": 0, "num_steps": STEPS, "thin": 10, "compile": False} | changed
    start = normal_starts(options["chains"], 3, seed=0)
    return run_chains(lv.sgld(0.1), target or Counted(), start, progress=progress, out=out, **options)


def files(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def stopping_at(share, error):
    def progress(done):
        if done > share:
            raise error

    return progress


def forbid_a_new_start(monkeypatch):
    def never(*args, **options):
        raise AssertionError("the run was started again")

    monkeypatch.setattr(chains, "sample", never)


def test_a_run_goes_on_and_does_not_start_again(tmp_path, monkeypatch):
    whole = run(tmp_path / "whole").draws
    with pytest.raises(ConnectionError, match="pulled the plug"):
        run(tmp_path / "cut", stopping_at(0.6, ConnectionError("pulled the plug")))
    forbid_a_new_start(monkeypatch)
    target = Counted()
    assert torch.equal(run(tmp_path / "cut", target=target).draws, whole)
    assert 0.3 * STEPS < len(target.calls) < 0.7 * STEPS, "the rest of the steps, and no more"
    target.calls.clear()
    assert torch.equal(run(tmp_path / "cut", target=target).draws, whole)
    assert len(target.calls) < 10, "a finished run is read"


def test_a_full_disk_is_an_os_error_and_the_next_call_goes_on(tmp_path, monkeypatch):
    whole, out = run(tmp_path / "whole").draws, tmp_path / "cut"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    for share in (0.6, 0.8):  # while it starts, and while it goes on

        def fill(done, share=share):
            if done > share:  # no file may grow from here on
                resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))

        try:
            with pytest.raises(OSError, match=r"too large|No space") as caught:
                run(out, fill)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert caught.value.errno in (errno.EFBIG, errno.ENOSPC)
        forbid_a_new_start(monkeypatch)
    target = Counted()
    assert torch.equal(run(out, target=target).draws, whole)
    assert len(target.calls) < 0.7 * STEPS


def test_a_killed_run_goes_on(tmp_path, monkeypatch):
    script = f"""
import sys, time
from pathlib import Path
import langevin.sampling.sample
from test_chains import run
sys.modules["langevin.sampling.loop"]._CHECKPOINT_SECONDS = 0.0
def progress(share):
    if share > 0.6:
        print("here", flush=True)
        time.sleep(60)
run(Path({str(tmp_path / "cut")!r}), progress)
"""
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env=ENVIRONMENT)
    assert process.stdout.readline() == "here\n"
    process.send_signal(signal.SIGKILL)
    process.wait(30)
    process.stdout.close()
    whole = run(tmp_path / "whole").draws
    forbid_a_new_start(monkeypatch)
    target = Counted()
    assert torch.equal(run(tmp_path / "cut", target=target).draws, whole)
    assert len(target.calls) < 0.7 * STEPS


@pytest.mark.parametrize(
    "changed",
    [{"num_steps": STEPS + 10}, {"thin": 5}, {"warmup": 10}, {"seed": 1}, {"chains": range(1, 3)}, {"chains": range(3)}],
    ids=str,
)
def test_a_run_of_other_settings_is_an_error_that_names_the_folder(tmp_path, changed):
    run(tmp_path / "out")
    before = files(tmp_path / "out")
    with pytest.raises(ValueError, match=r"cannot go on with the run in .*/out: .* remove that folder"):
        run(tmp_path / "out", **changed)
    assert files(tmp_path / "out") == before


def test_a_damaged_run_is_an_error_that_names_the_folder_and_nothing_is_deleted(tmp_path):
    with pytest.raises(ConnectionError):
        run(tmp_path / "out", stopping_at(0.6, ConnectionError("cut")))
    out = tmp_path / "out"
    largest = max((path for path in out.glob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    largest.write_bytes(largest.read_bytes()[:40])
    before = files(out)
    with pytest.raises(ValueError, match=r"cannot go on with the run in .*/out: .* Nothing was deleted; remove that folder"):
        run(out)
    assert files(out) == before
    # Gone altogether, the same.
    largest.unlink()
    with pytest.raises(ValueError, match="remove that folder"):
        run(out)


def test_an_interrupted_run_is_no_result(tmp_path):
    def interrupt(share):
        if share > 0.6:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)

    with pytest.warns(UserWarning, match="interrupted"), pytest.raises(RuntimeError, match="interrupted"):
        run(tmp_path / "out", interrupt)
