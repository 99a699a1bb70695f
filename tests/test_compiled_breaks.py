"""What once broke compiled runs: memory over the first blocks, values behind torch's back, odd strides, damaged files, the exit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

import langevin as lv
from langevin.engines import compiled, compiler, loop, turns
from langevin.engines.runner import Runner
from langevin.engines.tape import UnrecordableError, record

GAUSSIAN = lv.targets.gaussian([[1.0, 0.9], [0.9, 1.0]])
START = torch.linspace(-1, 1, 6, dtype=torch.float64).reshape(3, 2)


def test_memory_goes_on_over_the_blocks_after_a_head_that_is_shorter_than_a_block(monkeypatch):
    """Only the last block of a run may be filled up: the memory goes on over what fills it."""
    monkeypatch.setattr(turns, "_HEAD_SECONDS", 0.02)
    eager, fast = (lv.sample(lv.msgld(0.03), GAUSSIAN, START, num_steps=9000, compile=way) for way in (False, True))
    assert fast.compiled
    torch.testing.assert_close(fast.draws, eager.draws, rtol=1e-9, atol=1e-9)


def test_only_the_last_block_is_shorter(monkeypatch):
    monkeypatch.setattr(turns, "_HEAD_SECONDS", 0.02)
    kernel = lv.msgld(0.03)
    runner = Runner(kernel, lv.gradients.full(GAUSSIAN), compiled=True)
    state, lengths = kernel.init(START), []
    while state.step < 20_000:
        steps = runner.next_steps(state, 20_000)
        state, lengths = state._replace(step=steps.stop), [*lengths, len(steps)]
    assert 0 < lengths[0] < 4096
    assert set(lengths[1:-1]) == {4096}


@pytest.mark.parametrize(
    "sign",
    [
        lambda x: torch.from_numpy(np.sign(x.numpy())),
        lambda x: torch.from_numpy(np.sign(x)),
        lambda x: torch.tensor([1.0 if value > 0 else -1.0 for value in x.tolist()]),
    ],
)
def test_values_that_are_the_same_at_two_places_are_not_believed(sign):
    x = torch.ones(3)
    with pytest.raises(UnrecordableError, match="leave torch"):
        record(lambda: [sign(x)], [x])


def test_the_default_dtype_is_a_part_of_the_program(monkeypatch):
    target = lv.targets.energy(
        lambda theta: ((theta - torch.linspace(0.1, 0.7, 2)) ** 2).sum() + (torch.arange(2) / 3 * theta).sum()
    )
    before = torch.get_default_dtype()
    monkeypatch.setattr(turns, "_HEAD_SECONDS", 0.0)
    torch.set_default_dtype(torch.float64)
    try:
        eager, fast = (lv.sample(lv.sgld(0.03), target, START, num_steps=60, compile=way) for way in (False, True))
        tape = record(lambda: [START + 1], [START])
        names = [loop.name_of(tape, [START], [])]
        torch.set_default_dtype(torch.float32)
        names.append(loop.name_of(tape, [START], []))
    finally:
        torch.set_default_dtype(before)
    assert fast.compiled
    torch.testing.assert_close(fast.draws, eager.draws, rtol=1e-12, atol=1e-12)
    assert names[0] != names[1]


@pytest.mark.parametrize("given", [torch.zeros(1, 5).mT, torch.zeros(4, 8)[:1, ::4], torch.zeros(2, 1).mT])
def test_strides_follow_from_shapes(given):
    assert compiled._plain(given).stride() == torch.empty(given.shape).stride()
    assert torch.equal(compiled._plain(given), given)


def test_what_stands_beside_code_is_checked_with_it(tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "folder", lambda: tmp_path)
    made, nodes = tmp_path / "made", tmp_path / "nodes"
    made.write_bytes(b"code")
    nodes.write_text("{}")
    path = tmp_path / f"name-{loop.checksum(made, nodes)}.so"
    made.replace(path)
    assert loop.checksum(path) != path.stem.partition("-")[2]
    nodes.replace(path.with_suffix(".json"))
    assert loop.find("name") == path
    path.with_suffix(".json").write_text("damaged")
    assert loop.find("name") is None
    assert not list(tmp_path.iterdir())


def test_a_compiler_that_ended_of_itself_is_started_again(monkeypatch):
    """It ends after half a minute without work, maybe just when there is some."""
    asked = []

    class Ended:
        def ask(self, data):
            asked.append(data)
            return None if len(asked) == 1 else loop.Path("found.so")

    monkeypatch.setattr(compiler, "_server", Ended)
    tape = record(lambda: [START + 1], [START])
    assert compiler.build("name", tape, [START], []).result(10) == loop.Path("found.so")
    assert len(asked) == 2


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="needs POSIX signals")
def test_the_end_of_a_process_does_not_wait_for_its_compiler(tmp_path):
    """The compiler is stopped; whoever waited for it would wait for ever."""
    script = """
import os, signal, torch
from langevin.engines import compiler, tape
x = torch.ones(2)
future = compiler.build("name", tape.record(lambda: [x + 1], [x]), [x], [])
while not compiler._servers:
    pass
print(compiler._servers[-1]._process.pid, flush=True)
os.kill(compiler._servers[-1]._process.pid, signal.SIGSTOP)
"""
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    command = [sys.executable, "-X", "dev", "-c", script]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=False)
    os.kill(int(ended.stdout), signal.SIGKILL)
    assert ended.returncode == 0
    assert "still running" not in ended.stderr


def test_folders_of_compilers_that_were_killed_are_cleared_away(monkeypatch, tmp_path):
    old, young = tmp_path / ".old", tmp_path / ".young"
    for place in (old, young):
        place.mkdir()
    os.utime(old, (0, time.time() - 2 * compiler._STALE_SECONDS))

    def stop(*arguments):
        raise RuntimeError("enough")

    monkeypatch.setattr(compiler, "_assemble", stop)
    job = compiler.Job("name", str(tmp_path), torch.get_default_dtype(), [], [], [], [], [])
    with pytest.raises(RuntimeError, match="enough"):
        compiler._compile(job)
    assert list(tmp_path.iterdir()) == [young]
