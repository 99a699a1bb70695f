"""What is saved of an optimizer, and the checks of what is loaded, made before anything changes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import is_dataclass
from typing import Any

import torch
from torch import Tensor

from langevin import serialization
from langevin.checks import check_integer, needs
from langevin.execution.fused import wide_dtype
from langevin.execution.shards import as_shard, like_shard, local_part
from langevin.kernels import Kernel, schedules
from langevin.optim.settings import Group
from langevin.targets import priors

__all__ = ["ESTIMATES", "MASTER", "STEPS", "check_group_names", "check_state_names"]
__all__ += ["check_state_tensors", "copy_like", "local_copy", "plain_setting"]
__all__ += ["BLOCK_STEPS", "LIMIT", "basis_size", "restored_setting", "wide_copy"]

STEPS = "steps"  # in a parameter's state: how many gradients it has seen
MASTER = "master"  # in the state of a parameter in half precision: its float32 copy
BLOCK_STEPS = "block_steps"  # gradients that a block's estimates have seen
LIMIT = 256
"""Largest side of a matrix that is rotated: eigenvectors of larger ones cost too much."""

ESTIMATES = (
    "block_variance", "block_square", "block_gradient", "block_position",
    "left_basis", "left_factor", "right_basis", "right_factor",
)  # fmt: skip
"""The noise of a block, in the state of its first parameter (`langevin.optim.kronecker`)."""

_USER = "user"  # kind of a setting whose class is not part of the library


def copy_like(parameter: Tensor, value: Tensor) -> Tensor:
    """Copy `value`, whole or sharded, to the parameter's layout, device, shards and wide dtype."""
    return local_copy(parameter, local_part(like_shard(value, parameter)))


def wide_copy(parameter: Tensor, value: Tensor) -> Tensor:
    """Copy `value` to the parameter's device and wide dtype."""
    return value.detach().to(parameter.device, wide_dtype(parameter.dtype), copy=True)


def local_copy(parameter: Tensor, value: Tensor) -> Tensor:
    """Copy `value`, this rank's part, to the parameter's layout, device, shards and wide dtype."""
    dtype = wide_dtype(parameter.dtype)
    copy = torch.empty_like(local_part(parameter), dtype=dtype, requires_grad=False)
    return as_shard(copy.copy_(value), parameter)


def check_state_names(call: str, kernel: Kernel, state: dict[str, Any]) -> None:
    """Fail when a parameter's state does not have the names that the kernel needs."""
    wanted = [*kernel.state_names, STEPS] if kernel.state_names else []
    if state.keys() - {MASTER, BLOCK_STEPS, *ESTIMATES} != set(wanted):
        raise needs(call, "state", f"the entries {wanted} of {kernel.name}", sorted(state))
    if wanted:
        check_integer(call, STEPS, state[STEPS], 0)
    if state.keys() & {BLOCK_STEPS, *ESTIMATES}:
        if missing := sorted({BLOCK_STEPS, *ESTIMATES} - state.keys()):
            raise needs(call, "state", f"the entries {missing} of a block", sorted(state))
        check_integer(call, BLOCK_STEPS, state[BLOCK_STEPS], 0)


def check_state_tensors(call: str, parameter: Tensor, state: dict[str, Any]) -> None:
    """Fail when an entry of a state is not a dense floating-point tensor of the right shape."""
    estimates = [state[name] for name in ESTIMATES if name in state]
    shapes = _shapes_of_estimates(parameter, estimates[0]) if estimates else {}
    for name, value in state.items():
        shape = shapes.get(name, tuple(parameter.shape))
        if not isinstance(value, Tensor) or value.shape != shape:
            found = tuple(value.shape) if isinstance(value, Tensor) else value
            condition = f"{name!r} of the parameter's shape {shape}"
            if name in shapes:
                condition = f"{name!r} of the shape {shape}"
            raise needs(call, "state", condition, found)
        has_values = not value.is_meta or parameter.is_meta
        if not (value.is_floating_point() and value.layout == torch.strided and has_values):
            condition = f"{name!r} as a dense floating-point tensor with values"
            found = f"{value.dtype}, {value.layout} on {value.device.type}"
            raise needs(call, "state", condition, found)


