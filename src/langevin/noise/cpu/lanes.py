"""Normals of many chains in few dimensions, with the chains side by side in memory: the layout of vector code over chains."""

import numpy as np

from langevin.noise.cpu.box_muller import TILE, box_muller
from langevin.noise.cpu.normals import encrypt, make_scratch
from langevin.noise.cpu.philox import kernel

__all__ = ["draw_lanes"]


@kernel
def draw_lanes(out, size, seed, stream, step, num_streams, begin, end):
    """Steps `begin` to `end` of `out`, (step, element, stream) end to end; `size` elements, which one block holds."""
    words, normals = make_scratch(out)
    lanes = 16 // out.itemsize
    for row in range(begin, end):
        time = step + row
        for chain in range(0, num_streams, TILE):
            count = min(TILE, num_streams - chain)
            for i in range(count):
                place, at = np.uint64(i), stream + chain + i
                words[place] = np.uint32(0)
                words[place + np.uint64(TILE)] = np.uint32(time)
                words[place + np.uint64(2 * TILE)] = np.uint32(at)
                words[place + np.uint64(3 * TILE)] = np.uint32(at >> 32 | time >> 32 << 8)
            encrypt(words, count, seed)
            box_muller(words, count, normals)
            for j in range(size):
                first = np.uint64((row * size + j) * num_streams + chain)
                for i in range(count):
                    out[first + np.uint64(i)] = normals[np.uint64(i * lanes + j)]
