"""One bank in many threads, and readers beside a writer, in the same process or in another one."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch
from bank_models import PRELUDE, SOURCE, filled, randn, same, small
from torch import nn

from langevin.nn.bank import CorruptDrawError, SampleBank


def in_threads(*jobs):
    """Run the jobs at once and raise the first of their errors."""
    errors, gate = [], threading.Barrier(len(jobs))

    def guarded(job):
        try:
            gate.wait()
            job()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def constant(value):
    model = nn.Sequential(nn.Linear(3, 2, device="meta").to_empty(device="cpu"))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(value)
    return model


def test_draws_added_by_several_threads_are_all_kept_and_whole(tmp_path):
    bank = SampleBank(tmp_path, thin=2)

    def add(first):
        for value in range(first, first + 20):
            bank.add(constant(value), step=value)

    in_threads(*(lambda k=k: add(20 * k) for k in range(4)))
    for view in (bank, SampleBank.open(tmp_path)):
        assert (view.calls, len(view)) == (80, 40)
        assert [draw.index for draw in view.draws] == list(range(40))
        for i, draw in enumerate(view.draws):
            assert torch.equal(view.state_dict(i)["0.weight"], torch.full((2, 3), float(draw.step)))


def test_add_rewind_update_bn_and_close_in_threads_leave_a_whole_bank(tmp_path):
    bank, _ = filled(tmp_path, 2, max_draws=3)
    models, batch = [small(seed) for seed in range(12)], randn(8, 3)

    def adds():
        for step, model in enumerate(models):
            bank.add(model, step=step)

    def updates():
        for _ in range(4):
            bank.update_bn(models[0], [batch])

    def rewinds():
        for calls in (2, 4, 6):
            bank.rewind(calls)
            bank.close()

    in_threads(adds, updates, rewinds)
    bank.close()
    again = SampleBank.open(tmp_path)
    assert again.calls == bank.calls
    assert again.draws == bank.draws
    for i, draw in enumerate(again.draws):
        assert torch.equal(again.state_dict(i)["0.weight"], models[draw.step][0].weight)
    assert sorted(p.name for p in tmp_path.glob("*draw*")) == sorted(draw.path.name for draw in again.draws)


def test_readers_in_other_threads_see_whole_states_only(tmp_path):
    bank, models = filled(tmp_path, 4, max_draws=3)
    done, batch = threading.Event(), randn(8, 3)

    def write():
        try:
            for step in range(4, 40):
                bank.add(models[step % 4], step=step)
                if step % 20 == 0:
                    bank.update_bn(models[0], [batch])
        finally:
            done.set()

    def read():
        while not done.is_set():
            indices = [draw.index for draw in bank.draws]
            assert len(bank) == 3
            assert indices == list(range(indices[0], indices[0] + 3))
            for draw, module in bank._each(models[0], "raise"):  # draws that are deleted meanwhile are left out
                assert torch.equal(module[0].weight, models[draw.step % 4][0].weight)

    in_threads(write, read, read)
    assert [draw.step for draw in bank.draws] == [37, 38, 39]


@pytest.mark.filterwarnings("ignore:.*fork")  # beside threads: that is the point
def test_a_child_forked_while_another_thread_writes_does_not_wait_for_that_thread(tmp_path):
    bank, _ = filled(tmp_path)
    held, release = threading.Event(), threading.Event()

    def hold():
        with bank._writing():
            held.set()
            release.wait(20)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(20)
    child, code = os.fork(), None
    if child == 0:
        bank.close()
        os._exit(0)
    deadline = time.monotonic() + 10
    while code is None and time.monotonic() < deadline:
        time.sleep(0.02)
        pid, status = os.waitpid(child, os.WNOHANG)
        code = os.waitstatus_to_exitcode(status) if pid else None
    if code is None:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    release.set()
    thread.join()
    assert code == 0
    bank.add(small())


def test_a_thread_that_takes_the_lock_does_not_forget_what_another_one_counted(tmp_path, monkeypatch):
    bank, model, second = SampleBank(tmp_path, thin=5), small(), threading.Event()
    real = bank._journal.lock

    def slow():
        taken = real()
        if taken:
            second.wait(0.2)  # long enough for the other thread, if nothing keeps it out
        return taken

    monkeypatch.setattr(bank._journal, "lock", slow)
    in_threads(*[lambda: (bank.add(model), second.set())] * 2)
    assert bank.calls == 2


WRITER = (
    PRELUDE
    + """
model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
bank = bank.SampleBank(sys.argv[2], max_draws=3)
batch = torch.randn(8, 3)
step = 0
while not os.path.exists(sys.argv[3]):
    with torch.no_grad():
        model[0].weight.fill_(step)
    bank.add(model, step=step)
    if step % 3 == 0:
        bank.update_bn(model, [batch])
    if step % 7 == 6:
        bank.rewind(bank.calls - 1)  # the next draw takes the name of a deleted one
    if step == 3:
        print("ready", flush=True)
    step += 1
"""
)


def test_a_reader_beside_a_writing_process_never_fails_and_never_sees_a_wrong_draw(tmp_path):
    stop = tmp_path / "stop"
    writer = subprocess.Popen([sys.executable, "-c", WRITER, SOURCE, str(tmp_path / "bank"), str(stop)], stdout=subprocess.PIPE)
    try:
        assert writer.stdout.readline() == b"ready\n"
        model = nn.Sequential(nn.Linear(3, 4, device="meta").to_empty(device="cpu"), nn.BatchNorm1d(4))
        seen = 0
        for _ in range(60):
            bank = SampleBank.open(tmp_path / "bank")
            assert 2 <= len(bank) <= 3
            for draw, module in bank._each(model, "raise"):
                assert torch.equal(module[0].weight, torch.full((4, 3), float(draw.step)))
                seen += 1
        assert seen > 60
    finally:
        stop.touch()
        assert writer.wait(20) == 0
        writer.stdout.close()


def test_a_draw_that_another_writer_deleted_or_rewrote_since_is_not_called_damaged(tmp_path):
    writer, models = filled(tmp_path, 3, max_draws=3)
    reader = SampleBank.open(tmp_path)
    writer.update_bn(small(), [randn(8, 3)])
    assert same({**reader.state_dict(0), **{k: v for k, v in models[0].state_dict().items() if "1." in k}}, models[0])
    assert reader.state_dict(0)["1.num_batches_tracked"] == 1
    writer.rewind(2)
    writer.add(small(9), step=9)  # takes the place of draw 2
    writer.add(small(9), step=10)  # and draw 0 goes
    with pytest.raises(CorruptDrawError, match=r"draw-00000002\.safetensors: draw 2 was deleted after this bank was opened"):
        reader.state_dict(2)
    assert [m[0].weight.tolist() for m in reader.models(small())] == [models[1][0].weight.tolist()]
