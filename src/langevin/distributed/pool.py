"""Pools with a `map`: `multiprocessing.Pool`, `concurrent.futures`, MPI pools, schwimmbad."""

from __future__ import annotations

import multiprocessing.pool
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from typing_extensions import override

from langevin.checks import needs
from langevin.distributed.engine import After, Engine, Function, WorkerError
from langevin.distributed.messages import Message, Reply, TaskQueues, perform

__all__ = ["Pool"]

_POLL_SECONDS = 0.1  # between two checks of a pool's processes


@dataclass(frozen=True)
class Pool(Engine):
    """Run rounds of ``pool.map(function, tasks)``, each with one task of every queue.

    Args:
        seconds: as in `Engine`: duration of a round, for each queue that a process has.
        threads: as in `Engine`.
        pool: anything with ``map(function, iterable)``; arguments are pickled.

    Example:
        >>> from concurrent.futures import ThreadPoolExecutor
        >>> from operator import mul
        >>> found = []
        >>> with ThreadPoolExecutor(2) as executor:
        ...     engine = Pool(pool=executor)
        ...     engine.work(mul, 10, {0: 1, 1: 2}, lambda queue, result: found.append(result))
        >>> found
        [10, 20]
    """

    pool: Any = None

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        if not callable(getattr(self.pool, "map", None)):
            raise needs("Pool", "pool", "a pool with a method map", self.pool, TypeError)

    @override
    def work(self, function: Function, shared: Any, first: Mapping[int, Any], after: After) -> None:
        tasks = TaskQueues(function, shared, first, after, self.threads)
        while tasks.waiting:
            queues, failure = list(tasks.waiting), None
            replies = self._map([tasks.message(queue, tasks.shared) for queue in queues])
            for queue, reply in zip(queues, replies, strict=True):
                try:
                    tasks.receive(queue, reply)
                except WorkerError as error:  # the other queues of the round have results
                    failure = failure or error
            if failure is not None:
                raise failure

    def _map(self, messages: Sequence[Message]) -> Iterator[Reply]:
        """Run tasks; raise an error if a process dies, even if the pool would wait forever."""
        try:
            if isinstance(self.pool, multiprocessing.pool.Pool):
                yield from _map_watched(self.pool, messages)
            else:
                yield from self.pool.map(perform, messages)
        except WorkerError:
            raise
        except RuntimeError as error:  # BrokenExecutor, or the pool was closed
            raise WorkerError(f"the pool is broken: {type(error).__name__}: {error}") from error


def _map_watched(pool: multiprocessing.pool.Pool, messages: Sequence[Message]) -> list[Reply]:
    """Run tasks in a pool that replaces a dead process but never repeats its task."""
    if getattr(pool, "_state", "RUN") != "RUN":
        raise WorkerError("the pool is broken: it is closed")
    # With maxtasksperchild, processes end regularly.
    may_end = getattr(pool, "_maxtasksperchild", None) is not None
    processes: dict[int, Any] = {}
    running = pool.map_async(perform, messages, chunksize=1)
    while not running.ready():
        processes |= {id(process): process for process in getattr(pool, "_pool", ())}
        running.wait(_POLL_SECONDS)
        codes = [each.exitcode for each in processes.values() if each.exitcode is not None]
        if any(code != 0 or not may_end for code in codes) and not running.ready():
            text = (
                f"a process of the pool died with exit code {codes[0]}: killed, or out of memory?"
            )
            raise WorkerError(text)
    return running.get()
