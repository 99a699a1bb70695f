"""What does work elsewhere: lanes of tasks, each made from the result of the one before it.

An engine knows nothing of what the tasks are. It hands every result to the caller, in the caller's process, as soon as it has it;
the caller keeps it and says what that lane has to do next. So a kill can take nothing but the tasks that are being done, and these
can be done again by whoever has what the lane was given.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from typing_extensions import override

from langevin.checks import check_integer, check_number, needs
from langevin.scale.worker import threads

__all__ = ["After", "Engine", "Function", "Local", "WorkerError", "as_engine"]

Function = Callable[[Any, Any], Any]
"""Takes what all tasks share, and a task."""

After = Callable[[int, Any], Any]
"""Takes a lane and its result; returns the lane's next task, or None at its end."""


class WorkerError(RuntimeError):
    """Something went wrong where the work is done: the message says where, what, and how to go on; `lane` whose work it was.

    Example:
        >>> WorkerError.of(3, "a worker died").lane
        3
    """

    lane: int | None = None

    @classmethod
    def of(cls, lane: int, text: str) -> Self:
        """Return the error of a lane."""
        error = cls(text)
        error.lane = lane
        return error


@dataclass(frozen=True)
class Engine(ABC):
    """Does the tasks of several lanes, and those of one lane one after the other.

    Args:
        seconds: how long a task of a run may take before it hands over what it has: so much work a kill may cost.
        threads: of torch, for one task. The bits of large sums depend on it.

    Example:
        >>> from langevin.scale import Local
        >>> isinstance(Local(), Engine), Local(seconds=1.0)
        (True, Local(seconds=1.0, threads=1))
    """

    seconds: float = 5.0
    threads: int = 1

    def __post_init__(self) -> None:
        """Check the settings."""
        who = type(self).__name__
        object.__setattr__(self, "seconds", check_number(who, "seconds", self.seconds, "> 0", lambda value: value > 0))
        check_integer(who, "threads", self.threads, 1)

    @abstractmethod
    def work(self, function: Function, shared: Any, first: Mapping[int, Any], after: After) -> None:
        """Do the first tasks, and those that `after` makes of their results, until no lane has any left.

        Args:
            function: what to do with `shared` and a task.
            shared: what every task needs; it is sent once to each process, where that can be done.
            first: the first task of each lane.
            after: is called here, with one result at a time.

        Raises:
            WorkerError: a task raised, or its process died, or has another version of this library.
        """


@dataclass(frozen=True)
class Local(Engine):
    """This process: a task of every lane in turn. What the other engines give, they give with the same bits as this one.

    Example:
        >>> shares = []
        >>> Local().work(lambda shared, task: shared * task, 10, {0: 1, 1: 2}, lambda lane, result: shares.append(result))
        >>> shares
        [10, 20]
    """

    @override
    def work(self, function: Function, shared: Any, first: Mapping[int, Any], after: After) -> None:
        waiting = dict(first)
        while waiting:
            for lane, task in list(waiting.items()):
                try:
                    with threads(self.threads):
                        result = function(shared, task)
                except Exception as error:
                    raise WorkerError.of(lane, f"{type(error).__name__}: {error}") from error
                following = after(lane, result)
                waiting[lane] = following
                if following is None:
                    del waiting[lane]


def as_engine(who: str, engine: Any) -> Engine:
    """Return what `engine` stands for: an engine, "local", "ray", or any pool with a `map`.

    Example:
        >>> as_engine("sample", "local")
        Local(seconds=5.0, threads=1)
    """
    from langevin.scale.pool import Pool
    from langevin.scale.ray import Ray

    if isinstance(engine, Engine):
        return engine
    if isinstance(engine, str) and engine in ("local", "ray"):
        return Local() if engine == "local" else Ray()
    if not isinstance(engine, (str, type)) and callable(getattr(engine, "map", None)):
        return Pool(pool=engine)
    raise needs(who, "engine", 'None, "local", "ray", an engine of langevin.scale, or a pool with a method map', engine, TypeError)
