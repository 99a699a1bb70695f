"""The same noise with the chains side by side in memory, for code that works on many chains of few elements at once."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from langevin.cpu.threads import run_in_threads
from langevin.noise.address import check_normal, lanes_of
from langevin.noise.draw import GRAIN, cpu_engine
from langevin.noise.uniform import KINDS

__all__ = ["in_lanes"]


def in_lanes(kind: str, seed: int, stream: range, step: range, size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return what ``KINDS[kind](seed, stream, step, size)`` returns, with the last two axes swapped: (step, element, stream).

    Example:
        >>> laned = in_lanes("normal", 0, range(5), range(2), 3, torch.float32, torch.device("cpu"))
        >>> torch.equal(laned, KINDS["normal"](0, range(5), range(2), 3).mT)
        True
    """
    cpu = cpu_engine() if device.type == "cpu" and kind == "normal" and dtype in (torch.float32, torch.float64) else None
    if cpu is None or size > lanes_of(dtype):
        return KINDS[kind](seed, stream, step, size, dtype=dtype, device=device).mT.contiguous()
    rows = check_normal("normal", seed, stream, step, size, 0, dtype, device)
    out = torch.empty((len(step), size, len(stream)), dtype=dtype)
    if out.numel() > 0:
        flat, where = out.view(-1).numpy(), (np.uint64(seed), rows.stream, rows.step, rows.num_streams)
        run_in_threads(lambda begin, end: cpu.draw_lanes(flat, size, *where, begin, end), len(step), 1 + GRAIN // len(stream))
    return out
