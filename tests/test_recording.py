"""Recordings: what can be recorded, what is rejected, and what a run does then."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest
import torch

import langevin as lv
from langevin.compiler.record import UnrecordableError, agreeing, record

GAUSSIAN = lv.targets.gaussian([[1.0, 0.9], [0.9, 1.0]])
START = torch.linspace(-1, 1, 6, dtype=torch.float64).reshape(3, 2)


def twice(function, x):
    y = x + 1
    return agreeing(record(lambda: [function(x)], [x]), record(lambda: [function(y)], [y]))


def test_a_recording_has_the_operations_and_takes_other_tensors_as_constants():
    x, matrix = torch.ones(3), torch.eye(3)
    tape = record(lambda: [(matrix @ x).sin()], [x])
    assert [operation.name for operation in tape.operations] == [
        "aten.unsqueeze.default",
        "aten.mm.default",
        "aten.select.int",
        "aten.sin.default",
    ]
    assert tape.constants[0] is matrix
    same = record(lambda: [(torch.eye(3) @ x).sin()], [x])
    assert tape.text() != same.text()  # there the matrix is made anew, by an operation
    assert tape.text() == record(lambda: [(matrix @ x).sin()], [x]).text()
    assert tape.text() != record(lambda: [(matrix @ x).cos()], [x]).text()
    assert record(lambda: [2.0 * x], [x]).text() != record(lambda: [3.0 * x], [x]).text()


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: x if float(x.sum()) > 0 else -x, "reads values"),
        (lambda x: x[x > 0], "reads values"),
        (lambda x: x + torch.rand_like(x), "random numbers"),
        (lambda x: x.mul_(2.0), "mutates its input"),
        (lambda x: x[:1].add_(1.0), "mutates its input"),
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

    with pytest.raises(UnrecordableError, match="two recordings differ"):
        twice(unseen, torch.ones(3))
    with pytest.raises(UnrecordableError, match=r"leaves torch \(Tensor.numpy"):
        twice(lambda x: x + torch.from_numpy(np.sin(x.numpy())), torch.ones(3))
    assert len(twice(lambda x: x + torch.tensor([1.0, 2.0, float("nan")]), torch.ones(3)).constants) == 1


def test_python_that_counts_is_found_by_a_second_recording():
    calls = []

    def counting(x):
        calls.append(1)
        return len(calls) * x

    with pytest.raises(UnrecordableError, match="two recordings differ"):
        twice(counting, torch.ones(3))


def test_a_target_that_leaves_torch_runs_eagerly_with_its_own_law():
    class ByNumPy(lv.targets.Target):
        def evaluate(self, position, batch=None):
            gradient = torch.from_numpy(position.numpy() ** 3)
            return lv.targets.Evaluation((position**4).sum(-1) / 4, gradient)

    with pytest.warns(UserWarning, match="continuing with eager execution.*NumPy"):
        samples = lv.sample(ByNumPy(), sampler=lv.sgld(0.01), init=START, num_steps=50, compile=True)
    assert torch.equal(samples.draws, lv.sample(ByNumPy(), sampler=lv.sgld(0.01), init=START, num_steps=50, compile=False).draws)


def run(**rest):
    return lv.sample(GAUSSIAN, sampler=lv.msgld(0.03), init=START, **{"num_steps": 60, "compile": True, **rest})


def test_a_compiled_run_that_is_resumed_has_the_same_bits(tmp_path):
    whole = run(num_steps=20_000, out=tmp_path / "whole.zarr")
    seen = []

    def stop(done, total):
        seen.append(done)
        if len(seen) == 2:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.warns(UserWarning, match="interrupted"):
        part = run(num_steps=20_000, out=tmp_path / "part.zarr", progress=stop)
    assert 0 < part.draws.shape[1] < 20_000
    again = lv.resume(tmp_path / "part.zarr", GAUSSIAN, sampler=lv.msgld(0.03))
    assert np.array_equal(np.asarray(again.draws), np.asarray(whole.draws))


def test_a_constant_in_another_dtype_is_made_once_and_is_a_constant():
    x, matrix = torch.ones(3), torch.eye(3, dtype=torch.float64)
    tape = record(lambda: [matrix.to(x) @ (matrix.to(x) @ x)], [x])
    assert [operation.name for operation in tape.operations] == [
        *["aten.unsqueeze.default", "aten.mm.default", "aten.select.int"] * 2
    ]
    assert [tensor.dtype for tensor in tape.constants] == [torch.float64, torch.float32]
    with pytest.raises(UnrecordableError, match="mutates its input"):
        record(lambda: [matrix.to(x).add_(x)], [x])


@pytest.mark.parametrize(
    "sign",
    [
        lambda x: torch.from_numpy(np.sign(x.numpy())),
        lambda x: torch.from_numpy(np.sign(x)),
        lambda x: torch.tensor([1.0 if value > 0 else -1.0 for value in x.tolist()]),
    ],
)
def test_values_that_are_equal_at_two_places_are_rejected(sign):
    x = torch.ones(3)
    with pytest.raises(UnrecordableError, match="leaves torch"):
        record(lambda: [sign(x)], [x])


def test_the_default_dtype_is_a_part_of_the_program():
    target = lv.targets.energy(
        lambda theta: ((theta - torch.linspace(0.1, 0.7, 2)) ** 2).sum() + (torch.arange(2) / 3 * theta).sum()
    )
    before = torch.get_default_dtype()
    try:
        for dtype in (torch.float64, torch.float32):
            torch.set_default_dtype(dtype)
            eager, fast = (lv.sample(target, sampler=lv.sgld(0.03), init=START, num_steps=60, compile=way) for way in (False, True))
            assert fast.compiled
            torch.testing.assert_close(fast.draws, eager.draws, rtol=1e-12, atol=1e-12)
    finally:
        torch.set_default_dtype(before)


def test_a_recording_depends_on_the_strides_of_its_constants():
    texts = {record(lambda x=x: [x + 1], []).text() for x in (START, START.mT.contiguous().mT)}
    assert len(texts) == 2


def test_the_size_of_a_run_counts_a_minibatch_and_not_its_data():
    data, index = torch.ones(1000, 5), torch.arange(3)
    gathered = record(lambda: [data[index].sum()], [])
    assert gathered.num_numbers() == 3 * 5 + 3 * 5
    whole = record(lambda: [data.mT @ data[:, 0]], [])
    assert whole.num_numbers() == 1000 * 5


def test_a_recorder_is_that_of_its_thread():
    """Two threads may record at once: an optimizer's first step, and the steps of a run."""
    from concurrent.futures import ThreadPoolExecutor

    from langevin.compiler.record import current

    with ThreadPoolExecutor(1) as pool:
        found = []

        def double():
            found.append((current() is not None, pool.submit(current).result()))
            return [2 * x]

        x = torch.ones(2)
        record(double, [x])
    assert found == [(True, None)]
