"""Groups of chains, one after the other or in several processes at once, with one progress bar."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import joblib  # type: ignore[import-untyped] # scikit-learn brings it
import numpy as np

from langevin.chains.meter import meter
from langevin.cpu.threads import one_thread

__all__ = ["run_groups"]

Task = Callable[[range, Callable[[float], None]], Any]
"""Takes the numbers of a group's chains and whom to tell the share of the work that is done."""

_PERIOD = 0.2  # seconds between two looks at how far the groups are
_PARTS = 1000  # of a group's work, that a bar counts


def run_groups(task: Task, groups: Sequence[range], jobs: int | None, progress: bool | None) -> list[Any]:
    """Run a task for each group; the results do not depend on the number of processes.

    Args:
        task: what to do for a group.
        groups: numbers of their chains.
        jobs: processes, as joblib counts them: -1 for as many as there are cores.
        progress: whether to show a bar; None on a terminal only.
    """
    count = min(joblib.effective_n_jobs(jobs), len(groups))
    with tempfile.TemporaryDirectory() as folder, meter(progress, "chains", 0, _PARTS * len(groups), unit="part") as tell:
        shares: Any = np.memmap(Path(folder) / "shares", np.float64, "w+", shape=(len(groups),))
        if count == 1:
            return [_run(task, group, shares, number, tell) for number, group in enumerate(groups)]
        with _looking(shares, tell):
            calls = (joblib.delayed(_run)(task, group, shares, number, None) for number, group in enumerate(groups))
            return list(joblib.Parallel(n_jobs=count, mmap_mode="r+")(calls))


def _run(task: Task, group: range, shares: Any, number: int, tell: Callable[[int], object] | None) -> Any:
    def progress(share: float) -> None:
        shares[number] = share
        if tell is not None:
            tell(int(_PARTS * shares.sum()))

    with one_thread():
        result = task(group, progress)
    progress(1.0)
    return result


@contextmanager
def _looking(shares: Any, tell: Callable[[int], object]) -> Iterator[None]:
    """Tell how far other processes are, until the end."""
    done = threading.Event()

    def look() -> None:
        while not done.wait(_PERIOD):
            tell(int(_PARTS * shares.sum()))

    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()
        tell(int(_PARTS * shares.sum()))
