"""The command `langevin-paper demo`."""

from __future__ import annotations

import os
import sys
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

__all__ = ["demo"]


def demo(
    context: typer.Context,
    out: Annotated[Path, typer.Option(help="The folder of the page.")] = Path("out/demo"),
    show: Annotated[
        bool | None, typer.Option("--open/--no-open", help="Open the page; by default on a terminal with a screen.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Tiny sizes: does it run? The numbers say little.")] = False,
) -> None:
    """Show what the library is for: six parts, each with a picture and two sentences, on one page. About a minute.

    langevin-paper demo --out tour --no-open
    """
    from langevin_paper.demo import PARTS, tour

    typer.echo(f"{len(PARTS)} parts; the page grows with each. Ctrl-C keeps what is done.")
    debug = bool(context.parent and context.parent.params.get("debug"))
    outcome = tour(PARTS, out, quick=quick, say=typer.echo, debug=debug)
    typer.echo(f"{outcome.seconds:.0f} s in all; the page: {outcome.page.resolve().as_uri()}")
    if _has_screen() if show is None else show:
        webbrowser.open(outcome.page.resolve().as_uri())
    if outcome.interrupted or outcome.failed:
        raise typer.Exit(130 if outcome.interrupted else 1)


def _has_screen() -> bool:
    """Say whether somebody sits before a screen: a terminal, and on Linux a window system."""
    has_windows = sys.platform in ("darwin", "win32") or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
    return sys.stdout.isatty() and has_windows
