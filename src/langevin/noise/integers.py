"""Whole numbers by address, for choices such as a crop, a flip or a row; in plain torch on every device."""

from __future__ import annotations

import torch
from torch import Tensor

from langevin.noise.address import LOW, Address, check_int, check_normal, result_shape
from langevin.noise.reference import philox

__all__ = ["integers", "white_rows"]


def integers(
    seed: int, stream: Address, step: Address, size: int, bounds: tuple[int, ...], *, device: torch.device | str = "cpu"
) -> Tensor:
    """Draw for every element one whole number below each of the bounds, from the Philox block of the element's own.

    Word k of the block, w, gives ``floor(w * bounds[k] / 2**32)``: uniform to within bounds[k] / 2**32.

    Args:
        seed: 0 <= seed < 2**64.
        stream: 0 <= stream < 2**40, or a range of them with step 1.
        step: 0 <= step < 2**56, or a range of them with step 1.
        size: how many elements.
        bounds: one to four of them, each in [1, 2**31).
        device: where to compute; the result is the same everywhere.

    Returns:
        An int64 tensor of shape (len(step), len(stream), size, len(bounds)), without the axes of those that are plain ints.

    Example:
        >>> from langevin.noise import Purpose, stream
        >>> dice = integers(0, stream(Purpose.DATA), 0, 1_000, (6, 6))
        >>> dice.shape, int(dice.min()), int(dice.max())
        (torch.Size([1000, 2]), 0, 5)
    """
    rows = check_normal("integers", seed, stream, step, size, 0, torch.float32, device)
    if not isinstance(bounds, tuple) or not 1 <= len(bounds) <= 4:
        raise ValueError(f"integers(bounds=...) needs one to four bounds, got {bounds!r}")
    for bound in bounds:
        check_int("integers", "bounds", bound, 1, 2**31)  # so that the product below is an int64
    chain, time = rows.tensors(device)
    counter = (torch.arange(size, device=device), time & LOW, chain & LOW, chain >> 32 | time >> 32 << 8)
    words = philox(counter, (seed & LOW, seed >> 32))
    drawn = torch.stack([word * bound >> 32 for word, bound in zip(words, bounds, strict=False)], -1)
    return drawn.reshape(*result_shape(stream, step, size), len(bounds))


def white_rows(
    seed: int, stream: Address, step: Address, batch_size: int, num_data: int, *, device: torch.device | str = "cpu"
) -> Tensor:
    """Draw the rows of a step's minibatch with replacement: each independent of all others, so that their noise is white.

    Args:
        seed: 0 <= seed < 2**64.
        stream: 0 <= stream < 2**40, or a range of them with step 1.
        step: 0 <= step < 2**56, or a range of them with step 1.
        batch_size: at least 1.
        num_data: in [1, 2**31); a row is drawn to within num_data / 2**32 of uniformly.
        device: where to compute; the result is the same everywhere.

    Returns:
        An int64 tensor of shape (len(step), len(stream), batch_size), without the axes of those that are plain ints.

    Example:
        >>> from langevin.noise import Purpose, stream
        >>> white_rows(0, stream(Purpose.ROWS), range(3), 5, 12).shape
        torch.Size([3, 5])
    """
    check_int("white_rows", "batch_size", batch_size, 1, 2**32)
    check_int("white_rows", "num_data", num_data, 1, 2**31)
    fours = integers(seed, stream, step, -(-batch_size // 4), (num_data,) * 4, device=device)  # all words of a Philox block
    return fours.flatten(-2)[..., :batch_size]
