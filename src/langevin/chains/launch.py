"""A run from its plan to its samples: set-up, a store, the driver; Ctrl-C is heard all along."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from torch import Tensor

from langevin.chains.drive import drive, interrupted_in_setup
from langevin.chains.interrupts import Interrupts
from langevin.chains.meter import Progress
from langevin.chains.plan import Plan
from langevin.chains.recorder import Recorded
from langevin.engines import compile_pays
from langevin.store import DiskStore, MemoryStore, Samples, Store, make_samples
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
    """
    if out is not None:
        check_new(out)
    shape = plan.event_shape(position)
    store: Store
    with Interrupts() as interrupts:
        try:
            interrupts.open()
            plan, position = tune(plan, position)
            gradient_fn = plan.gradient(target, columns, position)
            interrupts.close()
            interrupts.check()
            sizes = plan.num_steps, position, columns, plan.batch_size, target.has_closed_form
            compiled = compile_pays(*sizes) if compile == "auto" else bool(compile)
            checkpoint = Recorded.new(plan, position).checkpoint(plan.kernel, compiled, 0.0)
            if out is None:
                store = MemoryStore(shape, len(position), plan.num_draws, position, plan.step_size_shape)
            else:
                identity = fingerprints(plan.kernel, gradient_fn, position, columns, plan.keep if callable(plan.keep) else None)
                manifest = {**plan.manifest(position, compile), "fingerprints": identity}
                store = DiskStore.create(out, manifest, shape, checkpoint, plan.step_size_shape)
        except KeyboardInterrupt:
            nothing = MemoryStore(shape, len(position), 0, position).read(0)
            checkpoint = Recorded.new(plan, position).checkpoint(plan.kernel, False, 0.0)
            return interrupted_in_setup(make_samples(nothing, checkpoint, plan.chains, plan.about), "sample")
        with store:
            return drive(plan, gradient_fn, store, checkpoint, interrupts, progress, target, columns)
