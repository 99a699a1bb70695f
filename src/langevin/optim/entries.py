"""The tensors of a step: position, gradient and state of each parameter, checked.

Of a sharded parameter these are this rank's part, of one in half precision its float32 copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from langevin.checks import lacks_memory, needs
from langevin.execution.fused import Entry, wide_dtype
from langevin.execution.shards import is_sharded, like_shard, local_part, runs_of
from langevin.kernels import Kernel, StepInputs
from langevin.optim.settings import Group, named_priors
from langevin.optim.state import (
    MASTER,
    STEPS,
    check_state_names,
    check_state_tensors,
    local_copy,
)
from langevin.optim.update import row_of

__all__ = ["States", "aligned_gradient", "check_parameter", "entries_of"]

States = dict[Tensor, dict[str, Any]]
"""`Optimizer.state`: of each parameter, the kernel's tensors by name, and a count of gradients."""


def check_parameter(who: str, parameter: Tensor) -> None:
    """Reject integers, complex numbers, and FSDP1, whose flat shards have no element addresses."""
    if not parameter.is_floating_point():
        raise needs(who, "params", "real floating-point parameters", parameter.dtype, TypeError)
    if type(parameter).__name__ == "FlatParameter" or getattr(parameter, "_fsdp_flattened", False):
        condition = "DTensor shards: torch.distributed.fsdp.fully_shard(model) (FSDP2)"
        found = "a flat parameter of FullyShardedDataParallel (FSDP1)"
        raise needs(who, "params", condition, found, TypeError)


def aligned_gradient(parameter: Tensor) -> Tensor:
    """Return a parameter's gradient, sharded as the parameter; tensor parallelism leaves terms."""
    gradient = parameter.grad
    assert gradient is not None
    if is_sharded(parameter) != is_sharded(gradient):
        kind = "a DTensor" if is_sharded(gradient) else "a plain tensor"
        condition = "gradients that are sharded where their parameters are, and only there"
        raise needs("optimizer", "params", condition, kind, TypeError)
    if is_sharded(parameter) and gradient.placements != parameter.placements:  # type: ignore[attr-defined]
        parameter.grad = gradient = like_shard(gradient, parameter)
    return gradient


def entries_of(
    who: str,
    group: Group,
    kernels: Sequence[Kernel],
    offsets: list[int],
    states: States,
) -> list[Entry]:
    """Return the parameters of a group that have a gradient; new ones get their initial state."""
    epsilon = float(group["lr"]) / group["num_data"]
    # By kernel and the number of gradients seen: some parameters join late.
    inputs: dict[tuple[int, int], StepInputs] = {}
    entries = []
    for parameter, kernel, offset, prior in zip(
        group["params"], kernels, offsets, named_priors(who, group), strict=True
    ):
        if parameter.grad is None:
            continue
        state, steps, names = list[Tensor](), group["step"], kernel.state_names
        if names:
            state, steps = _state_of(who, parameter, kernel, states[parameter])
        position, gradient, runs, rounded = parameter, parameter.grad, None, None
        if is_sharded(parameter) or is_sharded(gradient):
            gradient = local_part(aligned_gradient(parameter))
            position, runs = local_part(parameter), runs_of(parameter)
            state = [local_part(tensor) for tensor in state]
        named = dict(zip(names, state, strict=True))
        if group["master"] and wide_dtype(position.dtype) != position.dtype:
            _check_tensors(who, position, gradient, named)
            rounded, position = position, _master_copy(states[parameter], parameter, position)
            gradient = gradient.to(position.dtype)
        row = row_of(group, position, gradient, state, offset, runs)
        if row is None:
            _check_tensors(who, position, gradient, named)
        at = id(kernel), steps
        if at not in inputs:
            inputs[at] = kernel.inputs(group["step"], seen=steps, step_size=epsilon)
        now = inputs[at]
        entries.append(
            Entry(parameter, position, gradient, state, offset, runs, now, prior, row, rounded)
        )
    return entries


def _state_of(
    who: str, parameter: Tensor, kernel: Kernel, state: dict[str, Any]
) -> tuple[list[Tensor], int]:
    """Return a parameter's state, initialized if empty, and how many gradients it has seen."""
    if not state:
        initial = kernel.start(local_part(parameter.detach()).to(wide_dtype(parameter.dtype)))
        for name, value in zip(kernel.state_names, initial, strict=True):
            state[name] = local_copy(parameter, value)
        state[STEPS] = 0
    try:
        return [state[name] for name in kernel.state_names], state[STEPS]
    except KeyError:
        check_state_names(f"{who}.step", kernel, state)
        raise


def _master_copy(state: dict[str, Any], parameter: Tensor, rounded: Tensor) -> Tensor:
    """Return the float32 copy of a half-precision parameter, updated where others changed it."""
    if MASTER not in state:
        state[MASTER] = local_copy(parameter, rounded.detach())
    master: Tensor = local_part(state[MASTER])
    if master.shape != rounded.shape:
        condition = f"{MASTER!r} of the parameter's shape {tuple(rounded.shape)}"
        raise needs("optimizer", "state", condition, tuple(master.shape))
    return master.copy_(
        torch.where(master.to(rounded.dtype) == rounded, master, rounded.to(master.dtype))
    )


def _check_tensors(who: str, parameter: Tensor, gradient: Tensor, state: dict[str, Tensor]) -> None:
    """Reject what plain torch would broadcast, or crash on."""
    if not parameter.is_floating_point():
        raise needs(who, "params", "real floating-point parameters", parameter.dtype, TypeError)
    if gradient.layout != torch.strided:
        condition = "dense gradients (sparse=False in the layer)"
        raise needs(who, "params", condition, gradient.layout)
    if gradient.shape != parameter.shape:
        condition = f"gradients of the parameter's shape {tuple(parameter.shape)}"
        raise needs(who, "params", condition, tuple(gradient.shape))
    check_state_tensors(f"{who}.step", parameter, state)
    for tensor in (parameter, gradient, *state.values()):
        if type(tensor).__name__ == "FakeTensor":  # by name: its module takes long to import
            raise needs(who, "params", "tensors with values", "a FakeTensor")
        is_plain = type(tensor) in (Tensor, nn.Parameter)
        if not (is_plain and tensor.layout == torch.strided and tensor.is_cpu):
            continue
        shape, strides = tensor.shape, tensor.stride()
        is_expanded = any(n > 1 and not s for n, s in zip(shape, strides, strict=True))
        if tensor is not gradient and is_expanded:
            condition = "memory for every element of a parameter and its state (clone() it)"
            raise needs(who, "params", condition, strides)
        if lacks_memory(tensor):
            found = f"{tensor.untyped_storage().nbytes()} bytes"
            raise needs(who, "params", f"memory for {tensor.numel()} elements", found)
