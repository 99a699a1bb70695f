"""Addressed noise in plain torch: for devices other than the CPU, and without a C compiler.

Tests use it as the oracle of the compiled code. `normal_at` and `uniform_at` compute each element
independently, which lets a compiler fuse the noise with the update that uses it.
"""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import Tensor

from langevin.random.address import (
    LOW,
    Address,
    Grid,
    check_batch,
    check_normal,
    lanes_of,
    result_shape,
)

__all__ = [
    "KINDS_AT",
    "batch_indices_reference",
    "box_muller",
    "counter_words",
    "key_words",
    "normal_at",
    "normal_reference",
    "philox",
    "uniform_at",
    "uniform_reference",
]

Word = TypeVar("Word", int, Tensor)
Words = tuple[Tensor, ...]


def key_words(seed: int) -> tuple[int, int]:
    """Return the Philox key of a seed."""
    return seed & LOW, seed >> 32


def counter_words(stream: Word, step: Word) -> tuple[Word, Word, Word]:
    """Return words 1 to 3 of the counter; word 0 is the block."""
    return step & LOW, stream & LOW, stream >> 32 | step >> 32 << 8


def philox(
    counter: tuple[Word, Word, Word, Word], key: tuple[Any, Any], rounds: int = 10
) -> tuple[Word, ...]:
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
        # An int64 product may overflow; after shift and mask its bits are correct.
        product0, product1 = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1 = product1 >> 32 & LOW ^ c1 ^ key0, product1 & LOW
        c2, c3 = product0 >> 32 & LOW ^ c3 ^ key1, product0 & LOW
        key0, key1 = key0 + 0x9E3779B9 & LOW, key1 + 0xBB67AE85 & LOW
    return c0, c1, c2, c3


def box_muller(radius: Tensor, angle: Tensor, lanes: int) -> tuple[Tensor, Tensor]:
    """Return two normals from a radius (word as a float) and an angle (top bits of an int64)."""
    # A 32-bit angle is the top half of a 64-bit angle.
    width, centre = (32, 2 << 32) if lanes == 4 else (64, 2)
    r = torch.sqrt(-2.0 * torch.log((radius + 0.5) * 2.0**-width))
    quarter = 0.7853981633974483  # pi / 4; `math.pi` would be an input of compiled code
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
    """Return what `normal` returns, in plain torch on any device.

    Returns:
        As `normal`, to rounding.

    Example:
        >>> from langevin.random import normal
        >>> bool(torch.allclose(normal_reference(1, 2, 3, 4), normal(1, 2, 3, 4)))
        True
    """
    rows = check_normal("normal_reference", seed, stream, step, size, offset, dtype, device)
    lanes, real = lanes_of(dtype), torch.promote_types(dtype, torch.float32)
    (x0, x1, x2, x3), skip = _blocks(rows, seed, size, offset, lanes, device)
    if lanes == 4:
        pairs = torch.stack((x0, x2), -1).to(real), torch.stack((x1, x3), -1) << 32
    else:
        pairs = (x1.to(real) * 2.0**32 + x0.to(real)).unsqueeze(-1), (x3 << 32 | x2).unsqueeze(-1)
    normals = torch.stack(box_muller(*pairs, lanes), -1).flatten(2)[..., skip : skip + size]
    return normals.to(dtype).reshape(result_shape(stream, step, size))


