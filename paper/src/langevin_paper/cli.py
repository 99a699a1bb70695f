"""The command `langevin-paper`: list the paper's experiments, run them, and write the report."""

from __future__ import annotations

import re
import sys
import warnings
from collections import defaultdict
from pathlib import Path
from typing import Annotated

import typer
from tqdm.auto import tqdm
from typing_extensions import override

from langevin.distributed import Ray, WorkerError
from langevin_paper import __version__
from langevin_paper.check.command import check
from langevin_paper.commands import DEBUG, Commands
from langevin_paper.demo.command import demo
from langevin_paper.record import Records
from langevin_paper.registry import EXPERIMENTS, find
from langevin_paper.runner import Monitor, missing_cells, run_cells, run_cells_on
from langevin_paper.worker import Cell, Finished

__all__ = ["app", "main"]

app = typer.Typer(cls=Commands, add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)

MOST_SEEDS = 10_000
RECORDS, REPORT = Path("out/records"), Path("out/report")


def _version(value: bool) -> None:
    if value:
        typer.echo(f"langevin-paper {__version__}")
        raise typer.Exit


@app.callback(epilog="Exit codes: 0 done, 1 something failed, 2 the command cannot be run as given, 130 Ctrl-C.")
def commands(
    debug: Annotated[bool, DEBUG] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and leave.")
    ] = False,
) -> None:
    """The experiments of the paper: list, run, report.

    langevin-paper demo

    langevin-paper check law --quick

    langevin-paper list

    langevin-paper run landsat --scale short --jobs 2

    langevin-paper report
    """


app.command(short_help="A tour on one page, in about a minute.")(demo)
app.command(short_help="Test the samplers against known laws.")(check)


@app.command(name="list")
def list_experiments() -> None:
    """Show experiments, their methods and scales, with the minutes that all methods take on one quiet core, about."""
    for experiment in EXPERIMENTS.values():
        typer.echo(f"{experiment.name}: {experiment.title}. {experiment.section}")
        typer.echo(f"  methods  {', '.join(method.name for method in experiment.methods)}")
        scales = []
        for scale in experiment.scales:
            cells = len(experiment.methods) * (1 if experiment.seeds_together else scale.num_seeds)
            scales.append(f"{scale.name} ({scale.num_seeds} seeds, {_duration(cells * scale.seconds)})")
        typer.echo(f"  scales   {', '.join(scales)}")


@app.command()
def run(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Experiments, or `all`.")],
    scale: Annotated[str, typer.Option(help="quick, short or paper; CIFAR has long, too.")] = "quick",
    seeds: Annotated[str, typer.Option(help="Such as 0-4 or 0,2,7; those of the scale by default.")] = "",
    methods: Annotated[str, typer.Option(help="Such as sgld,msgld; all by default.")] = "",
    jobs: Annotated[int, typer.Option(min=1, help="Processes; torch's threads are shared out among them.")] = 1,
    out: Annotated[Path, typer.Option(help="The folder of records; what is done there is not run again.")] = RECORDS,
    engine: Annotated[str, typer.Option(help="local (processes here), or ray: the cluster of RAY_ADDRESS, or one here.")] = "local",
) -> None:
    """Run experiments, or go on with them; Ctrl-C or a kill loses nothing that is done."""
    if engine not in ("local", "ray"):
        raise ValueError(f"--engine needs local or ray, got {engine!r}")
    chosen = list(EXPERIMENTS.values()) if names == ["all"] else [find(name) for name in names]
    given = [name for name in methods.split(",") if name] or None
    numbers = _numbers(seeds)
    records = Records(out)
    cells = missing_cells(chosen, scale, records, methods=given, seeds=numbers)
    where = "on Ray" if engine == "ray" else f"{jobs} at a time"
    typer.echo(f"{len(cells)} cells to run at scale {scale}, {where}; records in {out}")
    monitor = _Bar(cells)
    try:
        if engine == "ray":
            run_cells_on(Ray(), cells, records, monitor=monitor)
        else:
            run_cells(cells, records, jobs=jobs, monitor=monitor)
    except KeyboardInterrupt:
        monitor.close()
        typer.echo(f"interrupted; {monitor.so_far}, and the same command goes on from here", err=True)
        raise typer.Exit(130) from None
    except (
        OSError,
        ImportError,
        WorkerError,
    ) as error:  # the disk is full, or the folder is gone; Ray is not there, or its workers
        raise RuntimeError(f"{error}; {monitor.so_far}, and the same command goes on from here") from error
    finally:
        monitor.close()
        records.close()
    if monitor.failed:
        typer.echo(f"{len(monitor.failed)} cells failed: {'; '.join(monitor.failed)}. Their errors are recorded.", err=True)
        raise typer.Exit(1)


