"""A process that runs cells, one after another, as its parent sends them."""

from __future__ import annotations

import os
import signal
import threading
import time
import traceback
import warnings
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from langevin import TrustWarning
from langevin_paper.spec import Experiment, Method, Progress, Results, Scale

__all__ = ["Cell", "Finished", "execute", "execute_there", "serve"]

_REPORT_SECONDS = 0.2


@dataclass(frozen=True)
class Cell:
    """What is run at once."""

    experiment: Experiment
    scale: Scale
    method: Method
    seeds: range  # consecutive, so that they are chains of one run

    @property
    def name(self) -> str:
        """For messages."""
        seeds = f"seed {self.seeds[0]}" if len(self.seeds) == 1 else f"seeds {self.seeds[0]}-{self.seeds[-1]}"
        return f"{self.experiment.name} {self.scale.name} {self.method.name}, {seeds}"

    @property
    def settings(self) -> dict[str, Any]:
        """All its settings."""
        return self.experiment.settings_of(self.method, self.scale)


@dataclass(frozen=True)
class Finished:
    """What a cell gave: results, or the error that ended it."""

    results: Results
    error: str | None
    notes: tuple[str, ...]
    seconds: float
    cpu_seconds: float


def execute(cell: Cell, folder: Path, progress: Progress) -> Finished:
    """Run a cell; an exception becomes part of the answer."""
    start, cpu = time.perf_counter(), time.process_time()
    results: Results = {}
    error = None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        # Hot, cold and short runs are what experiments are about; chains that stop are not, and come first in the text.
        warnings.filterwarnings("ignore", r"failed diagnostics:\n(?!stopped chains)", TrustWarning)
        try:
            results = cell.experiment.run(cell.method, cell.scale, cell.seeds, folder, progress)
            if absent := set(cell.seeds) - set(results):
                raise RuntimeError(f"the run of {cell.name} gave no results for seeds {sorted(absent)}")
        except Exception:
            error = traceback.format_exc()
    notes = tuple(dict.fromkeys(str(entry.message) for entry in caught))
    return Finished(results, error, notes, time.perf_counter() - start, time.process_time() - cpu)


def execute_there(shared: None, task: tuple[Cell, Path]) -> Finished:
    """Run a cell on another machine, whose folder may not be there yet; a task of an engine of `langevin.distributed`."""
    cell, folder = task
    folder.mkdir(parents=True, exist_ok=True)
    return execute(cell, folder, lambda share: None)


def serve(connection: Connection, parent: int, num_threads: int) -> None:
    """Take (cell, folder) from the connection until None comes; answer with shares done, and then with what it gave."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the parent, which ends this process
    threading.Thread(target=_follow, args=(parent,), daemon=True).start()
    torch.set_num_threads(num_threads)
    told = 0.0

    def progress(share: float) -> None:
        nonlocal told
        if time.monotonic() - told > _REPORT_SECONDS:
            told = time.monotonic()
            connection.send(share)

    while (task := connection.recv()) is not None:
        cell, folder = task
        connection.send(execute(cell, folder, progress))


def _follow(parent: int) -> None:
    """End with the parent, however that ends: a second run must not meet this process in its folders."""
    while os.getppid() == parent:
        time.sleep(0.1)
    os._exit(1)
