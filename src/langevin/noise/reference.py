"""Addressed noise in plain torch: the oracle in tests, the path on other devices, and the fallback without numba."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import Tensor

from langevin.noise.address import LOW, Address, check_batch, check_normal, lanes_of, result_shape

__all__ = ["batch_indices_reference", "box_muller", "counter_words", "key_words", "normal_reference", "philox"]

Word = TypeVar("Word", int, Tensor)


def key_words(seed: int) -> tuple[int, int]:
    """Return the key of Philox that stands for a seed."""
    return seed & LOW, seed >> 32


def counter_words(stream: Word, step: Word) -> tuple[Word, Word, Word]:
    """Return the words of the counter behind the block."""
    return step & LOW, stream & LOW, stream >> 32 | step >> 32 << 8


def philox(counter: tuple[Word, Word, Word, Word], key: tuple[Any, Any], rounds: int = 10) -> tuple[Word, ...]:
    """Philox4x32 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3").

    Args:
        counter: four 32-bit words, ints or int64 tensors that broadcast.
        key: two 32-bit words, ints or int64 tensors of no axis.
        rounds: 10 everywhere in this library.

    Returns:
        Four 32-bit words.

    Example:
        >>> [hex(word) for word in philox((0, 0, 0, 0), (0, 0))]
        ['0x6627e8d5', '0xe169c58d', '0xbc57ac4c', '0x9b00dbd8']
    """
    c0, c1, c2, c3 = counter
    key0, key1 = key
    for _ in range(rounds):
        # An int64 product may wrap to a negative number; after the shift and the mask its bits are the right ones.
        product0, product1 = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1 = product1 >> 32 & LOW ^ c1 ^ key0, product1 & LOW
        c2, c3 = product0 >> 32 & LOW ^ c3 ^ key1, product0 & LOW
        key0, key1 = key0 + 0x9E3779B9 & LOW, key1 + 0xBB67AE85 & LOW
    return c0, c1, c2, c3


def box_muller(radius: Tensor, angle: Tensor, lanes: int) -> tuple[Tensor, Tensor]:
    """Return the two normals of a pair of words: the radius as a real number, the angle as the top bits of an int64."""
    # A 32-bit angle is the top half of a 64-bit one.
    width, centre = (32, 2 << 32) if lanes == 4 else (64, 2)
    r = torch.sqrt(-2.0 * torch.log((radius + 0.5) * 2.0**-width))
    quarter = 0.7853981633974483  # pi / 4, written out: `math.pi` would be an input of compiled code
    phase = (angle << 2 | centre).to(radius.dtype) * (quarter * 2.0**-63)
    sin, cos = torch.sin(phase), torch.cos(phase)
    quadrant = angle >> 62 & 3
    is_odd, signed = quadrant & 1 == 1, torch.where(quadrant >= 2, -r, r)
    return torch.where(is_odd, -sin, cos) * signed, torch.where(is_odd, cos, sin) * signed


def normal_reference(
    seed: int,
    stream: Address,
    step: Address,
    size: int,
    *,
    offset: int = 0,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Tensor:
    """`normal` in plain torch, on any device.

    Args:
        seed: as in `normal`.
        stream: as in `normal`.
        step: as in `normal`.
        size: as in `normal`.
        offset: as in `normal`.
        dtype: as in `normal`.
        device: as in `normal`.

    Returns:
        What `normal` returns, to rounding.

    Example:
        >>> from langevin.noise import normal
        >>> bool(torch.allclose(normal_reference(1, 2, 3, 4), normal(1, 2, 3, 4)))
        True
    """
    rows = check_normal("normal_reference", seed, stream, step, size, offset, dtype, device)
    lanes = lanes_of(dtype)
    first_block = offset // lanes
    block = torch.arange(first_block, (offset + size + lanes - 1) // lanes, device=device)
    chain, time = rows.tensors(device)
    x0, x1, x2, x3 = philox((block, *counter_words(chain, time)), key_words(seed))
    real = torch.promote_types(dtype, torch.float32)
    if lanes == 4:
        pairs = torch.stack((x0, x2), -1).to(real), torch.stack((x1, x3), -1) << 32
    else:
        pairs = (x1.to(real) * 2.0**32 + x0.to(real)).unsqueeze(-1), (x3 << 32 | x2).unsqueeze(-1)
    first, second = box_muller(*pairs, lanes)
    skip = offset - first_block * lanes
    normals = torch.stack((first, second), -1).flatten(2)[..., skip : skip + size]
    return normals.to(dtype).reshape(result_shape(stream, step, size))


def batch_indices_reference(
    seed: int, stream: Address, step: Address, batch_size: int, num_data: int, *, device: torch.device | str = "cpu"
) -> Tensor:
    """`batch_indices` in plain torch, on any device.

    Args:
        seed: as in `batch_indices`.
        stream: as in `batch_indices`.
        step: as in `batch_indices`.
        batch_size: as in `batch_indices`.
        num_data: as in `batch_indices`.
        device: as in `batch_indices`.

    Returns:
        What `batch_indices` returns.

    Example:
        >>> from langevin.noise import batch_indices
        >>> bool((batch_indices_reference(1, 2, 3, 4, 50) == batch_indices(1, 2, 3, 4, 50)).all())
        True
    """
    rows = check_batch("batch_indices_reference", seed, stream, step, batch_size, num_data, device)
    chain, time = rows.tensors(device)
    position = time * batch_size + torch.arange(batch_size, device=device)
    first_epoch = time * batch_size // num_data
    two_epochs = first_epoch + torch.arange(2, device=device)
    keys = [
        key for i in range(6) for key in philox((torch.full_like(chain, i), *counter_words(chain, two_epochs)), key_words(seed))
    ]
    which = (position // num_data - first_epoch).expand(rows.num_steps, rows.num_streams, batch_size)
    keys = [key.gather(-1, which) for key in keys]
    bits = max(8, (num_data - 1).bit_length())  # with fewer, permutations of a handful of data are not uniform
    left_bits, right_bits = bits // 2, bits - bits // 2

    def bijection(value: Tensor) -> Tensor:
        left, right = value >> right_bits, value & (1 << right_bits) - 1
        for key in keys:
            product = left * (0xD2B74407B1CE6E93 - 2**64)
            left, right = (
                (product >> 32 ^ key ^ right) & (1 << left_bits) - 1,
                ((product & LOW) << right_bits - left_bits | right >> left_bits) & (1 << right_bits) - 1,
            )
        return left << right_bits | right

    index = bijection((position % num_data).expand_as(which))
    while bool((outside := index >= num_data).any()):
        index = torch.where(outside, bijection(index), index)
    return index.reshape(result_shape(stream, step, batch_size))
