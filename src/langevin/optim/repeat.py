"""A step like the one before: what a group's step depends on is noted once, then compared list by list, not tensor by tensor.

Of 200 small tensors most of a step is Python that looks at each of them. Nothing is believed here: every tensor is checked at every
step (`Known`), and whatever has changed sends the group back to the long way, which says what is wrong.
"""

from __future__ import annotations

from operator import is_
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from langevin.kernels import Kernel
from langevin.optim.state import STEPS
from langevin.optim.update import Entry, fused_engine

__all__ = ["Ready", "Repeat", "same"]

_COMPARED = ("prior", "fused", "master")


def same(these: list[Any], those: list[Any]) -> bool:
    """Say whether two lists hold the very same objects."""
    return len(these) == len(those) and all(map(is_, these, those))


class Ready(NamedTuple):
    """The tensors of a group, checked to be like those of its last step."""

    repeat: Repeat
    parameters: list[Tensor]
    gradients: list[Tensor]
    states: list[dict[str, Any]]  # empty where nothing is remembered
    seen: int  # gradients before this one
    table: NDArray[np.int64]


class Repeat:
    """What the last step of a group was like.

    Args:
        group: of the optimizer.
        kernel: of the group.
        offsets: addresses of the group's parameters.
        entries: its parameters with a gradient, that the fused engine takes; see `of`.
    """

    def __init__(self, group: dict[str, Any], kernel: Kernel, offsets: list[int], entries: list[Entry]) -> None:
        """Note the settings, the parameters and what their tensors are like."""
        self._kernel, self._offsets, self._settings = kernel, offsets, [group[name] for name in _COMPARED]
        self._names = list(group.get("param_names") or [])
        self._parameters = [entry.parameter for entry in entries]
        memory = [[entry.memory[k] for entry in entries] for k in range(len(kernel.memory))]
        columns = [[entry.position for entry in entries], [entry.gradient for entry in entries], *memory]
        engine = fused_engine()
        self._known = engine.Known(columns, [entry.row for entry in entries])
        kinds: dict[tuple[torch.dtype, Any], list[int]] = {}
        for number, entry in enumerate(entries):
            kinds.setdefault((entry.position.dtype, entry.prior), []).append(number)
        self._batches = [(engine.fuse(kernel, prior, dtype), rows) for (dtype, prior), rows in kinds.items()]

    @classmethod
    def of(cls, group: dict[str, Any], kernel: Kernel, offsets: list[int], entries: list[Entry]) -> Repeat | None:
        """Return what this step is like; None where its tensors are not all plain: whole, contiguous, moved by the fused engine."""
        engine = fused_engine()
        if engine is None or not entries or not all(entry.rounded is None and engine.Known.takes(entry.row) for entry in entries):
            return None
        try:
            return cls(group, kernel, offsets, entries)
        except TypeError:  # a prior that cannot be fused, or has no hash
            return None

    def check(self, group: dict[str, Any], kernel: Kernel, offsets: list[int], state: Any) -> Ready | None:
        """Return the group's tensors where its step is like the one that was noted, and they can be touched."""
        if (
            kernel is not self._kernel
            or offsets is not self._offsets
            or not same([group[name] for name in _COMPARED], self._settings)
            or (group.get("param_names") or []) != self._names
        ):
            return None
        pairs = [(parameter, gradient) for parameter in group["params"] if (gradient := parameter.grad) is not None]
        parameters, gradients = map(list, zip(*pairs, strict=True)) if pairs else ([], [])
        if not same(parameters, self._parameters):
            return None
        states, memory, seen = [], [], group["step"]
        if kernel.memory:
            try:
                states = list(map(state.get, parameters))
                memory = [[entry[name] for entry in states] for name in kernel.memory]
                seen, *others = {entry[STEPS] for entry in states}
            except (KeyError, TypeError):  # a state that is missing, or was changed
                return None
            if others:
                return None
        table = self._known.table([parameters, gradients, *memory])
        return None if table is None else Ready(self, parameters, gradients, states, seen, table)

    def update(self, group: dict[str, Any], kernel: Kernel, ready: Ready) -> None:
        """Move the parameters, in a call of the fused engine for each dtype and prior, and count their gradients."""
        inputs = kernel.inputs(group["step"], seen=ready.seen, step_size=float(group["lr"]) / group["num_data"])
        place = {"seed": group["seed"], "chain": group["chain"], "step": group["step"]}
        for fused, rows in self._batches:
            table = ready.table if len(rows) == len(ready.table) else ready.table[rows]
            fused(table, num_data=group["num_data"], inputs=inputs, **place)
        for state in ready.states:
            state[STEPS] += 1
