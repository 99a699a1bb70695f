"""A step with the same settings and tensors as the last one of its group.

For many small tensors, most of a step's time is Python code that examines each of them. A cached
step compares whole lists instead. Every tensor is still checked at every step (`PointerCache`), and
any difference leads back to `entries_of`, which has the error messages.
"""

from __future__ import annotations

from operator import is_
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, UntypedStorage

from langevin.execution.fused import Entry, Extent, PointerCache, Row, fuse
from langevin.kernels import Kernel, StepInputs
from langevin.optim import addresses
from langevin.optim.entries import States
from langevin.optim.settings import Group
from langevin.optim.state import STEPS
from langevin.targets.priors import Prior

__all__ = ["CachedOffsets", "CachedStep", "StepArgs", "same"]

_COMPARED = ("prior", "fused", "master")
_WINDOW = 64  # steps; within such a window a steady kernel has one object as its inputs


def same(these: list[Any], those: list[Any]) -> bool:
    """Return whether two lists contain the same objects."""
    return len(these) == len(those) and all(map(is_, these, those))


class StepArgs(NamedTuple):
    """The tensors of a group, checked against those of its last step."""

    cached: CachedStep
    parameters: list[Tensor]
    gradients: list[Tensor]
    states: list[dict[str, Any]]  # empty if the kernel has no state
    seen: int  # gradients before this one
    table: NDArray[np.int64]
    storages: list[UntypedStorage]  # kept alive during the call: other threads may replace tensors


class CachedStep:
    """What a group's last step depended on.

    Args:
        group: of the optimizer.
        kernel: of the group.
        offsets: addresses of the group's parameters.
        entries: its parameters with a gradient.
        rows: of the entries; `PointerCache.accepts` all of them.
    """

    def __init__(
        self,
        group: Group,
        kernel: Kernel,
        offsets: list[int],
        entries: list[Entry],
        rows: list[Row],
    ) -> None:
        """Store the settings, the parameters, and the layout of their tensors."""
        self._kernel, self._offsets, self._names = kernel, offsets, kernel.state_names
        self._settings = [group[name] for name in _COMPARED]
        self._param_names = list(group.get("param_names") or [])
        self._parameters = [entry.parameter for entry in entries]
        columns = zip(*([e.position, e.gradient, *e.state] for e in entries), strict=True)
        self._pointers = PointerCache(list(map(list, columns)), rows)
        batches: dict[tuple[torch.dtype, Prior | None], list[int]] = {}
        for number, entry in enumerate(entries):
            batches.setdefault((entry.position.dtype, entry.prior), []).append(number)
        numbers = np.array([row.numbers for row in rows], dtype=np.int64)
        self._batches = [
            (fuse(kernel, prior, dtype), index, Extent.of(numbers[index]))
            for (dtype, prior), index in batches.items()
        ]
        self._window: tuple[int, int] | None = None
        self._steady_inputs: StepInputs | None = None

    @classmethod
    def of(
        cls, group: Group, kernel: Kernel, offsets: list[int], entries: list[Entry]
    ) -> CachedStep | None:
        """Return the cache of a step; None unless fused code updates only plain, whole tensors."""
        rows = [e.row for e in entries if e.rounded is None and PointerCache.accepts(e.row)]
        if not entries or len(rows) < len(entries):
            return None
        try:
            return cls(group, kernel, offsets, entries, [row for row in rows if row is not None])
        except TypeError:  # a prior that cannot be fused, or has no hash
            return None

    def check(
        self, group: Group, kernel: Kernel, offsets: list[int], states: States
    ) -> StepArgs | None:
        """Return the group's tensors if nothing has changed since the last step, else None."""
        if (
            kernel is not self._kernel
            or offsets is not self._offsets
            or not same([group[name] for name in _COMPARED], self._settings)
            or (group.get("param_names") or []) != self._param_names
        ):
            return None
        pairs = [(p, gradient) for p in group["params"] if (gradient := p.grad) is not None]
        parameters, gradients = map(list, zip(*pairs, strict=True)) if pairs else ([], [])
        if not same(parameters, self._parameters):
            return None
        own: list[dict[str, Any]] = []
        tensors, seen = [], group["step"]
        if self._names:
            try:
                own = [states.get(parameter, {}) for parameter in parameters]
                tensors = [[state[name] for state in own] for name in self._names]
                seen, *others = {state[STEPS] for state in own}
            except (KeyError, TypeError):  # a state that is missing, or was changed
                return None
            if others:
                return None
        found = self._pointers.table([parameters, gradients, *tensors])
        return None if found is None else StepArgs(self, parameters, gradients, own, seen, *found)

    def update(self, group: Group, args: StepArgs) -> None:
        """Update the parameters, with one call for each dtype and prior, and count gradients."""
        inputs, num_data = self._inputs(group, args.seen), group["num_data"]
        place = {"seed": group["seed"], "chain": group["chain"], "step": group["step"]}
        for fused, rows, extent in self._batches:
            table = args.table if len(rows) == len(args.table) else args.table[rows]
            fused(table, num_data=num_data, inputs=inputs, extent=extent, **place)
        for state in args.states:
            state[STEPS] += 1

    def _inputs(self, group: Group, seen: int) -> StepInputs:
        """Return the inputs of a step, computed once per window if they are equal at both ends."""
        step, epsilon = group["step"], float(group["lr"]) / group["num_data"]
        window = step // _WINDOW, step - seen
        if window != self._window:
            last = step | (_WINDOW - 1)
            first, second = (
                self._kernel.inputs(at, seen=at - window[1], step_size=epsilon)
                for at in (step, last)
            )
            is_steady = self._kernel.is_steady and first == second
            self._window, self._steady_inputs = window, first if is_steady else None
        inputs = self._steady_inputs
        if inputs is None:
            return self._kernel.inputs(step, seen=seen, step_size=epsilon)
        if inputs.step_size != epsilon:
            inputs = self._steady_inputs = inputs._replace(step_size=epsilon)
        return inputs


class CachedOffsets:
    """`element_offsets` of an optimizer: the same lists until something they depend on changes."""

    def __init__(self) -> None:
        """Create an empty cache."""
        self._parameters: list[Tensor] = []
        self._layout: list[Any] = []
        self._offsets: list[list[int]] = []

    def __call__(self, who: str, groups: list[Group]) -> list[list[int]]:
        """Return the address of every parameter's first element, per group."""
        parameters = [parameter for group in groups for parameter in group["params"]]
        layout = [
            list(map(Tensor.numel, parameters)),
            [parameter.dtype for parameter in parameters],
            [len(group["params"]) for group in groups],
            groups[0]["first_address"],
            addresses.num_fixings,
        ]
        if not same(parameters, self._parameters) or layout != self._layout:
            self._parameters, self._layout = parameters, layout
            self._offsets = addresses.element_offsets(who, groups)
        return self._offsets
