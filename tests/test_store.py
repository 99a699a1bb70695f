"""Draws on disk: streamed, read while they grow, and resumed bit for bit after a kill."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import functools
import json
import os
import pickle
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
import torch
import zarr

import langevin as lv
from langevin import storage
from langevin.diagnostics.running import no_heat
from langevin.execution import blocks
from langevin.sampling import loop as driver
from langevin.storage import checkpoint, folder, layout, manifest
from langevin.storage import zarr as disk

X = lv.random.normal(1, 0, 0, 60, dtype=torch.float64)
TARGET = lv.targets.likelihood(lambda theta, x: -0.5 * (x - theta[0] * theta[1]) ** 2, prior=lv.priors.gaussian(std=1.0))
START = torch.linspace(-1, 1, 6, dtype=torch.float64).reshape(3, 2)
KERNEL = lv.msgld(1e-3, bias_factor=0.5)
SETTINGS = {"data": X, "batch_size": 7, "num_steps": 700, "warmup": 100, "thin": 3, "seed": 4}


@functools.cache
def MEMORY():
    return lv.sample(TARGET, sampler=KERNEL, init=START, compile=False, **SETTINGS)


def same(a, b):
    for name in ("draws", "energy", "gradient_norm", "step_size"):
        torch.testing.assert_close(getattr(a, name), getattr(b, name), rtol=0, atol=0, equal_nan=True, msg=name)
    assert a.status == b.status


@pytest.fixture
def checkpoint_always(monkeypatch):
    monkeypatch.setattr(driver, "_CHECKPOINT_SECONDS", -1.0)


def copies_of_a_run(tmp_path, monkeypatch, **changes):
    """Run once and copy the folder after each checkpoint, as a kill right there would leave it."""
    copies, save = [], storage.DiskStore.save
    monkeypatch.setattr(blocks, "_MAX_COMPILED", 256)  # several blocks; the resumed runs, too, have blocks of this length

    def save_and_copy(self, checkpoint):
        save(self, checkpoint)
        if not self.path.name.startswith("."):
            copies.append(tmp_path / f"copy{len(copies)}.zarr")
            shutil.copytree(self.path, copies[-1])

    with monkeypatch.context() as patch:
        patch.setattr(storage.DiskStore, "save", save_and_copy)
        whole = lv.sample(TARGET, sampler=KERNEL, init=START, out=tmp_path / "whole.zarr", **{**SETTINGS, **changes})
    return whole, copies


def test_draws_on_disk_are_those_in_memory(tmp_path):
    same(
        lv.sample(TARGET, sampler=KERNEL, init=START, out=tmp_path / "run.zarr", **SETTINGS),
        lv.sample(TARGET, sampler=KERNEL, init=START, **SETTINGS),
    )
    same(lv.load_samples(tmp_path / "run.zarr"), lv.sample(TARGET, sampler=KERNEL, init=START, **SETTINGS))


@pytest.mark.usefixtures("checkpoint_always")
@pytest.mark.parametrize("compile", [False, True])
def test_a_run_goes_on_bit_for_bit_from_every_checkpoint(tmp_path, monkeypatch, compile):
    monkeypatch.setattr(disk, "_CHUNK_ELEMENTS", 100)  # several chunks
    whole, copies = copies_of_a_run(tmp_path, monkeypatch, compile=compile)
    assert len(copies) >= 3
    assert whole.compiled == compile
    for copy in copies:
        before = lv.load_samples(copy)
        assert torch.equal(before.draws, whole.draws[:, : before.draws.shape[1]])
        same(lv.resume(copy, TARGET, sampler=KERNEL, data=X), whole)
        same(lv.load_samples(copy), whole)


@pytest.mark.usefixtures("checkpoint_always")
def test_a_run_that_was_compiled_by_auto_is_resumed_so(tmp_path, monkeypatch):
    monkeypatch.setattr(lv.execution.compiled, "_COMPILE_SECONDS", 0.0)
    whole, copies = copies_of_a_run(tmp_path, monkeypatch, compile="auto")
    assert whole.compiled
    monkeypatch.setattr(lv.execution.compiled, "_COMPILE_SECONDS", 1e9)  # another library would say no now; the run has said yes
    same(lv.resume(copies[-2], TARGET, sampler=KERNEL, data=X), whole)


ZYGOTE = """
import os, sys, torch
os.fsync = lambda fd: None  # a kill loses nothing that the system has taken
sys.path.insert(0, {tests!r})
torch.set_num_threads(1)
import test_store as t
t.driver._CHECKPOINT_SECONDS = 0.01
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        if os.path.exists({path!r}):
            t.lv.resume({path!r}, t.TARGET, sampler=t.KERNEL, data=t.X)
        else:
            t.lv.sample(t.TARGET, sampler=t.KERNEL, init=t.START, out={path!r}, compile=False, **t.LONG)
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
    same(lv.load_samples(path), lv.sample(TARGET, sampler=KERNEL, init=START, compile=False, **LONG))


