"""Work on all of torch's threads: on its own OpenMP pool where that can be had, on Python threads elsewhere.

torch's idle workers spin for a while after each of its operations. A second pool beside them fights for the same cores: an
optimizer step right after a backward pass took twice as long there (`benchmarks/optim.py`). So the work goes to the very
threads that spin, through `GOMP_parallel` of the GNU OpenMP library that torch has loaded.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

__all__ = ["one_thread", "run_compiled", "run_in_threads"]

_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def _find_gomp() -> ctypes.CDLL | None:
    """Return the GNU OpenMP library that torch runs on, already loaded, or None."""
    if not hasattr(os, "RTLD_NOLOAD"):  # Windows
        return None
    folder = Path(torch.__file__).parent
    for path in [*folder.glob("lib/libgomp*.so*"), *folder.parent.glob("torch.libs/libgomp*.so*")]:
        try:
            library = ctypes.CDLL(str(path), mode=os.RTLD_NOLOAD | os.RTLD_NOW)
            library.GOMP_parallel.argtypes = [_CALLBACK, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
            library.GOMP_parallel.restype = None
            return library
        except (OSError, AttributeError):
            continue
    return None


_gomp = _find_gomp()
_pool: ThreadPoolExecutor | None = None


def _after_fork() -> None:
    """Threads do not survive a fork, and GNU OpenMP does not know: let the child start Python threads of its own."""
    global _gomp, _pool
    _gomp, _pool = None, None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def run_in_threads(work: Callable[[int, int], object], count: int, grain: int) -> None:
    """Call `work(begin, end)` on consecutive pieces of `range(count)`, each about `grain` long, on all torch threads.

    `work` must release the GIL to gain anything. Whoever is free takes the next piece, so a busy core delays nobody.
    """
    num_pieces = max(1, count // grain)
    num_threads = min(torch.get_num_threads(), num_pieces)
    if num_threads == 1:
        work(0, count)
        return
    pieces = iter([(count * i // num_pieces, count * (i + 1) // num_pieces) for i in range(num_pieces)])
    failures: list[BaseException] = []

    def take_pieces(_: object = None) -> None:
        try:
            for begin, end in pieces:  # a list iterator hands out each piece once, under the GIL
                work(begin, end)
        except BaseException as error:  # an exception must not leave a callback from C
            failures.append(error)

    _run_at_once(_CALLBACK(take_pieces), None, num_threads)
    if failures:
        raise failures[0]


def run_compiled(work: int, job: Any, num_threads: int) -> None:
    """Call `work(job)` on several of torch's threads at once; it shares out its pieces itself, and cannot fail.

    Args:
        work: address of a C function of a pointer, as `numba.cfunc` makes it: no thread needs the interpreter, or waits for it.
        job: what is pointed to, a ctypes object.
        num_threads: at least 1.
    """
    function, where = _CALLBACK(work), ctypes.addressof(job)
    if num_threads == 1:
        function(where)
    else:
        _run_at_once(function, where, num_threads)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Let torch run on one thread: on what is small two wait for each other longer than they save, on a busy machine far longer."""
    before = torch.get_num_threads()
    if before > 1:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if before > 1:
            torch.set_num_threads(before)


def _run_at_once(work: Any, where: int | None, num_threads: int) -> None:
    if _gomp is not None:
        _gomp.GOMP_parallel(work, where, num_threads, 0)
    else:
        _run_in_pool(lambda: work(where), num_threads - 1)


def _run_in_pool(take_pieces: Callable[[], None], num_helpers: int) -> None:
    global _pool
    if _pool is None:
        _pool = ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="langevin")
    helpers = [_pool.submit(take_pieces) for _ in range(num_helpers)]
    take_pieces()
    for helper in helpers:
        if not helper.cancel():  # a helper that has not started by now has nothing left to do
            helper.result()
