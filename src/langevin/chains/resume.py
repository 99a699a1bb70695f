"""`resume`: goes on with a run from its folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

from langevin.chains.arguments import check_parts
from langevin.chains.drive import drive, interrupted_in_setup
from langevin.chains.interrupts import Interrupts
from langevin.chains.meter import Progress
from langevin.chains.plan import Plan
from langevin.chains.spread import spread
from langevin.checks import check_path, needs
from langevin.kernels import Kernel
from langevin.scale import Local, as_engine
from langevin.store import Checkpoint, DiskBlocks, DiskStore, Samples, load_samples
from langevin.store.fingerprint import check_fingerprints
from langevin.targets import Target
from langevin.tuning import sampler_at

__all__ = ["resume"]


def resume(
    path: str | Path,
    kernel: Kernel | Target,
    target: Target | None = None,
    *,
    data: Any = None,
    keep: Callable[[Tensor], Tensor] | None = None,
    progress: Progress = None,
    engine: Any = None,
) -> Samples:
    """Go on with a run that was killed or interrupted; the draws are those of an uninterrupted run, bit for bit.

    The folder holds numbers, not code: sampler, target and data are given again and checked against its fingerprints.

    Args:
        path: the folder given to ``sample(out=...)``.
        kernel: the sampler of the run; left out where the run found its own, ``resume(path, target, ...)``.
        target: its target.
        data: its data.
        keep: its `keep`, where that was a function.
        progress: as in `sample`.
        engine: as in `sample`, for a run that had one; it may be another, and is "local" by default.

    Returns:
        Samples of the whole run. A finished run is read and returned.
    """
    path = check_path("resume", "path", path, "the folder given to sample(out=...)")
    if keep is not None and not callable(keep):
        raise needs("resume", "keep", "the function of the run, or None", keep, TypeError)
    sampler: Any = None if target is None else kernel
    columns = check_parts("resume", sampler_at(1.0) if sampler is None else sampler, target or kernel, data, progress)
    aim: Any = target or kernel
    given = None if engine is None else as_engine("resume", engine)
    with DiskStore.open(path, write=True) as store:
        checkpoint, manifest = store.load(), store.manifest
        if (keep is not None) != (manifest["keep"] == "function"):
            raise needs("resume", "keep", f"what the run had, {manifest['keep']!r}", keep)
        if (sampler is None) != (manifest["recipe"] is not None):
            condition = "a sampler before the target" if sampler is None else "the target alone: this run found its sampler"
            raise needs("resume", "kernel", condition, kernel, TypeError)
        if given is not None and "block_size" not in manifest:
            raise needs("resume", "engine", "None: this run is not in blocks of chains", engine)
        position = checkpoint.tensors["position"]
        plan = Plan.of(manifest, sampler, keep, checkpoint.tensors)
        with Interrupts() as interrupts:
            try:
                interrupts.open()
                gradient_fn = plan.gradient(aim, columns, position)
                check_fingerprints(path, manifest["fingerprints"], plan.kernel, gradient_fn, columns, position, keep)
                _check_counts(store, checkpoint, plan)
                interrupts.close()
                interrupts.check()
            except KeyboardInterrupt:
                return interrupted_in_setup(load_samples(path), "resume")
            if "block_size" in manifest:
                return spread(plan, DiskBlocks(store), checkpoint, given or Local(), interrupts, progress, aim, columns)
            return drive(plan, gradient_fn, store, checkpoint, interrupts, progress, aim, columns)


def _check_counts(store: DiskStore, checkpoint: Checkpoint, plan: Plan) -> None:
    """Fail when the checkpoint is not one of this plan."""
    position = checkpoint.tensors["position"]
    memories = sum(name.startswith("memory_") for name in checkpoint.tensors)
    memory = [checkpoint.tensors[f"memory_{k}"] for k in range(memories)]
    for what, then, now in (
        ("number of draws", store.manifest["num_draws"], plan.num_draws),
        ("number of draws so far", checkpoint.kept, len(plan.chosen(range(checkpoint.step)))),
        ("shape of a draw", store.layout.event_shape, tuple(plan.kept(position[None]).shape[2:])),
        ("memory", *([(tensor.shape, tensor.dtype) for tensor in tensors] for tensors in (memory, plan.kernel.start(position)))),
    ):
        if then != now:
            raise ValueError(f"{store.path} was run with another {what}: {then}, now {now}")
