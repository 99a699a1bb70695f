"""A run in blocks of chains, on an engine of `langevin.scale`: here everything is written, elsewhere the steps are taken.

A task takes a block from its last checkpoint on, for some seconds, and returns the draws with the next checkpoint. Both are written
before the block is sent out again: whoever dies, a worker or this process, the block goes on from there with the same bits.
"""

from __future__ import annotations

import dataclasses
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from typing_extensions import override

from langevin.chains.drive import advance, deliver
from langevin.chains.interrupts import Interrupts
from langevin.chains.meter import Progress, meter
from langevin.chains.plan import Plan
from langevin.checks import check_integer, level_of_caller, needs
from langevin.gradients import GradientFn
from langevin.kernels import Kernel, Scaled
from langevin.scale import Engine, WorkerError
from langevin.store import Blocks, Checkpoint, Samples, Store, block_ranges
from langevin.store.memory import Arrays
from langevin.targets import Target

__all__ = ["Job", "Stretch", "Task", "run_stretch", "size_of_blocks", "spread"]

_MANY_BLOCKS, _FEW_CHAINS, _MANY_CHAINS = 16, 4, 64
_ROUND_ELEMENTS, _TASK_ELEMENTS = 2**23, 2**16  # of the draws that all blocks together, or one of them, bring home at once


