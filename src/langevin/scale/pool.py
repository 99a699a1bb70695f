"""Any pool with a `map`: `multiprocessing.Pool`, executors of `concurrent.futures`, MPI pools, schwimmbad's."""

from __future__ import annotations

import multiprocessing.pool
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from typing_extensions import override

from langevin.checks import needs
from langevin.scale.engine import After, Engine, Function, WorkerError
from langevin.scale.parcels import Parcels
from langevin.scale.worker import Answer, Parcel, perform

__all__ = ["Pool"]

_LOOK_SECONDS = 0.1  # between two looks at the processes of a pool


@dataclass(frozen=True)
class Pool(Engine):
    """A pool: round after round, ``pool.map(function, tasks)`` does one task of every lane.

    Args:
        seconds: as in `Engine`: a round takes about so long, for each lane that a process has.
        threads: as in `Engine`.
        pool: anything with ``map(function, iterable)``. What it is given is pickled; what its processes are, is its own affair.

    Example:
        >>> from concurrent.futures import ThreadPoolExecutor
        >>> from operator import mul
        >>> shares = []
        >>> with ThreadPoolExecutor(2) as executor:
        ...     Pool(pool=executor).work(mul, 10, {0: 1, 1: 2}, lambda lane, result: shares.append(result))
        >>> shares
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
        parcels = Parcels(function, shared, first, after, self.threads)
        while parcels.waiting:
            lanes, failure = list(parcels.waiting), None
            round_of = self._map([parcels.parcel(lane, parcels.shared) for lane in lanes])
            for lane, answer in zip(lanes, round_of, strict=True):
                try:
                    parcels.take(lane, answer)
                except WorkerError as error:  # the other lanes of the round have done their work
                    failure = failure or error
            if failure is not None:
                raise failure

    def _map(self, tasks: Sequence[Parcel]) -> Iterator[Answer]:
        """Do tasks; a pool whose process dies is an error, also where the pool itself would wait for ever."""
        try:
            if isinstance(self.pool, multiprocessing.pool.Pool):
                yield from _map_watched(self.pool, tasks)
            else:
                yield from self.pool.map(perform, tasks)
        except RuntimeError as error:
            if isinstance(error, WorkerError):
                raise
            # concurrent.futures.BrokenExecutor, and what other pools raise when they are broken or closed
            raise WorkerError(f"the pool is broken: {type(error).__name__}: {error}") from error


def _map_watched(pool: multiprocessing.pool.Pool, tasks: Sequence[Parcel]) -> list[Answer]:
    """Do tasks in a pool that starts a new process in the place of one that died, and never does the task that died with it."""
    if getattr(pool, "_state", "RUN") != "RUN":
        raise WorkerError("the pool is broken: it is closed")
    replaces = getattr(pool, "_maxtasksperchild", None) is not None  # then the end of a process is no accident
    workers: dict[int, Any] = {}
    under_way = pool.map_async(perform, tasks, chunksize=1)
    while not under_way.ready():
        workers |= {id(process): process for process in getattr(pool, "_pool", ())}
        under_way.wait(_LOOK_SECONDS)
        ends = [process.exitcode for process in workers.values() if process.exitcode is not None]
        if any(code != 0 or not replaces for code in ends) and not under_way.ready():
            raise WorkerError(f"a process of the pool died with exit code {ends[0]}: killed, or out of memory?")
    return under_way.get()
