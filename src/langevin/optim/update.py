"""One step of an optimizer's group: by the fused engine where its tensors fit, by the formula on tensors elsewhere."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from langevin.checks import lacks_memory, needs
from langevin.gradients import energy_gradient
from langevin.kernels import Clock, Kernel
from langevin.noise import UPDATE_NOISES, normal, stream
from langevin.optim.state import wide_dtype

try:
    from langevin import fused as engine
except ImportError:  # no numba: the torch engine serves the CPU too
    engine = None  # type: ignore[assignment]

__all__ = ["Entry", "update"]


class Entry(NamedTuple):
    """A parameter that has a gradient, as the engines see it."""

    position: Tensor
    gradient: Tensor
    memory: list[Tensor]
    offset: int  # address of its first element, in elements of its dtype
    clock: Clock  # the numbers of its step


def update(who: str, group: dict[str, Any], kernel: Kernel, entries: list[Entry]) -> None:
    """Move the parameters: those the fused engine can take in one call per dtype, the others one by one."""
    batches: dict[tuple[torch.dtype, Clock], list[Entry]] = {}
    for entry in entries:
        trouble = _trouble(group, kernel, entry)
        if trouble is None:
            batches.setdefault((entry.position.dtype, entry.clock), []).append(entry)
        elif group["fused"] is True:
            raise needs(who, "fused", f"None or False: {trouble}", True)
        else:
            _update_by_torch(who, group, kernel, entry)
    for (dtype, clock), batch in batches.items():
        table = np.array([engine.table_row(*entry[:4]) for entry in batch], dtype=np.int64)
        if clashing := engine.clashing_rows(table, dtype):
            for row in sorted(clashing):
                _update_by_torch(who, group, kernel, batch[row])
            table = np.delete(table, list(clashing), 0)
        if len(table):
            engine.fuse(kernel, group["prior"], dtype)(
                table, num_data=group["num_data"], clock=clock, seed=group["seed"], chain=group["chain"], step=group["step"]
            )


def _trouble(group: dict[str, Any], kernel: Kernel, entry: Entry) -> str | None:
    """Say why the fused engine does not take a parameter; None where it does."""
    if group["fused"] is False:
        return "fused=False"
    if engine is None:
        return "numba is not installed"
    if trouble := engine.misfit(*entry[:3]):
        return trouble
    return _untraceable(kernel, group["prior"], entry.position.dtype)


def _untraceable(kernel: Kernel, prior: Any, dtype: torch.dtype) -> str | None:
    """Say why a formula has no fused code: a prior or a kernel of the user's own may do anything. Said aloud once per class."""
    try:
        engine.fuse(kernel, prior, dtype)
    except TypeError as error:  # UntraceableError, or a prior that has no hash
        culprit = type(prior if prior is not None and _runs_alone(kernel, dtype) else kernel).__name__
        if culprit not in _said:
            _said.add(culprit)
            warnings.warn(f"{culprit} runs on plain torch, which is slower: it cannot be fused ({error})", stacklevel=6)
        return str(error)
    return None


def _runs_alone(kernel: Kernel, dtype: torch.dtype) -> bool:
    try:
        engine.fuse(kernel, None, dtype)
    except TypeError:
        return False
    return True


_said: set[str] = set()


def _update_by_torch(who: str, group: dict[str, Any], kernel: Kernel, entry: Entry) -> None:
    """Run the formula on tensors: the oracle of the fused engine, and the path for other devices, dtypes and layouts."""
    for tensor in (entry.position, entry.gradient, *entry.memory):
        if type(tensor) in (Tensor, nn.Parameter) and tensor.layout == torch.strided and tensor.is_cpu and lacks_memory(tensor):
            raise needs(who, "params", f"memory for {tensor.numel()} elements", f"{tensor.untyped_storage().nbytes()} bytes")
    dtype = wide_dtype(entry.position.dtype)
    position, gradient = entry.position.to(dtype), entry.gradient.to(dtype)
    noises = [
        normal(
            group["seed"],
            stream(purpose, group["chain"]),
            group["step"],
            position.numel(),
            offset=entry.offset,
            dtype=dtype,
            device=position.device,
        ).view(position.shape)
        for purpose in UPDATE_NOISES[: kernel.num_noises]
    ]
    moved, memory = kernel.update(
        position,
        energy_gradient(gradient, position, group["num_data"], group["prior"]),
        noises[0] if kernel.num_noises == 1 else torch.stack(noises),
        tuple(entry.memory),
        entry.clock,
    )
    for old, new in zip((entry.position, *entry.memory), (moved, *memory), strict=True):
        old.copy_(new)
