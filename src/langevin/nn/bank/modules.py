"""States of modules under the names without wrappers, frozen parameters, BatchNorm statistics.

Wrappers are `DistributedDataParallel`, `DataParallel` and the result of `torch.compile`, nested in
any way, and Lightning Fabric's. Sharded models (`fully_shard`, tensor parallel) have `DTensor`s in
their states.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from langevin.checks import needs
from langevin.nn.bank.files import CODES, State, compare
from langevin.nn.bank.sharded import Parts, boxes_of, has_class, is_dtensor, is_sharded
from langevin.nn.batches import call, inputs_of
from langevin.nn.trees import Tree

__all__ = [
    "check_module",
    "check_whole",
    "differing_values",
    "estimate_norms",
    "fill",
    "frozen_names",
    "named_parameters",
    "norms_of",
    "parts_of",
    "private_copy",
    "probes",
    "state_of",
]

_PROBED = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def check_module(who: str, model: object) -> nn.Module:
    """Return the model without Fabric's wrapper; fail unless its state can be read."""
    while type(model).__name__ == "_FabricModule":  # its names of parameters are not its state's
        model = model._forward_module  # type: ignore[attr-defined]
    if not isinstance(model, nn.Module):
        raise needs(who, "model", "an nn.Module", type(model), TypeError)
    if has_class(model, "FullyShardedDataParallel"):
        advice = "shard it by torch.distributed.fsdp.fully_shard, whose parameters are DTensors"
        found = f"got a FullyShardedDataParallel: {advice}"
        raise TypeError(f"{who}(model=...) needs whole tensors or DTensors, {found}")
    return model


def check_whole(who: str, model: object, or_else: str = "") -> nn.Module:
    """Return the model without Fabric's wrapper; fail unless it has whole tensors."""
    model = check_module(who, model)
    if is_sharded(model):
        advice = f"pass an unsharded module of the same kind, whose values do not matter{or_else}"
        found = f"got a sharded {type(model).__name__}: {advice}"
        raise TypeError(f"{who}(model=...) needs a module with whole tensors, {found}")
    return model


def state_of(model: nn.Module, left_out: Collection[str] = ()) -> State:
    """Return a model's state by plain names: dense tensors, JSON values as extra state.

    Args:
        model: The model.
        left_out: Plain names that are skipped.
    """
    plain = _plain_names(model)
    state = {
        name: _storable(model, name, value)
        for name, value in model.state_dict().items()
        if plain(name) not in left_out
    }
    first: dict[int, str] = {}
    # tied DTensors: their memory does not show it, as a rank's part may be empty
    for named in (model.named_parameters, model.named_buffers):
        for name, tensor in named(remove_duplicate=False):
            if name in state and is_dtensor(tensor):
                state[name] = state[first.setdefault(id(tensor), name)]
    return {plain(name): value for name, value in state.items()}


def parts_of(model: nn.Module) -> Parts:
    """Return the DTensors in a model's state, each with this rank's boxes, by plain names."""
    plain = _plain_names(model)
    return {
        plain(name): (value, boxes_of(name, value))
        for name, value in model.state_dict().items()
        if is_dtensor(value)
    }