def size_of_blocks(block_size: Any, kernel: Kernel, position: Tensor) -> int:
    """Return how many chains a block has: by default at most a 16th of them, or 4 if that is more, and never more than 64.

    It is a function of these numbers alone, since the bits of a chain may depend on how many run beside it.
    """
    if kernel.differs_by_chain or (isinstance(kernel, Scaled) and kernel.scale.differs_by_chain):
        raise needs("sample", "engine", "None for chains with different settings: they run together", kernel.name)
    if position.device.type != "cpu":
        raise needs("sample", "engine", "positions on the CPU, or None: blocks of chains are sent to processes", position.device)
    num_chains, group_size = len(position), kernel.group_size
    if block_size is not None:
        check_integer("sample", "block_size", block_size, 1)
        if block_size % group_size:
            raise needs("sample", "block_size", f"whole groups of {group_size} chains, which meet", block_size)
        return min(block_size, num_chains)
    most = min(max(-(-num_chains // _MANY_BLOCKS), _FEW_CHAINS), _MANY_CHAINS)
    even = -(-num_chains // -(-num_chains // most))
    return min(-(-even // group_size) * group_size, num_chains)


@dataclass(frozen=True)
class Job:
    """What the tasks of a run share."""

    plan: Plan
    target: Target
    columns: tuple[Tensor, ...]
    block_size: int
    made: dict[int, tuple[Plan, GradientFn]] = field(default_factory=dict)  # what this process has made of it, by block

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "made": {}}

    def of_block(self, block: int, like: Tensor) -> tuple[Plan, GradientFn]:
        """Return a block's plan and gradient."""
        if block not in self.made:
            chains = block_ranges(self.plan.chains, self.block_size)[block]
            plan = dataclasses.replace(self.plan, chains=chains)
            self.made[block] = plan, plan.gradient(self.target, self.columns, like)
        return self.made[block]


class Task(NamedTuple):
    """A stretch of a block."""

    block: int
    checkpoint: Checkpoint
    seconds: float  # after which it ends
    elements: int  # of draws, after which it ends


class Stretch(NamedTuple):
    """What a task brings home."""

    first: int  # the first of its draws
    values: dict[str, Tensor]  # as in `Store.write`
    checkpoint: Checkpoint
    interrupted: bool
    notes: tuple[str, ...]  # what was warned of


class _Outbox(Store):
    """Draws on their way home."""

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
        raise NotImplementedError("draws are read where they are kept")

    def values(self) -> dict[str, Tensor]:
        """Return all draws; copies, since a view is sent with all that it is a view of."""
        pieces = [self._pieces[first] for first in sorted(self._pieces)]
        return {name: torch.cat([piece[name] for piece in pieces]) for name in pieces[0]} if pieces else {}


def run_stretch(job: Job, task: Task) -> Stretch:
    """Take a block on from its checkpoint, wherever this is."""
    plan, gradient_fn = job.of_block(task.block, task.checkpoint.tensors["position"])
    outbox, end = _Outbox(), time.perf_counter() + task.seconds

    def is_enough() -> bool:
        return time.perf_counter() > end or outbox.elements >= task.elements

    with Interrupts() as interrupts, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        checkpoint, interrupted = advance(plan, gradient_fn, outbox, task.checkpoint, interrupts, lambda step: None, is_enough)
    for place in checkpoint.stopped.keys() - task.checkpoint.stopped.keys():
        if _is_out_of_memory(checkpoint.stopped[place].reason):  # no chain's fault: on another machine it would not stop
            raise MemoryError(checkpoint.stopped[place].reason)
    checkpoint = dataclasses.replace(checkpoint, tensors={name: tensor.clone() for name, tensor in checkpoint.tensors.items()})
    notes = tuple(dict.fromkeys(str(entry.message) for entry in caught))
    return Stretch(task.checkpoint.kept, outbox.values(), checkpoint, interrupted, notes)


def _is_out_of_memory(reason: str) -> bool:
    """Say whether a chain stopped because there was no memory: torch raises a RuntimeError then."""
    return (
        reason.startswith(("MemoryError", "OutOfMemoryError")) or "can't allocate memory" in reason or "not enough memory" in reason
    )


def spread(
    plan: Plan,
    blocks: Blocks,
    start: Checkpoint,
    engine: Engine,
    interrupts: Interrupts,
    progress: Progress,
    target: Target,
    columns: Sequence[Tensor],
) -> Samples:
    """Run all blocks to their end, from their last checkpoints.

    Args:
        plan: of all chains.
        blocks: where draws are kept.
        start: of all chains.
        engine: what takes the steps.
        interrupts: holds Ctrl-C back while something is written.
        progress: as in `sample`.
        target: the target.
        columns: its data.
    """
    checkpoints, said, interrupted = blocks.load(start), set[str](), False
    elements = max(_TASK_ELEMENTS, _ROUND_ELEMENTS // len(blocks))

    def task_of(block: int) -> Task | None:
        now = checkpoints[block]
        is_over = len(now.stopped) == blocks.block_size or (now.step == plan.num_steps == now.judged)
        return None if is_over else Task(block, now, engine.seconds, elements)

    with meter(progress, plan.kernel.name, sum(each.step for each in checkpoints), plan.num_steps * len(blocks)) as tell:

        def after(block: int, stretch: Stretch) -> Task | None:
            interrupts.close()
            blocks.write(block, stretch.first, stretch.values, stretch.checkpoint)
            checkpoints[block] = stretch.checkpoint
            tell(sum(each.step if len(each.stopped) < blocks.block_size else plan.num_steps for each in checkpoints))
            for note in stretch.notes:
                if note not in said:
                    said.add(note)
                    warnings.warn(note, stacklevel=level_of_caller())
            if stretch.interrupted:
                raise KeyboardInterrupt
            interrupts.open()
            return task_of(block)

        first = {block: task for block in range(len(blocks)) if (task := task_of(block)) is not None}
        try:
            interrupts.open()
            engine.work(run_stretch, Job(plan, target, tuple(columns), blocks.block_size), first, after)
            interrupts.close()
            interrupts.check()
        except KeyboardInterrupt:
            interrupted = True
        except WorkerError as error:
            raise WorkerError(f"{_which(plan, blocks, error)}{error}\n{_how_to_go_on(blocks.path)}") from error
        except OSError as error:  # the disk is full, or the folder is gone
            raise OSError(
                error.errno, f"{error.strerror or error} ({error.filename or blocks.path}). {_how_to_go_on(blocks.path)}"
            ) from error
        finally:
            interrupts.close()
    arrays, result = blocks.result(checkpoints)
    return deliver(arrays, result, plan, target, columns, interrupted=interrupted)


def _which(plan: Plan, blocks: Blocks, error: WorkerError) -> str:
    if error.lane is None:
        return ""
    chains = block_ranges(plan.chains, blocks.block_size)[error.lane]
    return f"the block of chains {chains.start} to {min(chains.stop, plan.chains.stop) - 1}: "


def _how_to_go_on(path: Path | None) -> str:
    if path is None:
        return "Nothing was kept: with sample(out=...) resume would go on from here"
    return f"What was written stands: langevin.resume({str(path)!r}, ...) goes on from there, with any engine"
