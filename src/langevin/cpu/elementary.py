"""Elementary functions for numba loops, each a few IEEE operations that LLVM turns into vector code.

`math.exp` and its kind are library calls there: a loop with one stays scalar, at ten times the cost.
"""

import math
from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import intrinsic, overload

__all__ = ["bitcast", "exponential", "fetch_add", "fma", "narrow", "pointer", "polynomial", "square_root", "widen"]

# Calls, and the branch of a division that may raise, keep a loop scalar: inline the former, let the latter give inf.
inlined = njit(nogil=True, forceinline=True, error_model="numpy")


@intrinsic
def bitcast(typing_context: Any, value: Any) -> Any:
    """The same bits as a float if they were an unsigned integer, and the other way round."""
    pairs: Any = {types.float32: types.uint32, types.float64: types.uint64}
    target = (pairs | {integer: real for real, integer in pairs.items()})[value]

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], context.get_value_type(target))

    return target(value), codegen


@intrinsic
def fma(typing_context: Any, a: Any, b: Any, c: Any) -> Any:
    """Fused a * b + c: rounded once, on every machine."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.fma(*arguments)

    return a(a, a, a), codegen


@intrinsic
def square_root(typing_context: Any, value: Any) -> Any:
    """The instruction; `math.sqrt` is a library call that may set errno, so a loop with it stays scalar."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.call(builder.module.declare_intrinsic("llvm.sqrt", [arguments[0].type]), arguments)

    return value(value), codegen


@inlined
def polynomial(x, coefficients):
    """Horner's rule, highest coefficient first."""
    y = coefficients[0]
    for coefficient in coefficients[1:]:
        y = fma(y, x, coefficient)
    return y


@intrinsic
def pointer(typing_context: Any, address: Any) -> Any:
    """Turn an integer into a pointer."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(types.voidptr))

    return types.voidptr(address), codegen


@intrinsic
def fetch_add(typing_context: Any, address: Any, amount: Any) -> Any:
    """Add to the int64 at an address and return what it was; no two threads get the same."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        where = builder.inttoptr(arguments[0], context.get_value_type(types.int64).as_pointer())
        return builder.atomic_rmw("add", where, arguments[1], "monotonic")

    return types.int64(types.int64, types.int64), codegen


@inlined
def widen(bits):
    """The float32 that a bfloat16, given by its bits, stands for: its upper half."""
    return bitcast(np.uint32(np.uint32(bits) << np.uint32(16)))


@inlined
def narrow(value):
    """The bits of the bfloat16 nearest to a float32, ties to even, as torch rounds it."""
    bits = bitcast(value)
    if value != value:
        return np.uint16(0x7FC0)
    return np.uint16((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16))


def _make_exponential(uint: Any, real: Any, terms: int, log2: tuple[float, float]) -> Any:
    """Cody and Waite: x = n log 2 + r with |r| <= log(2) / 2, and a Taylor polynomial for e**r."""
    taylor = tuple(real(1 / math.factorial(k)) for k in reversed(range(terms)))
    finfo = np.finfo(real)
    highest, lowest = real((finfo.maxexp - 0.5) * math.log(2)), real(finfo.minexp * math.log(2))
    per_log2, log2_high, log2_low = real(1 / math.log(2)), real(log2[0]), real(log2[1])
    # Adding 1.5 * 2**fraction rounds to an integer, whose bits are then the lowest of the sum.
    magic = real(1.5 * 2.0**finfo.nmant)
    bias, fraction = uint(finfo.maxexp - 1), uint(finfo.nmant)

    @inlined
    def exponential(x):
        x = x if x < highest else highest  # beyond the format's range: its ends, never infinity
        x = x if x > lowest else lowest
        shifted = fma(x, per_log2, magic)
        n = shifted - magic
        r = fma(-n, log2_low, fma(-n, log2_high, x))
        power = bitcast(uint(uint(bitcast(shifted) + bias) << fraction))
        return power * polynomial(r, taylor)

    return exponential


_exponentials = {
    types.float32: _make_exponential(np.uint32, np.float32, 8, (0.693359375, -2.12194440e-4)),
    types.float64: _make_exponential(np.uint64, np.float64, 14, (6.93147180369123816490e-01, 1.90821492927058770002e-10)),
}


def exponential(x: Any) -> Any:
    """Return e**x to a few units in the last place; exists inside numba."""
    raise NotImplementedError("exponential exists only inside numba")


@overload(exponential)
def _exponential(x):
    function = _exponentials[x]
    return lambda x: function(x)
