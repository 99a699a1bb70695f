"""`resume`: continue a run from its folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from torch import Tensor

from langevin.adaptation import sampler_at
from langevin.checks import check_path, known_arguments, needs
from langevin.distributed import as_engine
from langevin.kernels import Kernel
from langevin.sampling.arguments import check_parts
from langevin.sampling.config import Inputs, RunConfig
from langevin.sampling.distributed import run
from langevin.sampling.interrupts import Interrupts
from langevin.sampling.loop import interrupted_in_setup
from langevin.sampling.progress import Progress
from langevin.storage import Checkpoint, DiskBlocks, DiskStore, Samples, load_samples
from langevin.storage.fingerprint import check_fingerprints
from langevin.targets import Target

__all__ = ["resume"]


@known_arguments("resume")
def resume(
    path: str | Path,
    target: Target,
    *,
    data: object = None,
    sampler: Kernel | None = None,
    keep: Callable[[Tensor], Tensor] | None = None,
    progress: Progress = None,
    engine: object = None,
) -> Samples:
    """Continue a run that was killed or interrupted, with the bits of an uninterrupted run.

    The folder holds numbers, not code: target, data and sampler are passed again and checked
    against its fingerprints.

    Args:
        path: the folder given to ``sample(out=...)``.
        target: the run's target.
        data: its data.
        sampler: its sampler; None where `sample` chose it.
        keep: its `keep`, if that was a function.
        progress: as in `sample`.
        engine: as in `sample`, for a run with an engine; any engine may finish it ("local" by
            default).

    Returns:
        Samples of the whole run. A finished run is read and returned.
    """
    path = check_path("resume", "path", path, "the folder given to sample(out=...)")
    if keep is not None and not callable(keep):
        raise needs("resume", "keep", "the function of the run, or None", keep, TypeError)
    kernel = sampler_at(1.0) if sampler is None else sampler
    columns = check_parts("resume", kernel, target, data, progress)
    worker = None if engine is None else as_engine("resume", engine)
    with DiskStore.open(path, write=True) as store:
        checkpoint, manifest = store.load(), store.manifest
        if (keep is not None) != (manifest["keep"] == "function"):
            raise needs("resume", "keep", f"the run's own, {manifest['keep']!r}", keep)
        if (sampler is None) != (manifest["recipe"] is not None):
            what = "None: sample() chose the sampler of this run"
            if sampler is None:
                what = "the sampler of the run"
            raise needs("resume", "sampler", what, sampler, TypeError)
        if worker is not None and "block_size" not in manifest:
            what = "None: this run has no blocks of chains"
            raise needs("resume", "engine", what, engine)
        position = checkpoint.tensors["position"]
        config = RunConfig.from_manifest(manifest, sampler, keep, checkpoint.tensors, target)
        with Interrupts() as interrupts:
            try:
                interrupts.open()
                gradient_fn = config.gradient(
                    target, columns, position, is_compiled=checkpoint.compiled
                )
                check_fingerprints(
                    path, manifest["fingerprints"], config.kernel, gradient_fn, columns, position,
                    keep,
                )  # fmt: skip
                _check_counts(store, checkpoint, config)
                interrupts.close()
                interrupts.check()
            except KeyboardInterrupt:
                return interrupted_in_setup(load_samples(path), "resume")
            inputs = Inputs(target, columns, progress, interrupts)
            whole = DiskBlocks(store) if "block_size" in manifest else store
            return run(config, gradient_fn, whole, checkpoint, worker, inputs)


def _check_counts(store: DiskStore, checkpoint: Checkpoint, config: RunConfig) -> None:
    """Fail if the checkpoint does not belong to this configuration."""
    position = checkpoint.tensors["position"]
    number = sum(name.startswith("memory_") for name in checkpoint.tensors)
    stored = [checkpoint.tensors[f"memory_{k}"] for k in range(number)]
    fresh = config.kernel.start(position)
    state_then, state_now = (
        [(tensor.shape, tensor.dtype) for tensor in state] for state in (stored, fresh)
    )
    event_shape = tuple(config.kept(position[None]).shape[2:])
    for what, then, now in (
        ("number of draws", store.manifest["num_draws"], config.num_draws),
        ("number of draws so far", checkpoint.kept, len(config.chosen(range(checkpoint.step)))),
        ("shape of a draw", store.layout.event_shape, event_shape),
        ("sampler state", state_then, state_now),
    ):
        if then != now:
            raise ValueError(f"{store.path} was run with another {what}: {then}, now {now}")
