"""Rows of uniforms on (-1, 1): the words of a Philox block without Box-Muller, for updates that draw signs.

Most of the time is Philox's, as it is for normals: what would save more is fewer bits for each element.
"""

from typing import Any

import numpy as np
from numba import types
from numba.extending import overload

from langevin.noise.cpu.box_muller import TILE
from langevin.noise.cpu.normals import encrypt_row, halves, make_scratch
from langevin.noise.cpu.philox import HALF_WORD, kernel

__all__ = ["draw_uniform_rows", "fill_uniform"]

_F32, _F64 = np.float32(2.0**-24), np.float64(2.0**-53)
_CENTRE32, _CENTRE64 = np.int32(2**24), np.int64(2**53)


def spread(words: Any, count: int, out: Any) -> None:
    """Turn the first `count` blocks of `words` into odd multiples of 2**-24, or of 2**-53; the format is that of `out`."""
    raise NotImplementedError("spread exists only inside numba")


@overload(spread)
def _spread(words, count, out):
    def single(words, count, out):
        for i in range(count):
            for lane in range(4):
                bits = np.int32(words[np.uint64(i + lane * TILE)] >> np.uint32(8))
                out[np.uint64(4 * i + lane)] = np.float32(np.int32(2 * bits + 1) - _CENTRE32) * _F32

    def double(words, count, out):
        for i in range(count):
            for lane in range(2):
                low, high = words[np.uint64(i + 2 * lane * TILE)], words[np.uint64(i + (2 * lane + 1) * TILE)]
                bits = np.int64((np.uint64(high) << HALF_WORD | np.uint64(low)) >> np.uint64(11))
                out[np.uint64(2 * i + lane)] = np.float64(2 * bits + 1 - _CENTRE64) * _F64

    return single if out.dtype == types.float32 else double


@kernel
def fill_uniform(out, count, offset, seed, stream, step, scratch):
    """Write the uniforms of elements `offset` to `offset + count - 1` into `out[:count]`; arguments as in `fill_normal`."""
    words, reals = scratch
    lanes = 16 // out.itemsize
    block, skip, done = offset // lanes, offset % lanes, 0
    while done < count:
        blocks = min(TILE, (skip + count - done + lanes - 1) // lanes)
        encrypt_row(words, blocks, block, stream, step, seed)
        spread(words, 2 * halves(blocks), reals)
        n = min(blocks * lanes - skip, count - done)
        for i in range(n):
            out[np.uint64(done + i)] = reals[np.uint64(skip + i)]
        done, block, skip = done + n, block + blocks, 0


@kernel
def draw_uniform_rows(out, size, offset, seed, stream, step, num_streams, begin, end):
    """Rows `begin` to `end` of `out`, the (step, stream) rows of `size` end to end."""
    scratch = make_scratch(out)
    for row in range(begin, end):
        where = out[row * size : (row + 1) * size]
        fill_uniform(where, size, offset, seed, stream + row % num_streams, step + row // num_streams, scratch)
