"""Dense linear algebra of generated C code: lv_linalg.h against torch."""

from __future__ import annotations

import ctypes
import hashlib
import itertools
import math
from pathlib import Path

import pytest
import scipy.linalg.cython_blas
import scipy.linalg.cython_lapack
import torch

import langevin.compiler
from langevin.compiler.build import compiler, load

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C compiler")

INCLUDE = Path(langevin.compiler.__file__).parent / "include"
MATRIX, LONG = "{0} {1}, long {1}r, long {1}c", ctypes.c_long
# Exported copies of the static functions: return type, name, parameters; T is the type, S its suffix.
EXPORTS = """
void mm(long m, long n, long k, const T *a, long ar, long ac, const T *b, long br, long bc, T *c, long cr, long cc, T p, T q)
int cholesky(long n, const T *a, long ar, long ac, T *o, long r, long c, int upper)
void trsolve(long n, long m, const T *a, long ar, long ac, T *b, long br, long bc, int u, int t, int l, int d)
int lu(long n, const T *a, long ar, long ac, T *o, long r, long c, int *p)
void lu_solve(long n, long m, const T *a, long ar, long ac, const int *p, T *b, long br, long bc, int l, int t)
T slogdet_from_lu(long n, const T *a, long ar, long ac, const int *p, T *l)
"""


def source() -> str:
    """One exported function per line of EXPORTS and type, called after the type: sum_f64."""
    headers = b"".join((INCLUDE / name).read_bytes() for name in ("lv_math.h", "lv_linalg.h", "lv_linalg_real.h"))
    lines = [f"// {hashlib.sha256(headers).hexdigest()}", '#include "lv_linalg.h"']
    lines.append("void use_blas(void *const *table) { lv_use_blas(table); }")
    for line, (real, suffix) in itertools.product(EXPORTS.strip().splitlines(), (("double", "f64"), ("float", "f32"))):
        returns, rest = line.split(" ", 1)
        name, parameters = rest.rstrip(")").split("(")
        arguments = ", ".join(p.split()[-1].lstrip("*") for p in parameters.split(","))
        typed = " ".join(real if word == "T" else word for word in f"{parameters}".replace("*", " * ").split())
        returns = real if returns == "T" else returns
        lines.append(f"{returns} {name}_{suffix}({typed}) {{ return lv_{name}_{suffix}({arguments}); }}")
    return "\n".join(lines)


@pytest.fixture(scope="module")
def library():
    return load(source())


def scipy_pointer(name: str) -> int:
    module = scipy.linalg.cython_lapack if "tr" in name[2:] or "potr" in name else scipy.linalg.cython_blas
    module = scipy.linalg.cython_blas if "trsm" in name else module
    get_name, get = ctypes.pythonapi.PyCapsule_GetName, ctypes.pythonapi.PyCapsule_GetPointer
    get_name.restype, get_name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    capsule = module.__pyx_capi__[name]
    return get(capsule, get_name(capsule))


@pytest.fixture(params=["loops", "blas"])
def blas(request, library):
    """Both without a table and with SciPy's."""
    names = [t + n for n in ("gemm", "potrf", "trsm", "getrf") for t in "ds"]
    table = (ctypes.c_void_p * 8)(*map(scipy_pointer, names))
    library.use_blas(table if request.param == "blas" else None)
    yield request.param
    library.use_blas(None)


REAL = {torch.float64: ctypes.c_double, torch.float32: ctypes.c_float}
SUFFIX = {torch.float64: "f64", torch.float32: "f32"}
DTYPES = tuple(REAL)


def address(tensor: torch.Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())


def matrix(t: torch.Tensor) -> tuple[ctypes.c_void_p, ctypes.c_long, ctypes.c_long]:
    return address(t), LONG(t.stride(0)), LONG(t.stride(1))


def call(library, name: str, dtype: torch.dtype, *arguments, result=None):
    function = getattr(library, f"{name}_{SUFFIX[dtype]}")
    function.restype = REAL[dtype] if result is float else result
    return function(*(LONG(a) if isinstance(a, int) else a for a in arguments))


def normal(*shape: int, dtype=torch.float64, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed + sum(shape))).to(dtype)


def layouts(t: torch.Tensor) -> dict[str, torch.Tensor]:
    """The same matrix with other strides: row-major, column-major, inside a larger one, every other element."""
    m, n = t.shape
    inside, spread = t.new_full((m + 3, n + 5), math.nan), t.new_full((2 * m, 3 * n), math.nan)
    inside[1 : m + 1, 2 : n + 2], spread[::2, ::3] = t, t
    return {
        "rows": t.clone(memory_format=torch.contiguous_format),
        "columns": t.t().clone(memory_format=torch.contiguous_format).t(),
        "inside": inside[1 : m + 1, 2 : n + 2],
        "spread": spread[::2, ::3],
    }


def close(actual: torch.Tensor, expected: torch.Tensor, factor: float = 1.0) -> None:
    eps = max(torch.finfo(actual.dtype).eps, torch.finfo(expected.dtype).eps)
    error = (actual.double() - expected.double()).abs().max().item() if actual.numel() else 0.0
    scale = expected.abs().max().item() if expected.numel() else 1.0
    assert error <= factor * eps * max(scale, 1e-300), (error / eps / scale, factor)


