"""Addressed integers, for example for crops, flips or rows; plain torch on every device."""

from __future__ import annotations

import torch
from torch import Tensor

from langevin.checks import check_integer
from langevin.random.address import Address, check_normal, result_shape
from langevin.random.reference import counter_words, key_words, philox

__all__ = ["integers", "white_rows"]


def integers(
    seed: int,
    stream: Address,
    step: Address,
    size: int,
    bounds: tuple[int, ...],
    *,
    device: torch.device | str = "cpu",
) -> Tensor:
    """Return one integer below each bound for every element, from the element's Philox block.

    Word k of the block, w, gives ``floor(w * bounds[k] / 2**32)``: uniform to within bounds[k] /
    2**32.

    Args:
        seed: 0 <= seed < 2**64.
        stream: 0 <= stream < 2**40, or a range of them with step 1.
        step: 0 <= step < 2**56, or a range of them with step 1.
        size: number of elements.
        bounds: one to four of them, each in [1, 2**31).
        device: of the result; all devices give the same values.

    Returns:
        An int64 tensor of shape (len(step), len(stream), size, len(bounds)); an int instead of a
        range has no axis.

    Example:
        >>> from langevin.random import Purpose, stream
        >>> dice = integers(0, stream(Purpose.DATA), 0, 1_000, (6, 6))
        >>> dice.shape, int(dice.min()), int(dice.max())
        (torch.Size([1000, 2]), 0, 5)
    """
    rows = check_normal("integers", seed, stream, step, size, 0, torch.float32, device)
    if not isinstance(bounds, tuple) or not 1 <= len(bounds) <= 4:
        raise ValueError(f"integers(bounds=...) needs one to four bounds, got {bounds!r}")
    for bound in bounds:
        check_integer("integers", "bounds", bound, 1, 2**31)  # the product below is an int64
    chain, time = rows.tensors(device)
    counter = torch.arange(size, device=device), *counter_words(chain, time)
    words = philox(counter, key_words(seed))
    drawn = [word * bound >> 32 for word, bound in zip(words, bounds, strict=False)]
    return torch.stack(drawn, -1).reshape(*result_shape(stream, step, size), len(bounds))


def white_rows(
    seed: int,
    stream: Address,
    step: Address,
    batch_size: int,
    num_data: int,
    *,
    device: torch.device | str = "cpu",
) -> Tensor:
    """Return the row numbers of a minibatch, drawn with replacement and independent over steps.

    Args:
        seed: 0 <= seed < 2**64.
        stream: 0 <= stream < 2**40, or a range of them with step 1.
        step: 0 <= step < 2**56, or a range of them with step 1.
        batch_size: at least 1.
        num_data: in [1, 2**31); uniform to within num_data / 2**32.
        device: of the result; all devices give the same values.

    Returns:
        An int64 tensor of shape (len(step), len(stream), batch_size); an int instead of a range has
        no axis.

    Example:
        >>> from langevin.random import Purpose, stream
        >>> white_rows(0, stream(Purpose.ROWS), range(3), 5, 12).shape
        torch.Size([3, 5])
    """
    check_integer("white_rows", "batch_size", batch_size, 1, 2**32)
    check_integer("white_rows", "num_data", num_data, 1, 2**31)
    # All four words of a Philox block are used.
    fours = integers(seed, stream, step, -(-batch_size // 4), (num_data,) * 4, device=device)
    return fours.flatten(-2)[..., :batch_size]