def test_memory_stays_flat_however_many_draws(tmp_path, monkeypatch):
    """What waits for the disk is a chunk at the most, for 10 times as many draws too."""
    monkeypatch.setattr(disk, "_CHUNK_ELEMENTS", 600)
    most = []
    for num_steps in (1_000, 10_000):
        peak, write = 0, storage.DiskStore.write

        def watched(self, first, values, write=write):
            nonlocal peak
            write(self, first, values)
            peak = max(peak, sum(chunk.numel() for chunk in self._chunk.values()))

        with monkeypatch.context() as patch:
            patch.setattr(storage.DiskStore, "write", watched)
            lv.sample(
                lv.targets.gaussian([[1.0]]),
                sampler=lv.sgld(0.01),
                init=torch.zeros(2, 1),
                num_steps=num_steps,
                out=tmp_path / f"{num_steps}",
            )
        most.append(peak)
    assert most[1] == most[0] <= 600 + 2 * 600 + 300  # draws, energy, gradient_norm, step_size


def test_a_function_of_the_position_is_kept_instead(tmp_path, monkeypatch):
    def norm_and_double(theta):
        return torch.stack([theta.norm(), *(2 * theta)])

    expected = lv.sample(TARGET, sampler=KERNEL, init=START, **SETTINGS).draws
    samples = lv.sample(TARGET, sampler=KERNEL, init=START, keep=norm_and_double, **SETTINGS)
    torch.testing.assert_close(samples.draws[..., 0], expected.norm(dim=-1))
    torch.testing.assert_close(samples.draws[..., 1:], 2 * expected)
    monkeypatch.setattr(driver, "_CHECKPOINT_SECONDS", -1.0)
    whole, copies = copies_of_a_run(tmp_path, monkeypatch, keep=norm_and_double)
    same(lv.resume(copies[1], TARGET, sampler=KERNEL, data=X, keep=norm_and_double), whole)
    with pytest.raises(ValueError, match=r"keep=.*function"):
        lv.resume(copies[2], TARGET, sampler=KERNEL, data=X)


@pytest.mark.usefixtures("checkpoint_always")
def test_moments_only_are_those_of_the_draws(tmp_path, monkeypatch):
    draws = lv.sample(TARGET, sampler=KERNEL, init=START, **SETTINGS).draws
    whole, copies = copies_of_a_run(tmp_path, monkeypatch, keep="moments")
    for samples in (whole, lv.resume(copies[1], TARGET, sampler=KERNEL, data=X)):
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
    same(lv.resume(copies[1], TARGET, sampler=kernel, data=X), whole)
    assert capsys.readouterr().out == ""  # the number is in the folder
    assert (whole.step_size == whole.step_size[0]).all()


def test_an_interrupted_run_on_disk_can_be_resumed(tmp_path):
    class Interrupting(lv.targets.Target):
        needs_data, gradient_noise, calls = False, 0.0, 0

        def evaluate(self, position, batch=None):
            self.calls += 1
            if self.calls == 400:
                signal.raise_signal(signal.SIGINT)
            return lv.targets.Evaluation((position**2).sum(-1) / 2, position)

    target, path = Interrupting(), tmp_path / "run.zarr"
    with pytest.warns(UserWarning, match="interrupted at step"):
        part = lv.sample(target, sampler=lv.sgld(0.01), init=START, num_steps=1000, out=path, compile=False)
    assert 0 < part.draws.shape[1] < 1000
    expected = lv.sample(target, sampler=lv.sgld(0.01), init=START, num_steps=1000, compile=False)
    assert torch.equal(part.draws, expected.draws[:, : part.draws.shape[1]])
    same(lv.resume(path, target, sampler=lv.sgld(0.01)), expected)


