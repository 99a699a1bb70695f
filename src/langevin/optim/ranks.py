"""What the ranks of a distributed run must agree on, and how they find out when they do not.

Sharded parameters (DTensor) belong to a mesh whose ranks all step together: at the first step they compare their settings. Plain
parameters may belong to replicas, to independent runs or to parts of a model; nothing says which, and waiting for a rank that has
no part in this would be for ever. So each rank leaves a note in the store of the process group at its second step, and reads
those of the others at its third, where replicas have all been there: reduced gradients that are equal, at parameters that are
not, are those of replicas that have come apart; the same addresses under other gradients are noise that is used twice.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import warnings
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from langevin.checks import level_of_caller
from langevin.optim import addresses
from langevin.optim.state import plain_setting
from langevin.optim.update import Entry
from langevin.shards import is_sharded

__all__ = ["Meeting", "RanksDisagreeError", "check_ranks", "meet"]

_NOT_COMPARED = ("params", "param_names")


class RanksDisagreeError(RuntimeError):
    """Ranks that must take the same steps were given different settings.

    Example:
        >>> import langevin as lv
        >>> from torch import nn
        >>> opt = lv.optim.SGLD(nn.Linear(2, 1).parameters(), lr=0.1, num_data=10, seed=73)
        >>> try:
        ...     lv.optim.check_ranks(opt)  # one process: nothing to disagree with
        ... except RanksDisagreeError as error:
        ...     print(error)  # names what differs, and on which ranks
    """


def meet(optimizer: torch.optim.Optimizer) -> Meeting | None:
    """Compare settings with the ranks that hold shards of the same parameters, at the first step; for others return a meeting."""
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()) or distributed.get_world_size() == 1:
        return None
    sharded: Any = next((p for group in optimizer.param_groups for p in group["params"] if is_sharded(p)), None)
    if sharded is None:
        return Meeting(optimizer)
    mesh = sharded.device_mesh
    found: Any = {distributed.get_rank(): settings_of(optimizer)}
    for axis in range(mesh.ndim):  # row by row, then the rows: in the end every rank has heard all
        everyone: list[Any] = [None] * mesh.size(axis)
        distributed.all_gather_object(everyone, found, group=mesh.get_group(axis))
        found = {rank: settings for part in everyone for rank, settings in part.items()}
    refuse_differences(type(optimizer).__name__, found)
    return None


def check_ranks(optimizer: torch.optim.Optimizer, group: Any = None) -> None:
    """Compare an optimizer's settings and the library's version over the ranks of a group; all of them are to call it.

    Shards of a DTensor are compared at the first step by themselves; replicas under DistributedDataParallel that have come apart
    are noticed at the third. This asks before the first.

    Args:
        optimizer: this rank's.
        group: of `torch.distributed`; None for all ranks.

    Raises:
        RanksDisagreeError: on every rank, with the setting and its values.

    Example:
        >>> import torch, langevin as lv
        >>> opt = lv.optim.SGLD(torch.nn.Linear(2, 1).parameters(), lr=0.1, num_data=100)
        >>> lv.optim.check_ranks(opt)  # alone there is nobody to ask
    """
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return
    everyone: list[Any] = [None] * distributed.get_world_size(group)
    distributed.all_gather_object(everyone, (distributed.get_rank(), settings_of(optimizer)), group=group)
    refuse_differences(type(optimizer).__name__, dict(everyone))


def settings_of(optimizer: torch.optim.Optimizer) -> dict[str, str]:
    """Return what ranks must have in common, by name, as text."""
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
    """Raise when ranks have different settings."""
    names = list(dict.fromkeys(name for settings in found.values() for name in settings))
    differences = []
    for name in names:
        ranks_of: dict[str, list[int]] = defaultdict(list)
        for rank, settings in sorted(found.items()):
            ranks_of[settings.get(name, "not there")].append(rank)
        if len(ranks_of) > 1:
            differences.append(f"{name}: " + " but ".join(f"{_short(v)} on {_ranks(r)}" for v, r in ranks_of.items()))
    if differences:
        raise RanksDisagreeError(
            f"{who}: the ranks of one model must take the same steps, but were given different settings. " + "; ".join(differences)
        )


def _short(value: str) -> str:
    return value if len(value) < 80 else value[:76] + " ..."


def _ranks(ranks: list[int]) -> str:
    names = ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {names}"


class Meeting:
    """The notes that ranks with plain parameters leave for each other; nobody waits.

    Args:
        optimizer: this rank's.
    """

    _held = 0  # meetings so far: the same optimizer has the same number on every rank that runs the same program

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        """Begin before the first step."""
        Meeting._held += 1
        self._optimizer, self._steps = optimizer, 0
        self._key = f"langevin/{type(optimizer).__name__}/{Meeting._held}"

    def step(self, entries: Sequence[Entry]) -> bool:
        """Write at the second step, read at the third; say whether that was all."""
        self._steps += 1
        if self._steps == 2:
            self._write(entries)
        elif self._steps == 3:
            self._read()
        return self._steps >= 3

    def _store(self) -> Any:
        # Not public, and there is no other way to ask without waiting.
        return torch.distributed.distributed_c10d._get_default_store()

    def _write(self, entries: Sequence[Entry]) -> None:
        self._note: dict[str, Any] = {
            "gradients": _digest(entry.gradient for entry in entries),
            "parameters": _digest(entry.position for entry in entries),
            "settings": settings_of(self._optimizer),
            "claims": addresses.claims_of(self._optimizer),
        }
        self._store().set(f"{self._key}/{torch.distributed.get_rank()}", json.dumps(self._note))

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
                f"{who}: {_ranks(sorted(replicas))} have the same gradients, so they are replicas of one model, but their "
                "parameters have come apart. Were they equal at the start? DistributedDataParallel sees to that."
            )
        if sharing:
            warnings.warn(
                f"{who} on rank {me} draws the same noise as on {_ranks(sharing)}, for other gradients: their draws are "
                "correlated. For independent runs give each a chain=, such as torch.distributed.get_rank(); for parts of one model "
                "(ZeroRedundancyOptimizer, pipeline stages) call langevin.optim.fix_addresses(model.parameters()) first.",
                addresses.SharedNoiseWarning,
                stacklevel=level_of_caller(),
            )


def _digest(tensors: Iterable[Tensor]) -> str:
    sums = [[float(tensor.double().sum()), float(tensor.double().abs().sum()), tensor.numel()] for tensor in tensors]
    return hashlib.sha256(json.dumps(sums).encode()).hexdigest()
