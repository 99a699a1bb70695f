"""Where a task is done: what is sent there, what comes back, and what is looked at before it is opened."""

from __future__ import annotations

import functools
import importlib
import os
import pickle
import platform
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

__all__ = ["Answer", "Parcel", "packed", "perform", "threads", "versions"]


def versions() -> dict[str, str]:
    """Return the versions on which code and bits depend."""
    own = importlib.import_module("langevin").__version__  # a lower level knows the top by its name only
    python = ".".join(platform.python_version_tuple()[:2])
    return {"langevin": own, "torch": torch.__version__, "numpy": np.__version__, "python": python}


@dataclass(frozen=True)
class Parcel:
    """A task on its way to a worker. All that is not plain is pickled, and opened after the versions were compared."""

    versions: dict[str, str]
    key: str  # of `shared`
    shared: Any  # a pickle of function and what is shared; or what `fetch` makes one of
    task: bytes
    threads: int
    driver: int  # the process that sends it


@dataclass(frozen=True)
class Answer:
    """What comes back: a result, or what went wrong."""

    result: bytes = b""
    error: str | None = None  # its kind and text, with the worker's traceback
    where: str = ""  # host and process
    cpu: str = ""  # the instructions that torch takes there


def perform(parcel: Parcel, fetch: Callable[[Any], bytes] | None = None) -> Answer:
    """Do a task, in whatever process this is; an error is an answer, too."""
    found, cpu = f"{platform.node()}, process {os.getpid()}", torch.backends.cpu.get_cpu_capability()
    here = versions()
    if here != parcel.versions:
        pairs = [f"{name} {here[name]} there, {then} here" for name, then in parcel.versions.items() if then != here[name]]
        return Answer(error=f"another version on a worker: {'; '.join(pairs)}. Install the same on both", where=found)
    try:
        with _no_interrupts(parcel.driver), threads(parcel.threads):
            function, shared = _opened(parcel.key, lambda: parcel.shared if fetch is None else fetch(parcel.shared))
            result = pickle.dumps(function(shared, pickle.loads(parcel.task)))
    except Exception:
        return Answer(error=traceback.format_exc().strip(), where=found)
    return Answer(result, None, found, cpu)


_kept: dict[str, tuple[Any, Any]] = {}  # what is shared by the tasks that this process does


def _opened(key: str, shared: Callable[[], bytes]) -> tuple[Any, Any]:
    """Open what is shared, once in a process; what was shared before is let go."""
    if key not in _kept:
        _kept.clear()
        _kept[key] = pickle.loads(shared())
    return _kept[key]


def packed(what: str, value: Any) -> bytes:
    """Pickle what is sent; with cloudpickle, if it is there, which takes functions without a name and those of scripts, too."""
    dumps = _dumps()
    try:
        return dumps(value)
    except Exception as error:
        more = "" if dumps is not pickle.dumps else ". With cloudpickle installed lambdas and local functions can be sent, too"
        raise TypeError(f"{what} cannot be sent to another process: {type(error).__name__}: {error}{more}") from error


@functools.cache
def _dumps() -> Callable[[Any], bytes]:
    for name in ("cloudpickle", "joblib.externals.cloudpickle", "ray.cloudpickle"):
        try:
            return importlib.import_module(name).dumps
        except ImportError:
            continue
    return pickle.dumps


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Let torch take so many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _no_interrupts(driver: int) -> Iterator[None]:
    """Leave Ctrl-C to the driver: a terminal sends it to all processes, and one that dies of it prints a traceback."""
    if os.getpid() == driver or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