@pytest.fixture
def run(tmp_path):
    lv.sample(TARGET, sampler=KERNEL, init=START, out=tmp_path / "run.zarr", compile=False, **SETTINGS)
    return tmp_path / "run.zarr"


def test_an_existing_folder_is_left_alone(run):
    before = sorted((str(p), p.stat().st_mtime_ns) for p in run.rglob("*"))
    with pytest.raises(FileExistsError, match=r"out=.*run\.zarr.*langevin.resume.*another folder, or remove"):
        lv.sample(TARGET, sampler=KERNEL, init=START, out=run, **SETTINGS)
    assert before == sorted((str(p), p.stat().st_mtime_ns) for p in run.rglob("*"))


def test_another_sampler_target_or_data_set_is_refused_in_words(run):
    with pytest.raises(ValueError, match=r"another sampler.*factor=0\.5.*factor=0\.6"):
        lv.resume(run, TARGET, sampler=lv.msgld(1e-3, bias_factor=0.6), data=X)
    with pytest.raises(ValueError, match=r"another sampler.*0\.001.*0\.002"):
        lv.resume(run, TARGET, sampler=lv.msgld(2e-3, bias_factor=0.5), data=X)
    with pytest.raises(ValueError, match="another data set"):
        lv.resume(run, TARGET, sampler=KERNEL, data=X + 1e-9)
    other = lv.targets.likelihood(lambda theta, x: -0.5 * (x - theta[0]) ** 2, prior=lv.priors.gaussian(std=1.0))
    with pytest.raises(ValueError, match="another energy"):
        lv.resume(run, other, sampler=KERNEL, data=X)
    same(lv.resume(run, TARGET, sampler=KERNEL, data=X), lv.load_samples(run))  # the right ones are taken


def test_a_manifest_of_another_version_is_refused(run):
    manifest = json.loads((run / "zarr.json").read_text())
    manifest["attributes"]["langevin"]["version"] = 99
    (run / "zarr.json").write_text(json.dumps(manifest))
    with pytest.raises(ValueError, match="version 99, this library reads version 6"):
        lv.resume(run, TARGET, sampler=KERNEL, data=X)


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="nothing"):
        lv.load_samples(tmp_path / "nothing")
    zarr.open_group(str(tmp_path / "other"), mode="w")
    with pytest.raises(ValueError, match="not a run of langevin"):
        lv.load_samples(tmp_path / "other")


@pytest.mark.usefixtures("checkpoint_always")
@pytest.mark.parametrize("failing", range(1, 20))
def test_a_full_disk_loses_nothing_that_was_written(tmp_path, monkeypatch, failing):
    """Six files are a new run; four chunks and a checkpoint follow for each block."""
    calls, write = 0, layout.write_atomic

    def full_disk(path, data):
        nonlocal calls
        calls += 1
        if calls == failing:
            raise OSError(28, "No space left on device", str(path))
        write(path, data)

    path = tmp_path / "run.zarr"
    with monkeypatch.context() as patch:
        for module in (checkpoint, layout, manifest):
            patch.setattr(module, "write_atomic", full_disk)
        with pytest.raises(OSError, match=r"No space left.*run\.zarr"):
            lv.sample(TARGET, sampler=KERNEL, init=START, out=path, compile=False, **SETTINGS)
    if failing <= 6:
        assert list(tmp_path.iterdir()) == []
    else:
        same(lv.resume(path, TARGET, sampler=KERNEL, data=X), MEMORY())


HOLDER = "import filelock, sys; lock = filelock.FileLock(sys.argv[1]); lock.acquire(); print(flush=True); sys.stdin.read()"


def test_a_second_writer_is_refused_and_a_dead_one_is_not_waited_for(run):
    def refused():
        with pytest.raises(RuntimeError, match=r"run\.zarr is being written"):
            lv.resume(run, TARGET, sampler=KERNEL, data=X)

    with storage.DiskStore.open(run, write=True):  # another object, of this thread and of another
        refused()
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            pool.submit(refused).result()
        same(lv.load_samples(run), MEMORY())  # readers need no lock
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, run / "lock"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    holder.stdout.readline()
    refused()
    holder.kill()
    holder.communicate()
    same(lv.resume(run, TARGET, sampler=KERNEL, data=X), MEMORY())


