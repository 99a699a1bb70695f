"""One bank in many threads, and readers beside a writer, in the same process or in another one."""

import os
import signal
import subprocess
import sys
import threading

import pytest
import torch
from bank_models import PRELUDE, SOURCE, filled, randn, same, small
from torch import nn

from langevin.bank import CorruptDrawError, SampleBank


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
    for view in (bank, SampleBank(tmp_path)):
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
    again = SampleBank(tmp_path)
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
            for step in range(4, 60):
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
    assert [draw.step for draw in bank.draws] == [57, 58, 59]


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
    child = os.fork()
    if child == 0:
        signal.alarm(10)  # a child that waits is killed
        bank.close()
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    release.set()
    thread.join()
    assert code == 0
    bank.add(small())


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
        for _ in range(150):
            bank = SampleBank(tmp_path / "bank")
            assert 2 <= len(bank) <= 3
            for draw, module in bank._each(model, "raise"):
                assert torch.equal(module[0].weight, torch.full((4, 3), float(draw.step)))
                seen += 1
        assert seen > 100
    finally:
        stop.touch()
        assert writer.wait(20) == 0
        writer.stdout.close()


def test_a_draw_that_another_writer_deleted_or_rewrote_since_is_not_called_damaged(tmp_path):
    writer, models = filled(tmp_path, 3, max_draws=3)
    reader = SampleBank(tmp_path)
    writer.update_bn(small(), [randn(8, 3)])
    assert same({**reader.state_dict(0), **{k: v for k, v in models[0].state_dict().items() if "1." in k}}, models[0])
    assert reader.state_dict(0)["1.num_batches_tracked"] == 1
    writer.rewind(2)
    writer.add(small(9), step=9)  # takes the place of draw 2
    writer.add(small(9), step=10)  # and draw 0 goes
    with pytest.raises(CorruptDrawError, match=r"draw-00000002\.safetensors: draw 2 was deleted after this bank was opened"):
        reader.state_dict(2)
    assert [m[0].weight.tolist() for m in reader.models(small())] == [models[1][0].weight.tolist()]
