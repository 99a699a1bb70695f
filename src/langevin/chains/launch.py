"""A run from its plan to its samples: set-up, a store, the driver; Ctrl-C is heard all along."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from langevin.chains.drive import drive, interrupted_in_setup
from langevin.chains.interrupts import Interrupts
from langevin.chains.meter import Progress
from langevin.chains.plan import Plan
from langevin.chains.recorder import Recorded
from langevin.chains.spread import size_of_blocks, spread
from langevin.checks import needs
from langevin.engines import compile_pays
from langevin.scale import Engine
from langevin.store import Blocks, Checkpoint, DiskBlocks, DiskStore, MemoryBlocks, MemoryStore, Samples, Store, make_samples
from langevin.store.fingerprint import fingerprints
from langevin.store.folder import check_new
from langevin.targets import Target

__all__ = ["launch"]


def launch(
    plan: Plan,
    position: Tensor,
    target: Target,
    columns: Sequence[Tensor],
    tune: Callable[[Plan, Tensor], tuple[Plan, Tensor]],
    *,
    out: str | Path | None,
    compile: bool | str,
    progress: Progress,
    engine: Engine | None = None,
    block_size: int | None = None,
) -> Samples:
    """Tune, then run.

    Args:
        plan: what is known before.
        position: where chains start, before they are tuned, (chains, dim).
        target: the target.
        columns: its data.
        tune: returns the whole plan, and where chains start.
        out: a new folder, or None.
        compile: as in `sample`.
        progress: as in `sample`.
        engine: what takes the steps; None for this process, all chains together.
        block_size: chains of a task of the engine; None for what `size_of_blocks` says.
    """
    if engine is None and block_size is not None:
        raise needs("sample", "block_size", 'None without an engine; engine="local" runs blocks in this process', block_size)
    if out is not None:
        check_new(out)
    shape = plan.event_shape(position)
    with Interrupts() as interrupts:
        try:
            interrupts.open()
            plan, position = tune(plan, position)
            gradient_fn = plan.gradient(target, columns, position)
            interrupts.close()
            interrupts.check()
            size = None if engine is None else size_of_blocks(block_size, plan.kernel, position)
            sizes = plan.num_steps, position[:size], columns, plan.batch_size, target.has_closed_form
            compiled = compile_pays(*sizes) if compile == "auto" else bool(compile)
            checkpoint = Recorded.new(plan, position).checkpoint(plan.kernel, compiled, 0.0)
            if out is None:
                place = _in_memory(plan, shape, position, size)
            else:
                identity = fingerprints(plan.kernel, gradient_fn, position, columns, plan.keep if callable(plan.keep) else None)
                place = _on_disk(out, {**plan.manifest(position, compile), "fingerprints": identity}, plan, shape, checkpoint, size)
        except KeyboardInterrupt:
            nothing = MemoryStore(shape, len(position), 0, position).read(0)
            checkpoint = Recorded.new(plan, position).checkpoint(plan.kernel, False, 0.0)
            return interrupted_in_setup(make_samples(nothing, checkpoint, plan.chains, plan.about), "sample")
        with place:
            if isinstance(place, Blocks):
                assert engine is not None
                return spread(plan, place, checkpoint, engine, interrupts, progress, target, columns)
            return drive(plan, gradient_fn, place, checkpoint, interrupts, progress, target, columns)


def _in_memory(plan: Plan, shape: tuple[int, ...], position: Tensor, block_size: int | None) -> Store | Blocks:
    """Make room for a run, in blocks of so many chains, if any."""
    if block_size is not None:
        return MemoryBlocks(shape, len(position), plan.num_draws, position, block_size)
    return MemoryStore(shape, len(position), plan.num_draws, position, plan.step_size_shape)


def _on_disk(
    out: str | Path, manifest: dict[str, Any], plan: Plan, shape: tuple[int, ...], start: Checkpoint, block_size: int | None
) -> Store | Blocks:
    """Make a run's folder, for blocks of so many chains, if any."""
    if block_size is None:
        return DiskStore.create(out, manifest, shape, start, plan.step_size_shape)
    by_block = (-(-len(plan.chains) // block_size),)  # each writes its own
    return DiskBlocks(DiskStore.create(out, {**manifest, "block_size": block_size}, shape, start, by_block))