def test_the_lock_is_given_back_also_after_an_error(run):
    with pytest.raises(ValueError, match="another sampler") as raised:
        lv.resume(run, TARGET, sampler=lv.sgld(0.1), data=X)
    assert raised.value
    same(lv.resume(run, TARGET, sampler=KERNEL, data=X), MEMORY())


class Telling(lv.targets.Target):
    """A Gaussian target that calls a function at its 300th evaluation."""

    needs_data, gradient_noise = False, 0.0

    def __init__(self, function):
        self.calls, self.function = 0, function

    def evaluate(self, position, batch=None):
        self.calls += 1
        if self.calls == 300:
            self.function()
        return lv.targets.Evaluation((position**2).sum(-1) / 2, position)


def test_sample_and_resume_hold_the_lock_while_they_write(tmp_path):
    path, seen = tmp_path / "run.zarr", []

    def look():
        with pytest.raises(RuntimeError, match=r"run\.zarr is being written"):
            storage.DiskStore.open(path, write=True)
        seen.append(len(seen))
        if len(seen) == 1:
            signal.raise_signal(signal.SIGINT)

    with pytest.warns(UserWarning, match="interrupted at step"):
        lv.sample(Telling(look), sampler=lv.sgld(0.01), init=START, num_steps=600, out=path, compile=False)
    lv.resume(path, Telling(look), sampler=lv.sgld(0.01))
    assert seen == [0, 1]


WRITER = """
import sys
sys.path.insert(0, {tests!r})
import test_store as t
t.driver._CHECKPOINT_SECONDS = -1.0
t.disk._CHUNK_ELEMENTS = 300
print(flush=True)
t.lv.sample(t.lv.targets.gaussian([[1.0]]), sampler=t.lv.sgld(0.01), init=t.START[:, :1], num_steps=200_000, thin=7,
            out={path!r}, compile=False)
"""


def test_a_reader_beside_a_writer_sees_whole_states_only(tmp_path):
    """Whatever moment it is, the draws are the first ones of the run; a kill of the writer ends with a run that goes on."""
    path, reads, lengths = tmp_path / "run.zarr", 0, set()
    target, settings = lv.targets.gaussian([[1.0]]), {"num_steps": 20_000, "thin": 7, "compile": False}
    right = lv.sample(target, sampler=lv.sgld(0.01), init=START[:, :1], **settings)
    script = WRITER.format(tests=str(Path(__file__).parent), path=str(path))
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as writer:
        writer.stdout.readline()
        end = time.monotonic() + 60
        while time.monotonic() < end and len(lengths) < 25:
            if not path.exists():
                continue
            seen = lv.load_samples(path)
            count = min(len(seen.step_size), len(right.step_size))
            for name in layout.ARRAYS:
                found, expected = getattr(seen, name), getattr(right, name)
                axis = 0 if name == "step_size" else 1
                assert torch.equal(found.narrow(axis, 0, count), expected.narrow(axis, 0, count))
            reads += 1
            lengths.add(len(seen.step_size))
        with pytest.raises(RuntimeError, match="is being written"):
            lv.resume(path, target, sampler=lv.sgld(0.01))
        writer.kill()
    assert reads >= len(lengths) >= 25
    assert not list(tmp_path.glob(".*.new"))
    with storage.DiskStore.open(path, write=True) as again:
        assert again.load().kept >= max(lengths)


def test_leftovers_of_killed_creations_are_removed_those_of_living_ones_are_not(tmp_path):
    dead, alive = tmp_path / ".run.zarr.1.aa.new", tmp_path / ".run.zarr.1.bb.new"
    for draft in (dead, alive):
        (draft / "draws").mkdir(parents=True)
    lock = folder.lock_folder(alive)
    lv.sample(TARGET, sampler=KERNEL, init=START, out=tmp_path / "run.zarr", compile=False, **SETTINGS)
    assert sorted(path.name for path in tmp_path.iterdir()) == [alive.name, "run.zarr"]
    lock.release()


