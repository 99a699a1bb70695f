"""Many settings of one sampler at once: each kernel's numbers become tensors, so that one `update` moves the chains of all of them.

The formulas are the library's own. A kernel's settings are numbers; its twin has tensors with one number for each setting in their
place, and is handed a `Clock` of tensors. Chain (k, d) then walks as setting k does on data set d in `langevin.sample`, with the
same start, batches and noise, up to rounding.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, cast

import torch
from torch import Tensor

from langevin.checks import needs
from langevin.kernels import Clock, Kernel
from langevin.noise import UPDATE_NOISES, Purpose, batch_indices, normal, streams
from langevin.schedules import Schedule, explores
from langevin.targets import Target
from langevin.targets.base import Batch
from langevin_paper.spec import Progress

__all__ = ["mean_positions", "twin"]

BLOCK = 256  # steps whose random numbers are drawn together


def twin(kernels: Sequence[Kernel]) -> Kernel:
    """Return a kernel whose numbers are tensors (settings, 1, 1): its `update` takes positions (settings, data sets, dim).

    Its schedules mean nothing: it is to be handed the clocks of the kernels it stands for.
    """
    return cast(Kernel, _twin("kernel", list(kernels)))


def _twin(name: str, values: list[Any]) -> Any:
    first = values[0]
    if isinstance(first, Schedule) or not all(type(value) is type(first) for value in values):
        if all(callable(value) for value in values):
            return first
        raise needs("twin", name, "values of one type in all kernels", values, TypeError)
    if isinstance(first, (int, float)) and not isinstance(first, bool):
        return torch.tensor(values, dtype=torch.float64)[:, None, None]
    if isinstance(first, tuple):
        return tuple(_twin(f"{name}[{k}]", list(entries)) for k, entries in enumerate(zip(*values, strict=True)))
    if is_dataclass(first) and not isinstance(first, type):
        made = object.__new__(type(first))
        for field in fields(first):
            entries = [getattr(value, field.name) for value in values]
            object.__setattr__(made, field.name, _twin(f"{name}.{field.name}", entries))
        return made
    if any(value != first for value in values):
        raise needs("twin", name, "the same value in all kernels", values)
    return first


def mean_positions(
    kernels: Sequence[Kernel],
    target: Target,
    init: Tensor,
    data: Sequence[Tensor],
    *,
    chains: range,
    num_steps: int,
    warmup: int,
    batch_size: int,
    seed: int,
    progress: Progress,
) -> Tensor:
    """Run every kernel on every data set and return the means of what `sample` would keep, (settings, data sets, dim).

    Settings share the start, the batches and the noise of a data set: those of chain `chains[d]` with this seed.

    Args:
        kernels: the settings: kernels that differ in numbers and schedules only.
        target: a target whose `evaluate` takes positions with several leading axes.
        init: a start for each data set, (data sets, dim).
        data: columns, (N, data sets) each.
        chains: the number of the chain on each data set.
        num_steps: steps, warm-up included.
        warmup: first steps that are left out of the mean, and in which a scale is learnt.
        batch_size: rows a step.
        seed: of noise and batches.
        progress: is told the share done.

    Returns:
        Means; not finite where a chain went non-finite. Such a chain disturbs no other.
    """
    kernels = [kernel.for_run(warmup) for kernel in kernels]
    together = twin(kernels)
    columns = tuple(column.T.contiguous() for column in data)
    (num_sets, num_data), dim = columns[0].shape, init.shape[-1]
    position = init.expand(len(kernels), num_sets, dim).clone()
    memory = together.start(position)
    total, count = torch.zeros_like(position), torch.zeros(len(kernels), 1, 1, dtype=init.dtype)
    with torch.no_grad(), _one_thread():
        for start in range(0, num_steps, BLOCK):
            progress(start / num_steps)
            steps = range(start, min(num_steps, start + BLOCK))
            rows = batch_indices(seed, streams(Purpose.BATCH, chains), steps, batch_size, num_data)
            batches = [column.gather(1, rows.transpose(0, 1).flatten(1)).view(num_sets, len(steps), -1) for column in columns]
            noises = [
                normal(seed, streams(purpose, chains), steps, dim, dtype=init.dtype)
                for purpose in UPDATE_NOISES[: together.num_noises]
            ]
            clocks = torch.tensor([[kernel.clock(step) for kernel in kernels] for step in steps], dtype=init.dtype)
            silent = torch.tensor([[_explores(kernel, step) for kernel in kernels] for step in steps], dtype=init.dtype)
            kept = (1 - silent) * (torch.tensor(steps) >= warmup)[:, None]
            count += kept.sum(0)[:, None, None]
            for index in range(len(steps)):
                batch = Batch(tuple(column[:, index] for column in batches), num_data, per_chain=True)
                _, gradient = target.evaluate(position, batch)
                heard = (1 - silent[index])[:, None, None]
                noise = [heard * drawn[index] for drawn in noises]
                clock = Clock(*clocks[index].T[..., None, None])  # tensors for floats, as in a compiled scan
                taken = noise[0] if len(noise) == 1 else torch.stack(noise)
                position, memory = together.update(position, gradient, taken, memory, clock)
                total += kept[index][:, None, None] * position
    return total / count


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Tensors of some ten thousand numbers: two threads spend more time waiting for each other than they save."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _explores(kernel: Kernel, step: int) -> bool:
    return explores(kernel.step_size, step)  # type: ignore[arg-type] # a schedule since __post_init__