# ---------------------------------------------------------------- products


SHAPES = [(0, 3, 2), (3, 0, 2), (1, 1, 1), (2, 2, 2), (3, 1, 5), (1, 7, 3), (5, 4, 3), (4, 8, 16), (7, 17, 33), (1, 40, 300),
          (40, 1, 300), (9, 3, 700), (300, 8, 20), (8, 20, 1000), (37, 41, 43), (70, 90, 60), (130, 35, 270)]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_product_is_torchs_for_all_strides(library, blas, dtype, shape):
    m, n, k = shape
    a, b = normal(m, k, dtype=dtype), normal(k, n, dtype=dtype, seed=1)
    exact, bound = a.double() @ b.double(), (a.abs().double() @ b.abs().double()).clamp(min=1e-300)
    eps = torch.finfo(dtype).eps
    for (_, x), (_, y), (_, out) in itertools.product(*(layouts(t).items() for t in (a, b, a.new_full((m, n), math.nan)))):
        call(library, "mm", dtype, m, n, k, *matrix(x), *matrix(y), *matrix(out), REAL[dtype](1), REAL[dtype](0))
        assert ((out.double() - exact).abs() <= (4 + 2 * k**0.5) * eps * bound).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_alpha_and_beta_scale_and_only_the_product_is_written(library, blas, dtype):
    for m, n, k in [(2, 3, 4), (9, 20, 30), (20, 1, 33), (1, 20, 33), (60, 50, 40), (3, 4, 0)]:
        a, b, c = normal(m, k, dtype=dtype), normal(k, n, dtype=dtype, seed=1), normal(m, n, dtype=dtype, seed=2)
        for out in layouts(c).values():
            whole = out._base if out._base is not None else out
            before, expected = whole.clone(), 2.5 * a.double() @ b.double() - 0.5 * c.double()
            call(library, "mm", dtype, m, n, k, *matrix(a), *matrix(b), *matrix(out), REAL[dtype](2.5), REAL[dtype](-0.5))
            close(out, expected, 60)
            out.copy_(c)
            assert torch.equal(whole.nan_to_num(7), before.nan_to_num(7))


def test_broadcast_inputs_have_stride_zero(library, blas):
    for m, n, k in [(3, 2, 2), (50, 60, 70), (30, 1, 40), (1, 30, 40)]:
        a, b, out = normal(1, k).expand(m, k), normal(k, 1, seed=1).expand(k, n), torch.empty(m, n, dtype=torch.float64)
        call(library, "mm", a.dtype, m, n, k, *matrix(a), *matrix(b), *matrix(out), ctypes.c_double(1), ctypes.c_double(0))
        close(out, a @ b, 30)


def test_a_long_dot_product_is_as_accurate_as_torchs(library, blas):
    torch.set_num_threads(1)
    k = 20000
    a, b = (
        torch.rand(3, k, generator=torch.Generator().manual_seed(0)),
        torch.rand(k, 5, generator=torch.Generator().manual_seed(1)),
    )
    exact, out = a.double() @ b.double(), torch.empty(3, 5)
    call(library, "mm", a.dtype, 3, 5, k, *matrix(a), *matrix(b), *matrix(out), ctypes.c_float(1), ctypes.c_float(0))
    assert (out - exact).abs().max() <= 16 * torch.finfo(torch.float32).eps * exact.max()


# ---------------------------------------------------------------- factorisations and solves


def positive(n: int, dtype: torch.dtype) -> torch.Tensor:
    x = normal(n, n + 5, dtype=torch.float64)
    return (x @ x.t() / (n + 5) + 0.1 * torch.eye(n, dtype=torch.float64)).to(dtype)


ORDERS = (0, 1, 2, 5, 16, 17, 33, 70)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", ORDERS)
def test_cholesky_reads_one_triangle_and_zeroes_the_other(library, blas, dtype, n):
    a = positive(n, dtype)
    for upper, name, out in itertools.product((0, 1), layouts(a), layouts(a.new_full((n, n), math.nan)).values()):
        x = layouts(a)[name]
        garbage = torch.ones(n, n).tril(-1).bool() if upper else torch.ones(n, n).triu(1).bool()
        x[garbage] = math.nan
        assert call(library, "cholesky", dtype, n, *matrix(x), *matrix(out), ctypes.c_int(upper), result=ctypes.c_int) == 0
        factor = out.double()
        assert (factor[garbage] == 0).all()
        close(factor.t() @ factor if upper else factor @ factor.t(), a, 10 + n)