@app.command()
def report(
    records: Annotated[Path, typer.Option(help="The folder of records.")] = RECORDS,
    out: Annotated[Path, typer.Option(help="Where the page and its pictures go.")] = REPORT,
    scale: Annotated[str, typer.Option(help="Only this scale; by default the largest, and smaller ones that add rows.")] = "",
) -> None:
    """Write one self-contained page, and the pictures, from records alone."""
    from langevin_paper.report import plain_tables, write_report  # Matplotlib takes a second to import

    path, page = write_report(records, out, scale or None)
    for problem in page.problems:
        typer.echo(f"left out: {problem}", err=True)
    typer.echo(plain_tables(page.sections))
    typer.echo(f"report: {path.resolve()}")


class _Bar(Monitor):
    """One bar over all cells, in seconds as they were estimated; the time left is tqdm's."""

    def __init__(self, cells: list[Cell]) -> None:
        self.failed: list[str] = []
        self._shares: defaultdict[str, float] = defaultdict(float)
        self._running: list[str] = []
        self._done, self._total = 0, len(cells)
        total = sum(cell.scale.seconds for cell in cells)
        shape = "{percentage:3.0f}% |{bar}| {elapsed}, left {remaining} {postfix}"
        self._bar = tqdm(total=total, bar_format=shape, file=sys.stderr, disable=None, mininterval=0.2, smoothing=0.05)

    @override
    def started(self, cell: Cell) -> None:
        self._running.append(cell.name)
        self._show()

    @override
    def progressed(self, cell: Cell, share: float) -> None:
        self._move(cell, share)

    @override
    def finished(self, cell: Cell, outcome: Finished) -> None:
        self._move(cell, 1.0)
        self._running.remove(cell.name)
        self._show()
        line = f"{cell.name}: {outcome.seconds:.1f} s"
        if outcome.error:
            self.failed.append(cell.name)
            line += f", FAILED: {outcome.error.strip().splitlines()[-1]}"
        else:
            self._done += 1
        tqdm.write(line)
        sys.stdout.flush()

    @property
    def so_far(self) -> str:
        """What is done, in words."""
        return f"{self._done} of {self._total} cells are done and recorded"

    def close(self) -> None:
        """Leave the bar as it is."""
        self._bar.close()

    def _move(self, cell: Cell, share: float) -> None:
        # A cell may tell a share twice, a trial run and the run: the bar goes forward only.
        gain = max(0.0, min(1.0, share) - self._shares[cell.name])
        self._shares[cell.name] += gain
        self._bar.update(gain * cell.scale.seconds)

    def _show(self) -> None:
        self._bar.set_postfix_str("; ".join(self._running))


def _numbers(text: str) -> list[int] | None:
    """Read 0-4 or 0,2,7."""
    if not text:
        return None
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", part.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not first <= last < first + MOST_SEEDS:
            raise ValueError(f"--seeds needs numbers such as 0-4 or 0,2,7, at most {MOST_SEEDS} at once, got {text!r}")
        found += range(first, last + 1)
    return found


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def main() -> None:
    """Run the command."""
    warnings.simplefilter("default")
    app(prog_name="langevin-paper")
