"""Elementary and special functions of generated C code: lv_math.h against mpmath and torch."""

from __future__ import annotations

import ctypes
import itertools
import math
import platform
import subprocess
from collections.abc import Callable
from pathlib import Path

import mpmath
import numpy as np
import pytest
import torch

import langevin.compiler
from langevin.compiler.build import FLAGS, compiler, load

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C compiler")

INCLUDE = Path(langevin.compiler.__file__).parent / "include"
HEADER = (INCLUDE / "lv_math.h").read_text()  # in the source, so that the cache sees its changes


def _softplus(x):
    return mpmath.log1p(mpmath.exp(x)) if x < 100 else x + mpmath.exp(-x)


def _log_ndtr(x):
    tail = mpmath.erfc(abs(x) / mpmath.sqrt(2)) / 2
    return mpmath.log(tail) if x < 0 else mpmath.log1p(-tail)


def _ndtri(p):
    return mpmath.sqrt(2) * mpmath.erfinv(2 * p - 1)


def uniform(low: float, high: float, n: int = 60, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(low, high, n)


def powers(low: float, high: float, n: int = 60) -> np.ndarray:
    return 10.0 ** uniform(low, high, n, seed=1)


def both(x: np.ndarray) -> np.ndarray:
    return np.concatenate([x, -x])


ALL = np.concatenate([uniform(-1, 1), uniform(-9, 9, seed=2), both(powers(-20, 0))])
POSITIVE = np.concatenate(
    [powers(-307, 308, 150), powers(-3, 3, 100), 1 + both(powers(-9, -1)), [5e-324, 1e-310, 1e-320, 1e-44, 1e-40]]
)
GAMMA = np.concatenate(
    [uniform(0, 10, 150), 1 + both(powers(-9, -1)), 2 + both(powers(-9, -1)), powers(-30, 100), -uniform(0, 20, 100)]
)
UNIT = np.concatenate([uniform(0, 1), powers(-30, 0), 1 - powers(-15, -1)])
QUARTERS = np.round(uniform(-1e6, 1e6, seed=3)) * (math.pi / 2)
EXPONENTS = np.concatenate([ALL, uniform(-745, 709.7, 100)])

# name: reference, arguments, largest error in ulp (double, float); see FLOOR.
UNARY: dict[str, tuple[Callable, np.ndarray, float, float]] = {
    "exp": (mpmath.exp, EXPONENTS, 0.9, 0.9),
    "exp2": (lambda x: mpmath.power(2, x), np.concatenate([ALL, uniform(-1074, 1024, 100)]), 1.0, 1.0),
    "expm1": (mpmath.expm1, EXPONENTS, 0.8, 0.8),
    "log": (mpmath.log, POSITIVE, 0.8, 0.8),
    "log2": (lambda x: mpmath.log(x) / mpmath.log(2), POSITIVE, 1.5, 1.5),
    "log10": (mpmath.log10, POSITIVE, 1.5, 1.5),
    "log1p": (mpmath.log1p, np.concatenate([POSITIVE, -uniform(0, 1), -powers(-20, 0), -UNIT]), 0.8, 0.8),
    "tanh": (mpmath.tanh, ALL, 2.7, 2.7),
    "sinh": (mpmath.sinh, np.concatenate([ALL, uniform(-710, 710)]), 2.0, 2.0),
    "cosh": (mpmath.cosh, np.concatenate([ALL, uniform(-710, 710)]), 1.5, 1.5),
    "sigmoid": (lambda x: 1 / (1 + mpmath.exp(-x)), EXPONENTS, 2.0, 2.0),
    "softplus": (_softplus, EXPONENTS, 1.7, 1.7),
    "log_sigmoid": (lambda x: -_softplus(-x), EXPONENTS, 1.7, 1.7),
    "sin": (mpmath.sin, np.concatenate([ALL, uniform(-1e5, 1e5), powers(0, 15), QUARTERS]), 0.7, 0.7),
    "cos": (mpmath.cos, np.concatenate([ALL, uniform(-1e5, 1e5), powers(0, 15), QUARTERS]), 0.7, 0.7),
    "erf": (mpmath.erf, ALL, 1.6, 0.6),
    "erfc": (mpmath.erfc, np.concatenate([ALL, uniform(-6, 27, 150)]), 4.0, 0.6),
    "erfinv": (mpmath.erfinv, np.concatenate([both(uniform(0, 1)), powers(-20, 0), 1 - powers(-14, -1)]), 4.0, 0.6),
    "ndtr": (lambda x: mpmath.erfc(-x / mpmath.sqrt(2)) / 2, np.concatenate([ALL, uniform(-38, 8, 100)]), 5.0, 0.6),
    "log_ndtr": (_log_ndtr, np.concatenate([ALL, uniform(-38, 38, 100)]), 5.0, 0.6),
    "ndtri": (_ndtri, UNIT[::2], 4.0, 0.6),
    "lgamma": (lambda x: mpmath.log(abs(mpmath.gamma(x))) if x < 1e4 else mpmath.loggamma(x), GAMMA, 4.0, 0.6),
    "digamma": (mpmath.digamma, GAMMA, 5.0, 0.6),
    "trigamma": (lambda x: mpmath.psi(1, x), GAMMA, 5.0, 0.6),
    "i0": (lambda x: mpmath.besseli(0, x), np.concatenate([uniform(-20, 20), uniform(-700, 700)]), 6.0, 0.6),
    "i0e": (lambda x: mpmath.exp(-abs(x)) * mpmath.besseli(0, x), np.concatenate([uniform(-20, 20), both(powers(0, 5))]), 6.0, 0.6),
    "i1": (lambda x: mpmath.besseli(1, x), np.concatenate([uniform(-20, 20), uniform(-700, 700)]), 12.0, 0.6),
    "i1e": (
        lambda x: mpmath.exp(-abs(x)) * mpmath.besseli(1, x),
        np.concatenate([uniform(-20, 20), both(powers(0, 5))]),
        12.0,
        0.6,
    ),
}
# Relative to max(|result|, floor): absolute near zeros at which the argument's own rounding decides.
FLOOR = {"lgamma": 4.0, "digamma": 4.0}

PLAIN = {name: getattr(torch, name) for name in ("sign", "round", "floor", "sqrt", "abs")}
PLAIN |= {"entr": torch.special.entr}
TORCH: dict[str, Callable] = PLAIN | {
    name: getattr(torch, name, None) or getattr(torch.special, name, None) for name in UNARY if name not in ("trigamma", "softplus")
}
TORCH |= {
    "sigmoid": torch.sigmoid,
    "softplus": torch.nn.functional.softplus,
    "log_sigmoid": torch.nn.functional.logsigmoid,
    "trigamma": lambda x: torch.polygamma(1, x),
}
BINARY: dict[str, Callable] = {
    "maximum": torch.maximum, "minimum": torch.minimum, "fmod": torch.fmod,
    "remainder": torch.remainder, "floor_divide": torch.floor_divide,
    "xlogy": torch.xlogy, "xlog1py": torch.special.xlog1py, "logaddexp": torch.logaddexp, "heaviside": torch.heaviside,
    "copysign": torch.copysign,
}  # fmt: skip


def source() -> str:
    lines = [HEADER]
    for suffix, real in (("", "double"), ("f", "float")):
        head = f"void {{0}}_{real}(long n, {real} *restrict y, {{1}})"
        loop = f"{head} {{{{ for (long i = 0; i < n; i++) y[i] = lv_{{0}}{suffix}({{2}}); }}}}"
        for names, count in (((*UNARY, *PLAIN), 1), (BINARY, 2)):
            parameters = ", ".join(f"const {real} *restrict x{k}" for k in range(count))
            arguments = ", ".join(f"x{k}[i]" for k in range(count))
            lines += [loop.format(name, parameters, arguments) for name in names]
    return "\n".join(lines)


@pytest.fixture(scope="module")
def library():
    return load(source())


def run(library, name: str, *x: np.ndarray) -> np.ndarray:
    x = tuple(np.ascontiguousarray(v) for v in x)
    y = np.full_like(x[0], -123.0)
    function = getattr(library, f"{name}_{'double' if y.dtype == np.float64 else 'float'}")
    function(ctypes.c_long(y.size), *(ctypes.c_void_p(v.ctypes.data) for v in (y, *x)))
    return y


DTYPES = (np.float64, np.float32)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", UNARY)
def test_the_error_is_a_few_units_in_the_last_place(library, name, dtype):
    reference, x, *limits = UNARY[name]
    with np.errstate(over="ignore"):
        x = np.unique(x.astype(dtype))
    x = x[np.isfinite(x) & ((x != np.round(x)) if name in ("lgamma", "digamma", "trigamma", "erfinv", "ndtri") else True)]
    x = x[(x > 0) & (x < 1)] if name == "ndtri" else x
    x = x if dtype == np.float64 else x[:: 3 if limits[1] < 0.7 else 1]
    x = x[x != 0] if name in ("log", "log2", "log10") else x[x > -1] if name == "log1p" else x
    y, largest, tiny = run(library, name, x), float(np.finfo(dtype).max), float(np.finfo(dtype).smallest_subnormal)
    for argument, result in zip(x.tolist(), y.tolist(), strict=True):
        with mpmath.workdps(90 if name in ("ndtri", "erfinv") else 40):
            exact = reference(mpmath.mpf(argument))
            if abs(exact) > largest:
                assert result == math.copysign(math.inf, exact), (argument, result)
                continue
            size = max(float(abs(exact)), FLOOR.get(name, 0.0))
            unit = max(float(np.spacing(dtype(size))), tiny)
            error = float(abs(mpmath.mpf(result) - exact) / unit)
        assert error <= limits[dtype == np.float32], (argument, result, float(exact), error)


SPECIAL = [math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.0, 1e-30, -1e-30, 88.8,
           150.0, -104.0, 5e-324, -5e-324, 1e-310, 1e308, -1e308, 710.0, -746.0, 745.0]  # fmt: skip
# Where torch is off: subnormal results, overflow of an intermediate, sin(pi x) of an integer that is not 0.
EXCEPT = {
    "sigmoid": {-746.0, -104.0},
    "ndtr": {-104.0},
    "i0": {88.8},
    "i1": {88.8},
    "trigamma": {-1.0, -2.0, -104.0, -746.0, -1e308},
    "log1p": {-5e-324},
}
SIGNED_ZERO = {"round", "tanh", "expm1", "log1p", "sinh", "erf", "erfinv", "sin", "log_ndtr"}
LARGE = {"sin", "cos"}  # of arguments beyond 2^50


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", TORCH)
def test_special_values_are_torchs(library, name, dtype):
    with np.errstate(over="ignore"):
        x = np.array(SPECIAL, dtype=dtype)
    y, expected = run(library, name, x), TORCH[name](torch.from_numpy(x)).numpy()
    for argument, given, ours, theirs in zip(SPECIAL, x.tolist(), y.tolist(), expected.tolist(), strict=True):
        if argument in EXCEPT.get(name, ()) or (name in LARGE and abs(given) > 2**50):
            continue
        if math.isnan(theirs) or math.isinf(theirs):
            assert str(ours) == str(theirs), (name, argument, ours, theirs)
        else:
            near = 1e-5 if name == "trigamma" or dtype == np.float32 else 1e-13
            least = 1e-37 if dtype == np.float32 else 1e-300 if abs(theirs) < 1e-290 else 0
            assert ours == pytest.approx(theirs, rel=near, abs=least), (name, argument)
            if theirs != 0 or name in SIGNED_ZERO:
                assert math.copysign(1, ours) == math.copysign(1, theirs), (name, argument, ours)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", BINARY)
def test_functions_of_two_numbers_are_torchs_on_a_grid(library, name, dtype):
    values = [math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.0, 2.0, -3.0, 0.75, -0.3, 1e-3, 1e20, -7.5, 0.1]
    a, b = (np.array(v, dtype=dtype) for v in zip(*itertools.product(values, values), strict=True))
    y, expected = run(library, name, a, b), BINARY[name](torch.from_numpy(a), torch.from_numpy(b)).numpy()
    tolerance = 0 if name not in ("xlogy", "xlog1py", "logaddexp") else 8 * np.finfo(dtype).eps
    np.testing.assert_allclose(y, expected, rtol=tolerance, atol=tolerance / 100)
    if name in ("fmod", "remainder", "floor_divide", "copysign"):
        number = ~np.isnan(expected)
        assert (np.signbit(y) == np.signbit(expected))[number].all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", UNARY)
def test_an_element_has_the_same_bits_in_any_loop(library, name, dtype):
    with np.errstate(over="ignore"):
        x = np.concatenate([UNARY[name][1], SPECIAL])[-150:].astype(dtype)
    whole = run(library, name, x)
    single = np.concatenate([run(library, name, x[i : i + 1]) for i in range(x.size)])
    shifted = np.concatenate([run(library, name, x[:5]), run(library, name, x[5:])])
    integer = np.uint64 if dtype == np.float64 else np.uint32
    for other in (single, shifted):
        same = (whole.view(integer) == other.view(integer)) | (np.isnan(whole) & np.isnan(other))
        assert same.all(), x[~same]


def test_powers_of_two_and_ten_have_exact_logarithms(library):
    k = np.arange(-1074, 1024)
    np.testing.assert_array_equal(run(library, "log2", np.ldexp(1.0, k)), k)
    np.testing.assert_array_equal(run(library, "exp2", k.astype(float)), np.ldexp(1.0, k))
    k = np.arange(0, 23)
    np.testing.assert_array_equal(run(library, "log10", 10.0**k), k)


def test_sine_of_a_number_without_a_fraction_is_nan(library):
    for name in ("sin", "cos"):
        assert not np.isnan(run(library, name, np.array([2.0**49, -(2.0**49)]))).any()
        assert np.isnan(run(library, name, np.array([2.0**50, -(2.0**60), 1e300]))).all()


def test_gcc_vectorises_loops_over_branch_free_functions(tmp_path):
    command = compiler()
    if (
        platform.machine() != "x86_64"
        or "Free Software Foundation" not in subprocess.run([*command, "--version"], capture_output=True, text=True).stdout
    ):
        pytest.skip("not gcc")
    names = (
        "exp",
        "log",
        "log1p",
        "expm1",
        "tanh",
        "sigmoid",
        "log_sigmoid",
        "erf",
        "lgamma",
        "digamma",
        "ndtri",
        "sin",
        "maximum",
    )
    lines = ['#include "lv_math.h"']
    for name in names:
        argument = "x[i], y[i]" if name in BINARY else "x[i]"
        lines.append(f"void f_{name}(long n, const double *restrict x, double *restrict y)"
                     f"{{ for (long i = 0; i < n; i++) y[i] = lv_{name}({argument}); }}")  # fmt: skip
    (tmp_path / "loops.c").write_text("\n".join(lines))
    flags = [*FLAGS, "-march=native", "-fopt-info-vec-optimized", f"-I{INCLUDE}", "-o", str(tmp_path / "loops.so"), "loops.c"]
    done = subprocess.run([*command, *flags], capture_output=True, text=True, cwd=tmp_path)
    reported = {
        line.split(":")[1] for line in done.stderr.splitlines() if line.startswith("loops.c:") and "loop vectorized" in line
    }
    assert {name for k, name in enumerate(names) if str(k + 2) not in reported} == set()
