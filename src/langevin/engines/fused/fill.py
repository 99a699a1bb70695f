"""Noise in the order of a tensor's memory, for use in generated loops."""

import numba
import numpy as np

from langevin.noise.cpu import fill_normal

__all__ = ["fill_noise"]


@numba.njit(nogil=True, error_model="numpy")
def fill_noise(out, spare, count, offset, seed, stream, step, channels, spatial, scratch):
    """Write the normals of `count` elements in the order of memory: for channels-last weights whole output channels, turned."""
    if channels == 0:
        fill_normal(out, count, offset, seed, stream, step, scratch)
        return
    fill_normal(spare, count, offset, seed, stream, step, scratch)
    slab = channels * spatial
    for first in range(0, count, slab):
        for s in range(spatial):
            for c in range(channels):
                out[np.uint64(first + s * channels + c)] = spare[np.uint64(first + c * spatial + s)]
