"""Addressed normals, uniforms, permutations and minibatches: C on the CPU, torch elsewhere."""

from __future__ import annotations

import torch
from torch import Tensor

from langevin.random import compiled
from langevin.random.address import (
    Address,
    check_batch,
    check_normal,
    check_permutation,
    lanes_of,
    result_shape,
)
from langevin.random.reference import (
    batch_indices_reference,
    normal_reference,
    uniform_reference,
)

__all__ = ["KINDS", "batch_indices", "chains_last", "normal", "permutation", "uniform"]


def _draw(
    kind: str,
    seed: int,
    stream: Address,
    step: Address,
    size: int,
    offset: int,
    dtype: torch.dtype,
    device: torch.device | str,
) -> Tensor:
    """Draw by compiled code on the CPU; in plain torch elsewhere or without a compiler."""
    rows = check_normal(kind, seed, stream, step, size, offset, dtype, device)
    if torch.device(device).type == "cpu":
        real = torch.promote_types(dtype, torch.float32)
        out = torch.empty(result_shape(stream, step, size), dtype=real, device="cpu")
        if out.numel() == 0 or compiled.draw_rows(kind, out, size, offset, seed, rows):
            return out.to(dtype)
    reference = normal_reference if kind == "normal" else uniform_reference
    return reference(seed, stream, step, size, offset=offset, dtype=dtype, device=device)


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
    """Return standard normals at addresses (seed, stream, step, offset + k), k < size.

    Args:
        seed: 0 <= seed < 2**64.
        stream: 0 <= stream < 2**40, or a range of them with step 1.
        step: 0 <= step < 2**56, or a range of them with step 1.
        size: number of elements.
        offset: address of the first element.
        dtype: float32, float64, bfloat16 or float16.
        device: of the result; other devices agree with the CPU to rounding.

    Returns:
        A tensor of shape (len(step), len(stream), size); an int instead of a range has no axis.

    Example:
        >>> from langevin.random import Purpose, stream
        >>> whole = normal(0, stream(Purpose.POSITION), range(10), 100)
        >>> whole.shape
        torch.Size([10, 100])
        >>> bool((whole[7, 30:] == normal(0, stream(Purpose.POSITION), 7, 70, offset=30)).all())
        True
    """
    return _draw("normal", seed, stream, step, size, offset, dtype, device)


def uniform(
    seed: int,
    stream: Address,
    step: Address,
    size: int,
    *,
    offset: int = 0,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Tensor:
    """Return uniforms on (-1, 1), symmetric and never 0, at the addresses of `normal`.

    An element is an odd multiple of 2**-24 (float32 and less) or 2**-53 (float64), from the top
    bits of one or two words of its block.

    Args:
        seed: as in `normal`.
        stream: as in `normal`.
        step: as in `normal`.
        size: number of elements.
        offset: address of the first element.
        dtype: float32, float64, bfloat16 or float16.
        device: of the result; all devices give the same bits.

    Returns:
        A tensor of shape (len(step), len(stream), size); an int instead of a range has no axis.

    Example:
        >>> from langevin.random import Purpose, stream
        >>> whole = uniform(0, stream(Purpose.POSITION), range(10), 100)
        >>> part = uniform(0, stream(Purpose.POSITION), 7, 70, offset=30)
        >>> bool((whole[7, 30:] == part).all()), bool((whole.abs() < 1).all())
        (True, True)
    """
    return _draw("uniform", seed, stream, step, size, offset, dtype, device)


KINDS = {"normal": normal, "uniform": uniform}
"""Noise functions, by `Traits.noise_kind`."""


def chains_last(
    kind: str,
    seed: int,
    stream: range,
    step: range,
    size: int,
    dtype: torch.dtype,
    device: torch.device,
) -> Tensor:
    """Return ``KINDS[kind](seed, stream, step, size)`` in the layout (step, element, stream).

    Elements of many chains are then contiguous, as vectorised code needs.

    Example:
        >>> dtype, device = torch.float32, torch.device("cpu")
        >>> found = chains_last("normal", 0, range(5), range(2), 3, dtype, device)
        >>> torch.equal(found, KINDS["normal"](0, range(5), range(2), 3).mT)
        True
    """
    if (
        device.type == "cpu"
        and dtype in (torch.float32, torch.float64)
        and 0 < size <= lanes_of(dtype)
    ):
        rows = check_normal(kind, seed, stream, step, size, 0, dtype, device)
        out = torch.empty((len(step), size, len(stream)), dtype=dtype, device="cpu")
        if out.numel() == 0 or compiled.draw_chains_last(kind, out, size, seed, rows):
            return out
    return KINDS[kind](seed, stream, step, size, dtype=dtype, device=device).mT.contiguous()


def permutation(
    seed: int, stream: Address, epoch: Address, num: int, *, device: torch.device | str = "cpu"
) -> Tensor:
    """Return the permutation of `range(num)` at (seed, stream, epoch).

    Args:
        seed: 0 <= seed < 2**64.
        stream: 0 <= stream < 2**40, or a range of them with step 1.
        epoch: 0 <= epoch < 2**56, or a range of them with step 1.
        num: at least 1.
        device: of the result; all devices give the same values.

    Returns:
        An int64 tensor of shape (len(epoch), len(stream), num); an int instead of a range has no
        axis.

    Example:
        >>> from langevin.random import Purpose, stream
        >>> permutation(0, stream(Purpose.BATCH), 0, 5).sort().values
        tensor([0, 1, 2, 3, 4])
    """
    check_permutation("permutation", seed, stream, epoch, num, device)
    return batch_indices(seed, stream, epoch, num, num, device=device)


def batch_indices(
    seed: int,
    stream: Address,
    step: Address,
    batch_size: int,
    num_data: int,
    *,
    device: torch.device | str = "cpu",
) -> Tensor:
    """Return the row numbers of the minibatch of a step.

    The concatenated permutations of epochs 0, 1, 2, ... are cut into batches: entry j of a batch is
    at p = step * batch_size + j, which is element p % num_data of the permutation of epoch
    p // num_data. Each row occurs exactly once per epoch, every batch is full, and a batch may span
    two epochs.

    Each element of a permutation is computed independently: VariPhilox with 24 rounds and cycle
    walking (Mitchell et al. 2021, "Bandwidth-Optimal Random Shuffling for GPUs"), with round keys
    from Philox blocks 0..5 at (seed, stream, epoch).

    Args:
        seed: 0 <= seed < 2**64.
        stream: 0 <= stream < 2**40, or a range of them with step 1.
        step: 0 <= step < 2**56, or a range of them with step 1.
        batch_size: 1 <= batch_size <= num_data.
        num_data: at least 1.
        device: of the result; all devices give the same values.

    Returns:
        An int64 tensor of shape (len(step), len(stream), batch_size); an int instead of a range has
        no axis.

    Example:
        >>> from langevin.random import Purpose, stream
        >>> epoch = batch_indices(0, stream(Purpose.BATCH), range(3), 4, 12)
        >>> epoch.flatten().sort().values
        tensor([ 0,  1,  2,  3,  4,  5,  6,  7,  8,  9, 10, 11])
    """
    rows = check_batch("batch_indices", seed, stream, step, batch_size, num_data, device)
    if torch.device(device).type == "cpu":
        out = torch.empty(result_shape(stream, step, batch_size), dtype=torch.int64, device="cpu")
        if out.numel() == 0 or compiled.draw_batches(out, batch_size, num_data, seed, rows):
            return out
    return batch_indices_reference(seed, stream, step, batch_size, num_data, device=device)
