"""Box-Muller: uniform words to normals."""

import math
from typing import Any

import numpy as np
from numba import types
from numba.extending import overload

from langevin.cpu.elementary import bitcast, fma, inlined, polynomial, square_root
from langevin.noise.cpu.philox import HALF_WORD

__all__ = ["TILE", "box_muller", "pair_f32", "pair_f64"]

TILE = 512  # blocks; a float32 tile is 8 KB of words and 8 KB of normals, so both stay in the first cache


def make_pair(uint: Any, sint: Any, real: Any, log: Any, sine: Any, cosine: Any, log2: Any) -> Any:
    """Box-Muller for one float format: two uniform words to two normals, with the polynomials of fdlibm and Cephes."""
    log, sine, cosine = (tuple(map(real, reversed(c))) for c in (log, sine, cosine))
    log2_high, log2_low = map(real, log2)
    half, one, two = real(0.5), real(1), real(2)
    width, fraction = 8 * real(0).itemsize, uint(np.finfo(real).nmant)
    root_half = real(math.sqrt(0.5)).view(uint)
    to_root_half = uint(one.view(uint) - root_half)
    fraction_mask = uint((1 << int(fraction)) - 1)
    exponent_bias = sint(width + np.finfo(real).maxexp - 1)
    phase_unit = real(math.pi / 4 * 2.0 ** (1 - width))
    sign, odd = uint(1 << (width - 1)), uint(1 << (width - 2))
    shift1, shift2, centre = uint(1), uint(2), uint(2)

    @inlined
    def pair(radius, angle):
        # u = (radius + 1/2) / 2**width = 2**exponent * (1 + f), with 1 + f in [sqrt(1/2), sqrt(2))
        word = uint(bitcast(real(radius) + half) + to_root_half)
        exponent = real(sint(sint(uint(word >> fraction)) - exponent_bias))
        f = bitcast(uint(uint(word & fraction_mask) + root_half)) - one
        s = f / (two + f)
        z = s * s
        square = half * f * f
        tail = fma(s, fma(z, polynomial(z, log), square), exponent * log2_low)
        log_u = fma(exponent, log2_high, f - (square - tail))
        r = square_root(-two * log_u)
        # angle = quadrant * pi/2 + phase, the phase in (-pi/4, pi/4) and symmetric about zero
        phase = real(sint(uint(uint(angle << shift2) | centre))) * phase_unit
        z = phase * phase
        sin = fma(phase * z, polynomial(z, sine), phase)
        cos = fma(z * z, polynomial(z, cosine), fma(-half, z, one))
        swap = uint(angle & odd) != uint(0)
        first = r * (sin if swap else cos)
        second = r * (cos if swap else sin)
        first_sign = uint(uint(angle ^ uint(angle << shift1)) & sign)  # quadrants 1 and 2
        second_sign = uint(angle & sign)  # quadrants 2 and 3
        return bitcast(uint(bitcast(first) ^ first_sign)), bitcast(uint(bitcast(second) ^ second_sign))

    return pair


pair_f32 = make_pair(
    np.uint32,
    np.int32,
    np.float32,
    log=(0.66666662693, 0.40000972152, 0.28498786688, 0.24279078841),
    sine=(-1.6666654611e-1, 8.3321608736e-3, -1.9515295891e-4),
    cosine=(4.166664568298827e-2, -1.388731625493765e-3, 2.443315711809948e-5),
    log2=(0.693359375, -2.12194440e-4),
)
pair_f64 = make_pair(
    np.uint64,
    np.int64,
    np.float64,
    log=(
        6.666666666666735130e-01,
        3.999999999940941908e-01,
        2.857142874366239149e-01,
        2.222219843214978396e-01,
        1.818357216161805012e-01,
        1.531383769920937332e-01,
        1.479819860511658591e-01,
    ),
    sine=(
        -1.66666666666666324348e-01,
        8.33333333332248946124e-03,
        -1.98412698298579493134e-04,
        2.75573137070700676789e-06,
        -2.50507602534068634195e-08,
        1.58969099521155010221e-10,
    ),
    cosine=(
        4.16666666666666019037e-02,
        -1.38888888888741095749e-03,
        2.48015872894767294178e-05,
        -2.75573143513906633035e-07,
        2.08757232129817482790e-09,
        -1.13596475577881948265e-11,
    ),
    log2=(6.93147180369123816490e-01, 1.90821492927058770002e-10),
)


def box_muller(words: Any, count: int, out: Any) -> None:
    """Turn the first `count` blocks of `words` into normals; the format is that of `out`."""
    raise NotImplementedError("box_muller exists only inside numba")


@overload(box_muller)
def _box_muller(words, count, out):  # numba compares signatures, annotations included
    def single(words, count, out):
        for i in range(count):
            a, b = pair_f32(words[i], words[i + TILE])
            c, d = pair_f32(words[i + 2 * TILE], words[i + 3 * TILE])
            out[4 * i], out[4 * i + 1], out[4 * i + 2], out[4 * i + 3] = a, b, c, d

    def double(words, count, out):
        for i in range(count):
            radius = np.uint64(words[i + TILE]) << HALF_WORD | np.uint64(words[i])
            angle = np.uint64(words[i + 3 * TILE]) << HALF_WORD | np.uint64(words[i + 2 * TILE])
            out[2 * i], out[2 * i + 1] = pair_f64(radius, angle)

    return single if out.dtype == types.float32 else double
