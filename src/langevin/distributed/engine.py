"""Engines run queues of tasks: each task of a queue depends on the result of the one before.

An engine passes every result to the caller, in the caller's process, as soon as it arrives; the
caller stores it and returns the queue's next task. A kill therefore costs only the tasks that are
running, and the caller can repeat them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

import torch
from typing_extensions import override

from langevin.checks import check_field, check_integer, needs

__all__ = ["After", "Engine", "Function", "Local", "WorkerError", "as_engine", "threads"]

Function = Callable[[Any, Any], Any]
"""Takes the shared data and a task."""

After = Callable[[int, Any], Any]
"""Takes the number of a queue and a result; returns the queue's next task, or None at its end."""


class WorkerError(RuntimeError):
    """A task or its worker failed: the message has the place, the cause and how to continue.

    Example:
        >>> WorkerError.of(3, "a worker died").queue
        3
    """

    queue: int | None = None  # number of the task's queue

    @classmethod
    def of(cls, queue: int, text: str) -> Self:
        """Return the error of a queue."""
        error = cls(text)
        error.queue = queue
        return error


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Set the number of torch threads within a block."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@dataclass(frozen=True)
class Engine(ABC):
    """Runs several queues of tasks; tasks of one queue run one after the other.

    Args:
        seconds: length of a task of a run, and so the work that a kill may cost.
        threads: torch threads per task. The bits of large sums depend on it.

    Example:
        >>> from langevin.distributed import Local
        >>> isinstance(Local(), Engine), Local(seconds=1.0)
        (True, Local(seconds=1.0, threads=1))
    """

    seconds: float = 5.0
    threads: int = 1

    def __post_init__(self) -> None:
        """Check the settings."""
        who = type(self).__name__
        check_field(self, who, "seconds", "> 0", lambda value: value > 0)
        check_integer(who, "threads", self.threads, 1)

    @abstractmethod
    def work(
        self, function: Function, shared: object, first: Mapping[int, object], after: After
    ) -> None:
        """Run the first tasks, and those that `after` returns, until all queues are empty.

        Args:
            function: takes `shared` and a task.
            shared: data that all tasks share; sent once to each process where possible.
            first: the first task of each queue.
            after: receives one result at a time, in this process.

        Raises:
            WorkerError: a task failed, or its process died or has another version of this library.
        """


@dataclass(frozen=True)
class Local(Engine):
    """Run tasks in this process, one of each queue in turn; other engines give the same bits.

    Example:
        >>> found = []
        >>> Local().work(lambda shared, task: shared * task, 10, {0: 1, 1: 2},
        ...              lambda queue, result: found.append(result))
        >>> found
        [10, 20]
    """

    @override
    def work(
        self, function: Function, shared: object, first: Mapping[int, object], after: After
    ) -> None:
        waiting = dict(first)
        while waiting:
            for queue, task in list(waiting.items()):
                try:
                    with threads(self.threads):
                        result = function(shared, task)
                except Exception as error:
                    raise WorkerError.of(queue, f"{type(error).__name__}: {error}") from error
                following = after(queue, result)
                waiting[queue] = following
                if following is None:
                    del waiting[queue]


def as_engine(who: str, engine: object) -> Engine:
    """Return an engine from an engine, "local", "ray", or any pool with a `map`.

    Example:
        >>> as_engine("sample", "local")
        Local(seconds=5.0, threads=1)
    """
    from langevin.distributed.pool import Pool
    from langevin.distributed.ray import Ray

    if isinstance(engine, Engine):
        return engine
    if isinstance(engine, str) and engine in ("local", "ray"):
        return Local() if engine == "local" else Ray()
    if not isinstance(engine, (str, type)) and callable(getattr(engine, "map", None)):
        return Pool(pool=engine)
    names = 'None, "local", "ray", an engine of langevin.distributed, or a pool with a method map'
    raise needs(who, "engine", names, engine, TypeError)
