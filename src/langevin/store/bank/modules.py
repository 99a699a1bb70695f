"""Modules to states and back: under the names that a model has without its wrappers, and without touching the model.

Wrappers are `DistributedDataParallel`, `DataParallel` and what `torch.compile` returns, in any nesting and at any depth.
Sharded models (`fully_shard`, tensor parallel) have `DTensor`s in their states, which `sharded.py` gathers and shares out.
"""

import copy
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from langevin.checks import needs
from langevin.store.bank.contents import compare
from langevin.store.bank.files import CODES
from langevin.store.bank.sharded import boxes_of, is_dtensor, is_sharded

__all__ = ["check_module", "check_whole", "fill", "parameter_names", "parts_of", "private_copy", "state_of"]


def check_module(who: str, model: object) -> None:
    """Fail unless the model is a module whose state can be read."""
    if not isinstance(model, nn.Module):
        raise needs(who, "model", "an nn.Module", type(model), TypeError)
    if any(kind.__name__ == "FullyShardedDataParallel" for module in model.modules() for kind in type(module).__mro__):
        advice = "shard it by torch.distributed.fsdp.fully_shard, whose parameters are DTensors"
        raise TypeError(f"{who}(model=...) needs whole tensors or DTensors, got a FullyShardedDataParallel: {advice}")


def check_whole(who: str, model: object, or_else: str = "") -> None:
    """Fail unless the model is a module whose tensors are whole on this process."""
    check_module(who, model)
    if isinstance(model, nn.Module) and is_sharded(model):
        advice = f"give an unsharded module of the same kind, whose values do not matter{or_else}"
        raise TypeError(f"{who}(model=...) needs a module with whole tensors, got a sharded {type(model).__name__}: {advice}")


def state_of(model: nn.Module) -> dict[str, Any]:
    """Return the state of a model, by plain names: dense tensors, and extra state that is a tensor or a JSON value.

    Tied names have one DTensor: memory does not say so, for a rank's part may be empty.
    """
    plain = _plain_names(model)
    state = {name: _storable(model, name, value) for name, value in model.state_dict().items()}
    tensors = (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False))
    first: dict[int, str] = {}
    for name, tensor in tensors:
        if name in state and is_dtensor(tensor):
            state[name] = state[first.setdefault(id(tensor), name)]
    return {plain(name): value for name, value in state.items()}


def parts_of(model: nn.Module) -> dict[str, Any]:
    """Return the DTensors in a model's state, each with this rank's boxes, by plain names."""
    plain = _plain_names(model)
    return {plain(name): (value, boxes_of(name, value)) for name, value in model.state_dict().items() if is_dtensor(value)}


def parameter_names(model: nn.Module) -> set[str]:
    """Return the plain names of the parameters, tied ones too."""
    plain = _plain_names(model)
    return {plain(name) for name, _ in model.named_parameters(remove_duplicate=False)}


def fill(model: nn.Module, state: Mapping[str, Any], path: Path) -> None:
    """Copy a state into a model, in place, on the model's own devices and in its own dtypes; `path` is for the error."""
    own, plain = model.state_dict(), _plain_names(model)
    wanted = {plain(name): _shape(name, _dense(model, name, value)) for name, value in own.items()}
    if differences := compare({name: _shape(name, value) for name, value in state.items()}, wanted):
        raise ValueError(f"{path}: does not fit {type(model).__name__}: {differences}")
    model.load_state_dict({name: state[plain(name)] for name in own})


def private_copy(model: nn.Module) -> nn.Module:
    """Copy a model without its wrappers; its SyncBatchNorm layers do not wait for other ranks, which may not be there."""
    memo: dict[int, Any] = {}  # what `deepcopy` finds here it does not copy again
    for module in reversed(list(model.modules())):  # inner modules first
        if inner := _inner(module):
            memo[id(module)] = copy.deepcopy(getattr(module, inner), memo)
        elif isinstance(module, nn.SyncBatchNorm):
            memo[id(module.process_group)] = module.process_group  # cannot be copied
            copy.deepcopy(module, memo).__class__ = _LocalNorm  # type: ignore[assignment]
    private: nn.Module = copy.deepcopy(model, memo)
    private.zero_grad(set_to_none=True)
    return private


class _LocalNorm(_BatchNorm):
    """A SyncBatchNorm of one process: the same parameters and buffers, inputs of any number of axes."""

    def _check_input_dim(self, input: Tensor) -> None:
        if input.ndim < 2:
            raise ValueError(f"expected at least 2D input (got {input.ndim}D input)")


def _inner(module: nn.Module) -> str | None:
    """Return the name under which a wrapper holds its module; None for a module that is no wrapper."""
    if "_orig_mod" in module._modules:
        return "_orig_mod"
    return "module" if isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel) else None


def _plain_names(model: nn.Module) -> Callable[[str], str]:
    """Return the function from names in `model.state_dict()` to names without wrappers."""
    named = model.named_modules(remove_duplicate=False)
    wrapped = [(f"{name}." if name else "", inner) for name, module in named if (inner := _inner(module))]
    wrapped.sort(key=lambda pair: -len(pair[0]))  # inner wrappers first: what is before them is still there

    def plain(name: str) -> str:
        for outer, inner in wrapped:
            if name.startswith(f"{outer}{inner}."):
                name = outer + name.removeprefix(f"{outer}{inner}.")
        return name

    return plain


def _is_extra(name: str) -> bool:
    return name.rpartition(".")[2] == "_extra_state"


def _shape(name: str, value: Any) -> list[Any]:
    """Return what must agree for a value to be loaded: the shape; for extra state its presence."""
    return ["extra state"] if _is_extra(name) else [list(value.shape)]


def _storable(model: nn.Module, name: str, value: Any) -> Any:
    if not _is_extra(name):
        return _dense(model, name, value).detach()
    owner = name.rpartition(".")[0]
    module = model.get_submodule(owner)
    who = f"{owner} ({type(module).__name__})" if owner else type(module).__name__
    if type(module).set_extra_state is nn.Module.set_extra_state:
        raise TypeError(f"SampleBank.add(model=...) needs modules that can be loaded again, {who} has no set_extra_state")
    if _is_dense(value) and not is_dtensor(value):
        return value.detach()
    try:
        if json.loads(json.dumps(value)) == value:
            return value
    except (TypeError, ValueError):
        pass
    needed = f"needs {who} to give a dense tensor or a JSON value in get_extra_state"
    raise TypeError(f"SampleBank.add(model=...) {needed}, got {value!r:.200}")


def _dense(model: nn.Module, name: str, value: Any) -> Any:
    if not _is_extra(name) and (not _is_dense(value) or name == "__metadata__"):  # the one name that safetensors keeps for itself
        found = f"{type(value).__name__} {getattr(value, 'dtype', '')}"
        if is_dtensor(value):
            found += f" with placements {value.placements}"
        raise TypeError(f"SampleBank needs plain dense tensors, {type(model).__name__} has {name}: {found}")
    return value


def _is_dense(value: Any) -> bool:
    """Whether it is a tensor that safetensors can hold; a subclass may mean something else by its memory."""
    if is_dtensor(value):  # a partial one is a term of a sum, no value
        return _is_dense(value.to_local()) and not any(placement.is_partial() for placement in value.placements)
    return type(value) in (Tensor, nn.Parameter) and value.layout == torch.strided and not value.is_meta and value.dtype in CODES
