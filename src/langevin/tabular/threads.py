"""Run groups of chains in threads, with a progress bar; Ctrl-C ends them early."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from typing import Any

import joblib  # type: ignore[import-untyped] # scikit-learn brings it
import torch

from langevin.compiler.runtime import one_blas_thread, one_thread
from langevin.sampling.progress import progress_bar

__all__ = ["run_tasks"]

_PERIOD = 0.2  # seconds between two updates of the progress bar


def run_tasks(
    tasks: Sequence[Callable[..., Any]], jobs: int | None, total: int, progress: bool, name: str
) -> list[Any]:
    """Return the results of some tasks, in order; Ctrl-C asks all of them to stop.

    Args:
        tasks: functions of `go_on`, which takes the number of steps taken, now and then, and
            returns False to ask for an early end. Compiled code releases Python's lock.
        jobs: threads, as in joblib: -1 for one per core.
        total: steps of a task.
        progress: whether to show a bar.
        name: of the bar.

    Example:
        >>> run_tasks([lambda go_on: go_on(1), lambda go_on: 2], 2, 1, False, "chains")
        [True, 2]
    """
    count = min(joblib.effective_n_jobs(jobs), len(tasks))
    stop, done = threading.Event(), [0] * len(tasks)

    def run(number: int) -> Any:
        torch.set_num_threads(1)  # of this thread

        def go_on(steps: int) -> bool:
            done[number] = steps
            return not stop.is_set()

        try:
            return tasks[number](go_on=go_on)
        finally:
            done[number] = total

    futures: list[Future[Any]] = []
    try:
        with one_thread(), one_blas_thread(), ThreadPoolExecutor(count) as pool:
            try:
                with progress_bar(progress, name, 0, total * len(tasks)) as show:
                    for number in range(len(tasks)):
                        futures.append(pool.submit(run, number))
                    while (state := wait(futures, _PERIOD, FIRST_EXCEPTION)).not_done:
                        show(sum(done))
                        if any(future.exception() for future in state.done):
                            break
                    show(sum(done))
            finally:
                stop.set()  # after an error or an interrupt, the other tasks end soon
    except KeyboardInterrupt:
        pass  # results are shorter than usual
    return [future.result() for future in futures]
