"""Checks that the ranks of a distributed run agree.

Sharded parameters (DTensor) belong to a mesh whose ranks all step together: at the first step they
compare their settings. Plain parameters may belong to replicas, to independent runs or to parts of
a model. Nothing tells which, and waiting for a rank that takes no part would never end. So each
rank writes a note to the store of the process group at its second step, and reads the others' notes
at its third, when all replicas have written theirs. Equal reduced gradients at different parameters
mean that replicas have diverged; equal addresses with different gradients mean that noise is used
twice.
"""

from __future__ import annotations

import importlib.metadata
import json
import warnings
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from langevin.checks import level_of_caller
from langevin.execution.fused import Entry
from langevin.execution.shards import is_sharded
from langevin.optim import addresses
from langevin.optim.state import plain_setting
from langevin.optim.wrapped import unwrap_optimizer
from langevin.serialization import digest_of_json

__all__ = ["Meeting", "RanksDisagreeError", "check_ranks", "meet"]

_NOT_COMPARED = ("params", "param_names")


class RanksDisagreeError(RuntimeError):
    """Ranks that must take the same steps have different settings or parameters.

    Example:
        >>> import langevin as lv
        >>> from torch import nn
        >>> opt = lv.optim.SGLD(nn.Linear(2, 1).parameters(), lr=0.1, num_data=10, seed=73)
        >>> try:
        ...     lv.optim.check_ranks(opt)  # a single process always agrees
        ... except RanksDisagreeError as error:
        ...     print(error)  # the differences, and their ranks
    """


def meet(optimizer: torch.optim.Optimizer) -> Meeting | None:
    """Compare settings with ranks that hold shards of the same model; else return a meeting."""
    distributed = torch.distributed
    if (
        not (distributed.is_available() and distributed.is_initialized())
        or distributed.get_world_size() == 1
    ):
        return None
    sharded: Any = next(
        (p for group in optimizer.param_groups for p in group["params"] if is_sharded(p)), None
    )
    if sharded is None:
        return Meeting(optimizer)
    mesh = sharded.device_mesh
    found: Any = {distributed.get_rank(): settings_of(optimizer)}
    for axis in range(mesh.ndim):  # rows, then columns: at the end every rank has all settings
        everyone: list[Any] = [None] * mesh.size(axis)
        distributed.all_gather_object(everyone, found, group=mesh.get_group(axis))
        found = {rank: settings for part in everyone for rank, settings in part.items()}
    refuse_differences(type(optimizer).__name__, found)
    return None


def check_ranks(optimizer: torch.optim.Optimizer, group: Any = None) -> None:
    """Compare an optimizer's settings and the library's version over ranks, which all call it.

    Shards of a DTensor are compared automatically at the first step; replicas under
    DistributedDataParallel that have diverged are detected at the third. This function checks
    before the first.

    Args:
        optimizer: this rank's, possibly wrapped by accelerate or Lightning.
        group: of `torch.distributed`; None for all ranks.

    Raises:
        RanksDisagreeError: on every rank, with the setting and its values.

    Example:
        >>> import torch, langevin as lv
        >>> opt = lv.optim.SGLD(torch.nn.Linear(2, 1).parameters(), lr=0.1, num_data=100)
        >>> lv.optim.check_ranks(opt)  # does nothing in a single process
    """
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return
    inner = unwrap_optimizer(optimizer)
    everyone: list[Any] = [None] * distributed.get_world_size(group)
    distributed.all_gather_object(
        everyone, (distributed.get_rank(), settings_of(inner)), group=group
    )
    refuse_differences(type(inner).__name__, dict(everyone))


def settings_of(optimizer: torch.optim.Optimizer) -> dict[str, str]:
    """Return the settings that ranks must have in common, as text."""
    found = {
        "version of langevin": importlib.metadata.version("langevin"),
        "version of torch": torch.__version__,
        "sampler": type(optimizer).__name__,
    }
    found["groups"] = str(len(optimizer.param_groups))
    for number, group in enumerate(optimizer.param_groups):
        for name, value in group.items():
            if name not in _NOT_COMPARED:
                value = value.item() if isinstance(value, Tensor) else value
                found[f"{name} (group {number})"] = json.dumps(plain_setting(value), default=repr)
        shapes = [[str(parameter.dtype), *parameter.shape] for parameter in group["params"]]
        found[f"shapes (group {number})"] = json.dumps(shapes)
    return found


