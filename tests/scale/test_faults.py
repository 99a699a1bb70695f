"""What goes wrong on one rank is an error on all of them, soon, and what was written stays."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import nn

import langevin as lv

HERE = Path(__file__).parent


def linear(outputs):
    with torch.random.fork_rng():  # tests leave the global generator alone
        return nn.Linear(3, outputs)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run(fault, folder, size=2, missing=0):
    """Run ranks without torchrun, which would stop the others; return exit code and last words of each, and the seconds."""
    port, begin = free_port(), time.monotonic()
    ranks = [
        subprocess.Popen(
            [sys.executable, str(HERE / "faulty.py"), fault, str(folder)],
            env={**os.environ, "OMP_NUM_THREADS": "1", "RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1",
                 "MASTER_PORT": str(port)},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(size - missing)
    ]  # fmt: skip
    words = [rank.communicate(timeout=100)[1] for rank in ranks]
    return [rank.returncode for rank in ranks], words, time.monotonic() - begin


def test_a_rank_that_never_comes_is_named(tmp_path):
    (code,), (words,), seconds = run("absent", tmp_path, missing=1)
    assert code == 1
    assert "TimeoutError: join: timed out after 3 s waiting for 1 of 2 ranks: 1 (this is rank 0)" in words
    assert seconds < 60


@pytest.mark.parametrize("fault", ["killed", "memory", "disk"])
def test_a_fault_of_one_rank_ends_all_and_the_last_checkpoint_is_whole(tmp_path, fault):
    codes, words, _ = run(fault, tmp_path)
    assert all(codes), words
    expected = "File too large" if fault == "disk" else "Connection (closed|reset) by peer"
    assert re.search(expected, words[0]), words[0][-2000:]
    if fault == "memory":
        assert "memory" in words[1]
    model = linear(300)
    opt = lv.optim.MSGLD(model.parameters(), lr=1e-3, num_data=10)
    assert lv.distributed.load_checkpoint(tmp_path, model, opt) == 2
    assert opt.param_groups[0]["step"] == 2
    assert torch.isfinite(model.weight).all()


def test_a_folder_without_a_checkpoint_changes_nothing(tmp_path):
    model = linear(2)
    opt = lv.optim.SGLD(model.parameters(), lr=1e-3, num_data=10)
    before = model.weight.detach().clone()
    (tmp_path / ".step-000000000009.draft").mkdir()  # of a life that was killed
    (tmp_path / "step-12").mkdir()
    assert lv.distributed.load_checkpoint(tmp_path, model, opt) is None
    assert lv.distributed.load_checkpoint(tmp_path / "nowhere", model, opt) is None
    assert torch.equal(model.weight, before)


def test_checkpoints_stay_as_many_as_asked_and_a_later_one_of_an_earlier_life_is_replaced(tmp_path):
    model = linear(2)
    opt = lv.optim.SGLD(model.parameters(), lr=1e-3, num_data=10)
    for step in (1, 2, 3, 3):
        lv.distributed.save_checkpoint(tmp_path, model, opt, step, keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000000000002", "step-000000000003"]
    assert lv.distributed.load_checkpoint(tmp_path, model, opt) == 3
    with pytest.raises(ValueError, match=r"save_checkpoint\(keep=.*got 0"):
        lv.distributed.save_checkpoint(tmp_path, model, opt, 4, keep=0)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"batch_size": 5, "num_ranks": 2, "rank": 0}, "a multiple of the 2 ranks, got 5"),
        ({"batch_size": 12}, "at most num_data=10, got 12"),
        ({"batch_size": 4, "rank": 2, "num_ranks": 2}, "a rank below 2, got 2"),
        ({"batch_size": 4, "batches": "x"}, '"reshuffled" or "white", got .x.'),
    ],
)
def test_bad_batches_are_refused(settings, text):
    with pytest.raises(ValueError, match=text):
        lv.distributed.RankBatches(10, **settings)


def test_white_batches_are_those_of_sample_and_go_on_from_any_step():
    whole = lv.distributed.RankBatches(10, 4, seed=2, batches="white", num_steps=6)
    assert len(whole) == 6
    rows = list(whole)
    at = lv.random.stream(lv.random.Purpose.ROWS)
    assert rows == lv.random.white_rows(2, at, range(6), 4, 10).tolist()
    assert list(lv.distributed.RankBatches(10, 4, seed=2, batches="white", first_step=4, num_steps=2)) == rows[4:]
