"""Addressed noise on the CPU: the numba engine behind `langevin.noise`.

The work is a flat list of Philox blocks, row after row, cut into tiles. A tile goes through four short loops over
arrays (addresses, Philox, Box-Muller, stores), each of which LLVM turns into vector code; many short rows share a tile.

Every operation on an element is a single IEEE operation (explicit fused multiply-adds included) and nothing is
contracted or reassociated, so an element has the same bits whatever the vector width, the tile or the thread.
"""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numba import types
from numba.extending import overload

from langevin.cpu import elementary
from langevin.cpu.code_cache import cached_njit
from langevin.cpu.elementary import bitcast, fma, inlined, polynomial, square_root

__all__ = ["draw_batches", "draw_rows", "draw_short_rows", "fill_normal", "make_scratch", "philox"]

TILE = 512  # blocks; a float32 tile is 8 KB of words and 8 KB of normals, so both stay in the first cache
LOW = np.uint64(0xFFFFFFFF)
HALF_WORD = np.uint64(32)
MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
WEYL = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
ROUNDS = 10

VECTOR = 8  # lanes of 64 bits in the widest vector
FEISTEL_MULTIPLIER = np.uint64(0xD2B74407B1CE6E93)
FEISTEL_ROUNDS = 24
FEISTEL_MIN_BITS = 8  # below this, permutations of a handful of data are visibly not uniform


def kernel(function: Callable[..., Any]) -> Any:
    """Compile a function of this file; its code is kept, and made anew when this file or `elementary` changes."""
    return cached_njit(function, Path(elementary.__file__), nogil=True, error_model="numpy")


@inlined
def philox(c0, c1, c2, c3, key0, key1):
    """Philox4x32-10 of one block; words are the low halves of uint64, because vectors multiply 32 x 32 -> 64 there.

    The high halves carry leftovers of the products: masking them only where they are read saves two instructions.
    """
    for _ in range(ROUNDS):
        product0 = (c0 & LOW) * MULTIPLIERS[0]
        product1 = (c2 & LOW) * MULTIPLIERS[1]
        c0, c1, c2, c3 = (product1 >> HALF_WORD) ^ c1 ^ key0, product1, (product0 >> HALF_WORD) ^ c3 ^ key1, product0
        key0 += WEYL[0]
        key1 += WEYL[1]
    return c0 & LOW, c1 & LOW, c2 & LOW, c3 & LOW


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


@kernel
def encrypt(words, count, seed):
    """Philox on the first `count` blocks, in place."""
    key0, key1 = seed & LOW, seed >> HALF_WORD
    for i in range(count):
        a, b, c, d = philox(
            np.uint64(words[i]),
            np.uint64(words[i + TILE]),
            np.uint64(words[i + 2 * TILE]),
            np.uint64(words[i + 3 * TILE]),
            key0,
            key1,
        )
        words[i], words[i + TILE] = np.uint32(a), np.uint32(b)
        words[i + 2 * TILE], words[i + 3 * TILE] = np.uint32(c), np.uint32(d)


@inlined
def address(words, begin, count, block, stream, step):
    """Write the counters of blocks `block`, `block + 1`, ... of one row to places `begin`, `begin + 1`, ..."""
    c3 = np.uint32(stream >> 32 | step >> 32 << 8)
    for i in range(count):
        place = np.uint64(begin + i)  # unsigned: numba would allow for negative indices and lose the vector loop
        words[place] = np.uint32(block + i)
        words[place + np.uint64(TILE)] = np.uint32(step)
        words[place + np.uint64(2 * TILE)] = np.uint32(stream)
        words[place + np.uint64(3 * TILE)] = c3


