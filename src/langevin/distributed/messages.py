"""Messages between the driver and its workers, and their queues.

A task and its result are pickled. A worker compares versions before it unpickles anything.
"""

from __future__ import annotations

import functools
import importlib
import os
import pickle
import platform
import signal
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from langevin.distributed.engine import After, Function, WorkerError, threads
from langevin.serialization import digest

__all__ = ["Message", "Reply", "TaskQueues", "pack", "perform", "versions"]


def versions() -> dict[str, str]:
    """Return the versions on which code and bits depend."""
    # By name: this package must not import the top level.
    own = importlib.import_module("langevin").__version__
    python = ".".join(platform.python_version_tuple()[:2])
    return {"langevin": own, "torch": torch.__version__, "numpy": np.__version__, "python": python}


@dataclass(frozen=True)
class Message:
    """A task for a worker; everything but plain values is pickled."""

    versions: dict[str, str]
    key: str  # digest of the pickled shared data
    shared: Any  # pickled (function, shared), or a reference that `fetch` resolves
    task: bytes
    threads: int
    driver: int  # process id of the sender


@dataclass(frozen=True)
class Reply:
    """A pickled result, or an error."""

    result: bytes = b""
    error: str | None = None  # type and text, with the worker's traceback
    where: str = ""  # host and process
    cpu: str = ""  # instruction set that torch uses


class TaskQueues:
    """The driver's side of several task queues: create messages, process replies.

    Args:
        function: takes the shared data and a task.
        shared: data that all tasks share.
        first: the first task of each queue.
        after: as in `Engine.work`.
        threads: torch threads per task.
    """

    def __init__(
        self, function: Function, shared: Any, first: Mapping[int, Any], after: After, threads: int
    ) -> None:
        """Pickle the shared data."""
        name = "the shared data (sampler, target, data or keep)"
        self.shared = pack(name, (function, shared))
        self._key, self._versions = digest(self.shared), versions()
        self._after, self._threads = after, threads
        self.waiting = dict(first)  # the next task of each queue
        self._warned: set[str] = set()  # instruction sets

    def message(self, queue: int, shared: Any) -> Message:
        """Return the message for a queue's next task; `shared` is pickled data or a reference."""
        task = pack("a task", self.waiting[queue])
        return Message(self._versions, self._key, shared, task, self._threads, os.getpid())

    def receive(self, queue: int, reply: Reply) -> None:
        """Pass a result to `after`, which returns the queue's next task; raise an error."""
        if reply.error is not None:
            raise WorkerError.of(queue, f"{reply.where}: {reply.error}")
        own = torch.backends.cpu.get_cpu_capability()
        if reply.cpu not in (own, *self._warned):
            self._warned.add(reply.cpu)
            text = f"a worker ({reply.where}) uses {reply.cpu}, this machine {own}"
            warnings.warn(f"{text}: results may differ by rounding", stacklevel=2)
        following = self._after(queue, pickle.loads(reply.result))
        if following is None:
            del self.waiting[queue]
        else:
            self.waiting[queue] = following


def perform(message: Message, fetch: Callable[[Any], bytes] | None = None) -> Reply:
    """Run a task in this process; errors are returned, not raised."""
    where = f"{platform.node()}, process {os.getpid()}"
    if (here := versions()) != message.versions:
        pairs = [
            f"{name} {here[name]} there, {version} here"
            for name, version in message.versions.items()
            if version != here[name]
        ]
        text = f"another version on a worker: {'; '.join(pairs)}. Install the same on both"
        return Reply(error=text, where=where)
    try:
        with _no_interrupts(message.driver), threads(message.threads):
            function, shared = _unpickle_shared(message, fetch)
            result = pickle.dumps(function(shared, pickle.loads(message.task)))
    except Exception:
        return Reply(error=traceback.format_exc().strip(), where=where)
    return Reply(result, None, where, torch.backends.cpu.get_cpu_capability())


_cache: dict[str, tuple[Any, Any]] = {}  # (function, shared) of the current run, by key


def _unpickle_shared(message: Message, fetch: Callable[[Any], bytes] | None) -> tuple[Any, Any]:
    """Unpickle the shared data once per process, and drop that of earlier runs."""
    if message.key not in _cache:
        _cache.clear()
        data = message.shared if fetch is None else fetch(message.shared)
        _cache[message.key] = pickle.loads(data)
    return _cache[message.key]


def pack(what: str, value: Any) -> bytes:
    """Pickle a value, with cloudpickle where available: it supports lambdas and scripts."""
    dumps = _dumps()
    try:
        return dumps(value)
    except Exception as error:
        text = f"{what} cannot be sent to another process: {type(error).__name__}: {error}"
        if dumps is pickle.dumps:
            text += ". With cloudpickle installed lambdas and local functions can be sent, too"
        raise TypeError(text) from error


@functools.cache
def _dumps() -> Callable[[Any], bytes]:
    for name in ("cloudpickle", "joblib.externals.cloudpickle", "ray.cloudpickle"):
        try:
            return importlib.import_module(name).dumps
        except ImportError:
            continue
    return pickle.dumps


@contextmanager
def _no_interrupts(driver: int) -> Iterator[None]:
    """Ignore Ctrl-C in workers: a terminal sends it to all processes, and the driver handles it."""
    if os.getpid() == driver or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
