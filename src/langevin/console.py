"""What the commands `langevin` and `langevin-paper` share: errors in one line, `--debug` for the traceback, exit codes.

0: done. 1: something failed. 2: the command cannot be run as it was given. 130: Ctrl-C.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperGroup
from typing_extensions import override

__all__ = ["DEBUG", "Commands", "one_line"]

DEBUG = typer.Option("--debug", help="Show the whole traceback of an error; anywhere on the line.")
GIVEN = (ValueError, TypeError, OSError, ImportError)
"""Errors that say that the command cannot be run as it was given."""


class Commands(TyperGroup):
    """A group of commands whose errors are one line. Its callback takes `debug`."""

    @override
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if "--debug" in args:  # wherever it stands
            args = ["--debug", *(word for word in args if word != "--debug")]
        with _spoken(debug="--debug" in args):
            return super().parse_args(ctx, args)

    @override
    def invoke(self, ctx: Any) -> Any:
        with _spoken(debug=bool(ctx.params.get("debug"))):
            return super().invoke(ctx)


@contextmanager
def _spoken(*, debug: bool) -> Iterator[None]:
    """Turn an error into one line and an exit code."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        raise typer.Exit(130) from None
    except BrokenPipeError:  # whoever read has left, as `head` does: there is nobody to tell
        with contextlib.suppress(OSError):  # what is left goes nowhere, or Python complains of it at its end
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(1) from None
    except Exception as error:
        is_help = type(error).__name__ == "NoArgsIsHelpError"
        if isinstance(error, (typer.Exit, typer.Abort)) or is_help or debug:
            raise
        typer.echo(f"error: {_sentence(error)}", err=True)
        raise typer.Exit(2 if isinstance(error, GIVEN) else getattr(error, "exit_code", 1)) from error


def _sentence(error: Exception) -> str:
    context = getattr(error, "ctx", None)
    if context is not None:  # wrong usage, by Typer
        texts = (error.format_message(), context.get_usage())  # type: ignore[attr-defined]
        return ". ".join(" ".join(text.split()).rstrip(".") for text in texts)
    known = isinstance(error, (*GIVEN, RuntimeError))
    return one_line(error) if known else f"{type(error).__name__}: {one_line(error)}; --debug shows where"


def one_line(error: BaseException) -> str:
    r"""Return the text of an error in one line, or its name where it has none.

    Example:
        >>> one_line(ValueError("a\n  b")), one_line(ValueError())
        ('a b', 'ValueError')
    """
    return " ".join(str(error).split()) or type(error).__name__
