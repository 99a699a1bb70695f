"""Compiled C calls SciPy's BLAS and LAPACK through a table of addresses."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import textwrap
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from langevin.compiler import runtime as blas
from langevin.compiler.build import load

SOURCE = """
#define INT(k) ((const int[]){k})
typedef void gemm_t(const char *, const char *, const int *, const int *, const int *, const T *,
                    const T *, const int *, const T *, const int *, const T *, T *, const int *);
typedef void potrf_t(const char *, const int *, T *, const int *, int *);
typedef void trsm_t(const char *, const char *, const char *, const char *, const int *,
                    const int *, const T *, const T *, const int *, T *, const int *);
typedef void getrf_t(const int *, const int *, T *, const int *, int *, int *);

void multiply(void *const *table, int n, const T *a, const T *b, T *c) {
    T one = 1, zero = 0;
    ((gemm_t *)table[0 + F])("N", "N", &n, &n, &n, &one, a, &n, b, &n, &zero, c, &n);
}
int cholesky(void *const *table, int n, T *a) {
    int info;
    ((potrf_t *)table[2 + F])("L", &n, a, &n, &info);
    return info;
}
void forward(void *const *table, int n, const T *l, T *b) {
    T one = 1;
    ((trsm_t *)table[4 + F])("L", "L", "N", "N", &n, INT(1), &one, l, &n, b, &n);
}
int factor(void *const *table, int n, T *a, int *pivots) {
    int info;
    ((getrf_t *)table[6 + F])(&n, &n, a, &n, pivots, &info);
    return info;
}
"""


def run(script, **environment):
    """Run a script in another process."""
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ, **environment})
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_the_order_of_the_table_is_that_of_the_header():
    names = ("dgemm", "sgemm", "dpotrf", "spotrf", "dtrsm", "strsm", "dgetrf", "sgetrf")
    assert names == blas.TABLE
    assert list(blas.table()) == [blas.address(name) for name in names]
    assert blas.table() is blas.table()


@pytest.mark.parametrize(("dtype", "flags"), [("d", ("-DT=double", "-DF=0")), ("f", ("-DT=float", "-DF=1"))])
@pytest.mark.parametrize("n", [1, 3, 200])
def test_a_compiled_program_calls_every_routine_of_the_table(dtype, flags, n):
    library, table = load(SOURCE, flags), blas.table()
    generator = np.random.default_rng(n)
    a, b = (np.asfortranarray(generator.normal(size=(n, n)).astype(dtype)) for _ in range(2))
    right = generator.normal(size=n).astype(dtype)
    near = {"rtol": 0, "atol": (1e-10 if dtype == "d" else 1e-2) * n}

    def pointer(array):
        return array.ctypes.data_as(ctypes.c_void_p)

    product = np.zeros_like(a)
    library.multiply(table, n, pointer(a), pointer(b), pointer(product))
    np.testing.assert_allclose(product, a @ b, **near)

    positive = np.asfortranarray(a @ a.T + n * np.eye(n, dtype=dtype))
    lower = positive.copy(order="F")
    assert library.cholesky(table, n, pointer(lower)) == 0
    np.testing.assert_allclose(np.tril(lower), np.linalg.cholesky(positive), **near)

    x = right.copy()
    library.forward(table, n, pointer(lower), pointer(x))
    np.testing.assert_allclose(np.tril(lower) @ x, right, **near)

    pivots, general = np.zeros(n, dtype=np.int32), np.asfortranarray(positive + a)
    factors = general.copy(order="F")
    assert library.factor(table, n, pointer(factors), pointer(pivots)) == 0
    for row, other in enumerate(pivots - 1):
        general[[row, other]] = general[[other, row]]
    np.testing.assert_allclose((np.tril(factors, -1) + np.eye(n)) @ np.triu(factors), general, **near)


def test_a_matrix_that_is_not_positive_definite_is_reported():
    library = load(SOURCE, ("-DT=double", "-DF=0"))
    a = np.asfortranarray(np.diag([1.0, -1.0, 1.0]))
    assert library.cholesky(blas.table(), 3, a.ctypes.data_as(ctypes.c_void_p)) == 2


@pytest.mark.parametrize("name", blas.TABLE)
def test_every_known_routine_is_there(name):
    assert blas.address(name)


@pytest.mark.parametrize("name", ["gemm", "zgemm", "dgesv", ""])
def test_an_unknown_routine_is_an_error_that_names_the_known_ones(name):
    with pytest.raises(ValueError, match=r"address\(name=\.\.\.\) needs one of dgemm, .*, got "):
        blas.address(name)


@pytest.fixture
def forgetful():
    """Forget addresses before and after."""
    functions = (blas.address, blas.table, blas._module, blas._thread_functions)
    for function in functions:
        function.cache_clear()
    yield
    for function in functions:
        function.cache_clear()


@pytest.mark.parametrize("change", ["other arguments", "not there", "64-bit integers"])
def test_a_routine_with_other_arguments_is_never_called(forgetful, monkeypatch, change):
    real = blas._module("cython_blas").__pyx_capi__
    other = {**real, "dgemm": real["dgemv"]} if change == "other arguments" else {**real}
    if change == "not there":
        del other["dgemm"]
    if change == "64-bit integers":
        name = blas._capsule_name(real["dgemm"]).replace(b"int *", b"long *")
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        other["dgemm"] = new(blas.address("dgemm"), name, None)
        blas.address.cache_clear()
    fake = SimpleNamespace(__pyx_capi__=other)
    lapack = blas._module("cython_lapack")
    monkeypatch.setattr(blas, "_module", lambda part: fake if part == "cython_blas" else lapack)
    with pytest.raises(RuntimeError, match=r"scipy\.linalg\.cython_blas.*(needs to be void|have dgemm)"):
        blas.address("dgemm")
    assert blas.table()[0] is None
    assert blas.table()[1] == blas.address("sgemm")


# Import.


def test_scipy_is_imported_when_an_address_is_needed_and_only_what_is_needed():
    script = """
    import sys
    from langevin.compiler import runtime as blas
    print("scipy" in sys.modules)
    blas.table()
    print("scipy" in sys.modules, "scipy.linalg" in sys.modules, "scipy.linalg.cython_blas" in sys.modules)
    """
    assert run(script) == ["False", "True", "False", "False"]


@pytest.mark.parametrize("first", ["blas.table()", "import scipy.linalg", "import scipy.linalg.cython_blas"])
def test_scipy_is_whole_whoever_imports_it_first(first):
    script = f"""
    from langevin.compiler import runtime as blas
    {first}
    table = list(blas.table())
    import scipy.linalg.cython_blas, scipy.linalg.cython_lapack
    import numpy as np, scipy.linalg
    again = scipy.linalg.cython_blas.__pyx_capi__["dgemm"]
    print(blas._capsule_pointer(again, blas._capsule_name(again)) == table[0])
    print(scipy.linalg.lu_factor(np.eye(2))[0].sum(), scipy.linalg.sqrtm(np.eye(2)).sum())
    """
    assert run(script) == ["True", "2.0", "2.0"]


def test_where_the_module_cannot_be_imported_alone_the_package_is_imported(forgetful, monkeypatch):
    def fail(name, part):
        raise ImportError(name)

    monkeypatch.setattr(blas, "_import_alone", fail)
    monkeypatch.delitem(sys.modules, "scipy.linalg", raising=False)
    assert blas._module("cython_blas").__name__ == "scipy.linalg.cython_blas"


# Threads.


@pytest.fixture
def threads():
    """Return a function that tells the number of threads of SciPy's OpenBLAS."""
    get, set_ = blas._thread_functions()
    before = get()
    set_(2)
    if get() != 2:
        pytest.skip("SciPy has no OpenBLAS with threads here")
    yield get
    set_(before)


