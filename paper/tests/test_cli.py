"""The command line: what it prints, and how it says no."""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import langevin_paper.cli
import pytest
from langevin_paper import report
from langevin_paper.record import Records, read_records
from toys import ENVIRONMENT, TOY
from typer.testing import CliRunner


@pytest.fixture
def call(monkeypatch):
    """Run the command with the toy experiment as the only one."""
    monkeypatch.setattr(langevin_paper.cli, "EXPERIMENTS", {"toy": TOY})
    monkeypatch.setattr(langevin_paper.cli, "find", {"toy": TOY}.__getitem__)
    monkeypatch.setattr(report, "EXPERIMENTS", {"toy": TOY})
    return lambda *arguments: CliRunner().invoke(langevin_paper.cli.app, [str(argument) for argument in arguments])


def test_run_and_report(call, tmp_path):
    out = tmp_path / "records"
    first = call("run", "toy", "--methods", "good", "--seeds", "0-1", "--out", out)
    assert first.exit_code == 0, first.output
    assert "1 cells to run" in first.output
    assert "toy quick good, seeds 0-1:" in first.output
    assert "0 cells to run" in call("run", "all", "--methods", "good", "--out", out).output
    made = call("report", "--records", out, "--out", tmp_path / "page")
    assert made.exit_code == 0, made.output
    assert "10.50 ± 0.50 [paper 11.00 ± 0.50]" in made.output
    assert made.output.rstrip().endswith(str(tmp_path / "page" / "index.html"))


def test_a_failed_cell_is_told_and_gives_exit_code_1(call, tmp_path):
    done = call("run", "toy", "--methods", "bad", "--out", tmp_path)
    assert done.exit_code == 1
    assert "ZeroDivisionError: on purpose" in done.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--scale", "huge"), "one of quick, paper, got 'huge'"),
        (("--methods", "better"), "one of good, slow, bad, got 'better'"),
        (("--seeds", "a-b"), "such as 0-4 or 0,2,7, at most 10000 at once, got 'a-b'"),
    ],
)
def test_wrong_names_are_answered_with_the_choices(call, tmp_path, arguments, words):
    done = call("run", "toy", "--out", tmp_path, *arguments)
    assert done.exit_code == 2
    assert words in done.output


@pytest.mark.parametrize("text", ["5-2", ",", "1,,2", "-3", "0-", "²", "0-99999999", "1e3", "0 1", "99999999999999999999"])
def test_seeds_that_are_none_are_refused_before_anything_is_run(call, tmp_path, text):
    done = call("run", "toy", "--out", tmp_path / "records", f"--seeds={text}")
    assert done.exit_code == 2
    assert done.stderr.strip().splitlines() == [
        f"error: --seeds needs numbers such as 0-4 or 0,2,7, at most 10000 at once, got {text!r}"
    ]
    assert not (tmp_path / "records").exists()


def test_a_folder_that_cannot_be_is_said_in_one_line(call, tmp_path):
    (tmp_path / "file").write_text("x")
    made = call("run", "toy", "--methods", "good", "--out", tmp_path / "records")
    assert made.exit_code == 0
    for arguments in (
        ("run", "toy", "--out", tmp_path / "file"),
        ("run", "toy", "--out", tmp_path / "file" / "below"),
        ("report", "--records", tmp_path / "file"),
        ("report", "--records", tmp_path / "records", "--out", tmp_path / "file"),
        ("report", "--records", tmp_path / "records", "--out", tmp_path / "page", "--scale", "huge"),
    ):
        done = call(*arguments)
        assert done.exit_code == 2, done.output
        assert len(done.stderr.strip().splitlines()) == 1
        assert done.stderr.startswith("error: ")
        assert str(tmp_path) in done.stderr


def test_a_damaged_journal_stops_a_run_with_its_line_and_what_to_do(call, tmp_path):
    call("run", "toy", "--methods", "good", "--out", tmp_path)
    path = tmp_path / "records.jsonl"
    path.write_text(path.read_text().replace("10.0", "90.0"))
    done = call("run", "toy", "--methods", "good", "--out", tmp_path)
    assert done.exit_code == 2
    assert "records.jsonl line 2: its checksum is wrong" in done.stderr
    assert "remove that line" in done.stderr