def test_what_a_kill_leaves_of_a_file_is_removed_by_the_next_writer(run):
    for where, name in ((run, ".state.safetensors.1-ab.tmp"), (run / "draws", ".c.0.0.0.1-ab.tmp")):
        (where / name).write_bytes(b"half")
    lv.load_samples(run)  # readers touch nothing
    assert len(list(run.rglob("*.tmp"))) == 2
    same(lv.resume(run, TARGET, sampler=KERNEL, data=X), MEMORY())
    assert not list(run.rglob("*.tmp"))


def test_a_draft_that_is_taken_for_a_leftover_is_made_again(tmp_path, monkeypatch):
    """Two creations at once: the second may clean up between the first one's folder and its lock."""
    lock_folder, calls, others = folder.lock_folder, [], []

    def late(folder):
        calls.append(folder)
        if len(calls) == 1:
            others.append(lock_folder(folder))
        return lock_folder(folder)

    monkeypatch.setattr(folder, "lock_folder", late)
    draft, lock = folder.new_draft(tmp_path / "run.zarr")
    assert calls[0] != calls[1] == draft
    assert len(calls) == 2
    lock.release()


def test_the_first_of_two_creations_wins(tmp_path, monkeypatch):
    other, save = tmp_path / "run.zarr", storage.DiskStore.save

    def slow(self, checkpoint):
        save(self, checkpoint)
        other.mkdir(exist_ok=True)  # meanwhile

    monkeypatch.setattr(storage.DiskStore, "save", slow)
    with pytest.raises(FileExistsError, match=r"out=.*run\.zarr"):
        lv.sample(TARGET, sampler=KERNEL, init=START, out=other, **SETTINGS)
    assert list(tmp_path.rglob("*")) == [other]


def places(tmp_path):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    (tmp_path / "folder").mkdir()
    return {
        FileExistsError: ["file", "link", "folder"],
        NotADirectoryError: ["file/run.zarr", "link/run.zarr", "file/a/b/run.zarr"],
    }


