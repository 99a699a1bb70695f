"""Recorded turns: what can be written down, what is refused, what is kept on disk, how a run begins before its code is there."""

from __future__ import annotations

import os
import signal
import threading
import time

import numpy as np
import pytest
import torch

import langevin as lv
from langevin.engines import compiled, compiler, loop, turns
from langevin.engines.tape import UnrecordableError, agreeing, record, signature

GAUSSIAN = lv.targets.gaussian([[1.0, 0.9], [0.9, 1.0]])
START = torch.linspace(-1, 1, 6, dtype=torch.float64).reshape(3, 2)


def twice(function, x):
    y = x + 1
    return agreeing(record(lambda: [function(x)], [x]), record(lambda: [function(y)], [y]))


def test_a_recording_has_the_operations_and_takes_other_tensors_as_constants():
    x, matrix = torch.ones(3), torch.eye(3)
    tape = record(lambda: [(matrix @ x).sin()], [x])
    assert [operation.name for operation in tape.operations] == ["aten.mv.default", "aten.sin.default"]
    assert tape.constants[0] is matrix
    assert tape.elements == 6
    same = record(lambda: [(torch.eye(3) @ x).sin()], [x])
    assert tape.text() != same.text()  # there the matrix is made anew, by an operation
    assert tape.text() == record(lambda: [(matrix @ x).sin()], [x]).text()
    assert tape.text() != record(lambda: [(matrix @ x).cos()], [x]).text()
    assert record(lambda: [2.0 * x], [x]).text() != record(lambda: [3.0 * x], [x]).text()


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: x if float(x.sum()) > 0 else -x, "look at values"),
        (lambda x: x[x > 0], "look at values"),
        (lambda x: x + torch.rand_like(x), "random numbers"),
        (lambda x: x.mul_(2.0), "change what it was given"),
        (lambda x: x[:1].add_(1.0), "change what it was given"),
    ],
)
def test_what_cannot_be_written_down_once_is_refused(function, reason):
    x = torch.ones(3)
    with torch.random.fork_rng(), pytest.raises(UnrecordableError, match=reason):
        record(lambda: [function(x)], [x])
    assert len(record(lambda: [(x + 1).mul_(2.0)], [x]).operations) == 2  # what was made inside may change


def test_what_is_made_behind_torchs_back_is_found_by_a_second_recording():
    def unseen(x):
        with torch._C._DisableTorchDispatch():  # as a library of somebody's own may do
            made = x.sin()
        return x + made

    with pytest.raises(UnrecordableError, match="not the same at two places"):
        twice(unseen, torch.ones(3))
    with pytest.raises(UnrecordableError, match=r"must not leave torch \(Tensor.numpy"):
        twice(lambda x: x + torch.from_numpy(np.sin(x.numpy())), torch.ones(3))
    assert len(twice(lambda x: x + torch.tensor([1.0, 2.0, float("nan")]), torch.ones(3)).constants) == 1


def test_python_that_counts_is_found_by_a_second_recording():
    calls = []

    def counting(x):
        calls.append(1)
        return len(calls) * x

    with pytest.raises(UnrecordableError, match="not the same"):
        twice(counting, torch.ones(3))


def test_a_target_that_leaves_torch_runs_eagerly_with_its_own_law():
    class ByNumPy(lv.targets.Target):
        def evaluate(self, position, batch=None):
            gradient = torch.from_numpy(position.numpy() ** 3)
            return lv.targets.Evaluation((position**4).sum(-1) / 4, gradient)

    with pytest.warns(UserWarning, match="goes on uncompiled.*NumPy"):
        samples = lv.sample(lv.sgld(0.01), ByNumPy(), START, num_steps=50, compile=True)
    assert torch.equal(samples.draws, lv.sample(lv.sgld(0.01), ByNumPy(), START, num_steps=50, compile=False).draws)


def run(**rest):
    return lv.sample(lv.msgld(0.03), GAUSSIAN, START, **{"num_steps": 60, "compile": True, **rest})


def test_code_is_kept_checked_and_written_again_where_it_is_damaged(monkeypatch, tmp_path):
    monkeypatch.setattr(loop, "folder", lambda: tmp_path)
    monkeypatch.setattr(compiler, "folder", lambda: tmp_path)
    expected = run()
    assert expected.compiled
    (path,) = tmp_path.glob("*.so")
    assert path.stat().st_mode & 0o077 == 0
    monkeypatch.setattr(compiler, "build", lambda *arguments: pytest.fail("it is there"))
    assert torch.equal(run().draws, expected.draws)
    monkeypatch.undo()
    monkeypatch.setattr(loop, "folder", lambda: tmp_path)
    monkeypatch.setattr(compiler, "folder", lambda: tmp_path)
    monkeypatch.setattr(turns, "_HEAD_SECONDS", 0.0)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    other = tmp_path / "copy"
    other.write_bytes(content)
    other.replace(path)  # the old file may still be mapped into memory
    assert loop.find(path.stem.partition("-")[0]) is None
    assert not path.exists()
    assert torch.equal(run().draws, expected.draws)
    assert len(list(tmp_path.glob("*.so"))) == 1


