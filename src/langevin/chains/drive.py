"""The driver: a run from a checkpoint to its end, block after block."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence

from torch import Tensor

from langevin.chains.absorb import noise_has_changed
from langevin.chains.interrupts import Interrupts
from langevin.chains.meter import Progress, meter
from langevin.chains.plan import Plan
from langevin.chains.recorder import Recorded
from langevin.checks import level_of_caller
from langevin.engines import Block, Runner, Trace, draw_block
from langevin.engines.compiled import MANY_THREADS_FROM, threads_for
from langevin.gradients import GradientFn
from langevin.store import Checkpoint, Samples, Store, make_samples
from langevin.store.memory import Arrays
from langevin.targets import Target
from langevin.trust import TrustWarning

__all__ = ["advance", "deliver", "drive", "interrupted_in_setup"]

_CHECKPOINT_SECONDS = 5.0  # how much work a kill may cost


def drive(
    plan: Plan,
    gradient_fn: GradientFn,
    store: Store,
    checkpoint: Checkpoint,
    interrupts: Interrupts,
    progress: Progress,
    target: Target,
    columns: Sequence[Tensor],
) -> Samples:
    """Run from a checkpoint to the end."""
    with meter(progress, plan.kernel.name, checkpoint.step, plan.num_steps) as tell:
        result, interrupted = advance(plan, gradient_fn, store, checkpoint, interrupts, tell)
    return deliver(store.read(result.kept), result, plan, target, columns, interrupted=interrupted)


def advance(
    plan: Plan,
    gradient_fn: GradientFn,
    store: Store,
    checkpoint: Checkpoint,
    interrupts: Interrupts,
    tell: Callable[[int], object],
    is_enough: Callable[[], bool] = lambda: False,
) -> tuple[Checkpoint, bool]:
    """Run from a checkpoint to the end, or until it is enough; return how far it came, and whether it was interrupted.

    `recorded` is replaced by whole values only. Signals wait while it is; an interrupt that comes there all the same costs a run on
    disk what came after the last checkpoint, which stands, and a run in memory nothing.
    """
    recorded = Recorded.of(plan.kernel, checkpoint)
    runner = Runner(plan.kernel, gradient_fn, checkpoint.compiled, recorded.rows(plan))
    start = saved = time.perf_counter()
    interrupted, is_whole = False, True

    def now() -> Checkpoint:
        return recorded.checkpoint(plan.kernel, runner.compiled, checkpoint.seconds + time.perf_counter() - start)

    def is_over() -> bool:
        return recorded.state.step >= plan.num_steps or not recorded.alive or interrupted

    while not is_over():
        trace, block, interrupted = _run_block(runner, plan, recorded, interrupts)
        before = recorded
        try:
            with threads_for(recorded.state.position, MANY_THREADS_FROM):
                recorded = recorded.after(plan, store, trace, block)
            tell(recorded.state.step)
            if time.perf_counter() - saved > _CHECKPOINT_SECONDS:
                store.save(now())
                saved = time.perf_counter()
        except KeyboardInterrupt:
            interrupted, is_whole = True, store.can_rewrite
            if is_whole and recorded is before:
                recorded = recorded.after(plan, store, trace, block)
        if is_enough():  # asked after a block: whatever the clock says, a run goes on
            break
    try:
        if is_whole:
            if is_over():
                recorded = recorded.judge_last(plan, gradient_fn, trust_errors=not interrupted)
            store.save(now())
        interrupts.check()
    except KeyboardInterrupt:
        interrupted = True
    return store.last_checkpoint(now()), interrupted


def deliver(
    arrays: Arrays, result: Checkpoint, plan: Plan, target: Target, columns: Sequence[Tensor], *, interrupted: bool
) -> Samples:
    """Return what was drawn, and say once what there is to say of it."""
    samples = make_samples(arrays, result, plan.chains, plan.about).with_target(target, columns or None)
    if interrupted:
        warnings.warn(
            f"sample() was interrupted at step {result.step}: {result.kept} draws are returned", stacklevel=level_of_caller()
        )
    _say(samples, None if interrupted else _noise_sentence(plan, target, columns, result))
    return samples


def _noise_sentence(plan: Plan, target: Target, columns: Sequence[Tensor], result: Checkpoint) -> str | None:
    """Return what there is to say of the gradient's noise at the end; words are not worth the draws."""
    position = result.tensors["position"]
    try:
        alive = [index for index in range(len(position)) if index not in result.stopped]
        return noise_has_changed(plan, target, columns, position[alive])
    except Exception as error:
        return f"the gradient's noise at the end could not be found: {type(error).__name__}: {error}"


def _run_block(runner: Runner, plan: Plan, recorded: Recorded, interrupts: Interrupts) -> tuple[Trace, Block | None, bool]:
    """Run the next block; return what it left behind, what it was given, and whether it was interrupted."""
    trace, block = Trace(recorded.state), None
    first = recorded.state.step
    steps = range(first, first)
    try:
        interrupts.check()
        steps = runner.next_steps(recorded.state, plan.num_steps)
        block = draw_block(plan.kernel, runner.gradient_fn, recorded.state.position, plan.seed, plan.chains, steps)
        runner.run(block, trace, recorded.alive, interrupts.check)
        interrupts.check()
    except KeyboardInterrupt:
        interrupts.close()
        # A compiled run goes on from whole blocks only: its bits are those of the compiled block.
        return (Trace(recorded.state) if runner.compiled and trace.done < len(steps) else trace), block, True
    return trace, block, False


def interrupted_in_setup(samples: Samples, who: str) -> Samples:
    """Say that a run was interrupted in its set-up."""
    draws = max(status.draws for status in samples.status)
    warnings.warn(f"{who}() was interrupted in its set-up: {draws} draws are returned", stacklevel=level_of_caller())
    return samples


def _say(samples: Samples, of_noise: str | None) -> None:
    """Warn once, of everything that speaks against trusting the draws."""
    try:
        sentences = samples.trust.warnings
    except KeyboardInterrupt:  # a second Ctrl-C, while many draws are read: the samples are worth more than words about them
        return
    except Exception as error:  # nor are words worth the draws
        sentences = [f"samples.trust could not be found: {type(error).__name__}: {error}"]
    if of_noise is not None:
        sentences = [*sentences, of_noise]
    if sentences:
        warnings.warn("\n".join(["what speaks against these draws:", *sentences]), TrustWarning, stacklevel=level_of_caller())
