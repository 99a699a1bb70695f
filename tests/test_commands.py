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
from typer.testing import CliRunner

import langevin as lv
from langevin.cli import main as cli
from langevin.cli.main import DEBUG, Commands

ROOT = Path(__file__).parents[1]
APPS = {"langevin": cli.app, "langevin-paper": langevin_paper.cli.app}


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


@pytest.mark.parametrize("name", APPS)
def test_the_version_is_that_of_the_package(name):
    done = CliRunner().invoke(APPS[name], ["--version"])
    assert (done.exit_code, done.output) == (0, f"{name} {lv.__version__}\n")


@pytest.mark.parametrize("name", APPS)
def test_the_help_has_examples_and_exit_codes(name):
    done = CliRunner().invoke(APPS[name], ["--help"], terminal_width=120, prog_name=name)
    assert done.exit_code == 0
    for word in ("--debug", "--version", "Exit codes"):
        assert word in done.output
    assert done.output.count(f"{name} ") >= 3  # the usage, and three examples


@pytest.mark.parametrize("name", APPS)
def test_no_arguments_is_help(name):
    done = CliRunner().invoke(APPS[name], [])
    assert "Usage:" in done.output
    assert "error" not in done.output.lower().replace("an error", "")


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
    slow = {{"torch", "numpy", "matplotlib", "scipy"}} & set(sys.modules)
    assert not slow, slow
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True, timeout=60, capture_output=True)


def test_the_command_has_one_name_however_it_is_called(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["__main__.py", "train"])
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert left.value.code == 2
    assert capsys.readouterr().err.startswith("error: No such command 'train'. Usage: langevin ")


def test_a_reader_that_leaves_is_no_error():
    """As in `langevin doctor | head -1`."""
    script = "from langevin.cli.main import main; main()"
    doctor = subprocess.Popen([sys.executable, "-c", script, "doctor"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert doctor.stdout.readline() == "versions\n"
    doctor.stdout.close()
    assert doctor.stderr.read() == ""
    doctor.stderr.close()
    assert doctor.wait(timeout=120) == 1
