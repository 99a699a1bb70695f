"""The command lines: errors in one line, the traceback on demand, exit codes, help that is quick."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Annotated

import langevin_paper.cli
import pytest
import typer
from langevin_paper.commands import DEBUG, Commands
from typer.testing import CliRunner

import langevin as lv
from langevin.cli import main as cli

ROOT = Path(__file__).parents[1]
NAMES = ["langevin", "langevin-paper"]


@pytest.fixture
def run(monkeypatch, capsys):
    """Run a command by its name; return its exit code and what it prints."""

    def run(name, *words):
        monkeypatch.setattr(sys, "argv", ["__main__.py", *words])
        monkeypatch.setenv("COLUMNS", "120")
        code = 0
        try:
            (cli if name == "langevin" else langevin_paper.cli).main()
        except SystemExit as left:
            code = left.code or 0
        found = capsys.readouterr()
        return code, found.out, found.err

    return run


@pytest.fixture
def call():
    """Call a command that raises what it is told to."""
    app = typer.Typer(cls=Commands, pretty_exceptions_enable=False)
    errors = {
        "value": ValueError("name(arg=...) needs\n  a number, got 'x'"), "os": FileNotFoundError(2, "No such file", "there"),
        "import": ImportError("pip install 'langevin[ray]'"), "run": RuntimeError("it broke"), "bug": KeyError("x"),
        "empty": ValueError(), "abort": KeyboardInterrupt(), "leave": typer.Exit(7),
    }  # fmt: skip

    @app.callback()
    def commands(debug: Annotated[bool, DEBUG] = False) -> None: ...

    @app.command()
    def fail(kind: str, times: int = 1) -> None:
        raise errors[kind]

    return lambda *arguments: CliRunner().invoke(app, arguments, prog_name="tool")


@pytest.mark.parametrize(
    ("kind", "code", "line"),
    [
        ("value", 2, "error: name(arg=...) needs a number, got 'x'"),
        ("os", 2, "error: [Errno 2] No such file: 'there'"),
        ("import", 2, "error: pip install 'langevin[ray]'"),
        ("run", 1, "error: it broke"),
        ("bug", 1, "error: KeyError: 'x'; use --debug to see where"),
        ("empty", 2, "error: ValueError"),
        ("abort", 130, "interrupted"),
        ("leave", 7, ""),
    ],
)
def test_an_error_is_one_line_and_an_exit_code(call, kind, code, line):
    done = call("fail", kind)
    assert done.exit_code == code
    assert done.stderr.rstrip("\n") == line


@pytest.mark.parametrize("place", [0, 1, 2])
def test_debug_shows_where_wherever_it_stands(call, place):
    words = ["fail", "value"]
    words.insert(place, "--debug")
    done = call(*words)
    assert isinstance(done.exception, ValueError)
    assert done.exception.__traceback__ is not None
    assert "error:" not in done.stderr


@pytest.mark.parametrize(
    "words", [("nothing",), ("--nothing",), ("fail",), ("fail", "run", "--times", "x"), ("fail", "run", "more")], ids=" ".join
)
def test_wrong_usage_is_one_line_with_the_usage(call, words):
    done = call(*words)
    assert done.exit_code == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert "Usage: tool " in line


@pytest.mark.parametrize("name", NAMES)
def test_the_version_is_that_of_the_package(run, name):
    assert run(name, "--version") == (0, f"{name} {lv.__version__}\n", "")


@pytest.mark.parametrize("name", NAMES)
def test_the_help_has_examples_and_exit_codes(run, name):
    code, out, _ = run(name, "--help")
    assert code == 0
    for word in ("--debug", "--version", "Exit codes"):
        assert word in out
    assert out.count(f"{name} ") >= 3  # the usage, and three examples


@pytest.mark.parametrize("name", NAMES)
def test_no_arguments_is_help(run, name):
    _, out, err = run(name)
    assert "usage:" in (out + err).lower()
    assert "error" not in (out + err).lower().replace("an error", "")


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (ValueError("a\n  b"), 2, "error: a b"), (RuntimeError("it broke"), 1, "error: it broke"),
        (KeyError("x"), 1, "error: KeyError: 'x'; use --debug to see where"), (KeyboardInterrupt(), 130, "interrupted"),
    ],
)  # fmt: skip
def test_an_error_of_the_doctor_is_one_line_and_an_exit_code(run, monkeypatch, error, code, line):
    def examine(**options):
        raise error

    monkeypatch.setattr("langevin.cli.doctor.examine", examine)
    assert run("langevin", "doctor") == (code, "", f"{line}\n")
    if isinstance(error, Exception):
        with pytest.raises(type(error)):
            run("langevin", "doctor", "--debug")


@pytest.mark.parametrize("words", [("nothing",), ("--nothing",), ("doctor", "--nothing"), ("doctor", "more")], ids=" ".join)
def test_wrong_usage_of_the_library_is_one_line_with_the_usage(run, words):
    code, out, err = run("langevin", *words)
    (line,) = err.splitlines()
    assert (code, out) == (2, "")
    assert line.startswith("error: ")
    assert "Usage: langevin " in line


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["demo", "--help"], ["doctor", "--help"], ["nothing"]], ids=" ".join)
def test_help_does_not_wait_for_torch(words):
    """Of the command alone: an empty package of the same name stands in for `langevin/__init__.py`, which has its own test."""
    script = f"""
    import sys, types
    package = types.ModuleType("langevin")
    package.__path__, package.__version__ = [{str(ROOT / "src" / "langevin")!r}], "0"
    sys.modules["langevin"] = package
    from langevin.cli.main import main
    sys.argv = ["langevin", *{words!r}]
    try:
        main()
    except SystemExit:
        pass
    slow = {{"torch", "numpy", "matplotlib", "scipy", "typer"}} & set(sys.modules)
    assert not slow, slow
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True, timeout=60, capture_output=True)


def test_the_command_has_one_name_however_it_is_called(run):
    assert "Usage: langevin " in run("langevin", "train")[2]
    assert "Usage: langevin-paper " in run("langevin-paper", "train")[2]


def test_a_reader_that_leaves_is_no_error():
    """As in `langevin doctor | head -1`."""
    script = "from langevin.cli.main import main; main()"
    doctor = subprocess.Popen([sys.executable, "-c", script, "doctor"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert doctor.stdout.readline() == "versions\n"
    doctor.stdout.close()
    assert doctor.stderr.read() == ""
    doctor.stderr.close()
    assert doctor.wait(timeout=120) == 1
