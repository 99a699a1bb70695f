"""The command `langevin`: check that the samplers have the law they should have."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from langevin.evidence.report import Report

__all__ = ["Part", "app", "main"]

app = typer.Typer(
    help="Stochastic gradient MCMC: evidence that the samplers are right.", add_completion=False, no_args_is_help=True
)


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


@app.callback()
def _commands() -> None:
    """Keep `check` a command of its own: Typer drops the name of an only one."""


@app.command()
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
    """Run samplers, and samplers broken on purpose, through tests: exit code 1 when one fails, or a broken one passes."""
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
