"""One step of an optimizer's group: by the fused engine where its tensors fit, by the formula on tensors elsewhere."""

from __future__ import annotations

import functools
import warnings
from typing import Any, NamedTuple

import torch
from torch import Tensor

from langevin.checks import level_of_caller, needs
from langevin.gradients import energy_gradient
from langevin.kernels import Kernel, StepInputs
from langevin.noise import KINDS, UPDATE_NOISES, Purpose, stream
from langevin.optim.state import wide_dtype
from langevin.shards import Runs, gather_runs
from langevin.targets import Evaluation
from langevin.targets.priors import Prior

__all__ = ["Entry", "row_of", "update"]


@functools.cache
def fused_engine() -> Any:
    """Return `langevin.engines.fused`, loaded when first asked for, since numba takes long; None where numba cannot be imported."""
    try:
        from langevin.engines import fused
    except ImportError:  # the torch engine serves the CPU too
        return None
    return fused


@functools.cache
def _generated_engine() -> Any:
    """Return `langevin.engines.generated`, which traces formulas as the fused engine does; None where that cannot be imported."""
    try:
        from langevin.engines import generated
    except ImportError:
        return None
    return generated


_UNKNOWN = torch.tensor(torch.nan)  # the energy: a kernel that needs it is refused


class Entry(NamedTuple):
    """A parameter that has a gradient, as the engines see it: of a sharded one, this rank's part."""

    parameter: Tensor
    position: Tensor
    gradient: Tensor
    memory: list[Tensor]
    offset: int  # address of its first element, in elements of its dtype
    runs: Runs | None  # of a shard: which elements of the whole it holds
    inputs: StepInputs  # of its step
    prior: Prior | None
    row: Any  # of the fused engine's table; None where it does not take these tensors
    rounded: Tensor | None = None  # the parameter, where `position` is the copy in float32 that is moved for it


def row_of(group: dict[str, Any], position: Tensor, gradient: Tensor, memory: list[Tensor], offset: int, runs: Runs | None) -> Any:
    """Return the parameter's row in the fused engine's table, or None for the torch engine."""
    engine = fused_engine() if position.is_cpu and group["fused"] is not False else None
    return None if engine is None else engine.table_row(position, gradient, memory, offset, runs)


def update(who: str, group: dict[str, Any], kernel: Kernel, entries: list[Entry]) -> None:
    """Move the parameters: by the fused engine, in one call per dtype and prior; on a GPU by generated code; or one by one."""
    left: list[Entry] = []
    batches: dict[tuple[torch.dtype, StepInputs, Prior | None], list[Entry]] = {}
    troubles: dict[tuple[torch.dtype, int], str | None] = {}
    for entry in entries:
        dtype = entry.position.dtype
        formula = dtype, id(entry.prior)  # a prior that cannot be fused may have no hash
        if entry.row is not None and formula not in troubles:
            troubles[formula] = _untraceable(kernel, entry.prior, dtype)
        if entry.row is not None and troubles[formula] is None:
            batches.setdefault((dtype, entry.inputs, entry.prior), []).append(entry)
        elif group["fused"] is True:
            reason = troubles.get(formula) or (fused_engine().misfit(*entry[1:4]) if fused_engine() else "numba is not installed")
            raise needs(who, "fused", f"None or False: {reason}", True)
        else:
            left.append(entry)
    for entry in left if group["fused"] is False else _update_by_compiler(group, kernel, left):
        _update_by_torch(group, kernel, entry)
    for (dtype, inputs, prior), batch in batches.items():
        engine = fused_engine()
        clashing = engine.clashing_rows([entry.row for entry in batch], dtype)
        for number in clashing:
            _update_by_torch(group, kernel, batch[number])
        if len(clashing) < len(batch):
            engine.fuse(kernel, prior, dtype)(
                engine.table_of([entry.row for number, entry in enumerate(batch) if number not in clashing], dtype),
                num_data=group["num_data"],
                inputs=inputs,
                seed=group["seed"],
                chain=group["chain"],
                step=group["step"],
            )

    for entry in entries:
        if entry.rounded is not None:
            entry.rounded.copy_(entry.position)


def _untraceable(kernel: Kernel, prior: Any, dtype: torch.dtype) -> str | None:
    """Say why a formula has no fused code: a prior or a kernel of the user's own may do anything. Said aloud once per class."""
    try:
        fused_engine().fuse(kernel, prior, dtype)
    except TypeError as error:  # UntraceableError, or a prior that has no hash
        culprit = type(prior if prior is not None and _runs_alone(kernel, dtype) else kernel).__name__
        if culprit not in _said:
            _said.add(culprit)
            warnings.warn(
                f"{culprit} runs on plain torch, which is slower: it cannot be fused ({error})", stacklevel=level_of_caller()
            )
        return str(error)
    return None


def _runs_alone(kernel: Kernel, dtype: torch.dtype) -> bool:
    try:
        fused_engine().fuse(kernel, None, dtype)
    except TypeError:
        return False
    return True


_said: set[str] = set()


def _noise(group: dict[str, Any], kind: str, purpose: Purpose, entry: Entry, dtype: torch.dtype) -> Tensor:
    """Draw the noise of a parameter's elements, or of those that this rank holds."""

    def draw(begin: int, size: int) -> Tensor:
        at, device = entry.offset + begin, entry.position.device
        where = group["seed"], stream(purpose, group["chain"]), group["step"]
        return KINDS[kind](*where, size, offset=at, dtype=dtype, device=device)

    return draw(0, entry.position.numel()) if entry.runs is None else gather_runs(entry.runs, draw)


def _update_by_compiler(group: dict[str, Any], kernel: Kernel, entries: list[Entry]) -> list[Entry]:
    """Run generated code, once per dtype, device, inputs and prior; return the entries that it does not take."""
    generated = _generated_engine() if entries else None
    if generated is None:
        return entries
    left: list[Entry] = []
    batches: dict[tuple[Any, ...], list[Entry]] = {}
    for entry in entries:
        where = entry.position.dtype, entry.position.device, entry.inputs, id(entry.prior)
        (batches.setdefault(where, []) if generated.takes(entry) else left).append(entry)
    place = {name: group[name] for name in ("num_data", "seed", "chain", "step")}
    for (dtype, _, inputs, _), batch in batches.items():
        code = generated.generate(kernel, batch[0].prior, dtype)
        left += batch if code is None else code(batch, inputs=inputs, **place)
    return left


def _update_by_torch(group: dict[str, Any], kernel: Kernel, entry: Entry) -> None:
    """Run the formula on tensors: the oracle of the fused engine, and the path for other devices, dtypes and layouts."""
    dtype = wide_dtype(entry.position.dtype)
    position, gradient = entry.position.to(dtype), entry.gradient.to(dtype)
    purposes, kind = UPDATE_NOISES[: kernel.num_noises], kernel.noise_kind
    noises = [_noise(group, kind, purpose, entry, dtype).view(position.shape) for purpose in purposes]
    moved, memory = kernel.update(
        position,
        Evaluation(_UNKNOWN, energy_gradient(gradient, position, group["num_data"], entry.prior)),
        torch.stack(noises),
        tuple(entry.memory),
        entry.inputs,
    )
    for old, new in zip((entry.position, *entry.memory), (moved, *memory), strict=True):
        old.copy_(new)