def test_the_number_of_threads_is_one_in_the_context_and_restored_after_errors(threads):
    with blas.one_blas_thread():
        with pytest.raises(KeyError), blas.one_blas_thread():
            raise KeyError
        assert threads() == 1
    assert threads() == 2


def test_contexts_that_overlap_in_two_threads_restore_the_number_at_the_end(threads):
    inside, leave, left = threading.Event(), threading.Event(), threading.Event()

    def work():
        with blas.one_blas_thread():
            inside.set()
            leave.wait(60)
        left.set()

    thread = threading.Thread(target=work)
    thread.start()
    inside.wait(60)
    with blas.one_blas_thread():
        leave.set()
        left.wait(60)
        assert threads() == 1
    thread.join()
    assert threads() == 2


def test_without_openblas_the_context_does_nothing(forgetful, monkeypatch):
    monkeypatch.setattr(blas.ctypes, "CDLL", lambda path: SimpleNamespace())
    with blas.one_blas_thread():
        pass
    monkeypatch.setattr(blas, "_module", lambda part: SimpleNamespace(__file__="/no/such/library"))
    blas._thread_functions.cache_clear()
    with blas.one_blas_thread():
        pass


def test_scipy_and_our_threads_may_multiply_at_once():
    """With one thread of OpenBLAS each of our own threads computes for itself."""
    table, library = blas.table(), load(SOURCE, ("-DT=double", "-DF=0"))
    a = np.asfortranarray(np.random.default_rng(0).normal(size=(64, 64)))
    results = [np.zeros_like(a) for _ in range(4)]

    def work(result):
        pointers = [array.ctypes.data_as(ctypes.c_void_p) for array in (a, a, result)]
        for _ in range(50):
            library.multiply(table, 64, *pointers)

    with blas.one_blas_thread():
        workers = [threading.Thread(target=work, args=(result,)) for result in results]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    for result in results:
        np.testing.assert_array_equal(result, results[0])
    np.testing.assert_allclose(results[0], a @ a, atol=1e-12)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_child_does_not_wait_for_a_lost_thread():
    script = """
    import os, threading, warnings
    from langevin.compiler import runtime as blas
    warnings.simplefilter("ignore", DeprecationWarning)  # a fork beside threads
    blas._thread_functions()
    hold, held = threading.Event(), threading.Event()
    def work():
        with blas._lock:
            held.set()
            hold.wait()
    thread = threading.Thread(target=work)
    thread.start()
    held.wait()
    child = os.fork()
    if child == 0:
        with blas.one_blas_thread():
            os._exit(7)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    hold.set()
    """
    assert run(script) == ["7"]
