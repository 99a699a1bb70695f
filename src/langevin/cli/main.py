"""The command `langevin`, and error handling shared with `langevin-paper`.

Errors are one line; `--debug` shows the traceback. Exit codes: 0 success, 1 failure, 2 invalid
usage, 130 Ctrl-C. Commands import what they need when they run, so `--help` does not load torch.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typing_extensions import override

__all__ = ["Commands", "DEBUG", "app", "main", "one_line"]


DEBUG = typer.Option("--debug", help="Show the full traceback of an error.")
USAGE_ERRORS = (ValueError, TypeError, OSError, ImportError)
"""Errors caused by invalid usage."""


class Commands(TyperGroup):
    """A group of commands with one-line errors. Its callback takes `debug`."""

    @override
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if "--debug" in args:  # allowed anywhere on the line
            args = ["--debug", *(word for word in args if word != "--debug")]
        with _one_line_errors(debug="--debug" in args):
            return super().parse_args(ctx, args)

    @override
    def invoke(self, ctx: Any) -> Any:
        with _one_line_errors(debug=bool(ctx.params.get("debug"))):
            return super().invoke(ctx)


@contextmanager
def _one_line_errors(*, debug: bool) -> Iterator[None]:
    """Print an error as one line and leave with its exit code."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        raise typer.Exit(130) from None
    except BrokenPipeError:  # the reader has left, as in `langevin doctor | head -1`
        # Discard what is left, or Python reports the closed pipe at exit.
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(1) from None
    except Exception as error:
        is_help = type(error).__name__ == "NoArgsIsHelpError"
        if isinstance(error, (typer.Exit, typer.Abort)) or is_help or debug:
            raise
        typer.echo(f"error: {_sentence(error)}", err=True)
        code = 2 if isinstance(error, USAGE_ERRORS) else getattr(error, "exit_code", 1)
        raise typer.Exit(code) from error


def _sentence(error: Exception) -> str:
    context = getattr(error, "ctx", None)
    if context is not None:  # wrong usage, by Typer
        texts = (error.format_message(), context.get_usage())  # type: ignore[attr-defined]
        return ". ".join(" ".join(text.split()).rstrip(".") for text in texts)
    if isinstance(error, (*USAGE_ERRORS, RuntimeError)):
        return one_line(error)
    return f"{type(error).__name__}: {one_line(error)}; use --debug to see where"


def one_line(error: BaseException) -> str:
    r"""Return the text of an error as one line, or its type if it has no text.

    Example:
        >>> one_line(ValueError("a\n  b")), one_line(ValueError())
        ('a b', 'ValueError')
    """
    return " ".join(str(error).split()) or type(error).__name__


app = typer.Typer(
    cls=Commands,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _version(value: bool) -> None:
    if value:
        import langevin

        typer.echo(f"langevin {langevin.__version__}")
        raise typer.Exit


VERSION = typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")


@app.callback(epilog="Exit codes: 0 success, 1 failure, 2 invalid usage, 130 Ctrl-C.")
def commands(
    debug: Annotated[bool, DEBUG] = False, version: Annotated[bool, VERSION] = False
) -> None:
    """Stochastic gradient MCMC with adaptive drifts, for PyTorch.

    \b
    langevin doctor           check the installation
    langevin doctor --fill    also compile ahead of the first run

    `pip install langevin-paper` adds `langevin-paper demo`, a tour, and
    `langevin-paper check`, tests against exact distributions.
    """  # noqa: D301 (\b keeps lines apart)


FILL = typer.Option("--fill", help="Compile what the first run would compile, and cache it.")


@app.command(short_help="Check the installation.")
def doctor(fill: Annotated[bool, FILL] = False) -> None:
    """Check versions, compilers and caches, and run a few seconds of tests and timings.

    Each problem comes with advice. Attach the output to bug reports:

    langevin doctor > doctor.txt

    The exit code is 1 if something is broken.
    """
    from langevin.cli.doctor import examine

    if examine(fill=fill, echo=typer.echo):
        raise typer.Exit(1)


def main() -> None:
    """Run the command."""
    app(prog_name="langevin")
