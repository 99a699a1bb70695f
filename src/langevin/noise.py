"""Noise with an address: every random number is a pure function of (seed, stream, step, element).

There is no generator and no state. Philox4x32-10 encrypts an address under the seed, so the same address gives the same
number in any order, in any slice, on any number of threads, and for chains drawn alone or together.

The layout is fixed, because results depend on it:

    key      = seed low 32 bits, seed high 32 bits
    counter  = c0: block, the element divided by the lanes of a block
               c1: step low 32 bits
               c2: stream low 32 bits (the chain)
               c3: stream high 8 bits (the purpose) | step high 24 bits << 8

A block of four words x0..x3 holds four float32 normals, the Box-Muller pairs of (x0, x1) and of (x2, x3), or the two
float64 normals of (x1 x0, x3 x2) as 64-bit words. In a pair the first word, an integer n of w bits, is the radius
sqrt(-2 log u) with u = (n + 1/2) / 2**w. The second is the angle: its top two bits are the quadrant, the rest a phase
in (-pi/4, pi/4). The float32 tail reaches 6.7 standard deviations, the float64 tail 9.4. bfloat16 and float16 are
float32 draws, rounded.

`normal` and `batch_indices` run in numba on the CPU. The `_reference` versions are plain torch: the oracle in tests, the
path on other devices, and the fallback without numba. Integers agree exactly, normals to rounding.
"""

import math
from enum import IntEnum
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

try:
    from langevin import noise_cpu
except ImportError:  # no numba: the torch versions below serve the CPU too
    noise_cpu = None  # type: ignore[assignment]

__all__ = [
    "Purpose",
    "batch_indices",
    "batch_indices_reference",
    "normal",
    "normal_reference",
    "permutation",
    "philox",
    "stream",
    "streams",
]

Address = int | range
Word = TypeVar("Word", int, Tensor)

LOW = 0xFFFFFFFF
MAX_SEED, MAX_STREAM, MAX_STEP, MAX_BLOCK, MAX_CHAIN, MAX_POSITION = 2**64, 2**40, 2**56, 2**32, 2**32, 2**62
DTYPES = torch.float32, torch.float64, torch.bfloat16, torch.float16
GRAIN = 2**14  # blocks, or batch indices: less is done before a second thread has woken up


class Purpose(IntEnum):
    """What a stream is for: the top 8 bits of its number, so that two purposes never share noise."""

    POSITION = 0
    """The Langevin noise of the update."""
    SECOND = 1
    """The second noise of an update, such as that on the momentum."""
    GRADIENT = 2
    """Artificial gradient noise."""
    BATCH = 3
    """The order of the data."""
    INIT = 4
    """Initial positions."""
    DATA = 5
    """Synthetic data."""


def stream(purpose: Purpose, chain: int = 0) -> int:
    """The stream number of one chain.

    Args:
        purpose: what the numbers are for.
        chain: 0 <= chain < 2**32.

    Returns:
        purpose * 2**32 + chain.

    Example:
        >>> stream(Purpose.GRADIENT, 3) == 2 * 2**32 + 3
        True
    """
    return _integer("stream", "purpose", purpose, 0, 2**8) << 32 | _integer("stream", "chain", chain, 0, MAX_CHAIN)


def streams(purpose: Purpose, chains: range) -> range:
    """The stream numbers of consecutive chains.

    Args:
        purpose: what the numbers are for.
        chains: a range of chain numbers with step 1.

    Returns:
        A range of stream numbers, to be given to `normal` or `batch_indices`.

    Example:
        >>> streams(Purpose.BATCH, range(2)) == range(3 * 2**32, 3 * 2**32 + 2)
        True
    """
    if not isinstance(chains, range):
        raise TypeError(f"streams(chains=...) needs a range, got {chains!r}")
    first, count = _interval("streams", "chains", chains, MAX_CHAIN)
    start = stream(purpose) + first
    return range(start, start + count)


