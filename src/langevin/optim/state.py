"""What is saved of an optimizer, and the checks of what is loaded, made before anything is changed."""

from __future__ import annotations

from dataclasses import is_dataclass
from typing import Any

import torch
from torch import Tensor

from langevin import plain, schedules
from langevin.checks import needs
from langevin.shards import as_shard, like_shard, local_part
from langevin.targets import priors

__all__ = ["MASTER", "STEPS", "check_group_names", "local_memory", "memory_like", "plain_setting", "restored_setting", "wide_dtype"]

STEPS = "steps"  # in a parameter's state: how many gradients it has seen
MASTER = "master"  # in the state of a parameter in half precision: where it is, in float32
_USER = "user"  # kind of a setting that is no part of the library
_WIDE = {torch.bfloat16: torch.float32, torch.float16: torch.float32}


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return what a parameter is remembered and moved in: averages in half precision would stand still."""
    return _WIDE.get(dtype, dtype)


def memory_like(parameter: Tensor, value: Tensor) -> Tensor:
    """Return a copy of `value`, whole or sharded, as a memory of the parameter: its layout, device, shards, in the wide dtype."""
    return local_memory(parameter, local_part(like_shard(value, parameter)))


def local_memory(parameter: Tensor, value: Tensor) -> Tensor:
    """Return a copy of `value`, this rank's part of it, as a memory of the parameter."""
    memory = torch.empty_like(local_part(parameter), dtype=wide_dtype(parameter.dtype), requires_grad=False)
    return as_shard(memory.copy_(value), parameter)


def _name(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def plain_setting(value: Any) -> Any:
    """Return a group's setting as plain values; of a user's own prior or schedule the name of its class and its fields."""
    if isinstance(value, schedules.Schedule) and type(value).__module__ == schedules.__name__:
        return schedules.to_plain(value)
    if isinstance(value, priors.ByName):  # whose parts may be the user's own
        return {"kind": "ByName", "priors": [[pattern, plain_setting(part)] for pattern, part in value.priors]}
    if type(value) in priors.KINDS.values():
        return priors.to_plain(value)
    is_own = callable(value) or isinstance(value, priors.Prior | priors.PlacedPrior)
    return {"kind": _USER, "name": _name(value), "fields": _plain_fields(value)} if is_own else value


def _plain_fields(value: Any) -> dict[str, Any]:
    """Return the numbers and texts among the fields of a dataclass, to be compared when it is loaded."""
    entries = plain.to_plain(value) if is_dataclass(value) else {}
    return {name: entry for name, entry in entries.items() if name != "kind" and isinstance(entry, (int, float, str, bool))}


def _users_own(saved: Any) -> dict[str, Any] | None:
    """Return the first user's object in a plain setting, or None."""
    if isinstance(saved, dict):
        return saved if saved.get("kind") == _USER else _users_own(saved.get("priors"))
    parts = (_users_own(part) for part in saved) if isinstance(saved, list | tuple) else ()
    return next((part for part in parts if part is not None), None)


def restored_setting(who: str, name: str, saved: Any, now: Any) -> Any:
    """Turn a plain setting back; a user's own object is not in a file, so the one of the optimizer that loads is kept."""
    if not isinstance(saved, dict) or "kind" not in saved:
        return saved
    if own := _users_own(saved):
        if plain_setting(now) != saved:
            raise needs(f"{who}.load_state_dict", name, f"an optimizer built with the saved {own['name']} {own['fields']}", now)
        return now
    return priors.from_plain(saved) if name == "prior" else schedules.from_plain(saved)


def check_group_names(who: str, number: int, saved: dict[str, Any], now: dict[str, Any]) -> None:
    """Refuse a group of another sampler, size or model."""
    call = f"{who}.load_state_dict"
    if not isinstance(saved, dict) or saved.get("sampler") != now["sampler"]:
        found = saved.get("sampler", "no sampling optimizer of langevin") if isinstance(saved, dict) else saved
        raise needs(call, "state_dict", f"the state of a {now['sampler']} (group {number})", found)
    if missing := sorted(set(now) - set(saved) - {"params", "param_names", "noise", "master"}):  # what came later has a default
        raise needs(call, "state_dict", f"the settings {missing} in group {number}", sorted(saved))
    if len(saved["params"]) != len(now["params"]):
        raise needs(call, "state_dict", f"{len(now['params'])} parameters in group {number}", len(saved["params"]))
    names, others = now.get("param_names"), saved.get("param_names")
    if names is not None and others is not None and names != others:
        first = next(pair for pair in zip(names, others, strict=True) if pair[0] != pair[1])
        raise needs(call, "state_dict", f"the parameter {first[0]!r} (a pre-hook may rename it)", first[1])
