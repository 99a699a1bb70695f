"""The command `langevin-paper check`: evidence that the samplers are right."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from langevin_paper.check.report import Report

__all__ = ["Part", "check"]


class Part(StrEnum):
    """What can be checked."""

    law = "law"
    invariance = "invariance"
    sbc = "sbc"
    reference = "reference"
    suite = "suite"
    all = "all"


CHECKS = {
    Part.law: ("langevin_paper.check.law", "check_law"),
    Part.invariance: ("langevin_paper.check.invariance", "check_invariance"),
    Part.sbc: ("langevin_paper.check.calibration", "check_sbc"),
    Part.reference: ("langevin_paper.check.reference", "check_reference"),
    Part.suite: ("langevin_paper.check.reference", "check_suite"),
}
"""Where each check is: a function of (seed, quick) that returns a `Report`."""


def check(
    part: Annotated[
        Part,
        typer.Argument(
            help="law: exact laws against runs; invariance: exact tests; sbc: calibration by simulation; "
            "reference: posteriors of posteriordb; suite: those and other targets with known moments (minutes)."
        ),
    ] = Part.all,
    seed: Annotated[int, typer.Option(min=0, help="Of everything random; the same seed gives the same numbers.")] = 0,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer chains and cases: seconds.")] = False,
    out: Annotated[Path | None, typer.Option(help="A folder for a record (JSON) and a picture of each part.")] = None,
) -> None:
    """Run samplers, and samplers broken on purpose, through tests: exit code 1 when one fails, or a broken one passes.

    \b
    langevin-paper check law --quick                 a look, in seconds
    langevin-paper check reference --out evidence    posteriors with known moments
    """  # noqa: D301
    parts = [each for each in CHECKS if each is not Part.suite] if part is Part.all else [part]
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
        typer.echo(f"{part.value}: FAILED: this version of langevin-paper has no {module}", err=True)
        return False
    report = checker(seed=seed, quick=quick)
    typer.echo(report.text)
    if out is not None:
        report.write(out)
        typer.echo(f"{part.value}: record in {out / part.value}.json")
    return report.passed
