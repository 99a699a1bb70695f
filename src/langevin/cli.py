"""The command `langevin`: a tour, a look at the installation, and evidence that the samplers are right.

What a command needs is imported when it runs: `--help` answers without torch.
"""

from __future__ import annotations

import importlib
import os
import sys
import webbrowser
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from langevin.console import DEBUG, Commands

if TYPE_CHECKING:
    from langevin.evidence.report import Report

__all__ = ["Part", "app", "main"]

app = typer.Typer(cls=Commands, add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)


class Part(StrEnum):
    """What can be checked."""

    law = "law"
    invariance = "invariance"
    sbc = "sbc"
    reference = "reference"
    all = "all"


CHECKS = {
    Part.law: ("langevin.evidence.law", "check_law"),
    Part.invariance: ("langevin.evidence.invariance", "check_invariance"),
    Part.sbc: ("langevin.evidence.calibration", "check_sbc"),
    Part.reference: ("langevin.evidence.reference", "check_reference"),
}
"""Where each check is: a function of (seed, quick) that returns a `Report`."""


def _version(value: bool) -> None:
    if value:
        import langevin

        typer.echo(f"langevin {langevin.__version__}")
        raise typer.Exit


@app.callback(epilog="Exit codes: 0 done, 1 something failed, 2 the command cannot be run as given, 130 Ctrl-C.")
def commands(
    debug: Annotated[bool, DEBUG] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and leave.")
    ] = False,
) -> None:
    """Stochastic gradient MCMC with adaptive drifts, for PyTorch.

    \b
    langevin demo             a tour on one page: two minutes
    langevin doctor           is everything there, and is it right?
    langevin doctor --fill    compile ahead, before the first run
    langevin check law        exact laws of the samplers against runs
    """  # noqa: D301 (\b keeps lines apart)


@app.command(short_help="A tour on one page, in at most two minutes.")
def demo(
    context: typer.Context,
    out: Annotated[Path, typer.Option(help="The folder of the page.")] = Path("out/demo"),
    show: Annotated[
        bool | None, typer.Option("--open/--no-open", help="Open the page; by default on a terminal with a screen.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Tiny sizes: does it run? The numbers say little.")] = False,
) -> None:
    """Show what the library is for: six parts, each with a picture and two sentences, on one page. At most two minutes.

    langevin demo --out tour --no-open
    """
    from langevin.demo import PARTS, tour

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


@app.command(short_help="Look at the installation, and say what to do.")
def doctor(
    fill: Annotated[bool, typer.Option("--fill", help="Compile what the first run would compile, and keep it.")] = False,
) -> None:
    """Look at the installation: versions, engines, caches, a few seconds of law and speed; what to do about what is missing.

    langevin doctor > doctor.txt    to go with a report of a bug

    The exit code is 1 when something is broken.
    """
    from langevin.doctor import examine

    broken = examine(fill=fill, say=typer.echo)
    if broken:
        raise typer.Exit(1)


@app.command(short_help="Test the samplers against known laws.")
def check(
    part: Annotated[
        Part,
        typer.Argument(
            help="law: exact laws against runs; invariance: exact tests; sbc: calibration by simulation; "
            "reference: posteriors with known moments."
        ),
    ] = Part.all,
    seed: Annotated[int, typer.Option(min=0, help="Of everything random; the same seed gives the same numbers.")] = 0,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer chains and cases: seconds.")] = False,
    out: Annotated[Path | None, typer.Option(help="A folder for a record (JSON) and a picture of each part.")] = None,
) -> None:
    """Run samplers, and samplers broken on purpose, through tests: exit code 1 when one fails, or a broken one passes.

    \b
    langevin check law --quick                 a look, in seconds
    langevin check reference --out evidence    posteriors with known moments
    """  # noqa: D301
    parts = list(CHECKS) if part is Part.all else [part]
    passed = [_run(each, seed, quick, out) for each in parts]
    if len(parts) > 1:
        typer.echo(
            f"check: {'passed' if all(passed) else 'FAILED'}: "
            + ", ".join(f"{each.value} {'passed' if good else 'FAILED'}" for each, good in zip(parts, passed, strict=True))
        )
    if not all(passed):
        raise typer.Exit(1)


def _run(part: Part, seed: int, quick: bool, out: Path | None) -> bool:
    """Run one part, print its table and verdict, and write its record."""
    module, name = CHECKS[part]
    try:
        checker: Callable[..., Report] = getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        typer.echo(f"{part.value}: FAILED: this version of langevin has no {module}", err=True)
        return False
    report = checker(seed=seed, quick=quick)
    typer.echo(report.text)
    if out is not None:
        report.write(out)
        typer.echo(f"{part.value}: record in {out / part.value}.json")
    return report.passed


def main() -> None:
    """Run the command."""
    app(prog_name="langevin")
