"""Ray: lanes on the workers of a cluster; a worker that dies costs the task that it had, which another one does again."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from typing_extensions import override

from langevin.checks import check_integer, check_number
from langevin.scale.engine import After, Engine, Function, WorkerError
from langevin.scale.parcels import Parcels
from langevin.scale.worker import Answer, Parcel, perform

__all__ = ["Ray"]

_PATIENCE = 60.0  # seconds without a result and without a free place, after which the reason is said


@dataclass(frozen=True)
class Ray(Engine):
    """The workers of a Ray cluster: the one that this process is connected to, that of ``RAY_ADDRESS``, or one started here.

    A cluster that is started here takes all cores, has no dashboard, sends no usage statistics, and ends with the work. On another
    nothing is changed. Results come back through Ray, so no file system needs to be shared.

    Args:
        seconds: as in `Engine`.
        threads: as in `Engine`.
        num_cpus: that Ray sets aside for a task; by default `threads`.
        memory: bytes that Ray sets aside for a task; None for what is left.
        max_retries: how often a task may lose its worker, killed or out of memory, before the work is given up.
        runtime_env: what workers need that they do not have, as Ray takes it, such as ``{"pip": ["langevin==0.2.0"]}``.

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
        self, function: Function, shared: Any, first: Mapping[int, Any], after: After, lost: Callable[[int, str], None]
    ) -> None:
        """Do as `work` does; a lane whose task lost all its workers ends with `lost(lane, what happened)`, which may raise."""
        parcels = Parcels(function, shared, first, after, self.threads)
        with _connected() as ray:
            send, retries = self._sender(ray, parcels), dict.fromkeys(parcels.waiting, 0)
            under_way = {send(lane): lane for lane in parcels.waiting}
            try:
                while under_way:
                    reference = self._next(ray, list(under_way))
                    lane = under_way.pop(reference)
                    try:
                        answer = _answer(ray, reference)
                    except _LostWorker as error:
                        retries[lane] += 1
                        if retries[lane] > self.max_retries:
                            del parcels.waiting[lane]
                            lost(lane, f"{error}, {retries[lane]} times for one task (max_retries={self.max_retries})")
                            continue
                    else:
                        parcels.take(lane, answer)
                        retries[lane] = 0
                    if lane in parcels.waiting:
                        under_way[send(lane)] = lane
            finally:
                for reference in under_way:
                    with suppress(Exception):
                        ray.cancel(reference, force=True)

    def _give_up(self, lane: int, what: str) -> None:
        raise WorkerError.of(lane, f"its worker was lost: {what}")

    def _sender(self, ray: ModuleType, parcels: Parcels) -> Callable[[int], Any]:
        """Return what sends a lane's task."""
        settings = {
            "max_retries": 0,  # they are counted here: Ray would not say that it tries again
            "num_cpus": self.threads if self.num_cpus is None else self.num_cpus,
            "memory": self.memory,
            "runtime_env": None if self.runtime_env is None else dict(self.runtime_env),
        }
        remote = ray.remote(_perform).options(**{name: value for name, value in settings.items() if value is not None})
        shared = [ray.put(parcels.shared)]  # in a list, so that a worker gets it only when it does not have it
        return lambda lane: remote.remote(parcels.parcel(lane, shared))

    def _next(self, ray: ModuleType, references: list[Any]) -> Any:
        """Wait for a task; say so when none can start."""
        done, _ = ray.wait(references, num_returns=1, timeout=_PATIENCE)
        while not done:
            wanted, largest = self.threads if self.num_cpus is None else self.num_cpus, _largest_node(ray)
            if largest < wanted:
                text = f"no task has started: each needs {wanted:g} CPUs, and no machine of the cluster has more than {largest:g}"
                warnings.warn(text, stacklevel=2)
            done, _ = ray.wait(references, num_returns=1, timeout=_PATIENCE)
        return done[0]


def _largest_node(ray: ModuleType) -> float:
    return max([node["Resources"].get("CPU", 0.0) for node in ray.nodes() if node["Alive"]], default=0.0)


def _perform(parcel: Parcel) -> Answer:
    """Do a task on a worker of Ray."""
    import ray

    return perform(parcel, lambda shared: ray.get(shared[0]))


class _LostWorker(Exception):
    """A task ended with its process or its machine."""


def _answer(ray: ModuleType, reference: Any) -> Answer:
    """Return a task's answer; what the task itself cannot say is said here."""
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:  # `_perform` returns errors: this one came before it
        text = f"{error.cause or error}".strip()
        return Answer(error=f"{text}\nIs the same version of langevin installed on the workers?", where="a worker of Ray")
    except ray.exceptions.OutOfMemoryError as error:
        raise _LostWorker("Ray ended it, since its machine was out of memory") from error
    except (ray.exceptions.TaskCancelledError, ray.exceptions.RuntimeEnvSetupError) as error:
        return Answer(error=f"{type(error).__name__}: {error}", where="a worker of Ray")
    except ray.exceptions.RayError as error:
        raise _LostWorker(f"it died, killed or out of memory ({type(error).__name__})") from error


@contextmanager
def _connected() -> Iterator[ModuleType]:
    """Return Ray, connected to a cluster; one that is started here ends here."""
    try:
        import ray
    except ImportError as error:
        raise ImportError('engine="ray" needs Ray: pip install "langevin[ray]"') from error
    if ray.is_initialized():
        yield ray
        return
    if os.environ.get("RAY_ADDRESS"):
        ray.init(address=os.environ["RAY_ADDRESS"], log_to_driver=False)
    else:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        ray.init(address="local", include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    try:
        yield ray
    finally:
        ray.shutdown()