@pytest.mark.parametrize("n", [1, 3, 20, 50])
@pytest.mark.parametrize("upper", [0, 1])
def test_cholesky_reports_the_minor_that_is_not_positive_definite(library, blas, n, upper):
    for bad, value in itertools.product({0, n // 2, n - 1}, (-1.0, 0.0, math.nan)):
        a = torch.eye(n, dtype=torch.float64)
        a[bad, bad] = value
        out = torch.empty_like(a)
        info = call(library, "cholesky", a.dtype, n, *matrix(a), *matrix(out), ctypes.c_int(upper), result=ctypes.c_int)
        assert info == bad + 1 == torch.linalg.cholesky_ex(a, upper=bool(upper)).info


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", ORDERS)
def test_triangular_solves_read_one_triangle(library, blas, dtype, n):
    for upper, transpose, left, unit, nrhs in itertools.product((0, 1), (0, 1), (0, 1), (0, 1), (1, 3, 40)):
        a = normal(n, n, dtype=dtype) / max(n, 1) ** 0.5 / 2 + 2 * torch.eye(n, dtype=dtype)
        full = (a.triu() if upper else a.tril()).double()
        full = full - full.diag().diag() + torch.eye(n, dtype=torch.float64) if unit else full
        op = full.t() if transpose else full
        b = normal(n, nrhs, dtype=dtype, seed=1) if left else normal(nrhs, n, dtype=dtype, seed=1)
        for name, to in itertools.product(layouts(a), layouts(b)):
            x, out = layouts(a)[name], layouts(b)[to]
            x[torch.ones(n, n).tril(-1).bool() if upper else torch.ones(n, n).triu(1).bool()] = math.nan
            x.diagonal().fill_(math.nan) if unit else None
            flags = map(ctypes.c_int, (upper, transpose, left, unit))
            call(library, "trsolve", dtype, n, nrhs, *matrix(x), *matrix(out), *flags)
            residual = op @ out.double() - b.double() if left else out.double() @ op - b.double()
            close(residual.to(dtype) + b, b, 40 * (1 + (out.abs().max().item() if out.numel() else 0)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", ORDERS)
def test_lu_has_torchs_factors_and_pivots(library, blas, dtype, n):
    a = normal(n, n, dtype=dtype)
    expected = torch.linalg.lu_factor_ex(a.double())
    for x, out in itertools.product(layouts(a).values(), layouts(a.new_full((n, n), math.nan)).values()):
        pivots = torch.empty(n, dtype=torch.int32)
        assert call(library, "lu", dtype, n, *matrix(x), *matrix(out), address(pivots), result=ctypes.c_int) == 0
        if dtype == torch.float64:
            assert torch.equal(pivots, expected.pivots)
        # With these pivots P A = L U determines the factors. BLAS builds round them differently, by the condition of A's
        # leading blocks, but every one keeps the product to n eps |L| |U|.
        lower, upper = out.double().tril(-1) + torch.eye(n), out.double().triu()
        permuted = torch.lu_unpack(out.double(), pivots)[0].mT @ a.double()
        assert ((lower @ upper - permuted).abs() <= n * torch.finfo(dtype).eps * (lower.abs() @ upper.abs())).all()
        logabs = torch.empty(1, dtype=dtype)
        sign = call(library, "slogdet_from_lu", dtype, n, *matrix(out), address(pivots), address(logabs), result=float)
        reference = torch.linalg.slogdet(a.double())
        assert sign == reference.sign
        assert abs(logabs.item() - reference.logabsdet) <= 200 * torch.finfo(dtype).eps * max(1, abs(reference.logabsdet))
        for left, transpose, nrhs in itertools.product((0, 1), (0, 1), (1, 30)):
            b = normal(n, nrhs, dtype=dtype, seed=1) if left else normal(nrhs, n, dtype=dtype, seed=1)
            got, op = b.clone(), (a.t() if transpose else a).double()
            flags = ctypes.c_int(left), ctypes.c_int(transpose)
            call(library, "lu_solve", dtype, n, nrhs, *matrix(out), address(pivots), *matrix(got), *flags)
            residual = op @ got.double() - b.double() if left else got.double() @ op - b.double()
            close(residual.to(dtype) + b, b, 100 * (1 + n) * (1 + (got.abs().max().item() if got.numel() else 0)))


@pytest.mark.parametrize("n", [1, 2, 20])
def test_a_singular_matrix_has_the_index_of_its_pivot(library, blas, n):
    a = normal(n, n)
    a[:, n - 1] = a[:, 0] * 0
    lu, pivots, logabs = (
        torch.empty(n, n, dtype=torch.float64).t(),
        torch.empty(n, dtype=torch.int32),
        torch.empty(1, dtype=torch.float64),
    )
    info = call(library, "lu", a.dtype, n, *matrix(a), *matrix(lu), address(pivots), result=ctypes.c_int)
    assert info == n == torch.linalg.lu_factor_ex(a).info
    assert call(library, "slogdet_from_lu", a.dtype, n, *matrix(lu), address(pivots), address(logabs), result=float) == 0
    assert logabs.item() == -math.inf


def test_tables_may_have_holes(library):
    table = (ctypes.c_void_p * 8)(*([scipy_pointer("dgemm")] + [None] * 7))
    library.use_blas(table)
    a, out = positive(60, torch.float64), torch.empty(60, 60, dtype=torch.float64)
    assert call(library, "cholesky", a.dtype, 60, *matrix(a), *matrix(out), ctypes.c_int(0), result=ctypes.c_int) == 0
    close(out @ out.t(), a, 100)
    library.use_blas(None)