def test_a_full_disk_ends_a_run_in_words_and_what_is_done_is_kept(call, tmp_path, monkeypatch):
    add, count = Records.add, []

    def full(self, records):
        count.append(1)
        if len(count) == 2:
            raise OSError(errno.ENOSPC, "No space left on device", str(self.folder))
        add(self, records)

    monkeypatch.setattr(Records, "add", full)
    done = call("run", "toy", "--methods", "good,bad", "--out", tmp_path)
    assert done.exit_code == 1
    assert "No space left on device" in done.stderr
    assert "1 of 2 cells are done and recorded, and the same command goes on from here" in done.stderr
    assert "1 cells to run" in call("run", "toy", "--methods", "good,bad", "--out", tmp_path).output


INTERRUPTED = """
import sys
from toys import TOY
import langevin_paper.cli
if __name__ == "__main__":
    langevin_paper.cli.EXPERIMENTS, langevin_paper.cli.find = {"toy": TOY}, {"toy": TOY}.__getitem__
    langevin_paper.cli.main()
"""


@pytest.mark.parametrize(("sign", "done"), [("work/toy-paper-slow*/counter", 1), ("work/*", 0)], ids=["running", "starting"])
def test_ctrl_c_keeps_the_finished_cells_and_says_so(tmp_path, sign, done):
    out = tmp_path / "records"
    (tmp_path / "script.py").write_text(INTERRUPTED)
    command = [
        sys.executable,
        str(tmp_path / "script.py"),
        "run",
        "toy",
        "--scale",
        "paper",
        "--methods",
        "good,slow",
        "--out",
        str(out),
    ]
    process = subprocess.Popen(
        command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    deadline = time.monotonic() + 120
    while not list(out.glob(sign)):
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    if not done:
        time.sleep(0.5)  # the process that was started imports torch
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all processes
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    told = re.search(r"interrupted; (\d) of 2 cells are done and recorded, and the same command goes on from here", errors)
    assert told, errors
    assert done <= int(told[1]) <= 1  # on a busy machine the first cell may end before the interrupt comes
    assert "Traceback" not in errors
    if int(told[1]):
        found = read_records(out)
        assert not found.problems
        assert {record.method for record in found.records} == {"good"}


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="masks of signals are read from /proc")
def test_no_worker_can_meet_an_interrupt_before_it_ignores_it():
    """The first one too: starting multiprocessing's resource tracker, which comes with it, unblocks the signal."""
    script = (
        "from langevin_paper.runner import _Worker\n"
        "import re, pathlib\n"
        "if __name__ == '__main__':\n"
        "    for worker in (_Worker(1), _Worker(1)):\n"
        "        status = pathlib.Path(f'/proc/{worker.process.pid}/status').read_text()\n"
        "        print(int(re.search(r'SigBlk:\\s*(\\w+)', status)[1], 16) >> (2 - 1) & 1)\n"
        "        worker.end()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], env=ENVIRONMENT, capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.split() == ["1", "1"]


def test_without_records_there_is_no_report(call, tmp_path):
    done = call("report", "--records", tmp_path / "none", "--out", tmp_path)
    assert done.exit_code == 2
    assert "`langevin-paper run` makes one" in done.output


def test_seeds_are_read():
    assert langevin_paper.cli._numbers("0-2,7") == [0, 1, 2, 7]
    assert langevin_paper.cli._numbers("") is None


def test_the_module_lists_the_experiments_of_the_paper():
    command = [sys.executable, "-W", "error", "-m", "langevin_paper"]
    done = subprocess.run([*command, "list"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    for word in ("gaussian", "mixture", "ravine", "landsat", "psgld-mean", "quick (5 seeds"):
        assert word in done.stdout
    wrong = subprocess.run([*command, "run", "imagenet"], capture_output=True, text=True, timeout=60)
    assert wrong.returncode == 2
    assert "one of gaussian, mixture, mixture-noisy, ravine, ravine-readings" in wrong.stderr


def test_the_command_has_one_name_however_it_is_called(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["__main__.py", "train"])
    with pytest.raises(SystemExit):
        langevin_paper.cli.main()
    assert "Usage: langevin-paper " in capsys.readouterr().err


@pytest.mark.slow
def test_the_demo_runs_every_cell_and_ends_with_the_page(tmp_path):
    names = ("gaussian", "mixture", "ravine", "landsat")
    commands = [
        ["run", *names, "--scale", "quick", "--jobs", "2", "--out", str(tmp_path / "records")],
        ["report", "--records", str(tmp_path / "records"), "--out", str(tmp_path / "page")],
    ]
    for command in commands:
        done = subprocess.run([sys.executable, "-m", "langevin_paper", *command], capture_output=True, text=True, timeout=900)
        assert done.returncode == 0, done.stderr
    assert done.stdout.rstrip().endswith("page/index.html")
    assert (tmp_path / "page" / "overview.png").stat().st_size > 100_000
