"""Ray: run tasks on the workers of a cluster; the task of a worker that dies is repeated."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from typing_extensions import override

from langevin.checks import check_integer, check_number, import_extra
from langevin.distributed.engine import After, Engine, Function, WorkerError
from langevin.distributed.messages import Message, Reply, TaskQueues, perform

__all__ = ["Ray"]

_PATIENCE = 60.0  # seconds without a result before a warning that no task can start


@dataclass(frozen=True)
class Ray(Engine):
    """Run tasks on a Ray cluster: the connected one, that of ``RAY_ADDRESS``, or a new local one.

    A new local cluster uses all cores, has no dashboard, sends no usage statistics, and stops when
    the work ends. Results are returned through Ray, so no shared file system is needed.

    Args:
        seconds: as in `Engine`.
        threads: as in `Engine`.
        num_cpus: reserved per task; by default `threads`.
        memory: bytes reserved per task; None reserves none.
        max_retries: how often a task may lose its worker (killed or out of memory) before it fails.
        runtime_env: packages for the workers, as for Ray: ``{"pip": ["langevin==0.2.0"]}``.

    Example:
        >>> Ray(max_retries=5).seconds
        5.0
    """

    num_cpus: float | None = None
    memory: float | None = None
    max_retries: int = 3
    runtime_env: Mapping[str, Any] | None = None

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer("Ray", "max_retries", self.max_retries, 0)
        for name in ("num_cpus", "memory"):
            if getattr(self, name) is not None:
                check_number("Ray", name, getattr(self, name), "> 0", lambda value: value > 0)

    @override
    def work(self, function: Function, shared: Any, first: Mapping[int, Any], after: After) -> None:
        self.work_on(function, shared, first, after, self._give_up)

    def work_on(
        self,
        function: Function,
        shared: Any,
        first: Mapping[int, Any],
        after: After,
        lost: Callable[[int, str], None],
    ) -> None:
        """Like `work`, but call `lost(queue, reason)` when a task has no retries left."""
        tasks = TaskQueues(function, shared, first, after, self.threads)
        with _connected() as ray:
            send, retries = self._sender(ray, tasks), dict.fromkeys(tasks.waiting, 0)
            running = {send(queue): queue for queue in tasks.waiting}
            try:
                while running:
                    reference = self._next(ray, list(running))
                    queue = running.pop(reference)
                    try:
                        reply = _reply(ray, reference)
                    except _LostWorker as error:
                        retries[queue] += 1
                        if retries[queue] > self.max_retries:
                            del tasks.waiting[queue]
                            text = f"{error}, {retries[queue]} times for one task"
                            lost(queue, f"{text} (max_retries={self.max_retries})")
                            continue
                    else:
                        tasks.receive(queue, reply)
                        retries[queue] = 0
                    if queue in tasks.waiting:
                        running[send(queue)] = queue
            finally:
                for reference in running:
                    with suppress(Exception):
                        ray.cancel(reference, force=True)

    def _give_up(self, queue: int, what: str) -> None:
        raise WorkerError.of(queue, f"its worker was lost: {what}")

    def _sender(self, ray: ModuleType, tasks: TaskQueues) -> Callable[[int], Any]:
        """Return a function that submits the next task of a queue."""
        settings = {
            "max_retries": 0,  # counted here, since Ray does not report retries
            "num_cpus": self.threads if self.num_cpus is None else self.num_cpus,
            "memory": self.memory,
            "runtime_env": None if self.runtime_env is None else dict(self.runtime_env),
        }
        remote = ray.remote(_perform).options(
            **{name: value for name, value in settings.items() if value is not None}
        )
        shared = [ray.put(tasks.shared)]  # in a list, so that a worker fetches it only once
        return lambda queue: remote.remote(tasks.message(queue, shared))

    def _next(self, ray: ModuleType, references: list[Any]) -> Any:
        """Wait for a task; warn when none can start."""
        done, _ = ray.wait(references, num_returns=1, timeout=_PATIENCE)
        while not done:
            wanted = self.threads if self.num_cpus is None else self.num_cpus
            nodes = [node["Resources"].get("CPU", 0.0) for node in ray.nodes() if node["Alive"]]
            if (largest := max(nodes, default=0.0)) < wanted:
                text = f"no task can start: each needs {wanted:g} CPUs"
                warnings.warn(f"{text}, but the largest node has {largest:g}", stacklevel=2)
            done, _ = ray.wait(references, num_returns=1, timeout=_PATIENCE)
        return done[0]


def _perform(message: Message) -> Reply:
    """Run a task on a Ray worker."""
    import ray

    return perform(message, lambda shared: ray.get(shared[0]))


class _LostWorker(Exception):
    """The process or machine of a task died."""


def _reply(ray: ModuleType, reference: Any) -> Reply:
    """Return the reply of a task; convert Ray's errors."""
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:  # raised before `_perform` ran
        text = f"{error.cause or error}".strip()
        text += "\nIs the same version of langevin installed on the workers?"
        return Reply(error=text, where="a Ray worker")
    except ray.exceptions.OutOfMemoryError as error:
        raise _LostWorker("Ray killed it: its machine was out of memory") from error
    except (ray.exceptions.TaskCancelledError, ray.exceptions.RuntimeEnvSetupError) as error:
        return Reply(error=f"{type(error).__name__}: {error}", where="a Ray worker")
    except ray.exceptions.RayError as error:
        raise _LostWorker(f"it died, killed or out of memory ({type(error).__name__})") from error


@contextmanager
def _connected() -> Iterator[ModuleType]:
    """Connect to a Ray cluster; shut down a cluster that was started here."""
    ray = import_extra('engine="ray"', "ray", "ray")
    if ray.is_initialized():
        yield ray
        return
    if os.environ.get("RAY_ADDRESS"):
        ray.init(address=os.environ["RAY_ADDRESS"], log_to_driver=False)
    else:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        ray.init(
            address="local", include_dashboard=False, log_to_driver=False, logging_level="ERROR"
        )
    try:
        yield ray
    finally:
        ray.shutdown()