@kernel
def make_scratch(out):
    """Working memory of one thread for arrays like `out`: the words and the normals of a tile."""
    return np.empty(4 * TILE, np.uint32), np.empty(16 * TILE // out.itemsize, out.dtype)


@kernel
def fill_rows(out, size, offset, seed, stream, step, num_streams, begin, end, scratch):
    """Blocks `begin` to `end` of the flat list of blocks behind `out`, the (step, stream) rows of `size` end to end."""
    words, normals = scratch
    lanes = 16 // out.itemsize
    first_block = offset // lanes
    skip = offset - first_block * lanes
    blocks_per_row = (offset + size - 1) // lanes - first_block + 1
    row, block = begin // blocks_per_row, begin % blocks_per_row
    step, chain = step + row // num_streams, row % num_streams
    while begin < end:
        count = min(TILE, end - begin)
        tile_row, tile_block = row, block
        done = 0
        while done < count:
            n = min(count - done, blocks_per_row - block)
            address(words, done, n, first_block + block, stream + chain, step)
            done += n
            block += n
            if block == blocks_per_row:
                row, block, chain = row + 1, 0, chain + 1
                if chain == num_streams:
                    step, chain = step + 1, 0
        encrypt(words, count, seed)
        low, high = tile_block * lanes - skip, (tile_block + count) * lanes - skip
        if low >= 0 and high <= size:
            box_muller(words, count, out[tile_row * size + low : tile_row * size + high])
        else:  # the tile is cut by the ends of rows
            box_muller(words, count, normals)
            done = 0
            while done < count:
                n = min(count - done, blocks_per_row - tile_block)
                start = tile_block * lanes - skip
                low, high = max(start, 0), min(start + n * lanes, size)
                source, target = done * lanes + low - start, tile_row * size + low
                for i in range(high - low):
                    out[np.uint64(target + i)] = normals[np.uint64(source + i)]
                done += n
                tile_row, tile_block = tile_row + 1, 0
        begin += count


@kernel
def fill_normal(out, count, offset, seed, stream, step, scratch):
    """Write the normals of elements `offset` to `offset + count - 1` into `out[:count]`, for use in fused kernels.

    Args:
        out: contiguous float32 or float64 array of at least `count` entries.
        count: how many normals, at least 1.
        offset: address of the first element.
        seed: uint64.
        stream: int64.
        step: int64.
        scratch: from `make_scratch(out)`, one per thread; nothing is allocated here.
    """
    lanes = 16 // out.itemsize
    blocks = (offset + count - 1) // lanes - offset // lanes + 1
    fill_rows(out, count, offset, seed, stream, step, 1, 0, blocks, scratch)


@kernel
def draw_rows(out, size, offset, seed, stream, step, num_streams, begin, end):
    """`fill_rows` with scratch of its own: the unit of work of one thread."""
    fill_rows(out, size, offset, seed, stream, step, num_streams, begin, end, make_scratch(out))


@kernel
def draw_short_rows(out, size, seed, stream, step, num_streams, begin, end):
    """Rows `begin` to `end` where a row is a part of one block: the same numbers as `draw_rows` in half the time.

    Chains in a few dimensions have such rows; a loop runs over the chains of a step instead of over the blocks of a row.
    """
    words, normals = make_scratch(out)
    lanes = 16 // out.itemsize
    while begin < end:
        count = min(TILE, end - begin)
        time, chain = step + begin // num_streams, begin % num_streams
        done = 0
        while done < count:
            n = min(count - done, num_streams - chain)
            for i in range(n):
                place, at = np.uint64(done + i), stream + chain + i
                words[place] = np.uint32(0)
                words[place + np.uint64(TILE)] = np.uint32(time)
                words[place + np.uint64(2 * TILE)] = np.uint32(at)
                words[place + np.uint64(3 * TILE)] = np.uint32(at >> 32 | time >> 32 << 8)
            done, chain, time = done + n, 0, time + 1
        encrypt(words, count, seed)
        box_muller(words, count, normals)
        first = begin * size
        for i in range(count):
            for j in range(size):
                out[np.uint64(first + i * size + j)] = normals[np.uint64(i * lanes + j)]
        begin += count


@inlined
def bijection(value, keys, left_bits, right_bits):
    """VariPhilox (Mitchell et al. 2021): a keyed bijection of `left_bits + right_bits` bits."""
    left_mask, right_mask = (np.uint64(1) << left_bits) - np.uint64(1), (np.uint64(1) << right_bits) - np.uint64(1)
    left, right = value >> right_bits, value & right_mask
    for i in range(FEISTEL_ROUNDS):
        product = left * FEISTEL_MULTIPLIER
        left, right = (
            ((product >> HALF_WORD) ^ keys[i] ^ right) & left_mask,
            ((product & LOW) << (right_bits - left_bits) | right >> left_bits) & right_mask,
        )
    return left << right_bits | right


@kernel
def permute(out, begin, count, num, seed, stream, epoch, keys, values, places):
    """Write places `begin` to `begin + count - 1` of the permutation of `range(num)` at (seed, stream, epoch)."""
    c3 = np.uint64(stream >> 32 | epoch >> 32 << 8)
    for i in range(FEISTEL_ROUNDS // 4):
        keys[4 * i], keys[4 * i + 1], keys[4 * i + 2], keys[4 * i + 3] = philox(
            np.uint64(i), np.uint64(epoch), np.uint64(stream), c3, seed & LOW, seed >> HALF_WORD
        )
    bits = np.uint64(FEISTEL_MIN_BITS)
    while np.uint64(num - 1) >> bits:
        bits += np.uint64(1)
    left_bits = bits >> np.uint64(1)
    for i in range(count):
        values[i], places[i] = np.uint64(begin + i), i
    # Cycle walking: values outside the range go round again, all together so that the loop stays a vector loop. It runs
    # over whole vectors, for the scalar rest would cost more; an index still outside is written, and overwritten later.
    while count > 0:
        for i in range((count + VECTOR - 1) // VECTOR * VECTOR):
            values[i] = bijection(values[i], keys, left_bits, bits - left_bits)
        pending = 0
        for i in range(count):
            value, place = values[i], places[i]
            out[place] = value
            values[pending], places[pending] = value, place
            pending += value >= np.uint64(num)
        count = pending


@kernel
def draw_batches(out, num_data, seed, stream, step, num_streams, begin, end):
    """Rows `begin` to `end` of `out`, whose rows are the minibatches of (step, stream)."""
    batch_size = out.shape[1]
    keys = np.empty(FEISTEL_ROUNDS, np.uint64)
    values, places = np.zeros(batch_size + VECTOR, np.uint64), np.empty(batch_size, np.int64)
    for row in range(begin, end):
        chain = stream + row % num_streams
        position = (step + row // num_streams) * batch_size
        epoch, start = position // num_data, position % num_data
        count = min(batch_size, num_data - start)
        permute(out[row], start, count, num_data, seed, chain, epoch, keys, values, places)
        if count < batch_size:
            rest = batch_size - count
            permute(out[row, count:], 0, rest, num_data, seed, chain, epoch + 1, keys, values, places)
