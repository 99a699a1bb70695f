"""Cases run in forked children under a watch: a signal, a hang or a greedy case costs that case alone.

The parent imports everything and computes nothing, so that it has no threads when it forks.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, Pipe
from typing import Any, NamedTuple

__all__ = ["Outcome", "run"]

ADDRESS_SPACE = 6 * 2**30  # bytes a child may map beyond what it started with: a bound, not a measurement

PREPARE_SECONDS = 120.0


class Outcome(NamedTuple):
    """The outcome of a case: its `value`, or its `fate` (a signal or a hang)."""

    value: Any
    fate: str | None
    seconds: float
    megabytes: float  # the peak of resident memory above that at the start of the case


def run(
    cases: Sequence[Callable[[], Any]], *, timeout: float, alone: bool = False, prepare: Callable[[], Any] = lambda: None
) -> Iterator[tuple[int, Outcome]]:
    """Run the cases in order and yield their outcomes; a child serves many cases, or one if `alone`.

    A case returns something that can be pickled. `timeout` bounds its processor seconds, which a busy machine does not change; one
    that is not back after three times as long is killed with its child. `prepare` runs first in every child, so that what it loads
    is not charged to a case.
    """
    first = 0
    while first < len(cases):
        last = first + 1 if alone else len(cases)
        for index, outcome in _run_child(cases, first, last, timeout, prepare):
            yield index, outcome
            first = index + 1


def _run_child(
    cases: Sequence[Callable[[], Any]], first: int, last: int, timeout: float, prepare: Callable[[], Any]
) -> Iterator[tuple[int, Outcome]]:
    """Fork a child for cases `first` to `last`, and yield outcomes until it is done or dead."""
    receiver, sender = Pipe(duplex=False)
    pid = os.fork()
    if pid == 0:
        receiver.close()
        _serve(cases, first, last, sender, prepare)
    sender.close()
    index, reaped = first, False
    try:
        if not receiver.poll(PREPARE_SECONDS):
            raise RuntimeError(f"a child was not ready after {PREPARE_SECONDS:g} s")
        try:
            receiver.recv()
        except EOFError as error:
            raise RuntimeError("a child failed before its first case") from error
        while index < last:
            start = time.perf_counter()
            if not receiver.poll(3 * timeout + 1.0):
                os.kill(pid, signal.SIGKILL)
                yield index, Outcome(None, f"hung for more than {timeout:g} s", time.perf_counter() - start, 0.0)
                return
            try:
                answered, value, seconds, megabytes = receiver.recv()
            except EOFError:
                _, status = os.waitpid(pid, 0)
                reaped = True
                yield index, Outcome(None, _fate(status), time.perf_counter() - start, 0.0)
                return
            fate = f"took {seconds:.1f} s" if seconds > timeout else None
            yield answered, Outcome(value, fate, seconds, megabytes)
            index = answered + 1
    finally:
        receiver.close()
        if not reaped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _serve(cases: Sequence[Callable[[], Any]], first: int, last: int, sender: Connection, prepare: Callable[[], Any]) -> None:
    """Run the cases in the child, send their results, and exit without clean-up."""
    status = 1
    try:
        quiet = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(quiet, stream)
        mapped = _memory("VmSize")
        resource.setrlimit(resource.RLIMIT_AS, (int(mapped * 2**20) + ADDRESS_SPACE,) * 2)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        prepare()
        sender.send("ready")
        for index in range(first, last):
            _forget_peak()
            before, start = _memory("VmRSS"), time.process_time()
            value = cases[index]()
            seconds = time.process_time() - start
            sender.send((index, value, seconds, max(0.0, _memory("VmHWM") - before)))
        status = 0
    finally:
        os._exit(status)


def _fate(status: int) -> str:
    if os.WIFSIGNALED(status):
        return f"died of {signal.Signals(os.WTERMSIG(status)).name}"
    return f"left with exit code {os.WEXITSTATUS(status)}"


def _memory(what: str) -> float:
    """Return a line of /proc/self/status in megabytes."""
    with open("/proc/self/status") as file:
        for line in file:
            if line.startswith(what):
                return int(line.split()[1]) / 1024
    raise RuntimeError(f"/proc/self/status has no {what}")


def _forget_peak() -> None:
    with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w") as file:
        file.write("5")