def test_a_place_where_no_run_can_be_is_refused_before_any_work(tmp_path, monkeypatch):
    target = Telling(lambda: None)

    def refused(error, out):
        with pytest.raises(error, match=r"sample\(out=\.\.\.\) needs .*" + re.escape(str(out))):
            lv.sample(target, sampler=lv.sgld("auto"), init=START, num_steps=10, out=out)

    cases = places(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    for error, names in cases.items():
        for name in names:
            refused(error, tmp_path / name)
    refused(TypeError, 3)
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # a folder that is read-only, also for root
    refused(PermissionError, tmp_path / "run.zarr")
    assert target.calls == 0
    assert sorted(tmp_path.rglob("*")) == before
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.skipif(not Path("/sys/kernel").is_dir(), reason="needs a folder in which not even root may write")
def test_missing_folders_above_are_made(tmp_path):
    lv.sample(TARGET, sampler=KERNEL, init=START, out=tmp_path / "a" / "b" / "run.zarr", **SETTINGS)
    assert [path.name for path in (tmp_path / "a" / "b").iterdir()] == ["run.zarr"]


def test_a_folder_that_cannot_be_made_is_named_before_the_run(tmp_path):
    target = Telling(lambda: None)
    with pytest.raises(OSError, match=r"/sys/kernel/.*run\.zarr"):
        lv.sample(target, sampler=lv.sgld(0.1), init=START, num_steps=1000, out="/sys/kernel/run.zarr", compile=False)
    assert target.calls < 5


def test_a_run_on_disk_needs_a_dtype_and_draws_that_zarr_has(tmp_path):
    start = torch.zeros(1, 1, dtype=torch.bfloat16)
    with pytest.raises(TypeError, match=r"init=.*float64.*bfloat16"):
        lv.sample(lv.targets.gaussian([[1.0]]), sampler=lv.sgld(0.1), init=start, num_steps=3, out=tmp_path / "a")
    with pytest.raises(ValueError, match=r"keep=.*one element.*\(0,\)"):
        lv.sample(TARGET, sampler=KERNEL, init=START, keep=lambda theta: theta[:0], out=tmp_path / "a", **SETTINGS)
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("checkpoint_always")
def test_chains_that_stopped_stay_stopped_when_the_run_goes_on(tmp_path, monkeypatch):
    """Chain 1 leaves for infinity in the first block; the resumed run must know when and why, and keep its draws from NaN on."""
    target = lv.targets.energy(lambda theta: (theta**4).sum() / 4)
    start = torch.tensor([[0.1], [200.0], [-0.1]], dtype=torch.float64)
    monkeypatch.setattr(sys.modules[__name__], "TARGET", target)
    monkeypatch.setattr(sys.modules[__name__], "START", start)
    with pytest.warns(UserWarning, match="chain 1 stopped"):
        whole, copies = copies_of_a_run(tmp_path, monkeypatch, data=None, batch_size=None, warmup=0, num_steps=600, thin=2)
    assert [status.is_healthy for status in whole.status] == [True, False, True]
    assert 0 < whole.status[1].steps < 20
    assert lv.load_samples(copies[0]).status[1] == whole.status[1]
    with pytest.warns(UserWarning, match="chain 1 stopped"):
        same(lv.resume(copies[0], target, sampler=KERNEL), whole)
    same(lv.load_samples(copies[0]), whole)


@pytest.mark.usefixtures("checkpoint_always")
def test_the_seconds_of_a_resumed_run_are_added_up(tmp_path, monkeypatch):
    _, copies = copies_of_a_run(tmp_path, monkeypatch)
    with storage.DiskStore.open(copies[0], write=True) as half:
        checkpoint = half.load()
        checkpoint.seconds = 1000.0
        half.save(checkpoint)
    start = time.perf_counter()
    assert 1000 < lv.resume(copies[0], TARGET, sampler=KERNEL, data=X).seconds <= 1000 + time.perf_counter() - start
    assert lv.load_samples(copies[0]).seconds > 1000


def test_statistics_reach_arviz(run):
    data = lv.load_samples(run).to_arviz()
    assert set(data.sample_stats.data_vars) == {"energy", "gradient_norm", "step_size"}
    assert data.posterior["theta"].shape == (3, 200, 2)


def numbers(*shape):
    return torch.arange(1.0, 1 + np.prod(shape), dtype=torch.float64).reshape(shape)


MANIFEST = {
    "num_steps": 7, "warmup": 0, "thin": 1, "seed": 0, "first_chain": 5, "num_chains": 3, "dim": 2, "num_draws": 7,
    "batch_size": None, "keep": "positions", "compile": False, "description": "", "found": "", "tuned": None,
    "control_variate": None, "fingerprints": {}, "num_data": None, "temperature": 1.0, "recipe": None,
    "scale": None, "warmup_gradients": 0, "bias_factor": None, "noise": None, "batches": "reshuffled",
}  # fmt: skip


@pytest.mark.parametrize("step_size_shape", [(), (3,)])
@pytest.mark.parametrize("where", ["memory", "disk"])
def test_every_array_is_stored_with_the_draw_first_and_read_with_the_chain_first(tmp_path, monkeypatch, where, step_size_shape):
    monkeypatch.setattr(disk, "_CHUNK_ELEMENTS", 4 * 6)  # chunks of 4 draws
    first = storage.Checkpoint({"position": START, **no_heat(START)})
    if where == "memory":
        made = storage.MemoryStore((2,), 3, 7, START, step_size_shape)
    else:
        made = storage.DiskStore.create(tmp_path / "run", MANIFEST, (2,), first, step_size_shape)
    values = {
        "draws": numbers(7, 3, 2),
        "energy": numbers(7, 3),
        "gradient_norm": -numbers(7, 3),
        "step_size": numbers(7, *step_size_shape),
    }
    last = storage.Checkpoint({"position": START, **no_heat(START)}, step=7, kept=7, stopped={1: storage.Stop(2, 2, "the end")})
    with made as it:
        for start, stop in ((0, 1), (1, 6), (6, 7)):
            it.write(start, {name: value[start:stop] for name, value in values.items()})
        it.save(last)
        assert it.last_checkpoint(last).kept == 7
        about = {"description": "text", "keep": "positions", "temperature": 1.0, "warmup_gradients": 0}
        samples = storage.make_samples(it.read(7), last, range(5, 8), about)
        short = it.read(7)
    for found in (samples, pickle.loads(pickle.dumps(samples)), deepcopy(samples)):
        for name, value in values.items():
            expected = value.transpose(0, 1).clone() if value.ndim > 1 else value
            if value.ndim > 1:
                expected[1, 2:] = torch.nan  # chain 1 has two draws that count
            torch.testing.assert_close(getattr(found, name), expected, rtol=0, atol=0, equal_nan=True)
        assert found.status[1] == (6, 2, 2, "the end")
        assert found.to_arviz().sample_stats["step_size"].shape == (2, 7)
    assert set(short) == set(layout.ARRAYS)
    assert samples.path == (None if where == "memory" else tmp_path / "run")
    if where == "disk":
        same(lv.load_samples(tmp_path / "run"), samples)
        assert zarr.open_group(str(tmp_path / "run"), mode="r")["step_size"].shape == (7, *step_size_shape)


def test_stores_say_whether_an_interrupted_write_can_be_repeated(run):
    values = {name: getattr(MEMORY(), name).transpose(0, 1)[:1] for name in ("draws", "energy", "gradient_norm")}
    values["step_size"] = MEMORY().step_size[:1]
    memory = storage.MemoryStore((2,), 3, 2, START)
    assert memory.can_rewrite
    memory.write(0, values)
    memory.write(0, values)
    now = storage.Checkpoint({"position": START})
    assert memory.last_checkpoint(now) is now
    with storage.DiskStore.open(run, write=True) as on_disk:
        assert not on_disk.can_rewrite
        assert on_disk.last_checkpoint(now).kept == 200
        with pytest.raises(RuntimeError, match=r"run\.zarr: draws are written in order, 200 is next, got 0"):
            on_disk.write(0, values)


def test_the_text_of_samples_is_a_few_lines_and_reads_no_draw(tmp_path, monkeypatch):
    target, settings = lv.targets.gaussian([[1.0]]), {"num_steps": 20, "warmup": 5, "compile": False}
    text = repr(dataclasses.replace(lv.sample(target, sampler=lv.sgld(0.1), init=torch.zeros(4, 1), **settings), seconds=1.2345))
    assert text.splitlines() == [
        "Samples of sgld: dθ = -(grad U) dt + sqrt(2 * 1) dW",
        "  4 chains x 15 draws x (1,), all healthy",
        "  1.23 seconds, in memory",
    ]
    cliff = lv.targets.energy(lambda theta: torch.where(theta < 3, -theta, torch.inf).sum())
    start = torch.tensor([[2.9]] * 5 + [[-100.0]])
    with pytest.warns(UserWarning, match="stopped"):
        lv.sample(cliff, sampler=lv.sgld(0.5), init=start, out=tmp_path / "run", **settings)
    with monkeypatch.context() as patch:
        patch.setattr(layout.Layout, "read", lambda *arguments: pytest.fail("the draws were read"))
        lines = repr(lv.load_samples(tmp_path / "run")).splitlines()
    assert lines[1] == "  6 chains x 15 draws x (1,), 5 stopped early:"
    assert lines[2].startswith("  chain 0 stopped at step ")
    assert "the energy became inf: outside the support" in lines[2]
    assert lines[5] == "  and 2 more, see status"
    assert lines[6].endswith(f"in '{tmp_path}/run'")
    assert len(lines) == 7
    moments = lv.sample(target, sampler=lv.sgld(0.1), init=torch.zeros(1, 1), keep="moments", **settings)
    assert repr(moments).splitlines()[1] == "  1 chains x 15 draws x (1,), as running moments, all healthy"
    scalars = lv.sample(target, sampler=lv.sgld(0.1), init=torch.zeros(1, 1), keep=torch.sum, **settings)
    assert repr(scalars).splitlines()[1] == "  1 chains x 15 draws x (), of a function, all healthy"


def test_a_kernel_may_remember_whole_numbers(tmp_path):
    class Counting(type(lv.sgld(0.1))):
        state_names = ("count",)

        def start(self, position):
            return (torch.zeros(len(position), dtype=torch.int64),)

        def update(self, position, evaluation, noise, state, inputs):
            return super().update(position, evaluation, noise, (), inputs)[0], (state[0] + 1,)

    kernel = Counting("counting", lv.schedules.constant(0.1))
    target, init = lv.targets.gaussian([[1.0]]), torch.zeros(2, 1)
    found = lv.sample(target, sampler=kernel, init=init, num_steps=20, out=tmp_path / "run", compile=False, progress=False)
    assert torch.equal(lv.resume(tmp_path / "run", target, sampler=kernel).draws, found.draws)
