"""Addresses: purposes, streams, and the checks and shapes that every way of drawing shares."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = [
    "Address",
    "LOW",
    "UPDATE_NOISES",
    "Purpose",
    "Rows",
    "check_batch",
    "check_chains",
    "check_device",
    "check_int",
    "check_normal",
    "check_permutation",
    "check_seed",
    "lanes_of",
    "result_shape",
    "stream",
    "streams",
]

Address = int | range

LOW = 0xFFFFFFFF
MAX_SEED, MAX_STREAM, MAX_STEP, MAX_BLOCK, MAX_CHAIN, MAX_POSITION = 2**64, 2**40, 2**56, 2**32, 2**32, 2**62
DTYPES = torch.float32, torch.float64, torch.bfloat16, torch.float16


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
    AUGMENT = 6
    """Random changes of the training images."""
    PREDICT = 7
    """Simulated data."""
    ROWS = 8
    """Minibatches with replacement."""
    SCALES = 9
    """Scales of priors that are drawn given the weights."""
    CHANCE = 12
    """Decisions of an update, such as that two chains swap places."""
    THIRD = 16
    """The third noise of an update: sums of momenta have one for each."""
    FOURTH = 17
    """The fourth noise of an update."""


UPDATE_NOISES = (Purpose.POSITION, Purpose.SECOND, Purpose.THIRD, Purpose.FOURTH)
"""The purposes of an update's noises, in the order in which a kernel takes them."""


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
    return check_int("stream", "purpose", purpose, 0, 2**8) << 32 | check_int("stream", "chain", chain, 0, MAX_CHAIN)


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
    first, count = check_chains("streams", chains)
    start = stream(purpose) + first
    return range(start, start + count)


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


def lanes_of(dtype: torch.dtype) -> int:
    """Return how many normals of a dtype a Philox block holds."""
    return 2 if dtype == torch.float64 else 4


def result_shape(stream: Address, step: Address, size: int) -> list[int]:
    """Return the shape of a draw: axes for those of step and stream that are ranges, then the elements."""
    return [*(len(axis) for axis in (step, stream) if isinstance(axis, range)), size]


def check_int(call: str, name: str, value: int, low: int, end: int) -> int:
    """Return `value` when it is an int in [low, end), `end` a power of two."""
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    if is_integer and low <= value < end:
        return value
    error = ValueError if is_integer else TypeError
    raise error(f"{call}({name}=...) needs an int in [{low}, 2**{end.bit_length() - 1}), got {value!r}")


def interval(call: str, name: str, value: Address, end: int) -> tuple[int, int]:
    """First and count of an address or of a range of addresses."""
    if not isinstance(value, range):
        return check_int(call, name, value, 0, end), 1
    if value.step != 1 or value.start < 0 or value.stop > end:
        bound = end.bit_length() - 1
        raise ValueError(f"{call}({name}=...) needs a range within [0, 2**{bound}) with step 1, got {value!r}")
    return value.start, len(value)


def check_seed(call: str, seed: int) -> int:
    """Return a seed, or fail when it is none."""
    return check_int(call, "seed", seed, 0, MAX_SEED)


def check_chains(call: str, chains: range) -> tuple[int, int]:
    """Return first and count of a range of chains, or fail when it is none."""
    if not isinstance(chains, range):
        raise TypeError(f"{call}(chains=...) needs a range, got {chains!r}")
    return interval(call, "chains", chains, MAX_CHAIN)


def _check_rows(call: str, seed: int, stream: Address, step: Address, name: str = "step") -> Rows:
    check_seed(call, seed)
    return Rows(*interval(call, "stream", stream, MAX_STREAM), *interval(call, name, step, MAX_STEP))


def check_device(call: str, device: torch.device | str) -> torch.device:
    """Return a device, or fail in words."""
    if isinstance(device, (torch.device, str)):
        try:
            return torch.device(device)
        except RuntimeError:
            pass
    raise ValueError(f'{call}(device=...) needs a torch.device or its name, such as "cpu", got {device!r}')


def check_normal(
    call: str,
    seed: int,
    stream: Address,
    step: Address,
    size: int,
    offset: int,
    dtype: torch.dtype,
    device: torch.device | str,
) -> Rows:
    """Check the address of normals."""
    check_device(call, device)
    if not isinstance(dtype, torch.dtype) or dtype not in DTYPES:
        raise ValueError(f"{call}(dtype=...) needs one of {', '.join(map(str, DTYPES))}, got {dtype!r}")
    end = lanes_of(dtype) * MAX_BLOCK
    check_int(call, "offset", offset, 0, end)
    check_int(call, "size", size, 0, end)
    if offset + size > end:
        raise ValueError(f"{call}(size=...) needs offset + size <= {end}, got offset {offset} and size {size}")
    return _check_rows(call, seed, stream, step)


def check_batch(
    call: str, seed: int, stream: Address, step: Address, batch_size: int, num_data: int, device: torch.device | str
) -> Rows:
    """Check the address of minibatches."""
    check_device(call, device)
    rows = _check_rows(call, seed, stream, step)
    check_int(call, "num_data", num_data, 1, MAX_POSITION)
    check_int(call, "batch_size", batch_size, 1, MAX_POSITION)
    if batch_size > num_data:
        raise ValueError(f"{call}(batch_size=...) needs batch_size <= num_data, got {batch_size} > {num_data}")
    if (rows.step + rows.num_steps) * batch_size >= MAX_POSITION:
        raise ValueError(f"{call}(step=...) needs step * batch_size < 2**62, got {step!r} and {batch_size}")
    return rows


def check_permutation(call: str, seed: int, stream: Address, epoch: Address, num: int, device: torch.device | str) -> None:
    """Check the address of a permutation."""
    check_device(call, device)
    rows = _check_rows(call, seed, stream, epoch, "epoch")
    check_int(call, "num", num, 1, MAX_POSITION)
    if (rows.step + rows.num_steps) * num >= MAX_POSITION:
        raise ValueError(f"{call}(epoch=...) needs epoch * num < 2**62, got {epoch!r} and {num}")
