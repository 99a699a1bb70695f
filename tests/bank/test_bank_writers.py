"""Two writers of one bank, also after its lock was deleted: no draw is lost without an error."""

import json
import os
import pickle
import shutil
import threading

import pytest
from bank_models import filled, randn, small, whole

import langevin.storage.journal
from langevin.nn.bank import SampleBank
from langevin.storage.folder import FolderLock

LOST = r"bank/lock was deleted or replaced while this process had the lock"


@pytest.fixture
def bank(tmp_path):
    """Return a bank with three draws whose writer has the lock."""
    return filled(tmp_path / "bank")[0]


def steps(folder):
    """Return the steps of all draws; every file is read, and is its own."""
    found = whole(SampleBank.open(folder))
    assert [values for _, values in found] == [small(step)[0].weight.tolist() for step, _ in found]
    return [step for step, _ in found]


def second_writer(folder, *added):
    """Take the lock, add draws and keep the lock."""
    other = SampleBank(folder, resume=True)
    for step in added:
        other.add(small(step), step=step)
    return other


def delete(lock):
    lock.unlink()


def replace(lock):
    lock.unlink()
    lock.touch()


def become_a_folder(lock):
    lock.unlink()
    lock.mkdir()


def swap_the_folder(lock):
    shutil.copytree(lock.parent, lock.parent.with_name("copy"))
    lock.parent.rename(lock.parent.with_name("old"))
    lock.parent.with_name("copy").rename(lock.parent)


@pytest.mark.parametrize("lose", [delete, replace, become_a_folder, swap_the_folder])
@pytest.mark.parametrize(
    "write",
    [
        lambda bank: bank.add(small(9), step=9),
        lambda bank: bank.rewind(1),
        lambda bank: bank.update_bn(small(), [randn(8, 3)]),
    ],
    ids=["add", "rewind", "update_bn"],
)
def test_a_writer_whose_lock_is_gone_writes_nothing_more(bank, lose, write):
    lose(bank.path / "lock")
    with pytest.raises(RuntimeError, match=LOST):
        write(bank)
    assert steps(bank.path) == [0, 1, 2]
    assert not list(bank.path.glob("*draw-00000003*"))


