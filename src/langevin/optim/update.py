"""The update of a group's tensors: in fused CPU code, in generated GPU code, or in plain torch."""

from __future__ import annotations

import functools
import warnings
from typing import Any

import torch
from torch import Tensor

from langevin.checks import level_of_caller, needs
from langevin.compiler.build import has_compiler
from langevin.execution import fused, generated
from langevin.execution.fused import Entry, wide_dtype
from langevin.execution.shards import Runs, gather_runs
from langevin.kernels import Kernel, StepInputs
from langevin.optim.settings import Group
from langevin.random import KINDS, UPDATE_NOISES, Purpose, stream
from langevin.targets import Evaluation
from langevin.targets.gradients import energy_gradient
from langevin.targets.priors import Prior

__all__ = ["Entry", "row_of", "update"]

_NO_ENERGY = torch.tensor(torch.nan)  # optimizers refuse kernels that need the energy
_warned: set[str] = set()  # classes that cannot be fused


@functools.cache
def has_fused_engine() -> bool:
    """Return whether fused code can be compiled; warns once if there is no C compiler."""
    return has_compiler()


def row_of(
    group: Group,
    position: Tensor,
    gradient: Tensor,
    state: list[Tensor],
    offset: int,
    runs: Runs | None,
) -> fused.Row | None:
    """Return the parameter's row in the fused table, or None."""
    if not position.is_cpu or group["fused"] is False or not has_fused_engine():
        return None
    return fused.table_row(position, gradient, state, offset, runs)


def update(who: str, group: Group, kernel: Kernel, entries: list[Entry]) -> None:
    """Update the parameters and states of a group, in one call per dtype and prior if possible."""
    left: list[Entry] = []
    batches: dict[tuple[torch.dtype, StepInputs, Prior | None], list[Entry]] = {}
    obstacles: dict[tuple[torch.dtype, int], str | None] = {}
    for entry in entries:
        dtype = entry.position.dtype
        formula = dtype, id(entry.prior)  # a prior that cannot be fused may have no hash
        if entry.row is not None and formula not in obstacles:
            obstacles[formula] = _obstacle(kernel, entry.prior, dtype)
        if entry.row is not None and obstacles[formula] is None:
            batches.setdefault((dtype, entry.inputs, entry.prior), []).append(entry)
        elif group["fused"] is True:
            reason = obstacles.get(formula) or "there is no C compiler"
            if entry.row is None and has_fused_engine():
                reason = fused.misfit(entry.position, entry.gradient, entry.state)
            raise needs(who, "fused", f"None or False: {reason}", True)
        else:
            left.append(entry)
    place = {name: group[name] for name in ("num_data", "seed", "chain", "step")}
    for entry in left if group["fused"] is False else _generated_update(kernel, left, place):
        _torch_update(group, kernel, entry)
    for (dtype, inputs, prior), batch in batches.items():
        rows = [entry.row for entry in batch if entry.row is not None]
        overlapping = fused.clashing_rows(rows, dtype)
        for number in overlapping:
            _torch_update(group, kernel, batch[number])
        rows = [row for number, row in enumerate(rows) if number not in overlapping]
        if rows:
            code = fused.fuse(kernel, prior, dtype)
            code(fused.table_of(rows, dtype), inputs=inputs, **place)
    for entry in entries:
        if entry.rounded is not None:
            entry.rounded.copy_(entry.position)


def _obstacle(kernel: Kernel, prior: Prior | None, dtype: torch.dtype) -> str | None:
    """Return why a formula cannot be fused, or None; warn once for each class."""
    try:
        fused.fuse(kernel, prior, dtype)
    except TypeError as error:  # UntraceableError, or a prior that has no hash
        is_prior = prior is not None and _obstacle(kernel, None, dtype) is None
        culprit = type(prior if is_prior else kernel).__name__
        if culprit not in _warned:
            _warned.add(culprit)
            warnings.warn(
                f"{culprit} runs on plain torch, which is slower: it cannot be fused ({error})",
                stacklevel=level_of_caller(),
            )
        return str(error)
    return None


def _generated_update(kernel: Kernel, entries: list[Entry], place: dict[str, int]) -> list[Entry]:
    """Run generated GPU code; return the entries that it cannot update."""
    left: list[Entry] = []
    batches: dict[tuple[Any, ...], list[Entry]] = {}
    for entry in entries:
        where = entry.position.dtype, entry.position.device, entry.inputs, id(entry.prior)
        (batches.setdefault(where, []) if generated.takes(entry) else left).append(entry)
    for (dtype, _, inputs, _), batch in batches.items():
        code = generated.generate(kernel, batch[0].prior, dtype)
        left += batch if code is None else code(batch, inputs=inputs, **place)
    return left


def _torch_update(group: Group, kernel: Kernel, entry: Entry) -> None:
    """Evaluate the formula on tensors of any device, dtype and layout: the reference."""
    # Aliases keep the storages alive: another thread may assign `parameter.data` meanwhile.
    written = [tensor.detach() for tensor in (entry.position, *entry.state)]
    dtype = wide_dtype(entry.position.dtype)
    position, gradient = written[0].to(dtype), entry.gradient.detach().to(dtype)
    gradient = energy_gradient(gradient, position, group["num_data"], entry.prior)
    noises = [
        _noise(group, kernel.traits.noise_kind, purpose, entry, dtype).view(position.shape)
        for purpose in UPDATE_NOISES[: kernel.traits.num_noises]
    ]
    evaluation = Evaluation(_NO_ENERGY, gradient)
    moved, state = kernel.update(
        position, evaluation, torch.stack(noises), tuple(written[1:]), entry.inputs
    )
    for old, new in zip(written, (moved, *state), strict=True):
        old.copy_(new)


def _noise(group: Group, kind: str, purpose: Purpose, entry: Entry, dtype: torch.dtype) -> Tensor:
    """Draw the noise of a parameter's elements; of a shard, of those that this rank holds."""

    def draw(begin: int, size: int) -> Tensor:
        at, device = entry.offset + begin, entry.position.device
        where = group["seed"], stream(purpose, group["chain"]), group["step"]
        return KINDS[kind](*where, size, offset=at, dtype=dtype, device=device)

    return draw(0, entry.position.numel()) if entry.runs is None else gather_runs(entry.runs, draw)
