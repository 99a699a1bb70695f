"""Uniforms on (-1, 1) by address, at the addresses of `normal` and from the same words: for updates that draw signs."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from langevin.cpu.threads import run_in_threads
from langevin.noise.address import Address, check_normal, lanes_of, result_shape
from langevin.noise.draw import GRAIN, cpu_engine, normal
from langevin.noise.reference import counter_words, key_words, philox

__all__ = ["KINDS", "uniform", "uniform_reference"]


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
    """Uniforms on (-1, 1) at the addresses (seed, stream, step, offset), ...: never 0, and as often positive as negative.

    An element is an odd multiple of 2**-24 (float32 and less) or 2**-53 (float64): the top bits of one word, or two, of its block.

    Args:
        seed: as in `normal`.
        stream: as in `normal`.
        step: as in `normal`.
        size: how many elements.
        offset: address of the first element.
        dtype: float32, float64, bfloat16 or float16.
        device: where to draw; the bits are the same everywhere.

    Returns:
        A tensor of shape (len(step), len(stream), size), without the axes of those that are plain ints.

    Example:
        >>> from langevin.noise import Purpose, stream
        >>> whole = uniform(0, stream(Purpose.POSITION), range(10), 100)
        >>> bool((whole[7, 30:] == uniform(0, stream(Purpose.POSITION), 7, 70, offset=30)).all()), bool((whole.abs() < 1).all())
        (True, True)
    """
    rows = check_normal("uniform", seed, stream, step, size, offset, dtype, device)
    cpu = cpu_engine() if torch.device(device).type == "cpu" else None
    if cpu is None:
        return uniform_reference(seed, stream, step, size, offset=offset, dtype=dtype, device=device)
    out = torch.empty(result_shape(stream, step, size), dtype=torch.promote_types(dtype, torch.float32), device="cpu")
    if out.numel() > 0:
        flat, where = out.view(-1).numpy(), (np.uint64(seed), rows.stream, rows.step, rows.num_streams)

        def draw(begin: int, end: int) -> None:
            cpu.draw_uniform_rows(flat, size, offset, *where, begin, end)

        run_in_threads(draw, rows.num_steps * rows.num_streams, 1 + GRAIN * lanes_of(dtype) // size)
    return out.to(dtype)


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
    """`uniform` in plain torch, on any device, with the same bits.

    Args:
        seed: as in `uniform`.
        stream: as in `uniform`.
        step: as in `uniform`.
        size: as in `uniform`.
        offset: as in `uniform`.
        dtype: as in `uniform`.
        device: as in `uniform`.

    Returns:
        What `uniform` returns.

    Example:
        >>> bool((uniform_reference(1, 2, 3, 4) == uniform(1, 2, 3, 4)).all())
        True
    """
    rows = check_normal("uniform_reference", seed, stream, step, size, offset, dtype, device)
    lanes, real = lanes_of(dtype), torch.promote_types(dtype, torch.float32)
    first = offset // lanes
    chain, time = rows.tensors(device)
    block = torch.arange(first, (offset + size + lanes - 1) // lanes, device=device)
    words = philox((block, *counter_words(chain, time)), key_words(seed))
    if lanes == 4:
        width, bits = 24, torch.stack([word >> 8 for word in words], -1)
    else:
        low, high = torch.stack(words[::2], -1), torch.stack(words[1::2], -1)
        width, bits = 53, high << 21 | low >> 11  # the top 53 bits of 64
    odd = (2 * bits + 1 - 2**width).to(real) * 2.0**-width
    skip = offset - first * lanes
    return odd.flatten(2)[..., skip : skip + size].to(dtype).reshape(result_shape(stream, step, size))


KINDS = {"normal": normal, "uniform": uniform}
"""What draws the noise of an update, by `Kernel.noise_kind`."""
