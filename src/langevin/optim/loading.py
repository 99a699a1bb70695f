"""Load a saved state into an optimizer, checked completely before anything changes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from langevin.checks import needs
from langevin.optim.settings import Group
from langevin.optim.state import (
    BLOCK_STEPS,
    ESTIMATES,
    STEPS,
    check_group_names,
    check_state_names,
    check_state_tensors,
    copy_like,
    restored_setting,
    wide_copy,
)

if TYPE_CHECKING:
    from langevin.optim.base import LangevinOptimizer

__all__ = ["checked_loading"]


@contextmanager
def checked_loading(optimizer: LangevinOptimizer, state_dict: dict[str, Any]) -> Iterator[None]:
    """Check the state that torch loads inside the block, and keep the dtypes of its tensors."""
    if not isinstance(state_dict, dict):
        call = f"{type(optimizer).__name__}.load_state_dict"
        raise needs(call, "state_dict", "what state_dict() returned", state_dict, TypeError)
    wide: dict[Tensor, dict[str, Any]] = {}

    def check(_: torch.optim.Optimizer, state: dict[str, Any]) -> dict[str, Any]:
        groups, states = _restored(optimizer, state)
        wide.update(states)
        return {**state, "param_groups": groups}

    def restore(_: torch.optim.Optimizer) -> None:
        # torch has cast the state to the parameter's dtype, which rounds float32 averages.
        optimizer.state.update(wide)

    hooks = (
        optimizer.register_load_state_dict_pre_hook(check),  # last of the pre-hooks
        optimizer.register_load_state_dict_post_hook(restore, prepend=True),
    )
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _restored(
    optimizer: LangevinOptimizer, state_dict: dict[str, Any]
) -> tuple[list[Group], dict[Tensor, dict[str, Any]]]:
    """Return the groups of a loaded state with their settings, and each parameter's state."""
    who, now_groups = type(optimizer).__name__, optimizer.param_groups
    call, saved_groups = f"{who}.load_state_dict", state_dict.get("param_groups")
    if not isinstance(saved_groups, list) or not isinstance(state_dict.get("state"), dict):
        raise needs(call, "state_dict", "what state_dict() returned", sorted(state_dict))
    if len(saved_groups) != len(now_groups):
        condition = f"{len(now_groups)} parameter groups"
        raise needs(call, "state_dict", condition, len(saved_groups))
    lists = [group.get("params", ()) for group in saved_groups if isinstance(group, dict)]
    indices = [index for row in lists for index in row]
    if len(set(indices)) < len(indices):
        raise needs(call, "state_dict", "each parameter once", indices)
    groups, states = [], {}
    for number, (saved, now) in enumerate(zip(saved_groups, now_groups, strict=True)):
        later = {"master": now["master"], **optimizer.new_settings}
        if "noise" in now:
            later["noise"] = None
        check_group_names(who, number, saved, now, later)
        group = later | {
            name: restored_setting(who, name, value, now.get(name)) for name, value in saved.items()
        }
        whole = {"param_names": now.get("param_names"), **group, "params": now["params"]}
        optimizer._check_group(whole, saved_groups[0]["first_address"])
        groups.append(group)
        for index, parameter, kernel in zip(
            saved["params"], now["params"], optimizer._kernels(whole), strict=True
        ):
            if state := state_dict["state"].get(index):
                check_state_names(call, kernel, state)
                states[parameter] = _copied(call, parameter, state)
    return groups, states


def _copied(call: str, parameter: Tensor, state: dict[str, Any]) -> dict[str, Any]:
    """Return a checked copy of a parameter's state in its layout and wide dtype."""
    counts = {name: state[name] for name in (STEPS, BLOCK_STEPS) if name in state}
    tensors = {name: value for name, value in state.items() if name not in counts}
    check_state_tensors(call, parameter, tensors)
    copies = {
        name: wide_copy(parameter, t) if name in ESTIMATES else copy_like(parameter, t)
        for name, t in tensors.items()
    }
    return {**state, **copies}