def test_code_is_never_given_other_tensors_than_it_was_made_for():
    kernel, taken = lv.sgld(0.03), compiled.Compiled(lv.sgld(0.03), lv.gradients.full(GAUSSIAN))
    state = kernel.init(START)
    from langevin.engines.blocks import Trace, draw_block

    pace = turns.pace_of(kernel, lv.gradients.full(GAUSSIAN), state, turns.Rows())
    block = draw_block(kernel, lv.gradients.full(GAUSSIAN), START, 0, range(3), range(pace.length))
    taken.run(block, pace.length, Trace(state), pace.turns)
    code = taken._loops[pace.turns]
    for wrong in ([torch.zeros(1)], []):
        with pytest.raises(RuntimeError, match="compiled code is for"):
            code(wrong)
    assert signature([START]) != signature([START.mT])


def test_a_compiler_that_is_killed_is_no_disaster_and_is_started_again(monkeypatch, tmp_path):
    monkeypatch.setattr(loop, "folder", lambda: tmp_path)
    monkeypatch.setattr(compiler, "folder", lambda: tmp_path)

    def kill():
        os.kill(compiler._server()._process.pid, signal.SIGKILL)

    timer = threading.Timer(1.0, kill)
    timer.start()
    with pytest.warns(UserWarning, match="goes on uncompiled.*its process ended"):
        samples = run()
    timer.join()
    assert torch.equal(samples.draws, run(compile=False).draws)
    assert run().compiled


def test_ctrl_c_is_heard_while_the_compiler_works(monkeypatch, tmp_path):
    monkeypatch.setattr(loop, "folder", lambda: tmp_path)
    monkeypatch.setattr(compiler, "folder", lambda: tmp_path)
    timer = threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    begin = time.perf_counter()
    with pytest.warns(UserWarning, match="interrupted"):
        samples = run(num_steps=10_000)
    assert samples.draws.shape[1] == 0
    assert compiler._servers[-1].is_there  # it was not waited for, and works on
    assert time.perf_counter() > begin


def test_a_run_begins_before_its_code_is_there_and_its_bits_do_not_depend_on_when_it_came(monkeypatch, tmp_path):
    monkeypatch.setattr(turns, "_HEAD_SECONDS", 0.02)
    monkeypatch.setattr(loop, "folder", lambda: tmp_path)
    monkeypatch.setattr(compiler, "folder", lambda: tmp_path)
    kernel = lv.msgld(0.03)
    pace = turns.pace_of(kernel, lv.gradients.full(GAUSSIAN), kernel.init(START), turns.Rows())
    assert 0 < pace.head < 1000
    assert pace.head % pace.turns.steps == 0
    told = []
    cold = run(num_steps=1000, progress=lambda done, total: told.append(done))
    assert pace.head in told
    assert cold.compiled
    warm = run(num_steps=1000)
    assert torch.equal(cold.draws, warm.draws)
    eager = run(num_steps=1000, compile=False)
    assert torch.equal(cold.draws[:, : pace.head], eager.draws[:, : pace.head])
    torch.testing.assert_close(cold.draws, eager.draws, rtol=1e-9, atol=1e-9)


def test_a_run_that_is_begun_anew_after_its_first_steps_has_the_same_bits(monkeypatch, tmp_path):
    monkeypatch.setattr(turns, "_HEAD_SECONDS", 0.01)
    whole = run(num_steps=6000, out=tmp_path / "whole.zarr")
    seen = []

    def stop(done, total):
        seen.append(done)
        if len(seen) == 2:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.warns(UserWarning, match="interrupted"):
        part = run(num_steps=6000, out=tmp_path / "part.zarr", progress=stop)
    assert 0 < part.draws.shape[1] < 6000
    again = lv.resume(tmp_path / "part.zarr", lv.msgld(0.03), GAUSSIAN)
    assert np.array_equal(np.asarray(again.draws), np.asarray(whole.draws))


def test_a_constant_in_another_dtype_is_made_once_and_is_a_constant():
    x, matrix = torch.ones(3), torch.eye(3, dtype=torch.float64)
    tape = record(lambda: [matrix.to(x) @ (matrix.to(x) @ x)], [x])
    assert [operation.name for operation in tape.operations] == ["aten.mv.default", "aten.mv.default"]
    assert [tensor.dtype for tensor in tape.constants] == [torch.float64, torch.float32]
    with pytest.raises(UnrecordableError, match="change what it was given"):
        record(lambda: [matrix.to(x).add_(x)], [x])


def test_code_that_was_not_used_for_the_longest_time_makes_room(monkeypatch, tmp_path):
    monkeypatch.setattr(compiler, "_MOST_KEPT", 2)
    for age, name in enumerate(("old", "middle", "new")):
        path = tmp_path / f"{name}-0.so"
        path.write_bytes(b"")
        path.with_suffix(".json").write_text("{}")
        os.utime(path, (1e9 + age, 1e9 + age))
    (tmp_path / ".left").mkdir()
    os.utime(tmp_path / ".left", (1e9, 1e9))
    compiler._tidy(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["middle-0.json", "middle-0.so", "new-0.json", "new-0.so"]
