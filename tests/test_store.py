"""Draws on disk: streamed, read while they grow, and resumed bit for bit after a kill."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import zarr

import langevin as lv
from langevin import store

driver = sys.modules["langevin.sample"]
X = lv.noise.normal(1, 0, 0, 60, dtype=torch.float64)
TARGET = lv.targets.likelihood(lambda theta, x: -0.5 * (x - theta[0] * theta[1]) ** 2, prior=lv.priors.gaussian(std=1.0))
START = torch.linspace(-1, 1, 6, dtype=torch.float64).reshape(3, 2)
KERNEL = lv.msgld(1e-3, bias_factor=0.5)
SETTINGS = {"data": X, "batch_size": 7, "num_steps": 700, "warmup": 100, "thin": 3, "seed": 4}


def same(a, b):
    for field in ("draws", "energy", "gradient_norm", "step_size"):
        assert torch.equal(getattr(a, field), getattr(b, field)), field
    assert a.status == b.status


@pytest.fixture
def checkpoint_always(monkeypatch):
    monkeypatch.setattr(driver, "_CHECKPOINT_SECONDS", -1.0)


def copies_of_a_run(tmp_path, monkeypatch, **changes):
    """Run once and copy the folder after each checkpoint, as a kill right there would leave it."""
    copies, save = [], store.DiskStore.save

    def save_and_copy(self, checkpoint):
        save(self, checkpoint)
        if not self.path.name.startswith("."):
            copies.append(tmp_path / f"copy{len(copies)}.zarr")
            shutil.copytree(self.path, copies[-1])

    with monkeypatch.context() as patch:
        patch.setattr(store.DiskStore, "save", save_and_copy)
        whole = lv.sample(KERNEL, TARGET, START, out=tmp_path / "whole.zarr", **{**SETTINGS, **changes})
    return whole, copies


def test_draws_on_disk_are_those_in_memory(tmp_path):
    same(lv.sample(KERNEL, TARGET, START, out=tmp_path / "run.zarr", **SETTINGS), lv.sample(KERNEL, TARGET, START, **SETTINGS))
    same(lv.open(tmp_path / "run.zarr"), lv.sample(KERNEL, TARGET, START, **SETTINGS))


@pytest.mark.usefixtures("checkpoint_always")
@pytest.mark.parametrize("compile", [False, True])
def test_a_run_goes_on_bit_for_bit_from_every_checkpoint(tmp_path, monkeypatch, compile):
    monkeypatch.setattr(store, "_CHUNK_ELEMENTS", 100)  # several chunks
    whole, copies = copies_of_a_run(tmp_path, monkeypatch, compile=compile)
    assert len(copies) >= 3
    assert whole.compiled == compile
    for copy in copies:
        before = lv.open(copy)
        assert torch.equal(before.draws, whole.draws[:, : before.draws.shape[1]])
        same(lv.resume(copy, KERNEL, TARGET, data=X), whole)
        same(lv.open(copy), whole)


@pytest.mark.usefixtures("checkpoint_always")
def test_a_run_that_was_compiled_by_auto_is_resumed_so(tmp_path, monkeypatch):
    monkeypatch.setattr(lv.engine, "_COMPILE_SECONDS", 0.0)
    whole, copies = copies_of_a_run(tmp_path, monkeypatch, compile="auto")
    assert whole.compiled
    monkeypatch.setattr(lv.engine, "_COMPILE_SECONDS", 1e9)  # another library would say no now; the run has said yes
    same(lv.resume(copies[-2], KERNEL, TARGET, data=X), whole)


ZYGOTE = """
import os, sys, torch
sys.path.insert(0, {tests!r})
torch.set_num_threads(1)
import test_store as t
t.driver._CHECKPOINT_SECONDS = 0.01
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        if os.path.exists({path!r}):
            t.lv.resume({path!r}, t.KERNEL, t.TARGET, data=t.X)
        else:
            t.lv.sample(t.KERNEL, t.TARGET, t.START, out={path!r}, compile=False, **t.LONG)
        os._exit(0)
    print(child, flush=True)
    _, status = os.waitpid(child, 0)
    print(status, flush=True)
