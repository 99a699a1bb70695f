"""Many settings of one sampler on many data sets at once, as chains of one run."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from langevin.execution import run_blocks, side_by_side
from langevin.kernels import Kernel
from langevin.random import Purpose, batch_indices, integers, streams
from langevin.targets import Batch, Evaluation, Target
from langevin.targets.gradients import Draws, GradientFn
from langevin_paper.spec import Progress

__all__ = ["mean_positions"]


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
    replace: bool = False,
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
        replace: draw every row of a batch from all data, in place of epochs in which each comes once.

    Returns:
        Means; not finite where a chain went non-finite. Such a chain disturbs no other.
    """
    columns = tuple(column.T.contiguous() for column in data)
    (num_sets, num_data), num_settings = columns[0].shape, len(kernels)
    position = init.repeat(num_settings, 1)
    kernel = side_by_side(kernels, num_sets).for_run(warmup, position)

    def draw(steps: range) -> Draws:
        if replace:
            drawn = integers(seed, streams(Purpose.ROWS, chains), steps, batch_size, (num_data,))[..., 0]
        else:
            drawn = batch_indices(seed, streams(Purpose.BATCH, chains), steps, batch_size, num_data)
        rows = drawn.transpose(0, 1).flatten(1)
        return tuple(column.gather(1, rows).view(num_sets, len(steps), -1).transpose(0, 1) for column in columns)

    def evaluate(position: Tensor, drawn: Draws) -> Evaluation:
        by_set = position.view(num_settings, num_sets, -1)
        energy, gradient = target.evaluate(by_set, Batch(drawn, num_data, per_chain=True))
        return Evaluation(energy.flatten(), gradient.view_as(position))

    total, count = torch.zeros_like(position), torch.zeros(len(position), 1, dtype=init.dtype)
    numbers = tuple(chains) * num_settings
    for trace in run_blocks(kernel, GradientFn(draw, evaluate), position, seed=seed, chains=numbers, num_steps=num_steps):
        steps = range(trace.before.step, trace.state.step)
        kept = torch.tensor([[step >= warmup and not kernel.explores(step) for kernel in kernels] for step in steps])
        weights = kept.to(init.dtype).repeat_interleave(num_sets, 1)[..., None]
        total, count = total + (weights * trace.positions).sum(0), count + weights.sum(0)
        progress(steps.stop / num_steps)
    return (total / count).view(num_settings, num_sets, -1)