def _blocks(
    rows: Grid, seed: int, size: int, offset: int, lanes: int, device: torch.device | str
) -> tuple[Words, int]:
    """Return the words of the blocks that contain the elements, and the elements to skip."""
    first = offset // lanes
    chain, time = rows.tensors(device)
    block = torch.arange(first, (offset + size + lanes - 1) // lanes, device=device)
    words = philox((block, *counter_words(chain, time)), key_words(seed))
    return words, offset - first * lanes


def uniform_reference(
    seed: int,
    stream: Address,
    step: Address,
    size: int,
    *,
    offset: int = 0,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Tensor:
    """Return what `uniform` returns, in plain torch on any device.

    Returns:
        As `uniform`.

    Example:
        >>> from langevin.random import uniform
        >>> bool((uniform_reference(1, 2, 3, 4) == uniform(1, 2, 3, 4)).all())
        True
    """
    rows = check_normal("uniform_reference", seed, stream, step, size, offset, dtype, device)
    lanes, real = lanes_of(dtype), torch.promote_types(dtype, torch.float32)
    words, skip = _blocks(rows, seed, size, offset, lanes, device)
    if lanes == 4:
        width, bits = 24, torch.stack([word >> 8 for word in words], -1)
    else:
        low, high = torch.stack(words[::2], -1), torch.stack(words[1::2], -1)
        width, bits = 53, high << 21 | low >> 11  # the top 53 bits of 64
    uniforms = (2 * bits + 1 - 2**width).to(real) * 2.0**-width
    uniforms = uniforms.flatten(2)[..., skip : skip + size]
    return uniforms.to(dtype).reshape(result_shape(stream, step, size))


def batch_indices_reference(
    seed: int,
    stream: Address,
    step: Address,
    batch_size: int,
    num_data: int,
    *,
    device: torch.device | str = "cpu",
) -> Tensor:
    """Return what `batch_indices` returns, in plain torch on any device.

    Returns:
        As `batch_indices`.

    Example:
        >>> from langevin.random import batch_indices
        >>> bool((batch_indices_reference(1, 2, 3, 4, 50) == batch_indices(1, 2, 3, 4, 50)).all())
        True
    """
    rows = check_batch("batch_indices_reference", seed, stream, step, batch_size, num_data, device)
    chain, time = rows.tensors(device)
    position = time * batch_size + torch.arange(batch_size, device=device)
    first_epoch = time * batch_size // num_data
    two_epochs = first_epoch + torch.arange(2, device=device)
    shape = rows.num_steps, rows.num_streams, batch_size
    which = (position // num_data - first_epoch).expand(shape)
    keys: list[Tensor] = []
    for block in range(6):
        counter = torch.full_like(chain, block), *counter_words(chain, two_epochs)
        keys += [key.gather(-1, which) for key in philox(counter, key_words(seed))]
    # With fewer than 8 bits, permutations of few elements are not uniform.
    bits = max(8, (num_data - 1).bit_length())
    left_bits, right_bits = bits // 2, bits - bits // 2

    def bijection(value: Tensor) -> Tensor:
        left, right = value >> right_bits, value & (1 << right_bits) - 1
        for key in keys:
            product = left * (0xD2B74407B1CE6E93 - 2**64)
            low = (product & LOW) << right_bits - left_bits | right >> left_bits
            left = (product >> 32 ^ key ^ right) & (1 << left_bits) - 1
            right = low & (1 << right_bits) - 1
        return left << right_bits | right

    index = bijection((position % num_data).expand_as(which))
    while bool((outside := index >= num_data).any()):
        index = torch.where(outside, bijection(index), index)
    return index.reshape(result_shape(stream, step, batch_size))


def normal_at(address: Tensor, key: Words, counter: Words, dtype: torch.dtype) -> Tensor:
    """Return the normals of `normal_reference` at given addresses.

    Args:
        address: int64, one per element.
        key: `key_words(seed)` as int64 scalars.
        counter: `counter_words(stream, step)` as int64 scalars.
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
    """Return the uniforms of `uniform_reference` at given addresses; see `normal_at`."""
    (x0, x1, x2, x3), lanes = _words(address, key, counter, dtype)
    is_odd = address & 1 == 1
    if lanes == 4:
        late, early = torch.where(is_odd, x3, x2), torch.where(is_odd, x1, x0)
        width, bits = 24, torch.where(address & 2 == 2, late, early) >> 8
    else:
        low, high = torch.where(is_odd, x2, x0), torch.where(is_odd, x3, x1)
        width, bits = 53, high << 21 | low >> 11  # the top 53 bits of 64
    return (2 * bits + 1 - 2**width).to(dtype) * 2.0**-width


def _words(address: Tensor, key: Words, counter: Words, dtype: torch.dtype) -> tuple[Words, int]:
    lanes = lanes_of(dtype)
    c1, c2, c3 = counter
    block = address >> lanes // 2  # 4 lanes are 2 bits, 2 lanes 1 bit
    return philox((block, c1, c2, c3), (key[0], key[1])), lanes


KINDS_AT = {"normal": normal_at, "uniform": uniform_at}
"""Elementwise noise functions, by `Traits.noise_kind`."""