"""
LONG = {**SETTINGS, "num_steps": 20_000}


def test_a_run_killed_many_times_at_random_moments_ends_with_the_same_bits(tmp_path):
    path = tmp_path / "run.zarr"
    script = ZYGOTE.format(tests=str(Path(__file__).parent), path=str(path))
    moments, kills, finished = random.Random(0), 0, False
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as zygote:
        for _ in range(60):
            zygote.stdin.write("go\n")
            zygote.stdin.flush()
            child = int(zygote.stdout.readline())
            time.sleep(moments.uniform(0.05, 0.5))
            if kills < 12:
                with contextlib.suppress(ProcessLookupError):  # it was faster
                    os.kill(child, signal.SIGKILL)
                    kills += 1
            status = int(zygote.stdout.readline())
            assert status in (0, signal.SIGKILL)
            if status == 0:
                finished = True
                break
        zygote.stdin.close()
    assert finished
    assert kills >= 5
    same(lv.open(path), lv.sample(KERNEL, TARGET, START, compile=False, **LONG))


def test_memory_stays_flat_however_many_draws(tmp_path, monkeypatch):
    """What waits for the disk is a chunk and a block at the most, for 10 times as many draws too."""
    monkeypatch.setattr(store, "_CHUNK_ELEMENTS", 600)
    most = []
    for num_steps in (1_000, 10_000):
        peak, write = 0, store.DiskStore.write

        def watched(self, first, values, write=write):
            nonlocal peak
            write(self, first, values)
            peak = max(peak, sum(part.numel() for part in self._waiting.get("draws", [])))

        with monkeypatch.context() as patch:
            patch.setattr(store.DiskStore, "write", watched)
            lv.sample(
                lv.sgld(0.01), lv.targets.gaussian([[1.0]]), torch.zeros(2, 1), num_steps=num_steps, out=tmp_path / f"{num_steps}"
            )
        most.append(peak)
    assert most[1] <= max(most[0], 600 + 2 * 256)


def test_a_function_of_the_position_is_kept_instead(tmp_path, monkeypatch):
    def norm_and_double(theta):
        return torch.stack([theta.norm(), *(2 * theta)])

    expected = lv.sample(KERNEL, TARGET, START, **SETTINGS).draws
    samples = lv.sample(KERNEL, TARGET, START, keep=norm_and_double, **SETTINGS)
    torch.testing.assert_close(samples.draws[..., 0], expected.norm(dim=-1))
    torch.testing.assert_close(samples.draws[..., 1:], 2 * expected)
    monkeypatch.setattr(driver, "_CHECKPOINT_SECONDS", -1.0)
    whole, copies = copies_of_a_run(tmp_path, monkeypatch, keep=norm_and_double)
    same(lv.resume(copies[1], KERNEL, TARGET, data=X, keep=norm_and_double), whole)
    with pytest.raises(ValueError, match=r"keep=.*function"):
        lv.resume(copies[2], KERNEL, TARGET, data=X)


@pytest.mark.usefixtures("checkpoint_always")
def test_moments_only_are_those_of_the_draws(tmp_path, monkeypatch):
    draws = lv.sample(KERNEL, TARGET, START, **SETTINGS).draws
    whole, copies = copies_of_a_run(tmp_path, monkeypatch, keep="moments")
    for samples in (whole, lv.resume(copies[1], KERNEL, TARGET, data=X)):
        assert samples.draws.shape[1] == 0
        assert samples.moments.num.tolist() == [draws.shape[1]] * 3
        torch.testing.assert_close(samples.moments.mean, draws.mean(1))
        for chain in range(3):
            np.testing.assert_allclose(samples.moments.covariance[chain], np.cov(draws[chain].numpy().T), rtol=1e-9)


@pytest.mark.usefixtures("checkpoint_always")
def test_a_step_size_that_was_found_and_a_control_variate_are_resumed(tmp_path, monkeypatch, capsys):
    mode = torch.tensor([0.1, 0.2], dtype=torch.float64)
    kernel = lv.sgld("auto")
    with monkeypatch.context() as patch:
        patch.setattr(sys.modules[__name__], "KERNEL", kernel)
        whole, copies = copies_of_a_run(tmp_path, monkeypatch, control_variate=mode)
    assert "largest curvature" in capsys.readouterr().out
    assert "largest curvature" in whole.description
    same(lv.resume(copies[1], kernel, TARGET, data=X), whole)
    assert capsys.readouterr().out == ""  # the number is in the folder
    by_hand = lv.sample(lv.sgld(whole.step_size[0].item()), TARGET, START, control_variate=mode, **SETTINGS)
    assert torch.equal(by_hand.draws, whole.draws)


def test_an_interrupted_run_on_disk_can_be_resumed(tmp_path):
    class Interrupting:
        needs_data, gradient_noise, calls = False, 0.0, 0

        def evaluate(self, position, batch=None):
            self.calls += 1
            if self.calls == 400:
                signal.raise_signal(signal.SIGINT)
            return lv.targets.Evaluation((position**2).sum(-1) / 2, position)

    target, path = Interrupting(), tmp_path / "run.zarr"
    with pytest.warns(UserWarning, match="interrupted at step"):
        part = lv.sample(lv.sgld(0.01), target, START, num_steps=1000, out=path)
    assert 0 < part.draws.shape[1] < 1000
    expected = lv.sample(lv.sgld(0.01), target, START, num_steps=1000)
    assert torch.equal(part.draws, expected.draws[:, : part.draws.shape[1]])
    same(lv.resume(path, lv.sgld(0.01), target), expected)


@pytest.fixture
def run(tmp_path):
    lv.sample(KERNEL, TARGET, START, out=tmp_path / "run.zarr", **SETTINGS)
    return tmp_path / "run.zarr"


def test_an_existing_folder_is_left_alone(run):
    before = sorted((str(p), p.stat().st_mtime_ns) for p in run.rglob("*"))
    with pytest.raises(FileExistsError, match=r"out=.*run\.zarr.*resume it"):
        lv.sample(KERNEL, TARGET, START, out=run, **SETTINGS)
    assert before == sorted((str(p), p.stat().st_mtime_ns) for p in run.rglob("*"))


def test_another_sampler_target_or_data_set_is_refused_in_words(run):
    with pytest.raises(ValueError, match=r"another sampler.*factor=0\.5.*factor=0\.6"):
        lv.resume(run, lv.msgld(1e-3, bias_factor=0.6), TARGET, data=X)
    with pytest.raises(ValueError, match=r"another sampler.*0\.001.*0\.002"):
        lv.resume(run, lv.msgld(2e-3, bias_factor=0.5), TARGET, data=X)
    with pytest.raises(ValueError, match="another data set"):
        lv.resume(run, KERNEL, TARGET, data=X + 1e-9)
    other = lv.targets.likelihood(lambda theta, x: -0.5 * (x - theta[0]) ** 2, prior=lv.priors.gaussian(std=1.0))
    with pytest.raises(ValueError, match="another energy"):
        lv.resume(run, KERNEL, other, data=X)
    same(lv.resume(run, KERNEL, TARGET, data=X), lv.open(run))  # the right ones are taken


def test_a_truncated_chunk_is_named(run):
    chunk = max((p for p in (run / "draws").rglob("*") if p.is_file() and p.name != "zarr.json"), key=lambda p: p.stat().st_size)
    chunk.write_bytes(chunk.read_bytes()[:-20])
    with pytest.raises(ValueError, match=r"run\.zarr/draws has a damaged or missing chunk"):
        _ = lv.open(run).draws


def test_a_flipped_byte_is_found_by_the_checksum(run):
    chunk = max((p for p in (run / "draws").rglob("*") if p.is_file() and p.name != "zarr.json"), key=lambda p: p.stat().st_size)
    data = bytearray(chunk.read_bytes())
    data[len(data) // 2] ^= 1
    chunk.write_bytes(data)
    with pytest.raises(ValueError, match="damaged"):
        _ = lv.open(run).draws


def test_a_damaged_checkpoint_is_named(run):
    (run / "state.safetensors").write_bytes(b"not a checkpoint")
    with pytest.raises(ValueError, match=r"state\.safetensors is damaged or foreign"):
        _ = lv.open(run).draws


def test_a_manifest_of_another_version_is_refused(run):
    manifest = json.loads((run / "zarr.json").read_text())
    manifest["attributes"]["langevin"]["version"] = 99
    (run / "zarr.json").write_text(json.dumps(manifest))
    with pytest.raises(ValueError, match="version 99, this library reads version 1"):
        lv.resume(run, KERNEL, TARGET, data=X)


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="nothing"):
        lv.open(tmp_path / "nothing")
    zarr.open_group(str(tmp_path / "other"), mode="w")
    with pytest.raises(ValueError, match="not a run of langevin"):
        lv.open(tmp_path / "other")


@pytest.mark.usefixtures("checkpoint_always")
def test_a_full_disk_loses_nothing_that_was_written(tmp_path, monkeypatch):
    calls, write = 0, store.write_atomic

    def full_disk(path, data):
        nonlocal calls
        calls += 1
        if calls == 3:
            raise OSError(28, "No space left on device", str(path))
        write(path, data)

    path = tmp_path / "run.zarr"
    with monkeypatch.context() as patch:
        patch.setattr(store, "write_atomic", full_disk)
        with pytest.raises(OSError, match="No space left"):
            lv.sample(KERNEL, TARGET, START, out=path, compile=False, **SETTINGS)
    same(lv.resume(path, KERNEL, TARGET, data=X), lv.sample(KERNEL, TARGET, START, compile=False, **SETTINGS))


def test_statistics_reach_arviz(run):
    data = lv.open(run).to_arviz()
    assert set(data.sample_stats.data_vars) == {"energy", "gradient_norm", "step_size"}
    assert data.posterior["theta"].shape == (3, 200, 2)