def named_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters by plain names, tied ones too."""
    plain = _plain_names(model)
    return {plain(name): value for name, value in model.named_parameters(remove_duplicate=False)}


def frozen_names(model: nn.Module) -> tuple[str, ...]:
    """Return the plain names of frozen parameters beside trained ones; none if all are frozen."""
    parameters = named_parameters(model)
    frozen = tuple(name for name, value in parameters.items() if not value.requires_grad)
    return frozen if len(frozen) < len(parameters) else ()


def probes(model: nn.Module, names: Collection[str]) -> dict[str, list[float]]:
    """Return four elements of each named parameter; none of sharded or non-float ones."""
    found: dict[str, list[float]] = {}
    for name, value in named_parameters(model).items():
        if name in names:
            found[name] = []
            if _is_plain(value) and value.dtype in _PROBED and (last := value.numel() - 1) >= 0:
                at = torch.linspace(0, last, 4, dtype=torch.float64, device=value.device).long()
                found[name] = value.detach().reshape(-1)[at].double().tolist()
    return found


def differing_values(model: nn.Module, expected: Mapping[str, list[float]]) -> list[str]:
    """Return the names of parameters whose values differ from these probes beyond rounding."""

    def differ(a: list[float], b: list[float]) -> bool:
        pair = torch.tensor(a).double(), torch.tensor(b).double()
        return bool(a and b) and not torch.allclose(*pair, rtol=0.02, atol=1e-6, equal_nan=True)

    found = probes(model, expected)
    return [name for name, values in found.items() if differ(values, expected[name])]


def fill(model: nn.Module, state: State, path: Path, frozen: Collection[str] = ()) -> None:
    """Copy a state into a model in place, on the model's devices and in its dtypes.

    Args:
        model: The model.
        state: The state.
        path: Named in the error.
        frozen: Parameters that the state does not hold and the model keeps as they are.
    """

    def shape(name: str, value: Any) -> list[Any]:
        return ["extra state"] if _is_extra(name) else [list(value.shape)]

    own, plain = model.state_dict(), _plain_names(model)
    misfit = f"{path}: does not fit {type(model).__name__}"
    if missing := sorted(set(frozen) - set(map(plain, own))):
        raise ValueError(f"{misfit}, which lacks the frozen parameters {', '.join(missing[:3])}")
    own = {name: value for name, value in own.items() if plain(name) not in frozen}
    wanted = {plain(name): shape(name, _dense(model, name, value)) for name, value in own.items()}
    if differences := compare({name: shape(name, value) for name, value in state.items()}, wanted):
        raise ValueError(f"{misfit}: {differences}")
    model.load_state_dict({name: state[plain(name)] for name in own}, strict=not frozen)


def private_copy(model: nn.Module) -> nn.Module:
    """Copy a model without wrappers; its SyncBatchNorm layers do not wait for other ranks."""
    memo: dict[int, Any] = {}  # `deepcopy` takes what it finds here
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
    """A SyncBatchNorm of one process, for inputs of any number of axes."""

    def _check_input_dim(self, input: Tensor) -> None:
        if input.ndim < 2:
            raise ValueError(f"expected at least 2D input (got {input.ndim}D input)")


def norms_of(model: nn.Module) -> dict[str, _BatchNorm]:
    """Return the layers with BatchNorm statistics, by name."""
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, _BatchNorm) and module.running_mean is not None
    }


def estimate_norms(module: nn.Module, loader: Iterable[Tree]) -> None:
    """Reset the BatchNorm statistics of a module in eval mode and average them over the batches."""
    argument = ("SampleBank.update_bn", "loader")
    norms, batches = norms_of(module), 0
    for norm in norms.values():
        norm.reset_running_stats()
        norm.momentum = None  # cumulative average
        norm.train()
    if isinstance(loader, Tensor) and loader.ndim == 0:
        raise needs(*argument, "batches", loader, TypeError)
    for batch in loader:
        with torch.no_grad():
            call(module, inputs_of(*argument, batch))
        batches += 1
    if not batches:
        raise needs(*argument, "at least one batch", loader)
    for name, norm in norms.items():
        for value in (norm.running_mean, norm.running_var):
            if value is not None and (bad := value[~value.isfinite()]).numel():
                condition = f"inputs with finite statistics ({name} has none)"
                raise needs(*argument, condition, bad[0].item())


def _inner(module: nn.Module) -> str | None:
    """Return the name under which a wrapper holds its module; None if it is not a wrapper."""
    if "_orig_mod" in module._modules:
        return "_orig_mod"
    is_parallel = isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel)
    return "module" if is_parallel else None


def _plain_names(model: nn.Module) -> Callable[[str], str]:
    """Return the function from names in `model.state_dict()` to names without wrappers."""
    named = model.named_modules(remove_duplicate=False)
    wrapped = [
        (f"{name}." if name else "", inner) for name, module in named if (inner := _inner(module))
    ]
    wrapped.sort(key=lambda pair: -len(pair[0]))  # inner wrappers first: their prefix is complete

    def plain(name: str) -> str:
        for outer, inner in wrapped:
            if name.startswith(f"{outer}{inner}."):
                name = outer + name.removeprefix(f"{outer}{inner}.")
        return name

    return plain


def _is_extra(name: str) -> bool:
    return name.rpartition(".")[2] == "_extra_state"


def _storable(model: nn.Module, name: str, value: Any) -> Any:
    if not _is_extra(name):
        return _dense(model, name, value).detach()
    owner = name.rpartition(".")[0]
    module = model.get_submodule(owner)
    who = f"{owner} ({type(module).__name__})" if owner else type(module).__name__
    if type(module).set_extra_state is nn.Module.set_extra_state:
        raise TypeError(
            "SampleBank.add(model=...) needs modules that can be loaded again, "
            f"{who} has no set_extra_state"
        )
    if _is_plain(value):
        return value.detach()
    try:
        if json.loads(json.dumps(value)) == value:
            return value
    except (TypeError, ValueError):
        pass
    needed = f"needs {who} to give a dense tensor or a JSON value in get_extra_state"
    raise TypeError(f"SampleBank.add(model=...) {needed}, got {value!r:.200}")


def _dense(model: nn.Module, name: str, value: Any) -> Any:
    """Return a tensor that a file can hold, or extra state; safetensors reserves one name."""
    part = value.to_local() if is_dtensor(value) else value
    is_partial = is_dtensor(value) and any(p.is_partial() for p in value.placements)
    if not _is_extra(name) and (not _is_plain(part) or is_partial or name == "__metadata__"):
        found = f"{type(value).__name__} {getattr(value, 'dtype', '')}"
        if is_dtensor(value):
            found += f" with placements {value.placements}"
        who = type(model).__name__
        raise TypeError(f"SampleBank needs plain dense tensors, {who} has {name}: {found}")
    return value


def _is_plain(value: object) -> bool:
    """Whether safetensors can hold it; a subclass of Tensor may use its memory otherwise."""
    return (
        isinstance(value, Tensor)
        and type(value) in (Tensor, nn.Parameter)
        and value.layout == torch.strided
        and not value.is_meta
        and value.dtype in CODES
    )
