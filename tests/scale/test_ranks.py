"""Optimizers on 1, 2, 3 and 4 ranks, started by torchrun, beside one process: `battery.py` is what the ranks run."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import langevin as lv
from langevin.optim.ranks import Meeting, RanksDisagreeError

HERE = Path(__file__).parent
EXAMPLE = HERE.parents[1] / "examples" / "ranks.py"
QUIET = {**os.environ, "OMP_NUM_THREADS": "1"}


def torchrun(ranks, *arguments, options=()):
    return [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), *options, *map(str, arguments)]


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_ranks_take_the_steps_of_one_process(tmp_path, size):
    out = tmp_path / "found.json"
    done = subprocess.run(torchrun(size, HERE / "battery.py", out), env=QUIET, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    everyone = json.loads(out.read_text())
    assert len(everyone) == size
    for found in everyone:
        assert all(found["batches"])
        assert all(off < 1e-6 for off in found["fsdp"].values())  # the rounding of the reduction
        if size == 1:
            continue
        assert found["same_bits"]["wrong"] == []
        assert found["same_bits"]["compared"] >= 100
        assert found["disagree"].keys() == {"seed", "num_data", "lr", "temperature"}
        for name, (text, stood_still) in found["disagree"].items():
            assert f"{name} (group 0)" in text
            assert f"on rank {size - 1}" in text
            assert stood_still
        if "ddp" in found:
            assert found["ddp"]["off"] < 1e-6
            assert found["ddp"]["equal"]
        if "zero" in found:
            assert found["zero"] == {"equal": True, "warned": []}
        if "tensor_parallel" in found:
            assert found["tensor_parallel"]["off"] < 1e-6
    if size == 4:
        assert any("_StridedShard" in text for text in everyone[0]["tensor_parallel"]["placements"])
    if size == 2:
        for rank, found in enumerate(everyone):
            two_ranks(found, rank)


def two_ranks(found, rank):
    assert all(off < 1e-6 for off in found["offload"].values())
    assert found["corrected"] < 1e-4
    assert "version of langevin" in found["versions"]
    assert "99.0 on rank 1" in found["versions"]
    assert f"as on rank {1 - rank}" in found["zero_without_addresses"][0]
    (asked, before), (noticed, after) = found["replicas_apart"]
    assert asked == noticed == found["replicas_apart"][0][0]
    assert "seed (group 0): 0 on rank 0 but 1 on rank 1" in asked
    assert (before, after) == (0, 2)  # steps that were taken
    assert found["independent"]["apart"] == []
    assert f"as on rank {1 - rank}" in found["independent"]["together"][0]
    assert found["torchs_own_noise"] == {"torch repeats": True, "ours repeats": False}


def weights_of(folder):
    """Return the parameters of all draws, one below the other."""
    bank = lv.SampleBank.open(folder / "draws")
    assert [draw.step for draw in bank.draws] == list(range(10, 161, 10))
    return torch.stack([torch.cat([value.flatten() for value in bank.state_dict(i).values()]) for i in range(len(bank))])


def run_example(ranks, folder, steps):
    command = torchrun(ranks, EXAMPLE, folder, "--steps", steps, "--every", 20)
    done = subprocess.run(command, env=QUIET, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    return weights_of(folder)


def children_of(pid):
    return [int(text) for text in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def wait_for(what, seconds=120):
    end = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < end
        time.sleep(0.01)
    return found


def test_a_killed_rank_is_restarted_and_the_path_is_the_same_on_other_numbers_of_ranks_too(tmp_path):
    whole, killed, moments = tmp_path / "whole", tmp_path / "killed", random.Random(0)
    expected = run_example(2, whole, 160)
    options = ("--max-restarts", "5", "--monitor-interval", "0.1")
    command = torchrun(2, EXAMPLE, killed, "--steps", 160, "--every", 20, options=options)
    with subprocess.Popen(command, env=QUIET, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as agent:
        wait_for(lambda: list(killed.glob("checkpoints/step-*")))
        time.sleep(moments.uniform(0, 0.05))
        os.kill(children_of(agent.pid)[1], signal.SIGKILL)
        assert agent.wait(timeout=200) == 0
    assert torch.equal(weights_of(killed), expected)
    for ranks in (3, 1):  # what two ranks saved after 140 steps goes on elsewhere
        shutil.rmtree(whole / "checkpoints" / "step-000000000160")
        found = run_example(ranks, whole, 160)
        assert float((found - expected).abs().max()) < 1e-6


class LateStore:
    """A store as TCPStore is: `set` does not wait, and what it sent arrives before the same client's next question is answered."""

    def __init__(self, server):
        self.server, self.sent = server, {}

    def set(self, key, value):
        self.sent[key] = value

    def check(self, keys):
        self.server.update(self.sent)
        return all(key in self.server for key in keys)

    def get(self, key):
        self.check([key])
        return self.server[key].encode()


def test_a_rank_never_misses_a_note_that_another_has_written(monkeypatch):
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    server, ranks = {}, {}
    for rank in (0, 1):
        parameter = torch.nn.Parameter(torch.full((3,), float(rank)))
        parameter.grad = torch.ones(3)
        optimizer = lv.optim.SGLD([parameter], lr=0.1, num_data=10)
        meeting = Meeting(optimizer)
        meeting._key = "langevin/SGLD/1"  # both ranks run the same program
        store = LateStore(server)
        monkeypatch.setattr(meeting, "_store", partial(lambda it: it, store))
        ranks[rank] = meeting, [SimpleNamespace(position=parameter.detach(), gradient=parameter.grad)]

    def step(rank):
        monkeypatch.setattr(torch.distributed, "get_rank", lambda: rank)
        meeting, entries = ranks[rank]
        return meeting.step(entries)

    for _ in range(2):
        step(0), step(1)
    for rank in (0, 1):  # rank 0 asks before rank 1 has asked anything
        with pytest.raises(RanksDisagreeError, match="replica parameters have diverged"):
            step(rank)