@pytest.mark.parametrize("lose", [delete, replace, swap_the_folder])
def test_the_draws_of_a_second_writer_stay_when_the_first_one_notices(bank, lose):
    lose(bank.path / "lock")
    other = second_writer(bank.path, 3, 4)
    with pytest.raises(RuntimeError, match=LOST):
        bank.add(small(9), step=9)
    with pytest.raises(RuntimeError, match="another writer holds the lock"):
        bank.add(small(9), step=9)
    other.add(small(5), step=5)
    assert steps(bank.path) == [0, 1, 2, 3, 4, 5]
    other.close()
    bank.add(small(6), step=6)  # after the error it may take the lock again, and learns what the other one wrote
    assert steps(bank.path) == [0, 1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("moment", ["before the file has its name", "before the line"])
def test_a_lock_that_is_deleted_in_the_middle_of_a_draw_costs_no_draw_of_the_other_writer(bank, monkeypatch, moment):
    others, fsync, replaced = [], os.fsync, os.replace

    def intrude():
        if not others:
            others.append(None)
            (bank.path / "lock").unlink()
            others[0] = second_writer(bank.path, 3)

    def after_fsync(fd):
        fsync(fd)
        if moment.endswith("name"):
            intrude()

    def after_replace(*names):
        replaced(*names)
        if moment.endswith("line"):
            intrude()

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", after_fsync)
        patch.setattr(os, "replace", after_replace)
        with pytest.raises(RuntimeError, match=LOST):
            bank.add(small(9), step=9)
    assert steps(bank.path) == [0, 1, 2, 3]


def test_draws_that_max_draws_would_delete_stay_when_the_lock_is_gone(tmp_path):
    bank, _ = filled(tmp_path / "bank", 3, max_draws=3)
    (bank.path / "lock").unlink()
    with pytest.raises(RuntimeError, match=LOST):
        bank.add(small(9), step=9)
    assert steps(bank.path) == [0, 1, 2]


def test_closing_a_bank_whose_lock_is_gone_changes_no_counter(tmp_path):
    bank = SampleBank(tmp_path / "bank", thin=2)
    for step in range(3):
        bank.add(small(step), step=step)
    (bank.path / "lock").unlink()
    other = SampleBank(bank.path, thin=2, resume=True)
    other.add(small(3), step=3)
    with pytest.raises(RuntimeError, match=LOST):
        bank.close()
    other.add(small(4), step=4)
    other.close()
    assert SampleBank.open(bank.path).calls == 4


def appended(path):
    entry = {"kind": "calls", "calls": 7}
    with path.open("ab") as file:
        file.write(json.dumps(entry).encode() + b"\n")


def cut(path):
    os.truncate(path, path.stat().st_size - 10)


def emptied(path):
    os.truncate(path, 0)


@pytest.mark.parametrize("change", [appended, cut, emptied])
def test_a_manifest_that_somebody_else_changes_is_not_written_over(bank, change):
    change(bank.path / "manifest.jsonl")
    before = (bank.path / "manifest.jsonl").read_bytes()
    with pytest.raises(RuntimeError, match=r"bank/manifest\.jsonl was changed by another writer"):
        bank.add(small(9), step=9)
    assert (bank.path / "manifest.jsonl").read_bytes() == before


def test_a_manifest_that_is_deleted_while_the_bank_is_written_is_not_begun_again(bank):
    (bank.path / "manifest.jsonl").unlink()
    with pytest.raises(RuntimeError, match=r"bank/manifest\.jsonl was changed by another writer"):
        bank.add(small(9), step=9)
    assert len(list(bank.path.glob("draw-*"))) >= 3


def test_a_folder_that_is_deleted_while_the_bank_is_written_is_not_made_again(bank):
    shutil.rmtree(bank.path)
    with pytest.raises(RuntimeError, match=LOST):
        bank.add(small(9), step=9)
    assert not bank.path.exists()


def test_of_many_threads_with_banks_of_their_own_one_writes_and_the_others_are_told(tmp_path):
    errors, written, gate, model = [], [], threading.Barrier(6), small(0)

    def work():
        bank = SampleBank(tmp_path / "bank", resume=True)
        gate.wait()
        try:
            bank.add(model, step=0)
            written.append(bank)
        except RuntimeError as error:
            errors.append(str(error))
        gate.wait()  # all have tried

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(written) == 1
    assert len(errors) == 5
    assert all("another writer holds the lock" in error for error in errors)
    assert steps(tmp_path / "bank") == [0]


def test_a_lock_that_is_deleted_between_its_opening_and_its_locking_is_not_taken(tmp_path, monkeypatch):
    import filelock

    taken = filelock.lock_descriptor

    def slow(fd, **options):
        (tmp_path / "bank" / "lock").unlink()
        return taken(fd, **options)

    monkeypatch.setattr(filelock, "lock_descriptor", slow)
    with pytest.raises(RuntimeError, match=LOST):
        SampleBank(tmp_path / "bank").add(small())
    assert not list((tmp_path / "bank").iterdir())
    with pytest.raises(RuntimeError, match=LOST):  # of a run's folder too
        FolderLock(tmp_path / "bank").acquire()


def test_a_copy_of_a_bank_does_not_write_with_the_lock_of_its_original(bank):
    copy = pickle.loads(pickle.dumps(bank))
    with pytest.raises(RuntimeError, match="another writer holds the lock"):
        copy.add(small(9), step=9)
    bank.close()
    copy.add(small(3), step=3)
    assert steps(bank.path) == [0, 1, 2, 3]


@pytest.mark.filterwarnings("ignore:.*fork")
def test_a_forked_child_neither_writes_nor_keeps_the_lock(bank):
    from_child, to_parent = os.pipe()
    never, _ = os.pipe()
    child = os.fork()
    if child == 0:
        answer = b"wrote"
        try:
            bank.add(small(9), step=9)
        except RuntimeError as error:
            answer = str(error).encode()
        finally:
            os.write(to_parent, answer)
            os.read(never, 1)  # lives on until it is killed below
            os._exit(0)
    assert "another writer holds the lock" in os.read(from_child, 1000).decode()
    try:
        bank.add(small(3), step=3)
        bank.close()
        second_writer(bank.path, 4).close()
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
    assert steps(bank.path) == [0, 1, 2, 3, 4]


def test_append_outside_of_a_lock_that_is_held_is_refused(bank):
    bank.close()
    with pytest.raises(RuntimeError, match="append needs the lock"):
        bank._journal.append({"kind": "calls", "calls": 1})
    with pytest.raises(RuntimeError, match="can only be written while its lock is held"):
        bank._journal.check_lock()
    assert isinstance(bank._journal, langevin.storage.journal.Journal)
