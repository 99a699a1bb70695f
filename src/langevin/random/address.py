"""Addresses of random numbers: purposes, streams, argument checks and result shapes."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import torch
from torch import Tensor

from langevin.checks import check_integer, needs

__all__ = [
    "Address",
    "LOW",
    "UPDATE_NOISES",
    "Purpose",
    "Grid",
    "check_batch",
    "check_chains",
    "check_device",
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
MAX_SEED, MAX_STREAM, MAX_STEP = 2**64, 2**40, 2**56
MAX_BLOCK, MAX_CHAIN, MAX_POSITION = 2**32, 2**32, 2**62
DTYPES = torch.float32, torch.float64, torch.bfloat16, torch.float16


class Purpose(IntEnum):
    """Top 8 bits of a stream number, so that two purposes never share noise."""

    POSITION = 0
    """Langevin noise of the update."""
    SECOND = 1
    """Second noise of an update, for example on the momentum."""
    GRADIENT = 2
    """Artificial gradient noise."""
    BATCH = 3
    """Order of the data."""
    INIT = 4
    """Initial positions."""
    DATA = 5
    """Synthetic data."""
    AUGMENT = 6
    """Augmentation of training images."""
    PREDICT = 7
    """Simulated data."""
    ROWS = 8
    """Minibatches with replacement."""
    SCALES = 9
    """Prior scales, drawn conditionally on the weights."""
    CHANCE = 12
    """Accept or reject decisions, for example swaps of two chains."""
    THIRD = 16
    """Third noise of an update: sums of momenta have one for each."""
    FOURTH = 17
    """Fourth noise of an update."""


UPDATE_NOISES = (Purpose.POSITION, Purpose.SECOND, Purpose.THIRD, Purpose.FOURTH)
"""Purposes of the noises of an update, in the order of `Kernel`."""


def stream(purpose: Purpose, chain: int = 0) -> int:
    """Return the stream number of one chain.

    Args:
        purpose: purpose of the numbers.
        chain: 0 <= chain < 2**32.

    Returns:
        purpose * 2**32 + chain.

    Example:
        >>> stream(Purpose.GRADIENT, 3) == 2 * 2**32 + 3
        True
    """
    high = check_integer("stream", "purpose", purpose, 0, 2**8)
    return high << 32 | check_integer("stream", "chain", chain, 0, MAX_CHAIN)


def streams(purpose: Purpose, chains: range) -> range:
    """Return the stream numbers of consecutive chains.

    Args:
        purpose: purpose of the numbers.
        chains: a range of chain numbers with step 1.

    Returns:
        A range of stream numbers for `normal` or `batch_indices`.

    Example:
        >>> streams(Purpose.BATCH, range(2)) == range(3 * 2**32, 3 * 2**32 + 2)
        True
    """
    first, count = check_chains("streams", chains)
    start = stream(purpose) + first
    return range(start, start + count)


class Grid(NamedTuple):
    """Grid of a result: consecutive steps, each with consecutive streams."""

    stream: int
    num_streams: int
    step: int
    num_steps: int

    def tensors(self, device: torch.device | str) -> tuple[Tensor, Tensor]:
        """Return streams and steps that broadcast over (step, stream, element)."""
        stream = torch.arange(self.stream, self.stream + self.num_streams, device=device)
        step = torch.arange(self.step, self.step + self.num_steps, device=device)
        return stream.view(1, -1, 1), step.view(-1, 1, 1)


def lanes_of(dtype: torch.dtype) -> int:
    """Return the number of normals of a dtype per Philox block (its lanes)."""
    return 2 if dtype == torch.float64 else 4


def result_shape(stream: Address, step: Address, size: int) -> list[int]:
    """Return the shape of a draw: an axis for each range among step and stream, then `size`."""
    return [*(len(axis) for axis in (step, stream) if isinstance(axis, range)), size]


def interval(call: str, name: str, value: Address, end: int) -> tuple[int, int]:
    """Return first and count of an address or of a range of addresses."""
    if not isinstance(value, range):
        return check_integer(call, name, value, 0, end), 1
    if value.step != 1 or value.start < 0 or value.stop > end:
        condition = f"a range within [0, 2**{end.bit_length() - 1}) with step 1"
        raise needs(call, name, condition, value)
    return value.start, len(value)


def check_seed(call: str, seed: int) -> int:
    """Return a valid seed."""
    return check_integer(call, "seed", seed, 0, MAX_SEED)


def check_chains(call: str, chains: range) -> tuple[int, int]:
    """Return first and count of a range of chains."""
    if not isinstance(chains, range):
        raise needs(call, "chains", "a range", chains, TypeError)
    return interval(call, "chains", chains, MAX_CHAIN)


def _check_rows(call: str, seed: int, stream: Address, step: Address, name: str = "step") -> Grid:
    check_seed(call, seed)
    first, num_streams = interval(call, "stream", stream, MAX_STREAM)
    return Grid(first, num_streams, *interval(call, name, step, MAX_STEP))


def check_device(call: str, device: torch.device | str) -> torch.device:
    """Return a device given by itself or its name."""
    if isinstance(device, (torch.device, str)):
        try:
            return torch.device(device)
        except RuntimeError:
            pass
    raise needs(call, "device", 'a torch.device or its name, such as "cpu"', device)


def check_normal(
    call: str,
    seed: int,
    stream: Address,
    step: Address,
    size: int,
    offset: int,
    dtype: torch.dtype,
    device: torch.device | str,
) -> Grid:
    """Check the address of normals."""
    check_device(call, device)
    if not isinstance(dtype, torch.dtype) or dtype not in DTYPES:
        raise needs(call, "dtype", f"one of {', '.join(map(str, DTYPES))}", dtype)
    end = lanes_of(dtype) * MAX_BLOCK
    check_integer(call, "offset", offset, 0, end)
    check_integer(call, "size", size, 0, end)
    if offset + size > end:
        raise ValueError(
            f"{call}(size=...) needs offset + size <= {end}, got offset {offset} and size {size}"
        )
    return _check_rows(call, seed, stream, step)


def check_batch(
    call: str,
    seed: int,
    stream: Address,
    step: Address,
    batch_size: int,
    num_data: int,
    device: torch.device | str,
) -> Grid:
    """Check the address of minibatches."""
    check_device(call, device)
    rows = _check_rows(call, seed, stream, step)
    check_integer(call, "num_data", num_data, 1, MAX_POSITION)
    check_integer(call, "batch_size", batch_size, 1, MAX_POSITION)
    if batch_size > num_data:
        raise ValueError(
            f"{call}(batch_size=...) needs batch_size <= num_data, got {batch_size} > {num_data}"
        )
    if (rows.step + rows.num_steps) * batch_size >= MAX_POSITION:
        raise ValueError(
            f"{call}(step=...) needs step * batch_size < 2**62, got {step!r} and {batch_size}"
        )
    return rows


def check_permutation(
    call: str, seed: int, stream: Address, epoch: Address, num: int, device: torch.device | str
) -> None:
    """Check the address of a permutation."""
    check_device(call, device)
    rows = _check_rows(call, seed, stream, epoch, "epoch")
    check_integer(call, "num", num, 1, MAX_POSITION)
    if (rows.step + rows.num_steps) * num >= MAX_POSITION:
        raise ValueError(f"{call}(epoch=...) needs epoch * num < 2**62, got {epoch!r} and {num}")