def _shapes_of_estimates(parameter: Tensor, first: Any) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a block's estimates, given the first of them."""
    outs = parameter.shape[0] if parameter.ndim else 1
    ins = parameter.numel() // max(outs, 1)
    if isinstance(first, Tensor) and first.shape == (outs, ins + 1):  # with a bias
        ins += 1
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys(ESTIMATES[:4], (outs, ins))
    for side, size in (("left", basis_size(outs)), ("right", basis_size(ins))):
        shapes |= {f"{side}_basis": (size, size), f"{side}_factor": (size, size)}
    return shapes


def basis_size(side: int) -> int:
    """Return the size of the eigenbasis of a side of a matrix: 0 if it is not rotated."""
    return side if 1 < side <= LIMIT else 0


def plain_setting(value: Any) -> Any:
    """Return a setting as plain values; of a user's own class, its name and plain fields."""
    if isinstance(value, schedules.Schedule) and type(value).__module__ == schedules.__name__:
        return schedules.to_plain(value)
    if isinstance(value, priors.ByName):  # whose parts may be the user's own
        parts = [[pattern, plain_setting(part)] for pattern, part in value.priors]
        return {"kind": "ByName", "priors": parts}
    if type(value) in priors.KINDS.values():
        return priors.to_plain(value)
    if not (callable(value) or isinstance(value, priors.Prior | priors.PlacedPrior)):
        return value
    entries = serialization.to_plain(value) if is_dataclass(value) else {}
    fields = {
        name: entry
        for name, entry in entries.items()
        if name != "kind" and isinstance(entry, (int, float, str, bool))
    }
    name = f"{type(value).__module__}.{type(value).__qualname__}"
    return {"kind": _USER, "name": name, "fields": fields}


def _users_own(saved: Any) -> dict[str, Any] | None:
    """Return the first user's object in a plain setting, or None."""
    if isinstance(saved, dict):
        return saved if saved.get("kind") == _USER else _users_own(saved.get("priors"))
    parts = (_users_own(part) for part in saved) if isinstance(saved, list | tuple) else ()
    return next((part for part in parts if part is not None), None)


def restored_setting(who: str, name: str, saved: Any, now: Any) -> Any:
    """Return a setting from its plain values; a user's object is the loading optimizer's own."""
    if not isinstance(saved, dict) or "kind" not in saved:
        return saved
    if own := _users_own(saved):
        if plain_setting(now) != saved:
            condition = f"an optimizer built with the saved {own['name']} {own['fields']}"
            raise needs(f"{who}.load_state_dict", name, condition, now)
        return now
    return priors.from_plain(saved) if name == "prior" else schedules.from_plain(saved)


def check_group_names(
    who: str, number: int, saved: Group, now: Group, later: Iterable[str] = ()
) -> None:
    """Reject a group of another sampler, size or model; settings in `later` may be missing."""

    def refuse(condition: str, found: Any) -> Exception:
        return needs(f"{who}.load_state_dict", "state_dict", condition, found)

    if not isinstance(saved, dict) or saved.get("sampler") != now["sampler"]:
        other = "no sampling optimizer of langevin"
        found = saved.get("sampler", other) if isinstance(saved, dict) else saved
        raise refuse(f"the state of a {now['sampler']} (group {number})", found)
    if missing := sorted(set(now) - set(saved) - {"params", "param_names", *later}):
        raise refuse(f"the settings {missing} in group {number}", sorted(saved))
    if len(saved["params"]) != len(now["params"]):
        raise refuse(f"{len(now['params'])} parameters in group {number}", len(saved["params"]))
    names, others = now.get("param_names"), saved.get("param_names")
    if names is not None and others is not None and names != others:
        first = next(pair for pair in zip(names, others, strict=True) if pair[0] != pair[1])
        raise refuse(f"the parameter {first[0]!r} (a pre-hook may rename it)", first[1])
