"""The runtime of compiled code: SciPy's BLAS and LAPACK, our linear algebra, torch's threads.

torch's idle workers spin for a while after each operation, and a second thread pool would compete
with them: an optimizer step right after a backward pass took twice as long (`benchmarks/optim.py`).
So compiled code runs on torch's own workers, through `GOMP_parallel` of the GNU OpenMP library that
torch has loaded, or on Python threads if torch has no such library.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import importlib.machinery
import importlib.util
import itertools
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import torch

from langevin.compiler.build import load

# The routines that lv_linalg.h takes. T is double or float; all integers are 32-bit.
_SIGNATURES = {
    "gemm": "char *, char *, int *, int *, int *, T *, T *, int *, T *, int *, T *, T *, int *",
    "potrf": "char *, int *, T *, int *, int *",
    "trsm": "char *, char *, char *, char *, int *, int *, T *, T *, int *, T *, int *",
    "getrf": "int *, int *, T *, int *, int *, int *",
}
TABLE = tuple(letter + name for name in _SIGNATURES for letter in "ds")  # in the header's order

_capsule_name = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)(
    ("PyCapsule_GetName", ctypes.pythonapi)
)
_capsule_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


@functools.cache
def table() -> ctypes.Array[ctypes.c_void_p]:
    """Return the addresses of the routines in `TABLE` as a C array; NULL if SciPy lacks one.

    Example:
        >>> len(table()) == len(TABLE)
        True
    """
    found: list[int | None] = []
    for name in TABLE:
        try:
            found.append(address(name))
        except RuntimeError:  # the header has plain loops
            found.append(None)
    return (ctypes.c_void_p * len(TABLE))(*found)


@functools.cache
def address(name: str) -> int:
    """Return the address of a routine of `TABLE`, which has Fortran's calling convention.

    Raises:
        ValueError: the routine is not in `TABLE`.
        RuntimeError: SciPy does not have it, or with other arguments.

    Example:
        >>> address("dgemm") != address("sgemm")
        True
    """
    if name not in TABLE:
        raise ValueError(f"address(name=...) needs one of {', '.join(TABLE)}, got {name!r}")
    part = "cython_blas" if name[1:] in ("gemm", "trsm") else "cython_lapack"
    capsule = getattr(_module(part), "__pyx_capi__", {}).get(name)
    if capsule is None:
        raise RuntimeError(f"scipy.linalg.{part} does not have {name}")
    signature = _capsule_name(capsule)
    plain = re.sub(rf"__pyx_t_\w+{part}_{name[0]}\b", "T", signature.decode())
    expected = f"void ({_SIGNATURES[name[1:]]})"
    if plain != expected:
        raise RuntimeError(f"scipy.linalg.{part}.{name} needs to be {expected}, got {plain}")
    return int(_capsule_pointer(capsule, signature))


@functools.cache
def _module(part: str) -> ModuleType:
    """Import `scipy.linalg.cython_blas` or `cython_lapack`, without the rest of `scipy.linalg`.

    The package takes several tenths of a second, the module alone a few hundredths.
    """
    name = f"scipy.linalg.{part}"
    if "scipy.linalg" not in sys.modules:
        with contextlib.suppress(Exception):
            return _import_alone(name, part)
    return importlib.import_module(name)


def _import_alone(name: str, part: str) -> ModuleType:
    folder = os.path.join(importlib.import_module("scipy").__path__[0], "linalg")
    found = importlib.machinery.PathFinder.find_spec(part, [folder])
    if found is None or found.origin is None:
        raise ImportError(name)
    spec = importlib.util.spec_from_file_location(name, found.origin)
    assert spec is not None
    assert spec.loader is not None
    try:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        # Cython registers the module. Removing it lets a later import bind it to its package.
        if "scipy.linalg" not in sys.modules:
            sys.modules.pop(name, None)
    return module


_ALGEBRA = {  # functions of lv_linalg_table.h, in its order
    "products": ("mm",),
    "factors": ("cholesky", "trsolve", "lu", "lu_solve", "slogdet_from_lu"),
}


def with_linear_algebra(text: str, load_program: Callable[[], ctypes.CDLL]) -> ctypes.CDLL:
    """Load a program and link the functions of linear algebra that its text calls."""
    addresses: list[int | None] = []
    with ThreadPoolExecutor() as pool:  # the first call compiles all of them in parallel
        pieces = []
        for kind in ("f64", "f32"):
            for part, names in _ALGEBRA.items():
                needed = any(f"lv_{name}_{kind}(" in text for name in names)
                piece = pool.submit(_linear_algebra, kind, part) if needed else None
                pieces.append((piece, len(names)))
        library = load_program()
        for piece, count in pieces:
            addresses += [None] * count if piece is None else piece.result()
    library.lv_take_linalg((ctypes.c_void_p * len(addresses))(*addresses))
    return library


@functools.cache
def _linear_algebra(kind: str, part: str) -> list[int]:
    """Return the addresses of a part for "f64" or "f32", compiled once for all programs."""
    head = f"#define LV_TYPE {kind}\n" + ("#define LV_PRODUCTS\n" if part == "products" else "")
    library = load(head + Path(__file__).with_name("linalg.c").read_text())
    library.lv_take_blas(table())
    return list((ctypes.c_void_p * len(_ALGEBRA[part])).in_dll(library, "lv_linalg_functions"))


# Threads.

_lock = threading.Lock()
_users = 0
_before = 1


@contextlib.contextmanager
def one_blas_thread() -> Iterator[None]:
    """Let SciPy's OpenBLAS use one thread in this context; do nothing if SciPy has another BLAS.

    The number of threads belongs to the whole process. Contexts may overlap in several threads:
    the first one sets it and the last one restores it.

    Example:
        >>> with one_blas_thread():
        ...     pass
    """
    global _users, _before
    get, set_ = _thread_functions()
    with _lock:
        if _users == 0:
            _before = get()
            set_(1)
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                set_(_before)


@functools.cache
def _thread_functions() -> tuple[Callable[[], int], Callable[[int], object]]:
    """Return functions that get and set the number of threads of SciPy's OpenBLAS."""
    with contextlib.suppress(OSError):
        library = ctypes.CDLL(_module("cython_blas").__file__)  # finds symbols of what it links to
        for begin in ("scipy_", ""):
            for end in ("", "64_"):
                names = [f"{begin}openblas_{verb}_num_threads{end}" for verb in ("get", "set")]
                with contextlib.suppress(AttributeError):
                    get, set_ = (getattr(library, name) for name in names)
                    get.argtypes, set_.argtypes, set_.restype = [], [ctypes.c_int], None
                    return get, set_
    return (lambda: 1), (lambda number: None)


