"""Counter-based random numbers: pure functions of (seed, stream, step, element).

There is no generator and no state. Philox4x32-10 encrypts an address under the seed, so an address
gives the same number in any order, in any slice, on any number of threads, and for chains drawn
together or separately.

The layout is fixed, since results depend on it:

    key      = seed low 32 bits, seed high 32 bits
    counter  = c0: block, the element divided by the normals per block
               c1: step low 32 bits
               c2: stream low 32 bits (the chain)
               c3: stream high 8 bits (the purpose) | step high 24 bits << 8

A block of four words x0..x3 holds four float32 normals, the Box-Muller pairs of (x0, x1) and of
(x2, x3), or the two float64 normals of (x1 x0, x3 x2) as 64-bit words. In a pair the first word, an
integer n of w bits, is the radius sqrt(-2 log u) with u = (n + 1/2) / 2**w. The second is the
angle: its top two bits are the quadrant, the rest a phase in (-pi/4, pi/4). The float32 tail
reaches 6.7 standard deviations, the float64 tail 9.4. bfloat16 and float16 are float32 draws,
rounded. A uniform on (-1, 1) is the top 24 bits of a word, or the top 53 of two, as an odd integer.

`normal`, `uniform` and `batch_indices` run in C on the CPU (`lv_noise.h`). The `_reference`
versions are plain torch, for other devices, without a C compiler, and as the oracle in tests.
Integers and uniforms agree exactly, normals to rounding.
"""

from langevin.random.address import UPDATE_NOISES, Purpose, stream, streams
from langevin.random.draw import KINDS, batch_indices, chains_last, normal, permutation, uniform
from langevin.random.integers import integers, white_rows
from langevin.random.reference import (
    batch_indices_reference,
    normal_reference,
    philox,
    uniform_reference,
)
from langevin.random.torch_rng import fork_rng

__all__ = [
    "KINDS",
    "UPDATE_NOISES",
    "Purpose",
    "batch_indices",
    "batch_indices_reference",
    "chains_last",
    "fork_rng",
    "integers",
    "normal",
    "normal_reference",
    "permutation",
    "philox",
    "stream",
    "streams",
    "uniform",
    "uniform_reference",
    "white_rows",
]
