"""Run blocks of chains on an engine of `langevin.distributed`; only this process writes.

A task continues a block from its last checkpoint for some seconds, and returns the draws with the
next checkpoint. Both are written before the next task of the block is sent. If a worker or this
process dies, the block continues from there with the same bits.
"""

from __future__ import annotations

import dataclasses
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from typing_extensions import override

from langevin.checks import check_integer, level_of_caller, needs
from langevin.distributed import Engine, Local, WorkerError
from langevin.kernels import Kernel, Scaled
from langevin.sampling.config import Inputs, RunConfig
from langevin.sampling.interrupts import Interrupts
from langevin.sampling.loop import advance, deliver, named, read_samples, run_loop
from langevin.sampling.progress import progress_bar
from langevin.storage import (
    Blocks,
    Checkpoint,
    Samples,
    Store,
    block_ranges,
)
from langevin.storage.memory import Arrays
from langevin.targets import Target
from langevin.targets.gradients import GradientFn

__all__ = ["Job", "Segment", "Task", "run_segment", "chains_per_block", "run"]

_MANY_BLOCKS, _FEW_CHAINS, _MANY_CHAINS = 16, 4, 64
_ROUND_ELEMENTS, _TASK_ELEMENTS = 2**23, 2**16  # of draws in memory: all blocks, or one of them


