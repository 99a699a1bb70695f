"""The chain driver: a function that runs a kernel on a target, many chains at once."""

from __future__ import annotations

import dataclasses
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor
from tqdm.auto import tqdm

from langevin.chains.arguments import check_arguments, check_evaluation, check_parts, event_shape
from langevin.chains.health import SIGN_HINT
from langevin.chains.interrupts import Interrupts
from langevin.chains.plan import Keep, Plan
from langevin.chains.recorder import Progress
from langevin.checks import check_path, needs
from langevin.engines.blocks import Block, Engine, Trace, block_length, compile_pays, draw_block
from langevin.gradients import GradientFn, full, minibatch, noisy
from langevin.gradients import control_variate as control_variate_gradient
from langevin.kernels import Kernel
from langevin.moments import no_moments
from langevin.schedules import AUTO
from langevin.store import Checkpoint, DiskStore, MemoryStore, Samples, make_samples
from langevin.store.fingerprint import check_fingerprints, fingerprints
from langevin.store.folder import check_new
from langevin.targets import Gaussian, Mixture, Ravine, Target
from langevin.tuning import find_step_size

__all__ = ["resume", "sample"]

_CHECKPOINT_SECONDS = 5.0  # how much work a kill may cost
_CLOSED_FORMS = Gaussian, Mixture, Ravine


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
    progress: bool | None = None,
) -> Samples:
    """Run chains of `kernel` on `target`.

    Every random number is a function of (seed, chain, step): the same call gives the same bits, and chains run apart
    (with `first_chain`) give what they give together. Compiled steps differ from eager ones in rounding.

    Args:
        kernel: a recipe such as ``langevin.sgld(step_size=0.01)``. With ``step_size="auto"`` a short warm-up finds a step whose law
            is off by at most 5 percent of the posterior variance, and prints why (`langevin.tuning.find_step_size`).
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
        progress: show a progress bar; None shows one on a terminal only.

    Returns:
        Samples, whose `draws` have axes (chain, draw, dim). A chain stops where its position, energy or gradient is not finite, or
        where the target raises: it keeps its draws up to there and says when and why in `status`; the others go on. Ctrl-C returns
        what was drawn so far, after the step that is being taken; a second one does not wait for that.

    Example:
        >>> import langevin as lv
        >>> target = lv.targets.gaussian([[1.0, 0.9], [0.9, 1.0]])
        >>> lv.sample(lv.sgld(step_size=0.05), target, torch.zeros(4, 2), num_steps=300, warmup=100).draws.shape
        torch.Size([4, 200, 2])
    """
    columns = check_parts("sample", kernel, target, data, progress)
    position = check_arguments(
        init, num_steps, warmup, thin, columns, batch_size, seed, first_chain, control_variate, keep, compile
    )
    if out is not None:
        check_new(out)
    kernel = kernel.for_run(warmup)
    chains = range(first_chain, first_chain + len(position))
    plan = Plan(num_steps, warmup, thin, seed, chains, keep, kernel.step_size)  # type: ignore[arg-type]
    if keep != "moments" and plan.num_draws == 0:
        raise needs("sample", "num_steps", "a step that is kept: after the warm-up, in no exploration phase", num_steps)
    shape = event_shape(plan, position)
    is_closed = isinstance(target, _CLOSED_FORMS)
    compiled = compile_pays(num_steps, position, columns, batch_size, is_closed) if compile == "auto" else bool(compile)
    moments = no_moments(position) if keep == "moments" else {}
    checkpoint = Progress(kernel.init(position), {}, 0, 0, moments).checkpoint(compiled, 0.0)
    store: MemoryStore | DiskStore
    with Interrupts() as interrupts:
        try:
            interrupts.open()
            gradient_fn = _gradient(target, columns, batch_size, control_variate, plan, position, is_new=True)
            # The noise of minibatches cancels over an epoch; that of an artificial gradient noise does not.
            epoch = None if batch_size is None or target.gradient_noise else len(columns[0]) / batch_size
            kernel, note = _tuned(kernel, gradient_fn, position, plan, epoch)
            interrupts.close()
            interrupts.check()
            if out is None:
                store = MemoryStore(shape, len(position), plan.num_draws, position)
            else:
                manifest = {
                    "num_steps": num_steps, "warmup": warmup, "thin": thin, "seed": seed, "first_chain": first_chain,
                    "num_chains": len(position), "dim": position.shape[-1], "num_draws": plan.num_draws, "batch_size": batch_size,
                    "keep": plan.what, "compile": compile,
                    "description": kernel.description + note,
                    "tuned": kernel.step_size(0) if note else None,  # type: ignore[operator]
                    "control_variate": None if control_variate is None else control_variate.double().tolist(),
                    "fingerprints": fingerprints(kernel, gradient_fn, position, data, keep if callable(keep) else None),
                }  # fmt: skip
                store = DiskStore.create(out, manifest, shape, checkpoint)
        except KeyboardInterrupt:
            nothing = MemoryStore(shape, len(position), 0, position).read(0)
            return _interrupted(make_samples(nothing, checkpoint, chains, kernel.description, plan.what), "sample")
        with store:
            return _drive(kernel, gradient_fn, plan, store, checkpoint, interrupts, progress, note)


