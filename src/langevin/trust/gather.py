"""The sums of the temperature on the CPU: one pass over positions and gradients, with the bits of the torch version."""

from pathlib import Path

import numpy as np

from langevin.cpu.code_cache import cached_njit

__all__ = ["gather"]


def _gather(sums, centre, positions, gradients, weights, good, begin, count, done, size):
    """Add steps `begin` to `begin + count` to the batches of `size` steps that they belong to; `done` came before them."""
    for k in range(count):
        batch, step = (done + k) // size, begin + k
        weight = weights[step]
        for chain in range(positions.shape[1]):
            if good[chain]:
                for element in range(positions.shape[2]):
                    gap = np.float64(positions[step, chain, element]) - centre[chain, element]
                    slope = np.float64(gradients[step, chain, element]) * weight
                    sums[batch, 0, chain, element] += gap * slope
                    sums[batch, 1, chain, element] += slope
                    sums[batch, 2, chain, element] += gap


gather = cached_njit(_gather, Path(__file__), nogil=True, error_model="numpy")
