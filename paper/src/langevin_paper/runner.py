"""Runs cells in processes of their own, or on Ray, and records what they give; knows nothing of what they compute, or of plots.

Finished runs are not run again. A cell that fails is recorded with its error, and the rest goes on. Whatever ends the runner, the
cells that were done are on the disk, and a cell that keeps checkpoints goes on from them.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import shutil
import signal
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from multiprocessing.connection import wait
from multiprocessing.resource_tracker import ensure_running
from typing import Any

import torch

from langevin.checks import check_integer
from langevin.distributed import Ray
from langevin_paper.provenance import provenance
from langevin_paper.record import Record, Records, fingerprint
from langevin_paper.spec import Experiment
from langevin_paper.worker import Cell, Finished, execute_there, serve

__all__ = ["Monitor", "missing_cells", "run_cells", "run_cells_on"]


class Monitor:
    """Hears of every cell as it runs; this one shows nothing."""

    def started(self, cell: Cell) -> None:
        """Take note of a cell that was sent to a process."""

    def progressed(self, cell: Cell, share: float) -> None:
        """Take note of the share of a cell, 0 to 1, that is done."""

    def finished(self, cell: Cell, outcome: Finished) -> None:
        """Take note of a cell that is recorded."""


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
    idle: list[_Worker] = []
    busy: dict[_Worker, Cell] = {}
    try:
        while waiting or busy:
            idle = [worker for worker in idle if worker.process.is_alive()]
            while waiting and len(busy) < jobs:
                worker, cell = idle.pop() if idle else _Worker(num_threads), waiting.pop()
                busy[worker] = cell
                worker.connection.send((cell, records.work_folder(_folder_name(cell))))
                monitor.started(cell)
            ready = wait([worker.connection for worker in busy])
            for worker in [worker for worker in busy if worker.connection in ready]:
                answer = worker.receive()
                if isinstance(answer, float):
                    monitor.progressed(busy[worker], answer)
                else:
                    cell = busy.pop(worker)
                    idle.append(worker)
                    made += _recorded(records, cell, answer, origin)
                    monitor.finished(cell, answer)
    finally:
        for worker in busy:
            worker.process.terminate()  # its checkpoints stand
        for worker in (*idle, *busy):
            worker.end()
    return made


def run_cells_on(engine: Ray, cells: Sequence[Cell], records: Records, *, monitor: Monitor | None = None) -> list[Record]:
    """Run cells on the workers of a Ray cluster, and record them here; return the records in the order in which they came.

    A cell whose worker is killed is run again, from its checkpoints where they are on the same machine or on a shared disk;
    one that loses its worker too often is recorded with that as its error, and the rest goes on.

    Args:
        engine: the cluster.
        cells: from `missing_cells`.
        records: where they go.
        monitor: is told what happens; Ray does not say when a cell starts.
    """
    monitor = Monitor() if monitor is None else monitor
    origin, made = provenance(), []

    def after(queue: int, outcome: Finished) -> None:
        made.extend(_recorded(records, cells[queue], outcome, origin))
        monitor.started(cells[queue])
        monitor.finished(cells[queue], outcome)

    def lost(queue: int, what: str) -> None:
        after(queue, Finished({}, f"its worker was lost: {what}", (), 0.0, 0.0))

    tasks = {queue: (cell, records.work_folder(_folder_name(cell))) for queue, cell in enumerate(cells)}
    engine.work_on(execute_there, None, tasks, after, lost)
    return made


class _Worker:
    """A process that runs cells, and the connection to it."""

    def __init__(self, num_threads: int) -> None:
        context = multiprocessing.get_context("spawn")  # a fork would inherit torch's threads, the lock and the open journal
        self.connection, other = context.Pipe()
        self.process = context.Process(target=serve, args=(other, os.getpid(), num_threads), daemon=False)
        if hasattr(signal, "pthread_sigmask"):
            ensure_running()  # of itself, at the first start, it would let interrupts through again
        with _later_interrupts():
            self.process.start()
        other.close()

    def receive(self) -> float | Finished:
        """Return a share done or the answer; that of a process that died is an error."""
        try:
            return self.connection.recv()
        except (EOFError, ConnectionError):
            self.process.join()
            return Finished({}, f"the process died with exit code {self.process.exitcode}", (), 0.0, 0.0)

    def end(self) -> None:
        """Let the process finish, unless it hangs."""
        with contextlib.suppress(OSError):  # it has ended
            self.connection.send(None)
        self.process.join(10)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.connection.close()


@contextlib.contextmanager
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