Work = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
"""A C function of a pointer: `Work(address)`. Calls release the GIL."""


def _find_gomp() -> ctypes.CDLL | None:
    """Return the GNU OpenMP library that torch runs on, already loaded, or None."""
    if not hasattr(os, "RTLD_NOLOAD"):  # Windows
        return None
    folder = Path(torch.__file__).parent
    paths = *folder.glob("lib/libgomp*.so*"), *folder.parent.glob("torch.libs/libgomp*.so*")
    for path in paths:
        with contextlib.suppress(OSError, AttributeError):
            library = ctypes.CDLL(str(path), mode=os.RTLD_NOLOAD | os.RTLD_NOW)
            library.GOMP_parallel.argtypes = [Work, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
            library.GOMP_parallel.restype = None
            return library
    return None


_gomp = _find_gomp()
_pool: ThreadPoolExecutor | None = None


def run_in_threads(work: Callable[[int, int], object], count: int, grain: int) -> None:
    """Call `work(begin, end)` on consecutive pieces of `range(count)`, on all of torch's threads.

    Pieces are about `grain` long, and a free thread takes the next one, so that a busy core delays
    no other. `work` must release the GIL to gain anything.
    """
    num_pieces = max(1, count // grain)
    num_threads = min(torch.get_num_threads(), num_pieces)
    if num_threads == 1:
        work(0, count)
        return
    ends = [count * i // num_pieces for i in range(num_pieces + 1)]
    pieces = iter(list(itertools.pairwise(ends)))
    failures: list[BaseException] = []

    def take_pieces(_: object = None) -> None:
        try:
            for begin, end in pieces:  # a list iterator returns each piece once, under the GIL
                work(begin, end)
        except BaseException as error:  # an exception must not leave a callback from C
            failures.append(error)

    _run_at_once(Work(take_pieces), None, num_threads)
    if failures:
        raise failures[0]


def run_compiled(
    work: Callable[[int | None], object], job: ctypes.Structure, num_threads: int
) -> None:
    """Call `work(job)` on several of torch's threads at once; `work` divides the job itself.

    Args:
        work: a `Work` in C, which cannot raise.
        job: the structure to which `work` gets a pointer.
        num_threads: at least 1.
    """
    where = ctypes.addressof(job)
    if num_threads == 1:
        work(where)
    else:
        _run_at_once(work, where, num_threads)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Run torch on one thread in this context, which is faster for small tensors."""
    before = torch.get_num_threads()
    if before > 1:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if before > 1:
            torch.set_num_threads(before)


def _run_at_once(work: Callable[[int | None], object], where: int | None, num_threads: int) -> None:
    global _pool
    if _gomp is not None:
        _gomp.GOMP_parallel(work, where, num_threads, 0)
        return
    if _pool is None:
        _pool = ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="langevin")
    helpers = [_pool.submit(work, where) for _ in range(num_threads - 1)]
    work(where)
    for helper in helpers:
        if not helper.cancel():  # a helper that has not started has nothing left to do
            helper.result()


def _after_fork() -> None:
    """Reset a forked child, which has neither the threads of its parent nor their locks."""
    global _lock, _gomp, _pool
    _lock, _gomp, _pool = threading.Lock(), None, None  # GNU OpenMP would wait for them


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
