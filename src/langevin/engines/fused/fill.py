"""Noise in the order of a tensor's memory, for use in generated loops."""

from typing import Any

import numba
import numpy as np

from langevin.noise.cpu import fill_normal, fill_uniform

__all__ = ["FILLS"]


def _in_order_of_memory(fill: Any) -> Any:
    """Return what writes the noise of `count` elements as they lie: for channels-last weights whole output channels, turned."""

    @numba.njit(nogil=True, error_model="numpy")
    def fill_noise(out, spare, count, offset, seed, stream, step, channels, spatial, scratch):
        if channels == 0:
            fill(out, count, offset, seed, stream, step, scratch)
            return
        fill(spare, count, offset, seed, stream, step, scratch)
        slab = channels * spatial
        for first in range(0, count, slab):
            for s in range(spatial):
                for c in range(channels):
                    out[np.uint64(first + s * channels + c)] = spare[np.uint64(first + c * spatial + s)]

    return fill_noise


FILLS = {"fill_normal": _in_order_of_memory(fill_normal), "fill_uniform": _in_order_of_memory(fill_uniform)}
"""By "fill_" and the kind of noise, as generated loops call them."""