def refuse_differences(who: str, found: dict[int, dict[str, str]]) -> None:
    """Raise if ranks have different settings."""
    names = list(dict.fromkeys(name for settings in found.values() for name in settings))
    differences = []
    for name in names:
        ranks_of: dict[str, list[int]] = defaultdict(list)
        for rank, settings in sorted(found.items()):
            ranks_of[settings.get(name, "missing")].append(rank)
        if len(ranks_of) > 1:
            differences.append(
                f"{name}: "
                + " but ".join(f"{_short(v)} on {_ranks(r)}" for v, r in ranks_of.items())
            )
    if differences:
        raise RanksDisagreeError(
            f"{who}: the ranks of one model must take the same steps, but have different settings. "
            + "; ".join(differences)
        )


def _short(value: str) -> str:
    return value if len(value) < 80 else value[:76] + " ..."


def _ranks(ranks: list[int]) -> str:
    names = ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {names}"


class Meeting:
    """Notes that ranks with plain parameters exchange without waiting.

    Args:
        optimizer: this rank's.
    """

    _count = 0  # an optimizer's number is the same on every rank that runs the same program

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        """Start before the first step."""
        Meeting._count += 1
        self._optimizer, self._steps = optimizer, 0
        self._key = f"langevin/{type(optimizer).__name__}/{Meeting._count}"

    def step(self, entries: Sequence[Entry]) -> bool:
        """Write at the second step, read at the third; return whether the meeting is over."""
        self._steps += 1
        if self._steps == 2:
            self._write(entries)
        elif self._steps == 3:
            self._read()
        return self._steps >= 3

    def _store(self) -> Any:
        # Not public, but the only way to read without waiting.
        return torch.distributed.distributed_c10d._get_default_store()

    def _write(self, entries: Sequence[Entry]) -> None:
        self._note: dict[str, Any] = {
            "gradients": _digest(entry.gradient for entry in entries),
            "parameters": _digest(entry.position for entry in entries),
            "settings": settings_of(self._optimizer),
            "claims": addresses.claims_of(self._optimizer),
        }
        store, key = self._store(), f"{self._key}/{torch.distributed.get_rank()}"
        store.set(key, json.dumps(self._note))
        # `set` returns before the server has the note; an answer on the same connection means that
        # it has. Otherwise one rank may miss the other's note, go on alone and wait for ever.
        store.check([key])

    def _read(self) -> None:
        store, me, who = self._store(), torch.distributed.get_rank(), type(self._optimizer).__name__
        replicas, sharing = {me: self._note["settings"]}, []
        for rank in range(torch.distributed.get_world_size()):
            key = f"{self._key}/{rank}"
            if rank == me or not store.check([key]):
                continue
            note = json.loads(store.get(key))
            if note["gradients"] == self._note["gradients"]:
                if note["parameters"] != self._note["parameters"]:
                    replicas[rank] = note["settings"]
            elif addresses.shared(self._note["claims"], note["claims"]):
                sharing.append(rank)
        if len(replicas) > 1:
            refuse_differences(who, replicas)
            raise RanksDisagreeError(
                f"{who}: {_ranks(sorted(replicas))} have the same gradients, so they are replicas "
                "of one model, but replica parameters have diverged. Were they equal at the start, "
                "as with DistributedDataParallel?"
            )
        if sharing:
            warnings.warn(
                f"{who} on rank {me} draws the same noise as on {_ranks(sharing)}, for other "
                "gradients: their draws are correlated. For independent runs give each a chain=, "
                "such as torch.distributed.get_rank(); for parts of one model "
                "(ZeroRedundancyOptimizer, pipeline stages) call "
                "langevin.optim.fix_addresses(model.parameters()) first.",
                addresses.SharedNoiseWarning,
                stacklevel=level_of_caller(),
            )


def _digest(tensors: Iterable[Tensor]) -> str:
    sums = [
        [float(tensor.double().sum()), float(tensor.double().abs().sum()), tensor.numel()]
        for tensor in tensors
    ]
    return digest_of_json(sums)
