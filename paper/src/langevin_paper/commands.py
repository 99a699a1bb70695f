"""Groups of Typer commands whose errors are one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperGroup
from typing_extensions import override

from langevin.cli.main import one_line_errors

__all__ = ["DEBUG", "Commands"]

DEBUG = typer.Option("--debug", help="Show the full traceback of an error.")


class Commands(TyperGroup):
    """A group of commands with one-line errors. Its callback takes `debug`."""

    @override
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if "--debug" in args:  # allowed anywhere on the line
            args = ["--debug", *(word for word in args if word != "--debug")]
        with _errors(debug="--debug" in args):
            return super().parse_args(ctx, args)

    @override
    def invoke(self, ctx: Any) -> Any:
        with _errors(debug=bool(ctx.params.get("debug"))):
            return super().invoke(ctx)


@contextmanager
def _errors(*, debug: bool) -> Iterator[None]:
    """Print wrong usage and other errors as one line; without arguments, print the help."""
    with one_line_errors(debug=debug, passing=(typer.Exit, typer.Abort)):
        try:
            yield
        except Exception as error:
            context: Any = getattr(error, "ctx", None)
            if context is None or debug:
                raise
            if type(error).__name__ == "NoArgsIsHelpError":
                typer.echo(context.get_help(), err=True)
            else:
                texts = (error.format_message(), context.get_usage())  # type: ignore[attr-defined]
                line = ". ".join(" ".join(text.split()).rstrip(".") for text in texts)
                typer.echo(f"error: {line}", err=True)
            raise typer.Exit(2) from error
