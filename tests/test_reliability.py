"""The library survives a few faults of every kind (`make reliability` tries thousands), and the harness sees those it does not."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def tools_can_be_imported(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))


SECTIONS = {
    "Abused memory of the optimizers": 90,
    "Nonsensical arguments": 150,
    "Damaged run folders": 24,
    "Damaged banks": 24,
    "Killed runs, eager": 4,
    "Killed training loops": 4,
}
"""The sections of the page, and how many outcomes each counts at least."""


def run_harness(folder, *options):
    page = folder / "page.md"
    command = [sys.executable, "-m", "tools.reliability", *options, "--out", str(page)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, env=environment)
    assert page.exists(), done.stderr[-5000:]
    return done, page.read_text()


@pytest.fixture(scope="module")
def quick_run(tmp_path_factory):
    """Run the harness once for all kinds, since importing everything takes longer than a few faults of a kind."""
    return run_harness(tmp_path_factory.mktemp("reliability"), "--quick")


@pytest.mark.parametrize("title", SECTIONS)
def test_a_few_faults_of_every_kind_are_survived(title, quick_run):
    _, page = quick_run
    section = page.partition(f"## {title}\n")[2].partition("\n## ")[0]
    assert sum(int(times.replace(",", "")) for times in re.findall(r"\| ([\d,]+) \|", section)) >= SECTIONS[title]
    assert "**No failure.**" in section, section


def test_the_exit_code_and_the_page_agree(quick_run):
    done, page = quick_run
    assert re.findall(r"^## (.*)", page, re.MULTILINE) == list(SECTIONS)
    assert (done.returncode == 0) == ("**Failures" not in page), done.stdout[-5000:]


def test_every_abuse_of_every_optimizers_memory_is_survived(tmp_path):
    done, page = run_harness(tmp_path, "--only", "memory")
    assert done.returncode == 0, done.stdout[-5000:]
    assert "**No failure.**" in page


def test_a_signal_and_a_hang_cost_one_case_each():
    from tools.reliability import isolate

    cases = [lambda: 1, lambda: os.kill(os.getpid(), signal.SIGSEGV), lambda: time.sleep(60), lambda: 4]
    outcomes = [outcome for _, outcome in isolate.run(cases, timeout=0.5)]
    assert [outcome.value for outcome in outcomes] == [1, None, None, 4]
    assert "SIGSEGV" in outcomes[1].fate
    assert "hung" in outcomes[2].fate


def test_memory_that_a_case_takes_is_measured():
    from tools.reliability import isolate

    ((_, outcome),) = isolate.run([lambda: len(bytearray(300 * 2**20))], timeout=30)
    assert 250 < outcome.megabytes < 400


def test_clear_errors_are_told_from_obscure_ones():
    from tools.reliability.fuzz import judge

    def kind(function):
        try:
            function()
        except Exception as error:
            return judge(error, ("sample",), ["num_steps"]).kind
        raise AssertionError("no error")

    def raises(error):
        raise error

    assert kind(lambda: raises(ValueError("sample(num_steps=...) needs an int >= 1, got 0"))) == "refused"
    assert kind(lambda: raises(ValueError("streams(chains=...) needs a range, got 3"))) == "refused under another name"
    assert kind(lambda: raises(ValueError("expected a positive value"))) == "obscure error"
    assert kind(lambda: raises(KeyError("num_steps"))) == "obscure error"
    assert kind(lambda: torch.zeros(2) + torch.zeros(3)) == "obscure error"


def test_nonsense_that_is_taken_and_nan_that_comes_out_are_seen(monkeypatch, tmp_path):
    from tools.reliability import calls, fuzz

    def attempt(function, accepts):
        argument = calls.Argument(lambda: 1.0, accepts)
        monkeypatch.setitem(calls.CALLS, "planted", calls.Call(function, {"value": argument}, ("planted",)))
        return fuzz.attempt(fuzz.Trial("planted", (("value", "nan"),))).kind

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert attempt(lambda value: 1.0, lambda value: False) == "nonsense taken"
    assert attempt(lambda value: value, lambda value: True) == "not finite"
    assert attempt(lambda value: 1.0, lambda value: True) == "accepted"


def test_wrong_draws_are_seen(tmp_path):
    from tools.reliability import damage

    (tmp_path / "base").mkdir()
    for name in ("one.json", "two.json"):
        (tmp_path / "base" / name).write_text('{"a": 1, "b": [2, 3]}')

    def read(path):
        text = "".join(file.read_text(errors="replace") for file in sorted(path.glob("*")))
        return {"draws": torch.tensor([float(ord(letter)) for letter in text])}

    def fail(path):
        if any(file.read_text(errors="replace") != '{"a": 1, "b": [2, 3]}' for file in path.glob("*")):
            raise ValueError("something is damaged")  # without the path
        return read(path)

    verdicts = {damage.attempt(f"{number}", tmp_path / "base", read)[0] for number in range(30)}
    assert "wrong draws" in verdicts
    assert "a clear error" not in verdicts
    assert "an obscure error" in {damage.attempt(f"{number}", tmp_path / "base", fail)[0] for number in range(30)}


def test_a_step_that_should_have_failed_and_a_wrong_one_are_seen(monkeypatch):
    from tools.reliability import memory

    def foreign(world):
        world.closure = lambda: world.weight.data.add_(1.0)
        return memory.RIGHT

    monkeypatch.setitem(memory.ABUSES, "nothing at all", lambda world: memory.RIGHT)
    monkeypatch.setitem(memory.ABUSES, "not refused", lambda world: memory.ERROR)
    monkeypatch.setitem(memory.ABUSES, "wrong", foreign)
    assert memory.attempt("MSGLD", "nothing at all") == ("right", "")
    assert memory.attempt("MSGLD", "not refused")[0] == "wrong"
    assert memory.attempt("MSGLD", "wrong")[0] == "wrong"


def test_a_table_that_is_out_of_date_is_seen(monkeypatch, tmp_path):
    from tools.reliability import calls, fuzz

    number = {"value": calls.Argument(lambda: 1.0, lambda value: True)}
    planted = {
        "renamed": calls.Call(lambda other: other, number, ()),
        "nan": calls.Call(lambda value: value * float("nan"), number, ()),
        "right": calls.Call(lambda value: value, number, ()),
    }
    monkeypatch.setattr(fuzz, "CALLS", planted)
    renamed, nan = fuzz.check_calls()
    assert "renamed: TypeError" in renamed
    assert nan == "nan: the valid call gives NaN"
    assert {trial.call for trial in fuzz.sweep("r")} == {"renamed", "right"}
