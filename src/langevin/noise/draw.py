"""Normals, permutations and minibatches by address, by the fastest engine at hand."""

from __future__ import annotations

import functools
from types import ModuleType

import numpy as np
import torch
from torch import Tensor

from langevin.cpu.threads import run_in_threads
from langevin.noise.address import Address, check_batch, check_normal, check_permutation, lanes_of, result_shape
from langevin.noise.reference import batch_indices_reference, normal_reference

__all__ = ["batch_indices", "cpu_engine", "normal", "permutation"]

GRAIN = 2**14  # blocks, or batch indices: less is done before a second thread has woken up


@functools.cache
def cpu_engine() -> ModuleType | None:
    """Return `langevin.noise.cpu`, loaded when first asked for, since numba takes long; None where numba cannot be imported."""
    try:
        from langevin.noise import cpu
    except ImportError:  # the torch versions serve the CPU too
        return None
    return cpu


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
        >>> from langevin.noise import Purpose, stream
        >>> whole = normal(0, stream(Purpose.POSITION), range(10), 100)
        >>> whole.shape
        torch.Size([10, 100])
        >>> bool((whole[7, 30:] == normal(0, stream(Purpose.POSITION), 7, 70, offset=30)).all())
        True
    """
    rows = check_normal("normal", seed, stream, step, size, offset, dtype, device)
    cpu = cpu_engine() if torch.device(device).type == "cpu" else None
    if cpu is None:
        return normal_reference(seed, stream, step, size, offset=offset, dtype=dtype, device=device)
    out = torch.empty(result_shape(stream, step, size), dtype=torch.promote_types(dtype, torch.float32), device="cpu")
    if out.numel() > 0:
        flat, key, lanes = out.view(-1).numpy(), np.uint64(seed), lanes_of(dtype)
        num_rows = rows.num_steps * rows.num_streams
        where = (key, rows.stream, rows.step, rows.num_streams)
        if offset == 0 and size <= lanes:
            run_in_threads(lambda begin, end: cpu.draw_short_rows(flat, size, *where, begin, end), num_rows, GRAIN)
        else:
            blocks_per_row = (offset + size - 1) // lanes - offset // lanes + 1
            blocks = num_rows * blocks_per_row
            run_in_threads(lambda begin, end: cpu.draw_rows(flat, size, offset, *where, begin, end), blocks, GRAIN)
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
        >>> from langevin.noise import Purpose, stream
        >>> permutation(0, stream(Purpose.BATCH), 0, 5).sort().values
        tensor([0, 1, 2, 3, 4])
    """
    check_permutation("permutation", seed, stream, epoch, num, device)
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
        >>> from langevin.noise import Purpose, stream
        >>> epoch = batch_indices(0, stream(Purpose.BATCH), range(3), 4, 12)
        >>> epoch.flatten().sort().values
        tensor([ 0,  1,  2,  3,  4,  5,  6,  7,  8,  9, 10, 11])
    """
    rows = check_batch("batch_indices", seed, stream, step, batch_size, num_data, device)
    cpu = cpu_engine() if torch.device(device).type == "cpu" else None
    if cpu is None:
        return batch_indices_reference(seed, stream, step, batch_size, num_data, device=device)
    out = torch.empty(result_shape(stream, step, batch_size), dtype=torch.int64, device="cpu")
    table, key = out.view(-1, batch_size).numpy(), np.uint64(seed)

    def draw(begin: int, end: int) -> None:
        cpu.draw_batches(table, num_data, key, rows.stream, rows.step, rows.num_streams, begin, end)

    run_in_threads(draw, len(table), 1 + GRAIN // batch_size)
    return out