def normal(
    seed: int,
    stream: Address,
    step: Address,
    size: int,
    *,
    offset: int = 0,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Tensor:
    """Standard normals at the addresses (seed, stream, step, offset), (seed, stream, step, offset + 1), ...

    Args:
        seed: 0 <= seed < 2**64.
        stream: 0 <= stream < 2**40, or a range of them with step 1.
        step: 0 <= step < 2**56, or a range of them with step 1.
        size: how many elements.
        offset: address of the first element.
        dtype: float32, float64, bfloat16 or float16.
        device: where to draw; devices other than the CPU agree with it to rounding.

    Returns:
        A tensor of shape (len(step), len(stream), size), without the axes of those that are plain ints.

    Example:
        >>> whole = normal(0, stream(Purpose.POSITION), range(10), 100)
        >>> whole.shape
        torch.Size([10, 100])
        >>> bool((whole[7, 30:] == normal(0, stream(Purpose.POSITION), 7, 70, offset=30)).all())
        True
    """
    rows = _check_normal("normal", seed, stream, step, size, offset, dtype)
    if noise_cpu is None or torch.device(device).type != "cpu":
        return normal_reference(seed, stream, step, size, offset=offset, dtype=dtype, device=device)
    out = torch.empty(_shape(stream, step, size), dtype=torch.promote_types(dtype, torch.float32), device="cpu")
    if out.numel() > 0:
        flat, key, lanes = out.view(-1).numpy(), np.uint64(seed), _lanes(dtype)
        blocks_per_row = (offset + size - 1) // lanes - offset // lanes + 1

        def draw(begin: int, end: int) -> None:
            noise_cpu.draw_rows(flat, size, offset, key, rows.stream, rows.step, rows.num_streams, begin, end)

        noise_cpu.run_in_threads(draw, rows.num_steps * rows.num_streams * blocks_per_row, GRAIN)
    return out.to(dtype)


def permutation(seed: int, stream: Address, epoch: Address, num: int, *, device: torch.device | str = "cpu") -> Tensor:
    """The permutation of `range(num)` that belongs to (seed, stream, epoch).

    Args:
        seed: 0 <= seed < 2**64.
        stream: 0 <= stream < 2**40, or a range of them with step 1.
        epoch: 0 <= epoch < 2**56, or a range of them with step 1.
        num: at least 1.
        device: where to compute; the result is the same everywhere.

    Returns:
        An int64 tensor of shape (len(epoch), len(stream), num), without the axes of those that are plain ints.

    Example:
        >>> permutation(0, stream(Purpose.BATCH), 0, 5).sort().values
        tensor([0, 1, 2, 3, 4])
    """
    _integer("permutation", "num", num, 1, MAX_POSITION)
    return batch_indices(seed, stream, epoch, num, num, device=device)


def batch_indices(
    seed: int, stream: Address, step: Address, batch_size: int, num_data: int, *, device: torch.device | str = "cpu"
) -> Tensor:
    """The data in the minibatch of a step.

    The permutations of epochs 0, 1, 2, ... laid end to end are cut into batches: entry j of a batch is at position
    p = step * batch_size + j, which is place p % num_data of the permutation of epoch p // num_data. So every datum
    comes exactly once per epoch, every batch is full, and a batch may straddle two epochs.

    A place of a permutation is computed by itself (VariPhilox with 24 rounds and cycle walking, Mitchell et al. 2021,
    "Bandwidth-Optimal Random Shuffling for GPUs"), with round keys from Philox blocks 0..5 at (seed, stream, epoch).

    Args:
        seed: 0 <= seed < 2**64.
        stream: 0 <= stream < 2**40, or a range of them with step 1.
        step: 0 <= step < 2**56, or a range of them with step 1.
        batch_size: 1 <= batch_size <= num_data.
        num_data: at least 1.
        device: where to compute; the result is the same everywhere.

    Returns:
        An int64 tensor of shape (len(step), len(stream), batch_size), without the axes of those that are plain ints.

    Example:
        >>> epoch = batch_indices(0, stream(Purpose.BATCH), range(3), 4, 12)
        >>> epoch.flatten().sort().values
        tensor([ 0,  1,  2,  3,  4,  5,  6,  7,  8,  9, 10, 11])
    """
    rows = _check_batch("batch_indices", seed, stream, step, batch_size, num_data)
    if noise_cpu is None or torch.device(device).type != "cpu":
        return batch_indices_reference(seed, stream, step, batch_size, num_data, device=device)
    out = torch.empty(_shape(stream, step, batch_size), dtype=torch.int64, device="cpu")
    table, key = out.view(-1, batch_size).numpy(), np.uint64(seed)

    def draw(begin: int, end: int) -> None:
        noise_cpu.draw_batches(table, num_data, key, rows.stream, rows.step, rows.num_streams, begin, end)

    noise_cpu.run_in_threads(draw, len(table), 1 + GRAIN // batch_size)
    return out


def philox(counter: tuple[Word, Word, Word, Word], key: tuple[int, int], rounds: int = 10) -> tuple[Word, ...]:
    """Philox4x32 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3").

    Args:
        counter: four 32-bit words, ints or int64 tensors that broadcast.
        key: two 32-bit words.
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
        >>> bool(torch.allclose(normal_reference(1, 2, 3, 4), normal(1, 2, 3, 4)))
        True
    """
    rows = _check_normal("normal_reference", seed, stream, step, size, offset, dtype)
    lanes = _lanes(dtype)
    first_block = offset // lanes
    block = torch.arange(first_block, (offset + size + lanes - 1) // lanes, device=device)
    chain, time = rows.tensors(device)
    x0, x1, x2, x3 = philox((block, *_counter(chain, time)), _key(seed))
    real = torch.promote_types(dtype, torch.float32)
    if lanes == 4:
        # A 32-bit angle is the top half of a 64-bit one.
        radius, angle = torch.stack((x0, x2), -1).to(real), torch.stack((x1, x3), -1) << 32
        width, centre = 32, 2 << 32
    else:
        radius, angle = (x1.to(real) * 2.0**32 + x0.to(real)).unsqueeze(-1), (x3 << 32 | x2).unsqueeze(-1)
        width, centre = 64, 2
    r = torch.sqrt(-2.0 * torch.log((radius + 0.5) * 2.0**-width))
    phase = (angle << 2 | centre).to(real) * (math.pi / 4 * 2.0**-63)
    sin, cos = torch.sin(phase), torch.cos(phase)
    quadrant = angle >> 62 & 3
    first = torch.where(quadrant % 2 == 1, -sin, cos) * torch.where(quadrant >= 2, -r, r)
    second = torch.where(quadrant % 2 == 1, cos, sin) * torch.where(quadrant >= 2, -r, r)
    skip = offset - first_block * lanes
    normals = torch.stack((first, second), -1).flatten(2)[..., skip : skip + size]
    return normals.to(dtype).reshape(_shape(stream, step, size))


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
        >>> bool((batch_indices_reference(1, 2, 3, 4, 50) == batch_indices(1, 2, 3, 4, 50)).all())
        True
    """
    rows = _check_batch("batch_indices_reference", seed, stream, step, batch_size, num_data)
    chain, time = rows.tensors(device)
    position = time * batch_size + torch.arange(batch_size, device=device)
    first_epoch = time * batch_size // num_data
    two_epochs = first_epoch + torch.arange(2, device=device)
    keys = [key for i in range(6) for key in philox((torch.full_like(chain, i), *_counter(chain, two_epochs)), _key(seed))]
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
    return index.reshape(_shape(stream, step, batch_size))


class Rows(NamedTuple):
    """The rows of a result: consecutive steps, and within a step consecutive streams."""

    stream: int
    num_streams: int
    step: int
    num_steps: int

    def tensors(self, device: torch.device | str) -> tuple[Tensor, Tensor]:
        """Streams and steps, to be broadcast over (step, stream, element)."""
        stream = torch.arange(self.stream, self.stream + self.num_streams, device=device).view(1, -1, 1)
        step = torch.arange(self.step, self.step + self.num_steps, device=device).view(-1, 1, 1)
        return stream, step


def _counter(stream: Tensor, step: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return step & LOW, stream & LOW, stream >> 32 | step >> 32 << 8


def _key(seed: int) -> tuple[int, int]:
    return seed & LOW, seed >> 32


def _lanes(dtype: torch.dtype) -> int:
    return 2 if dtype == torch.float64 else 4


def _shape(stream: Address, step: Address, size: int) -> list[int]:
    return [*(len(axis) for axis in (step, stream) if isinstance(axis, range)), size]


def _integer(call: str, name: str, value: int, low: int, end: int) -> int:
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    if is_integer and low <= value < end:
        return value
    error = ValueError if is_integer else TypeError
    raise error(f"{call}({name}=...) needs an int in [{low}, 2**{end.bit_length() - 1}), got {value!r}")


def _interval(call: str, name: str, value: Address, end: int) -> tuple[int, int]:
    """First and count of an address or of a range of addresses."""
    if not isinstance(value, range):
        return _integer(call, name, value, 0, end), 1
    if value.step != 1 or value.start < 0 or value.stop > end:
        bound = end.bit_length() - 1
        raise ValueError(f"{call}({name}=...) needs a range within [0, 2**{bound}) with step 1, got {value!r}")
    return value.start, len(value)


def _check_rows(call: str, seed: int, stream: Address, step: Address) -> Rows:
    _integer(call, "seed", seed, 0, MAX_SEED)
    return Rows(*_interval(call, "stream", stream, MAX_STREAM), *_interval(call, "step", step, MAX_STEP))


def _check_normal(call: str, seed: int, stream: Address, step: Address, size: int, offset: int, dtype: torch.dtype) -> Rows:
    if dtype not in DTYPES:
        raise ValueError(f"{call}(dtype=...) needs one of {', '.join(map(str, DTYPES))}, got {dtype!r}")
    end = _lanes(dtype) * MAX_BLOCK
    _integer(call, "offset", offset, 0, end)
    _integer(call, "size", size, 0, end)
    if offset + size > end:
        raise ValueError(f"{call}(size=...) needs offset + size <= {end}, got offset {offset} and size {size}")
    return _check_rows(call, seed, stream, step)


def _check_batch(call: str, seed: int, stream: Address, step: Address, batch_size: int, num_data: int) -> Rows:
    rows = _check_rows(call, seed, stream, step)
    _integer(call, "num_data", num_data, 1, MAX_POSITION)
    _integer(call, "batch_size", batch_size, 1, MAX_POSITION)
    if batch_size > num_data:
        raise ValueError(f"{call}(batch_size=...) needs batch_size <= num_data, got {batch_size} > {num_data}")
    if (rows.step + rows.num_steps) * batch_size >= MAX_POSITION:
        raise ValueError(f"{call}(step=...) needs step * batch_size < 2**62, got {step!r} and {batch_size}")
    return rows