def chains_per_block(block_size: Any, kernel: Kernel, position: Tensor) -> int:
    """Return the number of chains per block: by default a 16th of them, between 4 and 64.

    It is a function of these numbers alone, since the bits of a chain may depend on the number of
    chains that run beside it.
    """
    if kernel.traits.differs_by_chain or (
        isinstance(kernel, Scaled) and kernel.scale.differs_by_chain
    ):
        what = "None for chains with different settings, which run together"
        raise needs("sample", "engine", what, kernel.name)
    if not position.is_cpu:
        what = "positions on the CPU, or None: blocks of chains run in other processes"
        raise needs("sample", "engine", what, position.device)
    num_chains, group_size = len(position), kernel.traits.group_size
    if block_size is not None:
        check_integer("sample", "block_size", block_size, 1)
        if block_size % group_size:
            what = f"whole groups of {group_size} chains, which interact"
            raise needs("sample", "block_size", what, block_size)
        return min(block_size, num_chains)
    most = min(max(-(-num_chains // _MANY_BLOCKS), _FEW_CHAINS), _MANY_CHAINS)
    even = -(-num_chains // -(-num_chains // most))
    return min(-(-even // group_size) * group_size, num_chains)


@dataclass(frozen=True)
class Job:
    """What the tasks of a run share."""

    config: RunConfig
    target: Target
    columns: tuple[Tensor, ...]
    block_size: int
    # configurations and gradients that this process has made, by block
    made: dict[int, tuple[RunConfig, GradientFn]] = field(default_factory=dict)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "made": {}}

    def of_block(self, block: int, like: Tensor) -> tuple[RunConfig, GradientFn]:
        """Return a block's config and gradient."""
        if block not in self.made:
            chains = block_ranges(self.config.chains, self.block_size)[block]
            config = dataclasses.replace(self.config, chains=chains)
            self.made[block] = config, config.gradient(self.target, self.columns, like)
        return self.made[block]


class Task(NamedTuple):
    """A segment of a block."""

    block: int
    checkpoint: Checkpoint
    seconds: float  # limit
    elements: int  # of draws: limit


class Segment(NamedTuple):
    """The result of a task."""

    first: int  # number of its first draw
    values: dict[str, Tensor]  # as in `Store.write`
    checkpoint: Checkpoint
    interrupted: bool
    notes: tuple[str, ...]  # messages of warnings


class _Outbox(Store):
    """The draws of a task."""

    can_rewrite = True

    def __init__(self) -> None:
        self._pieces: dict[int, Mapping[str, Tensor]] = {}
        self.elements = 0

    @override
    def write(self, first: int, values: Mapping[str, Tensor]) -> None:
        self._pieces[first] = values
        self.elements += values["draws"].numel()

    @override
    def read(self, kept: int) -> Arrays:
        raise NotImplementedError("draws are read from the store that holds them")

    def values(self) -> dict[str, Tensor]:
        """Return copies of all draws, since a view is sent with the tensor that it views."""
        pieces = [self._pieces[first] for first in sorted(self._pieces)]
        names = pieces[0] if pieces else ()
        return {name: torch.cat([piece[name] for piece in pieces]) for name in names}


def run_segment(job: Job, task: Task) -> Segment:
    """Continue a block from its checkpoint, in any process."""
    config, gradient_fn = job.of_block(task.block, task.checkpoint.tensors["position"])
    outbox, end = _Outbox(), time.perf_counter() + task.seconds

    def is_enough() -> bool:
        return time.perf_counter() > end or outbox.elements >= task.elements

    with Interrupts() as interrupts, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        checkpoint, interrupted = advance(
            config, gradient_fn, outbox, task.checkpoint, interrupts, lambda now: None, is_enough
        )
    for index in checkpoint.stopped.keys() - task.checkpoint.stopped.keys():
        reason = checkpoint.stopped[index].reason
        if _is_out_of_memory(reason):  # not the chain's fault: another machine may have more
            raise MemoryError(reason)
    tensors = {name: tensor.clone() for name, tensor in checkpoint.tensors.items()}
    checkpoint = dataclasses.replace(checkpoint, tensors=tensors)
    notes = tuple(dict.fromkeys(str(entry.message) for entry in caught))
    return Segment(task.checkpoint.kept, outbox.values(), checkpoint, interrupted, notes)


def _is_out_of_memory(reason: str) -> bool:
    """Return whether a chain stopped for lack of memory, which torch reports as a RuntimeError."""
    return (
        reason.startswith(("MemoryError", "OutOfMemoryError"))
        or "can't allocate memory" in reason
        or "not enough memory" in reason
    )


def run(
    config: RunConfig,
    gradient_fn: GradientFn,
    store: Store | Blocks,
    start: Checkpoint,
    engine: Engine | None,
    inputs: Inputs,
) -> Samples:
    """Run all chains from a checkpoint to the end, in this process or in blocks on an engine."""
    if isinstance(store, Blocks):
        return run_distributed(config, store, start, engine or Local(), inputs)
    return run_loop(config, gradient_fn, store, start, inputs)


def run_distributed(
    config: RunConfig, blocks: Blocks, start: Checkpoint, engine: Engine, inputs: Inputs
) -> Samples:
    """Run all blocks from their last checkpoints to the end.

    Args:
        config: of all chains.
        blocks: storage of the draws.
        start: the checkpoint of all chains.
        engine: runs the tasks.
        inputs: target, data, progress, and interrupts, which are delayed while draws are written.
    """
    interrupts = inputs.interrupts
    checkpoints, reported, interrupted = blocks.load(start), set[str](), False
    elements = max(_TASK_ELEMENTS, _ROUND_ELEMENTS // len(blocks))

    def task_of(block: int) -> Task | None:
        now = checkpoints[block]
        is_done = now.step == config.num_steps == now.judged
        if is_done or len(now.stopped) == blocks.block_size:
            return None
        return Task(block, now, engine.seconds, elements)

    def steps_done() -> int:
        return sum(
            config.num_steps if len(each.stopped) == blocks.block_size else each.step
            for each in checkpoints
        )

    def partial_samples() -> Samples:
        if blocks.path is not None:
            return read_samples(blocks.path, inputs)
        return named(*blocks.result(list(checkpoints)), config, inputs)

    done, total = sum(each.step for each in checkpoints), config.num_steps * len(blocks)
    with progress_bar(inputs.progress, config.kernel.name, done, total) as report:

        def after(block: int, segment: Segment) -> Task | None:
            interrupts.close()
            blocks.write(block, segment.first, segment.values, segment.checkpoint)
            checkpoints[block] = segment.checkpoint
            interrupts.steps = steps_done(), total
            report(interrupts.steps[0])
            for note in segment.notes:
                if note not in reported:
                    reported.add(note)
                    warnings.warn(note, stacklevel=level_of_caller())
            if segment.interrupted:
                raise KeyboardInterrupt
            interrupts.open()
            return task_of(block)

        tasks = {block: task_of(block) for block in range(len(blocks))}
        first = {block: task for block, task in tasks.items() if task is not None}
        job = Job(config, inputs.target, inputs.columns, blocks.block_size)
        interrupts.steps, interrupts.partial = (done, total), partial_samples
        try:
            interrupts.open()
            engine.work(run_segment, job, first, after)
            interrupts.close()
            interrupts.check()
        except KeyboardInterrupt:
            interrupted = True
        except WorkerError as error:
            text = f"{_which(config, blocks, error)}{error}\n{_how_to_resume(blocks.path)}"
            raise WorkerError(text) from error
        except OSError as error:  # the disk is full, or the folder was removed
            problem = f"{error.strerror or error} ({error.filename or blocks.path})"
            raise OSError(error.errno, f"{problem}. {_how_to_resume(blocks.path)}") from error
        finally:
            interrupts.close()
    return deliver(*blocks.result(checkpoints), config, inputs, interrupted=interrupted)


def _which(config: RunConfig, blocks: Blocks, error: WorkerError) -> str:
    if error.queue is None:
        return ""
    chains = block_ranges(config.chains, blocks.block_size)[error.queue]
    return f"the block of chains {chains.start} to {min(chains.stop, config.chains.stop) - 1}: "


def _how_to_resume(path: Path | None) -> str:
    if path is None:
        return "No draws were kept; after sample(out=...), resume() continues from the last ones"
    resume = f"langevin.resume({str(path)!r}, ...)"
    return f"Written draws are safe; {resume} continues from there, with any engine"
