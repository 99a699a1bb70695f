"""The command line: what it prints, and how it says no."""

from __future__ import annotations

import subprocess
import sys

import pytest
from experiments.toys import TOY
from typer.testing import CliRunner

import langevin.cli
from langevin.experiments import report


@pytest.fixture
def call(monkeypatch):
    """Run the command with the toy experiment as the only one."""
    monkeypatch.setattr(langevin.cli, "EXPERIMENTS", {"toy": TOY})
    monkeypatch.setattr(langevin.cli, "find", {"toy": TOY}.__getitem__)
    monkeypatch.setattr(report, "EXPERIMENTS", {"toy": TOY})
    return lambda *arguments: CliRunner().invoke(langevin.cli.app, [str(argument) for argument in arguments])


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


def test_without_records_there_is_no_report(call, tmp_path):
    done = call("report", "--records", tmp_path / "none", "--out", tmp_path)
    assert done.exit_code == 2
    assert "`langevin run` makes one" in done.output


def test_seeds_are_read():
    assert langevin.cli._numbers("0-2,7") == [0, 1, 2, 7]
    assert langevin.cli._numbers("") is None


def test_the_module_lists_the_experiments_of_the_paper():
    done = subprocess.run([sys.executable, "-W", "error", "-m", "langevin", "list"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    for word in ("gaussian", "mixture", "ravine", "landsat", "psgld-mean", "quick (5 seeds"):
        assert word in done.stdout
    wrong = subprocess.run([sys.executable, "-m", "langevin", "run", "imagenet"], capture_output=True, text=True, timeout=60)
    assert wrong.returncode == 2
    assert "one of gaussian, mixture, ravine, ravine-search, landsat" in wrong.stderr


@pytest.mark.slow
def test_the_demo_runs_every_cell_and_ends_with_the_page(tmp_path):
    names = ("gaussian", "mixture", "ravine", "landsat")
    commands = [
        ["run", *names, "--scale", "quick", "--jobs", "2", "--out", str(tmp_path / "records")],
        ["report", "--records", str(tmp_path / "records"), "--out", str(tmp_path / "page")],
    ]
    for command in commands:
        done = subprocess.run([sys.executable, "-m", "langevin", *command], capture_output=True, text=True, timeout=900)
        assert done.returncode == 0, done.stderr
    assert done.stdout.rstrip().endswith("page/index.html")
    assert (tmp_path / "page" / "overview.png").stat().st_size > 100_000
