"""The tensors of a step, where parameters are sharded over ranks or stored in half precision."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from langevin.checks import needs
from langevin.optim.state import MASTER, local_memory
from langevin.shards import is_sharded, like_shard, local_part

__all__ = ["aligned_gradient", "check_sharding", "master_of"]


def check_sharding(who: str, parameter: Tensor) -> None:
    """Refuse the flat shards of FullyShardedDataParallel: they do not say which elements of the model they hold."""
    if type(parameter).__name__ == "FlatParameter" or getattr(parameter, "_fsdp_flattened", False):
        condition = "parameters that know their place in the model: torch.distributed.fsdp.fully_shard(model) (FSDP2)"
        raise needs(who, "params", condition, "a flat parameter of FullyShardedDataParallel (FSDP1)", TypeError)


def aligned_gradient(parameter: Tensor) -> Tensor:
    """Return the gradient of a parameter, sharded as the parameter is; under tensor parallelism it may come as terms of a sum."""
    gradient = parameter.grad
    assert gradient is not None
    if is_sharded(parameter) != is_sharded(gradient):
        kind = "a DTensor" if is_sharded(gradient) else "a plain tensor"
        raise needs("optimizer", "params", "gradients that are sharded where their parameters are, and only there", kind, TypeError)
    if is_sharded(parameter) and gradient.placements != parameter.placements:  # type: ignore[attr-defined]
        parameter.grad = gradient = like_shard(gradient, parameter)
    return gradient


def master_of(state: dict[str, Any], parameter: Tensor, rounded: Tensor) -> Tensor:
    """Return where a parameter in half precision is, in float32: what is remembered, but for elements that someone else moved."""
    if MASTER not in state:
        state[MASTER] = local_memory(parameter, rounded.detach())
    master: Tensor = local_part(state[MASTER])
    if master.shape != rounded.shape:
        raise needs("optimizer", "state", f"{MASTER!r} of the parameter's shape {tuple(rounded.shape)}", tuple(master.shape))
    return master.copy_(torch.where(master.to(rounded.dtype) == rounded, master, rounded.to(master.dtype)))
