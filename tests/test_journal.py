"""The journal by itself; kills, full disks, damaged lines and the lock are tested through the bank."""

import errno
import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import langevin.storage.journal
from langevin.storage.journal import Journal, remove_temporaries, write_atomic


class Lines:
    """A state that keeps the lines as they come."""

    def __init__(self):
        self.seen = []

    def apply(self, entry):
        self.seen.append(entry["kind"])


def opened(folder):
    return Journal(folder / "log.jsonl", "log", 1, Lines)


def begun(folder, *kinds):
    journal = opened(folder)
    with journal.writing():
        journal.begin(note="mine")
        journal.append(*({"kind": kind} for kind in kinds))
    return journal


def test_an_atomic_write_replaces_the_file_and_a_failed_one_leaves_it(tmp_path, monkeypatch):
    path = tmp_path / "file"
    for data in (b"long before", b"short", b""):
        write_atomic(path, data)
        assert path.read_bytes() == data

    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    for function in ("write", "fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(os, function, full)
            with pytest.raises(OSError, match="No space left") as caught:
                write_atomic(path, b"after")
        assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(path))
        assert path.read_bytes() == b""
        assert list(tmp_path.iterdir()) == [path]


def test_writers_of_one_file_do_not_disturb_each_other(tmp_path):
    path, errors = tmp_path / "file", []

    def write(letter):
        try:
            for _ in range(30):
                write_atomic(path, letter * 50_000)
                content = path.read_bytes()
                if len(content) != 50_000 or len(set(content)) != 1:
                    errors.append(content[:20])
        except OSError as error:
            errors.append(error)

    threads = [threading.Thread(target=write, args=(letter,)) for letter in (b"a", b"b", b"c")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_is_written_in_parts_and_left_alone_when_they_fail(tmp_path):
    path = tmp_path / "file"
    write_atomic(path, iter([b"one", memoryview(b" two"), b"", b" three"]))
    assert path.read_bytes() == b"one two three"

    def fails():
        yield b"half"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_atomic(path, fails())
    assert path.read_bytes() == b"one two three"
    assert list(tmp_path.iterdir()) == [path]


def test_threads_append_one_after_the_other(tmp_path):
    journal = begun(tmp_path)

    def append(number):
        for k in range(20):
            with journal.writing():
                journal.append({"kind": f"{number} {k}"}, {"kind": "more"})

    threads = [threading.Thread(target=append, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seen = opened(tmp_path).state.seen
    assert journal.state.seen == seen
    assert len(seen) == 161
    assert seen[2::2] == ["more"] * 80


SOURCE = Path(langevin.storage.journal.__file__).parents[1]
WITHOUT_POSIX = """
import os, pathlib, sys, torch
sys.modules.pop("filelock", None)
for name in ("register_at_fork", "O_DIRECTORY", "fork"):
    delattr(os, name)
sys.modules["fcntl"] = None  # cannot be imported
path = pathlib.Path(sys.argv[1])
sys.modules["langevin"] = type(sys)("langevin")
sys.modules["langevin"].__path__ = [sys.argv[2]]
import langevin.nn.bank
from langevin.storage.journal import Journal, write_atomic
write_atomic(path / "file", b"content")
assert (path / "file").read_bytes() == b"content"
assert len(langevin.nn.bank.SampleBank(path)) == 0
"""


def test_importing_reading_and_writing_files_needs_nothing_of_posix(tmp_path):
    subprocess.run([sys.executable, "-c", WITHOUT_POSIX, str(tmp_path), str(SOURCE)], check=True, timeout=120)


def test_only_the_temporaries_of_matching_files_are_removed(tmp_path):
    kept = [".other.1-a.tmp", ".state.1-a.tmp", "draw-1", "draw-1.tmp"]
    for name in (".draw-1.1-a.tmp", ".draw-2.9-b.tmp", *kept):
        (tmp_path / name).touch()
    remove_temporaries(tmp_path, "draw-*")
    assert sorted(p.name for p in tmp_path.iterdir()) == kept
    remove_temporaries(tmp_path, "state")
    assert sorted(p.name for p in tmp_path.iterdir()) == [name for name in kept if "state" not in name]


def test_append_refuses_what_could_not_be_read_back_and_writes_nothing(tmp_path):
    journal = opened(tmp_path)
    with pytest.raises(RuntimeError, match=r"log\.jsonl: append needs the lock"):
        journal.append({"kind": "a"})
    with pytest.raises(ValueError, match="expected a log header on line 1"), journal.writing():
        journal.append({"kind": "a"})
    assert not journal.path.exists()
    begun_bytes = begun(tmp_path / "b", "a").path.read_bytes()
    journal = opened(tmp_path / "b")
    with pytest.raises(ValueError, match="and only there, found 'header'"), journal.writing():
        journal.begin()
    assert journal.path.read_bytes() == begun_bytes


def test_an_append_after_a_failed_one_in_the_same_block_leaves_whole_lines(tmp_path, monkeypatch):
    journal = begun(tmp_path, "a")
    real = os.write

    def half(fd, data):
        real(fd, data[: len(data) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    with journal.writing():
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", half)
            with pytest.raises(OSError, match="No space left"):
                journal.append({"kind": "lost"})
        journal.append({"kind": "b"})
    assert journal.state.seen == opened(tmp_path).state.seen == ["header", "a", "b"]


def test_a_writer_refused_for_a_damaged_line_stays_refused_and_cuts_nothing(tmp_path):
    early = opened(tmp_path)
    begun(tmp_path, "a")
    with early.path.open("ab") as file:
        file.write(b"damaged\n")
    data = early.path.read_bytes()
    for _ in range(2):
        with pytest.raises(ValueError, match=r"log\.jsonl line 3: "), early.writing():
            early.append({"kind": "b"})
    assert early.path.read_bytes() == data


@pytest.mark.filterwarnings("ignore:.*fork")  # beside threads: the child only looks and leaves
def test_an_unpickled_journal_that_takes_the_lock_gives_it_up_in_a_forked_child(tmp_path):
    journal = pickle.loads(pickle.dumps(begun(tmp_path, "a")))
    with journal.writing() as unsure:
        assert unsure
    with journal.writing() as unsure:
        assert not unsure
    assert (journal.lock(), journal.in_step) == (False, True)
    child = os.fork()
    if child == 0:
        code = 2
        try:
            code = int(journal.in_step or journal._lock.is_held)
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert journal.in_step


def test_an_edited_a_missing_and_a_swapped_line_are_noticed(tmp_path):
    path = tmp_path / "totals.jsonl"
    journal = Journal(path, "totals", 1, Lines)
    with journal.writing():
        journal.begin()
        journal.append(*({"kind": "add", "value": value} for value in range(4)))
    journal.unlock()
    lines = path.read_bytes().splitlines(keepends=True)
    for damaged in (
        [*lines[:2], lines[2].replace(b'"value": 1', b'"value": 7'), *lines[3:]],
        [*lines[:2], *lines[3:]],
        [lines[0], lines[2], lines[1], *lines[3:]],
        [*lines, lines[-1]],
    ):
        path.write_bytes(b"".join(damaged))
        with pytest.raises(ValueError, match=r"totals\.jsonl line \d: its checksum"):
            Journal(path, "totals", 1, Lines)
    path.write_bytes(b"".join(lines[:3]))  # cut at a line's end, as by a kill
    assert Journal(path, "totals", 1, Lines).state.seen == ["header", "add", "add"]


@pytest.mark.parametrize("content", [b"\x93garbage" * 100, b"{}", b'{"kind": "header"}\n\x00\x01'])
def test_what_is_no_beginning_of_a_line_is_damage_and_not_a_kill(tmp_path, content):
    path = tmp_path / "totals.jsonl"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"totals\.jsonl"):
        Journal(path, "totals", 1, Lines)