def resume(
    path: str | Path,
    kernel: Kernel,
    target: Target,
    *,
    data: Sequence[Tensor] | Tensor | None = None,
    keep: Callable[[Tensor], Tensor] | None = None,
    progress: bool | None = None,
) -> Samples:
    """Go on with a run that was killed or interrupted; the draws are those of an uninterrupted run, bit for bit.

    The folder holds numbers, not code: sampler, target and data are given again and checked against its fingerprints.

    Args:
        path: the folder given to ``sample(out=...)``.
        kernel: the sampler of the run.
        target: its target.
        data: its data.
        keep: its `keep`, where that was a function.
        progress: as in `sample`.

    Returns:
        Samples of the whole run. A finished run is read and returned.
    """
    path = check_path("resume", "path", path, "the folder given to sample(out=...)")
    if keep is not None and not callable(keep):
        raise needs("resume", "keep", "the function of the run, or None", keep, TypeError)
    columns = check_parts("resume", kernel, target, data, progress)
    with DiskStore.open(path, write=True) as store:
        checkpoint, manifest = store.load(), store.manifest
        if (keep is not None) != (manifest["keep"] == "function"):
            raise needs("resume", "keep", f"what the run had, {manifest['keep']!r}", keep)
        chains = range(manifest["first_chain"], manifest["first_chain"] + manifest["num_chains"])
        kernel = kernel.for_run(manifest["warmup"])
        lengths = manifest["num_steps"], manifest["warmup"], manifest["thin"]
        plan = Plan(*lengths, manifest["seed"], chains, keep or manifest["keep"], kernel.step_size)  # type: ignore[arg-type]
        position = checkpoint.tensors["position"]
        if kernel.step_size == AUTO and manifest["tuned"] is not None:
            kernel = dataclasses.replace(kernel, step_size=manifest["tuned"])
        mode = manifest["control_variate"]
        centre = None if mode is None else torch.tensor(mode, dtype=torch.float64).to(position)
        with Interrupts() as interrupts:
            try:
                interrupts.open()
                gradient_fn = _gradient(target, columns, manifest["batch_size"], centre, plan, position, is_new=False)
                check_fingerprints(path, manifest["fingerprints"], kernel, gradient_fn, data, position, keep)
                _check_counts(store, checkpoint, kernel, plan)
                interrupts.close()
                interrupts.check()
            except KeyboardInterrupt:
                samples = make_samples(store.read(checkpoint.kept), checkpoint, chains, manifest["description"], plan.what)
                return _interrupted(samples, "resume")
            return _drive(kernel, gradient_fn, plan, store, checkpoint, interrupts, progress)


def _check_counts(store: DiskStore, checkpoint: Checkpoint, kernel: Kernel, plan: Plan) -> None:
    """Fail when the checkpoint is not one of this kernel and plan."""
    position = checkpoint.tensors["position"]
    memories = sum(name.startswith("memory_") for name in checkpoint.tensors)
    memory = [checkpoint.tensors[f"memory_{k}"].shape for k in range(memories)]
    for what, then, now in (
        ("number of draws", store.manifest["num_draws"], plan.num_draws),
        ("number of draws so far", checkpoint.kept, len(plan.chosen(range(checkpoint.step)))),
        ("shape of a draw", store.layout.event_shape, tuple(plan.kept(position[None]).shape[2:])),
        ("memory", memory, [tensor.shape for tensor in kernel.start(position)]),
    ):
        if then != now:
            raise ValueError(f"{store.path} was run with another {what}: {then}, now {now}")


def _interrupted(samples: Samples, who: str) -> Samples:
    """Say that a run was interrupted in its set-up."""
    draws = max(status.draws for status in samples.status)
    warnings.warn(f"{who}() was interrupted in its set-up: {draws} draws are returned", stacklevel=3)
    return samples


def _tuned(kernel: Kernel, gradient_fn: GradientFn, position: Tensor, plan: Plan, epoch: float | None) -> tuple[Kernel, str]:
    """Find the step size of a kernel that leaves it open; return the kernel and the reasons, printed as well."""
    if kernel.step_size != AUTO:
        return kernel, ""
    found = find_step_size(kernel, gradient_fn, position, chains=plan.chains, seed=plan.seed, steps_per_epoch=epoch)
    print(found.text)
    return dataclasses.replace(kernel, step_size=found.step_size), f"\n  {found.text}"


