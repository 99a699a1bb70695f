"""Rows of normals.

The work is a flat list of Philox blocks, row after row, cut into tiles. A tile goes through four short loops over
arrays (addresses, Philox, Box-Muller, stores), each of which LLVM turns into vector code; many short rows share a tile.
"""

import numpy as np

from langevin.cpu.elementary import inlined
from langevin.noise.cpu.box_muller import TILE, box_muller
from langevin.noise.cpu.philox import HALF_WORD, LOW, kernel, philox, philox_pair

__all__ = ["draw_rows", "draw_short_rows", "fill_normal", "make_scratch"]

VECTOR = 16  # words in the widest vector


@inlined
def halves(count):
    """Half of the blocks that are worked on where `count` are asked for: whole vectors, since a rest, one by one, takes longer."""
    return (count + 2 * VECTOR - 1) // (2 * VECTOR) * VECTOR


@inlined
def put(words, place, block):
    """Write the words of a block to their four places."""
    words[place] = np.uint32(block[0])
    words[place + np.uint64(TILE)] = np.uint32(block[1])
    words[place + np.uint64(2 * TILE)] = np.uint32(block[2])
    words[place + np.uint64(3 * TILE)] = np.uint32(block[3])


@kernel
def encrypt(words, count, seed):
    """Philox on the first `count` blocks, in place."""
    key0, key1 = seed & LOW, seed >> HALF_WORD
    for i in range(count):
        place = np.uint64(i)
        block = philox(
            np.uint64(words[place]),
            np.uint64(words[place + np.uint64(TILE)]),
            np.uint64(words[place + np.uint64(2 * TILE)]),
            np.uint64(words[place + np.uint64(3 * TILE)]),
            key0,
            key1,
        )
        put(words, place, block)


@kernel
def encrypt_row(words, count, block, stream, step, seed):
    """Philox on blocks `block`, `block + 1`, ... of one row: all but the first word is the same, so two rounds cost one."""
    key0, key1 = seed & LOW, seed >> HALF_WORD
    c0, c1, c2 = np.uint64(block), np.uint64(step) & LOW, np.uint64(stream) & LOW
    c3 = np.uint64(stream >> 32 | step >> 32 << 8)
    half = np.uint64(halves(count))
    for i in range(half):
        place = np.uint64(i)
        first, second = philox_pair((c0 + place, c1, c2, c3), (c0 + place + half, c1, c2, c3), key0, key1)
        put(words, place, first)
        put(words, place + half, second)


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
        is_of_one_row = block + count <= blocks_per_row
        if is_of_one_row:
            encrypt_row(words, count, first_block + block, stream + chain, step, seed)
        done = 0
        while done < count:
            n = min(count - done, blocks_per_row - block)
            if not is_of_one_row:
                address(words, done, n, first_block + block, stream + chain, step)
            done += n
            block += n
            if block == blocks_per_row:
                row, block, chain = row + 1, 0, chain + 1
                if chain == num_streams:
                    step, chain = step + 1, 0
        if not is_of_one_row:
            encrypt(words, count, seed)
        low, high = tile_block * lanes - skip, (tile_block + count) * lanes - skip
        if low >= 0 and high <= size:
            box_muller(words, count, out[tile_row * size + low : tile_row * size + high])
        else:  # the tile is cut by the ends of rows
            box_muller(words, 2 * halves(count), normals)
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
    """`fill_rows` with its own scratch: the unit of work of one thread."""
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
        box_muller(words, 2 * halves(count), normals)
        first = begin * size
        for i in range(count):
            for j in range(size):
                out[np.uint64(first + i * size + j)] = normals[np.uint64(i * lanes + j)]
        begin += count
