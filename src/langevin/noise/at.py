"""The noise at given addresses, element by element: what a compiler can fuse with the update that takes it.

Nothing is checked, and nothing is shared between elements: each makes the Philox block that it stands in, and takes its own part.
"""

from __future__ import annotations

import torch
from torch import Tensor

from langevin.noise.address import lanes_of
from langevin.noise.reference import box_muller, philox

__all__ = ["KINDS_AT", "normal_at", "uniform_at"]

Words = tuple[Tensor, ...]


def normal_at(address: Tensor, key: Words, counter: Words, dtype: torch.dtype) -> Tensor:
    """Return the normals of `normal_reference` at these addresses.

    Args:
        address: of each element, int64.
        key: `key_words(seed)`, as int64 tensors without an axis.
        counter: `counter_words(stream, step)`, likewise.
        dtype: float32 or float64.
    """
    (x0, x1, x2, x3), lanes = _words(address, key, counter, dtype)
    if lanes == 4:
        is_late = address & 2 == 2
        radius, angle = torch.where(is_late, x2, x0).to(dtype), torch.where(is_late, x3, x1) << 32
    else:
        radius, angle = x1.to(dtype) * 2.0**32 + x0.to(dtype), x3 << 32 | x2
    first, second = box_muller(radius, angle, lanes)
    return torch.where(address & 1 == 1, second, first)


def uniform_at(address: Tensor, key: Words, counter: Words, dtype: torch.dtype) -> Tensor:
    """Return the uniforms of `uniform_reference` at these addresses; the arguments are those of `normal_at`."""
    (x0, x1, x2, x3), lanes = _words(address, key, counter, dtype)
    is_odd = address & 1 == 1
    if lanes == 4:
        word = torch.where(address & 2 == 2, torch.where(is_odd, x3, x2), torch.where(is_odd, x1, x0))
        width, bits = 24, word >> 8
    else:
        low, high = torch.where(is_odd, x2, x0), torch.where(is_odd, x3, x1)
        width, bits = 53, high << 21 | low >> 11  # the top 53 bits of 64
    return (2 * bits + 1 - 2**width).to(dtype) * 2.0**-width


def _words(address: Tensor, key: Words, counter: Words, dtype: torch.dtype) -> tuple[Words, int]:
    lanes = lanes_of(dtype)
    c1, c2, c3 = counter
    return philox((address >> lanes // 2, c1, c2, c3), (key[0], key[1])), lanes  # 4 lanes are 2 bits, 2 are 1


KINDS_AT = {"normal": normal_at, "uniform": uniform_at}
"""What makes the noise of an update, by `Kernel.noise_kind`."""