def _gradient(
    target: Target,
    columns: tuple[Tensor, ...],
    batch_size: int | None,
    mode: Tensor | None,
    plan: Plan,
    position: Tensor,
    is_new: bool,
) -> GradientFn:
    """Return the gradient that the run sees; for a new run the target is tried where the chains start."""
    if batch_size is None:
        gradient_fn = full(target, columns or None)
    else:
        gradient_fn = minibatch(target, columns, batch_size, seed=plan.seed, chains=plan.chains)
    if is_new:
        check_evaluation(target, gradient_fn, position, plan.chains, columns)
    if mode is not None and batch_size is not None:
        gradient_fn = control_variate_gradient(target, columns, batch_size, mode, seed=plan.seed, chains=plan.chains)
    if not target.gradient_noise:
        return gradient_fn
    return noisy(gradient_fn, target.gradient_noise, seed=plan.seed, chains=plan.chains, like=position)


def _drive(
    kernel: Kernel,
    gradient_fn: GradientFn,
    plan: Plan,
    store: MemoryStore | DiskStore,
    checkpoint: Checkpoint,
    interrupts: Interrupts,
    show: bool | None,
    note: str = "",
) -> Samples:
    """Run from a checkpoint to the end, block after block.

    `progress` is replaced by whole values only. Signals wait while it is; an interrupt that comes there all the same costs a run on
    disk what came after the last checkpoint, which stands, and a run in memory nothing.
    """
    progress, engine = Progress.of(kernel, checkpoint), Engine(kernel, gradient_fn, checkpoint.compiled)
    start = saved = time.perf_counter()
    interrupted, is_whole = False, True
    lost: list[int] = []

    def now() -> Checkpoint:
        return progress.checkpoint(engine.compiled, checkpoint.seconds + time.perf_counter() - start)

    # tqdm takes disable=None as "only on a terminal".
    disable = None if show is None else not show
    with tqdm(total=plan.num_steps, initial=progress.state.step, desc=kernel.name, unit="step", disable=disable) as bar:
        while progress.state.step < plan.num_steps and progress.alive and not interrupted:
            trace, block, interrupted = _run_block(engine, plan, progress, interrupts)
            before = progress
            try:
                progress = progress.after(plan, store, trace, block)
                bar.update(progress.state.step - before.state.step)
                if time.perf_counter() - saved > _CHECKPOINT_SECONDS:
                    store.save(now())
                    saved = time.perf_counter()
            except KeyboardInterrupt:
                interrupted, is_whole = True, isinstance(store, MemoryStore)
                if is_whole and progress is before:
                    progress = progress.after(plan, store, trace, block)
    try:
        if is_whole:
            progress, lost = progress.judge_last(plan, gradient_fn, trust_errors=not interrupted)
            store.save(now())
        interrupts.check()
    except KeyboardInterrupt:
        interrupted = True
    result = store.load() if isinstance(store, DiskStore) else now()
    samples = make_samples(store.read(result.kept), result, plan.chains, kernel.description + note, plan.what)
    if interrupted:
        warnings.warn(f"sample() was interrupted at step {result.step}: {result.kept} draws are returned", stacklevel=3)
    _warn_of_chains(samples, [plan.chains[index] for index in lost])
    return samples


def _run_block(engine: Engine, plan: Plan, progress: Progress, interrupts: Interrupts) -> tuple[Trace, Block | None, bool]:
    """Run the next block; return what it left behind, what it was given, and whether it was interrupted."""
    trace, block = Trace(progress.state), None
    length, first = block_length(progress.state.position), progress.state.step
    steps = range(first, min(plan.num_steps, (first // length + 1) * length))
    try:
        interrupts.check()
        block = draw_block(engine.kernel, engine.gradient_fn, progress.state.position, plan.seed, plan.chains, steps)
        if engine.compiled:  # a compiler may take long; eager steps look at `check` by themselves
            interrupts.open()
        engine.run(block, length, trace, progress.alive, interrupts.check)
        interrupts.close()
        interrupts.check()
    except KeyboardInterrupt:
        interrupts.close()
        # A compiled run goes on from whole blocks only: its bits are those of the compiled block.
        return (Trace(progress.state) if engine.compiled and trace.done < len(steps) else trace), block, True
    return trace, block, False


def _warn_of_chains(samples: Samples, lost: list[int]) -> None:
    """Warn of chains that stopped or that ran off."""
    for bad in [entry for entry in samples.status if not entry.is_healthy]:
        is_downhill = "-inf" in str(bad.reason)
        is_number = str(bad.reason).startswith("the ")
        advice = f" {SIGN_HINT}" if is_downhill else " A smaller step_size may help." if is_number else ""
        warnings.warn(f"{bad}.{advice}", stacklevel=4)
    if lost:
        warnings.warn(f"chains {lost} ran off to where the energy has no bottom. {SIGN_HINT}", stacklevel=4)
