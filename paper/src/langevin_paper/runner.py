"""Runs cells in processes of their own and records what they give; knows nothing of what they compute, or of plots.

Finished runs are not run again. A cell that fails is recorded with its error, and the rest goes on. Whatever ends the runner, the
cells that were done are on the disk, and a cell that keeps checkpoints goes on from them.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any

import torch

from langevin.checks import check_integer
from langevin_paper.provenance import provenance
from langevin_paper.record import Record, Records, fingerprint
from langevin_paper.spec import Experiment
from langevin_paper.worker import Cell, Finished, serve

__all__ = ["Monitor", "missing_cells", "run_cells"]


class Monitor:
    """Is told what happens; this one says nothing."""

    def started(self, cell: Cell) -> None:
        """A cell is sent to a process."""

    def progressed(self, cell: Cell, share: float) -> None:
        """A share of a cell, 0 to 1, is done."""

    def finished(self, cell: Cell, outcome: Finished) -> None:
        """A cell is recorded."""


def missing_cells(
    experiments: Iterable[Experiment],
    scale: str,
    records: Records,
    *,
    methods: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
) -> list[Cell]:
    """Return the cells that are yet to be run: of every method, stretches of consecutive seeds that have no results.

    Args:
        experiments: in the order in which they are run.
        scale: the name of a scale that all of them have.
        records: where finished runs are.
        methods: their names; all by default.
        seeds: which; those of the scale by default.
    """
    cells = []
    for experiment in experiments:
        size = experiment.scale(scale)
        for method in experiment.methods if methods is None else map(experiment.method, methods):
            settings = experiment.settings_of(method, size)
            wanted = sorted(set(range(size.num_seeds) if seeds is None else seeds))
            missing = [seed for seed in wanted if not records.is_done(experiment.name, scale, method.name, seed, settings)]
            stretches = _stretches(missing) if experiment.seeds_together else [range(seed, seed + 1) for seed in missing]
            cells += [Cell(experiment, size, method, stretch) for stretch in stretches]
    return cells


def run_cells(cells: Sequence[Cell], records: Records, *, jobs: int = 1, monitor: Monitor | None = None) -> list[Record]:
    """Run cells, `jobs` of them at a time, and record them; return the records in the order in which they came.

    Args:
        cells: from `missing_cells`.
        records: where they go.
        jobs: processes; torch's threads are shared out among them.
        monitor: is told what happens.
    """
    check_integer("run_cells", "jobs", jobs, 1)
    monitor = Monitor() if monitor is None else monitor
    origin, made = provenance(), []
    waiting = list(reversed(cells))
    num_threads = max(1, torch.get_num_threads() // jobs)  # OMP_NUM_THREADS counts
    workers: list[_Worker] = []
    try:
        while waiting or any(worker.cell for worker in workers):
            workers = [worker for worker in workers if worker.cell or worker.process.is_alive()]
            idle = [worker for worker in workers if worker.cell is None]
            while waiting and (idle or len(workers) < jobs):
                if not idle:
                    idle = [_Worker(num_threads)]
                    workers += idle
                cell = waiting.pop()
                idle.pop().send(cell, records)
                monitor.started(cell)
            busy = {worker.connection: worker for worker in workers if worker.cell}
            for connection in wait(list(busy)):
                cell, answer = busy[connection].receive()  # type: ignore[index]
                if isinstance(answer, float):
                    monitor.progressed(cell, answer)
                else:
                    made += _recorded(records, cell, answer, origin)
                    monitor.finished(cell, answer)
    finally:
        for worker in workers:
            worker.end()
    return made


@dataclass
class _Worker:
    """A process and what it is at."""

    num_threads: int
    cell: Cell | None = None
    connection: Connection = field(init=False)
    process: SpawnProcess = field(init=False)

    def __post_init__(self) -> None:
        context = multiprocessing.get_context("spawn")  # a fork would inherit torch's threads, the lock and the open journal
        self.connection, other = context.Pipe()
        self.process = context.Process(target=serve, args=(other, os.getpid(), self.num_threads), daemon=False)
        with _later_interrupts():
            self.process.start()
        other.close()

    def send(self, cell: Cell, records: Records) -> None:
        self.cell = cell
        self.connection.send((cell, records.work_folder(_folder_name(cell))))

    def receive(self) -> tuple[Cell, float | Finished]:
        """Return a share done or the answer; that of a process that died is an error."""
        cell: Cell = self.cell  # type: ignore[assignment]
        try:
            answer: float | Finished = self.connection.recv()
        except (EOFError, ConnectionError):
            self.process.join()
            answer = Finished({}, f"the process died with exit code {self.process.exitcode}", (), 0.0, 0.0)
        if not isinstance(answer, float):
            self.cell = None
        return cell, answer

    def end(self) -> None:
        """Let an idle process finish; stop a busy one, whose checkpoints stand."""
        if self.cell is None and self.process.is_alive():
            try:
                self.connection.send(None)
            except OSError:
                self.process.terminate()
        else:
            self.process.terminate()
        self.process.join(10)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.connection.close()


@contextmanager
def _later_interrupts() -> Iterator[None]:
    """Hold Ctrl-C back: a process that is started now must not meet it before it can ignore it; it would print a traceback."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _recorded(records: Records, cell: Cell, outcome: Finished, origin: dict[str, Any]) -> list[Record]:
    """Write a cell's records and, when it is done, remove its checkpoints."""
    shared: dict[str, Any] = {
        "experiment": cell.experiment.name, "scale": cell.scale.name, "method": cell.method.name, "settings": cell.settings,
        "error": outcome.error, "notes": outcome.notes, "seeds": tuple(cell.seeds), "origin": origin,
        "seconds": round(outcome.seconds, 3), "cpu_seconds": round(outcome.cpu_seconds, 3),
        "finished": datetime.now(UTC).isoformat(timespec="seconds"), "status": "failed" if outcome.error else "done",
    }  # fmt: skip
    made = [Record(seed=seed, results=outcome.results.get(seed, {}) if not outcome.error else {}, **shared) for seed in cell.seeds]
    records.add(made)
    if not outcome.error:
        shutil.rmtree(records.folder / "work" / _folder_name(cell), ignore_errors=True)
    return made


def _folder_name(cell: Cell) -> str:
    seeds = f"{cell.seeds[0]}-{cell.seeds[-1]}"
    return f"{cell.experiment.name}-{cell.scale.name}-{cell.method.name}-{seeds}-{fingerprint(cell.settings)}"


def _stretches(seeds: list[int]) -> list[range]:
    """Cut sorted numbers into ranges of consecutive ones."""
    found: list[range] = []
    for seed in seeds:
        if found and found[-1].stop == seed:
            found[-1] = range(found[-1].start, seed + 1)
        else:
            found.append(range(seed, seed + 1))
    return found
