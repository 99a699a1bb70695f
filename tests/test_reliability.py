"""The library survives a few faults of every kind (`make reliability` tries thousands), and the harness sees those it does not."""

from __future__ import annotations

import os
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


@pytest.mark.parametrize("kind", ["memory", "fuzz", "damage", "kills"])
def test_a_few_faults_of_every_kind_are_survived(kind, tmp_path):
    """Of memory all: they take seconds."""
    command = [sys.executable, "-m", "tools.reliability", "--only", kind, "--out", str(tmp_path / "page.md")]
    command += ["--quick"] if kind != "memory" else []
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=300, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, f"{done.stdout[-5000:]}\n{done.stderr[-2000:]}"
    assert "No failure." in (tmp_path / "page.md").read_text()


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
