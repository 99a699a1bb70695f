"""`sample`: runs a kernel on a target, many chains at once."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from langevin.chains.arguments import check_arguments, check_evaluation, check_parts
from langevin.chains.drive import drive, interrupted_in_setup
from langevin.chains.interrupts import Interrupts
from langevin.chains.meter import Progress
from langevin.chains.plan import Keep, Plan
from langevin.chains.recorder import Recorded
from langevin.engines import compile_pays
from langevin.gradients import GradientFn
from langevin.kernels import Kernel
from langevin.schedules import AUTO
from langevin.store import DiskStore, MemoryStore, Samples, Store, make_samples
from langevin.store.fingerprint import fingerprints
from langevin.store.folder import check_new
from langevin.targets import Target
from langevin.tuning import find_step_size

__all__ = ["sample"]


def sample(
    kernel: Kernel,
    target: Target,
    init: Tensor,
    *,
    num_steps: int,
    warmup: int = 0,
    thin: int = 1,
    data: Sequence[Tensor] | Tensor | None = None,
    batch_size: int | None = None,
    seed: int = 0,
    first_chain: int = 0,
    control_variate: Tensor | None = None,
    keep: Keep = "positions",
    out: str | Path | None = None,
    compile: bool | str = "auto",
    progress: Progress = None,
) -> Samples:
    """Run chains of `kernel` on `target`.

    Every random number is a function of (seed, chain, step): the same call gives the same bits, and chains run apart
    (with `first_chain`) give what they give together. Compiled steps differ from eager ones in rounding.

    Args:
        kernel: a sampler such as ``langevin.sgld(step_size=0.01)``. With ``step_size="auto"`` a short warm-up finds a step whose
            law is off by at most 5 percent of the posterior variance, and prints why (`langevin.tuning.find_step_size`).
        target: an energy of `langevin.targets`.
        init: starting positions, (chains, dim), or (dim,) for one chain.
        num_steps: steps in all, warm-up included.
        warmup: first steps whose draws are thrown away.
        thin: keep every `thin`-th position after the warm-up.
        data: the data set's columns, for targets that need one.
        batch_size: rows per step and chain; None takes all data each time.
        seed: an int in [0, 2**64).
        first_chain: number of the first chain.
        control_variate: a position (dim,) near the mode, such as `langevin.gradients.find_mode` gives: minibatch gradients are then
            corrected by those at the mode, which takes most of their noise away there.
        keep: "positions"; or a function of one position (dim,), whose results are kept instead; or "moments" for running mean and
            covariance only.
        out: a new folder to which draws are streamed while the chains run, so that memory stays flat; `resume` continues it after a
            kill, `langevin.load_samples` reads it, also while it grows.
        compile: True, False, or "auto", which compiles when `num_steps` times the seconds that an eager step is taken to cost is
            more than 27: 3/4 of them are saved, for 20 that compiling takes. A step counts 0.12 ms for targets with a closed form
            (`gaussian`, `mixture`, `ravine`), 0.8 ms for others, plus 30 ns per element of all chains and 10 ns per number of the
            data that all chains look at. It decides by these sizes alone, so the same call always decides the same. What is built
            anew from the same code, with equal numbers and shapes, is not compiled again in the same process.
        progress: show a progress bar; None shows one on a terminal only. A function is called with (steps done, steps in all)
            after every block of steps, at most 256.

    Returns:
        Samples, whose `draws` have axes (chain, draw, dim). A chain stops where its position, energy or gradient is not finite, or
        where the target raises: it keeps its draws up to there and says when and why in `status`; the others go on. Ctrl-C returns
        what was drawn so far, after the step that is being taken; a second one does not wait for that.

    Example:
        >>> import torch
        >>> import langevin as lv
        >>> target = lv.targets.gaussian([[1.0, 0.9], [0.9, 1.0]])
        >>> lv.sample(lv.sgld(step_size=0.05), target, torch.zeros(4, 2), num_steps=300, warmup=100).draws.shape
        torch.Size([4, 200, 2])
    """
    columns = check_parts("sample", kernel, target, data, progress)
    position = check_arguments(
        kernel, init, num_steps, warmup, thin, columns, batch_size, seed, first_chain, control_variate, keep, compile
    )
    if out is not None:
        check_new(out)
    chains = range(first_chain, first_chain + len(position))
    kernel = kernel.for_run(warmup, position)
    plan = Plan(
        kernel,
        num_steps,
        warmup,
        thin,
        seed,
        chains,
        keep,
        batch_size,
        control_variate,
        num_data=len(columns[0]) if columns else None,
    )
    shape, is_closed = plan.event_shape(position), target.has_closed_form
    compiled = compile_pays(num_steps, position, columns, batch_size, is_closed) if compile == "auto" else bool(compile)
    checkpoint = Recorded.new(plan, position).checkpoint(compiled, 0.0)
    store: Store
    with Interrupts() as interrupts:
        try:
            interrupts.open()
            check_evaluation(
                target, dataclasses.replace(plan, mode=None).gradient(target, columns, position), position, columns, chains
            )
            gradient_fn = plan.gradient(target, columns, position)
            plan = _tuned(plan, target, gradient_fn, position, columns)
            interrupts.close()
            interrupts.check()
            if out is None:
                store = MemoryStore(shape, len(position), plan.num_draws, position, plan.step_size_shape)
            else:
                identity = fingerprints(plan.kernel, gradient_fn, position, columns, keep if callable(keep) else None)
                manifest = {**plan.manifest(position, compile), "fingerprints": identity}
                store = DiskStore.create(out, manifest, shape, checkpoint, plan.step_size_shape)
        except KeyboardInterrupt:
            nothing = MemoryStore(shape, len(position), 0, position).read(0)
            return interrupted_in_setup(
                make_samples(nothing, checkpoint, chains, plan.description, plan.what, plan.kernel.target_temperature), "sample"
            )
        with store:
            samples = drive(plan, gradient_fn, store, checkpoint, interrupts, progress)
            return samples.with_target(target, columns or None)


def _tuned(plan: Plan, target: Target, gradient_fn: GradientFn, position: Tensor, columns: Sequence[Tensor]) -> Plan:
    """Find the step size of a kernel that leaves it open, and print why."""
    if plan.kernel.step_size != AUTO:
        return plan
    # The noise of minibatches cancels over an epoch; that of an artificial gradient noise does not.
    epoch = None if plan.batch_size is None or target.gradient_noise else len(columns[0]) / plan.batch_size
    found = find_step_size(plan.kernel, gradient_fn, position, chains=plan.chains, seed=plan.seed, steps_per_epoch=epoch)
    print(found.text)
    return dataclasses.replace(plan, kernel=plan.kernel.with_step_size(found.step_size), found=found.text)
