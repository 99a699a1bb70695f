"""Run from a checkpoint to the end, block by block."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from pathlib import Path

from langevin.checks import level_of_caller
from langevin.diagnostics.trust import TrustWarning
from langevin.execution import Block, Runner, Trace, draw_block
from langevin.execution.compiled import MANY_THREADS_FROM, threads_for
from langevin.sampling.config import Inputs, RunConfig
from langevin.sampling.interrupts import Interrupts
from langevin.sampling.noise_correction import noise_has_changed
from langevin.sampling.progress import progress_bar
from langevin.sampling.recorder import Recorded
from langevin.storage import Checkpoint, Samples, Store, load_samples, make_samples
from langevin.storage.memory import Arrays
from langevin.targets.gradients import GradientFn

__all__ = [
    "advance",
    "deliver",
    "interrupted_in_setup",
    "named",
    "read_samples",
    "run_loop",
]

_IMPURE = (
    "the target changed during the run: it reads a variable or a tensor whose value is not the one "
    "at the start. Compiled steps kept the first value. A target must be a pure function: pass "
    "changing values as data and sample again"
)
_CHECKPOINT_SECONDS = 5.0  # between checkpoints: the work that a kill may cost


def run_loop(
    config: RunConfig,
    gradient_fn: GradientFn,
    store: Store,
    checkpoint: Checkpoint,
    inputs: Inputs,
) -> Samples:
    """Run from a checkpoint to the end."""
    folder, interrupts = store.folder, inputs.interrupts
    steps = checkpoint.step, config.num_steps
    with progress_bar(inputs.progress, config.kernel.name, *steps) as show:

        def report(now: Checkpoint) -> None:
            show(now.step)
            interrupts.steps = now.step, config.num_steps
            if folder is None:
                interrupts.partial = lambda: named(store.read(now.kept), now, config, inputs)

        interrupts.steps = steps
        if folder is not None:
            interrupts.partial = lambda: read_samples(folder, inputs)
        result, interrupted = advance(config, gradient_fn, store, checkpoint, interrupts, report)
    arrays = store.read(result.kept)
    return deliver(arrays, result, config, inputs, interrupted=interrupted)


def read_samples(folder: Path, inputs: Inputs) -> Samples:
    """Return the draws of a run on disk up to its last checkpoint."""
    return load_samples(folder, target=inputs.target, data=inputs.columns or None)


def named(arrays: Arrays, result: Checkpoint, config: RunConfig, inputs: Inputs) -> Samples:
    """Return samples with their target and data."""
    samples = make_samples(arrays, result, config.chains, config.about)
    return samples.with_target(inputs.target, inputs.columns or None)


def advance(
    config: RunConfig,
    gradient_fn: GradientFn,
    store: Store,
    checkpoint: Checkpoint,
    interrupts: Interrupts,
    report: Callable[[Checkpoint], object],
    is_enough: Callable[[], bool] = lambda: False,
) -> tuple[Checkpoint, bool]:
    """Run to the end or until `is_enough`; return the checkpoint, and whether it was interrupted.

    `recorded` is only ever replaced as a whole, with signals held back. If an interrupt arrives
    there all the same, a run on disk loses what came after its last checkpoint, and a run in
    memory nothing.
    """
    recorded = Recorded.of(config.kernel, checkpoint)
    runner = Runner(
        config.kernel, gradient_fn, checkpoint.compiled, recorded.rows(config),
        adjustable=config.recipe is not None,  # the warm-up's compiled code serves the run
    )  # fmt: skip
    start = saved = time.perf_counter()
    interrupted, is_whole = False, True

    def now() -> Checkpoint:
        seconds = checkpoint.seconds + time.perf_counter() - start
        return recorded.checkpoint(config.kernel, runner.compiled, seconds)

    def is_over() -> bool:
        return recorded.state.step >= config.num_steps or not recorded.alive or interrupted

    while not is_over():
        trace, block, interrupted = _run_block(runner, config, recorded, interrupts)
        before = recorded
        try:
            with threads_for(recorded.state.position, MANY_THREADS_FROM):
                recorded = recorded.after(config, store, trace, block)
            report(now())
            if time.perf_counter() - saved > _CHECKPOINT_SECONDS:
                store.save(now())
                saved = time.perf_counter()
        except KeyboardInterrupt:
            interrupted, is_whole = True, store.can_rewrite
            if is_whole and recorded is before:
                recorded = recorded.after(config, store, trace, block)
        if is_enough():  # after a block, so that each call makes progress
            break
    try:
        if not interrupted and runner.has_changed():
            warnings.warn(_IMPURE, TrustWarning, stacklevel=level_of_caller())
        if is_whole:
            if is_over():
                recorded = recorded.judge_last(config, gradient_fn, trust_errors=not interrupted)
            store.save(now())
        interrupts.check()
    except KeyboardInterrupt:
        interrupted = True
    return store.last_checkpoint(now()), interrupted


def deliver(
    arrays: Arrays,
    result: Checkpoint,
    config: RunConfig,
    inputs: Inputs,
    *,
    interrupted: bool,
) -> Samples:
    """Return the samples; warn about an interrupt and about failed diagnostics."""
    samples = named(arrays, result, config, inputs)
    if interrupted:
        text = f"sample() was interrupted at step {result.step}; it returns {result.kept} draws"
        warnings.warn(text, stacklevel=level_of_caller())
    noise = None if interrupted else _noise_sentence(config, inputs, result)
    try:
        sentences = samples.trust.warnings
    except KeyboardInterrupt:  # a second Ctrl-C: return the samples without diagnostics
        return samples
    except Exception as error:  # the draws are worth more than their diagnostics
        sentences = [f"samples.trust could not be computed: {type(error).__name__}: {error}"]
    if noise is not None:
        sentences = [*sentences, noise]
    if sentences:
        text = "\n".join(["failed diagnostics:", *sentences])
        warnings.warn(text, TrustWarning, stacklevel=level_of_caller())
    return samples


def _noise_sentence(config: RunConfig, inputs: Inputs, result: Checkpoint) -> str | None:
    """Return a warning about the gradient noise at the final positions, or None."""
    position = result.tensors["position"]
    alive = [index for index in range(len(position)) if index not in result.stopped]
    try:
        return noise_has_changed(
            config, config.target_of(inputs.target), inputs.columns, position[alive]
        )
    except Exception as error:  # the draws are worth more than their diagnostics
        problem = f"{type(error).__name__}: {error}"
        return f"the gradient noise at the end could not be measured: {problem}"


def _run_block(
    runner: Runner, config: RunConfig, recorded: Recorded, interrupts: Interrupts
) -> tuple[Trace, Block | None, bool]:
    """Run the next block; return its trace, its random numbers, and whether it was interrupted."""
    state = recorded.state
    trace, block, steps = Trace(state), None, range(0)
    try:
        interrupts.check()
        steps = runner.next_steps(state, config.num_steps, config.seed, config.chains)
        block = draw_block(
            config.kernel, runner.gradient_fn, state.position, config.seed, config.chains, steps
        )
        runner.run(block, trace, recorded.alive, interrupts.check)
        interrupts.check()
    except KeyboardInterrupt:
        interrupts.close()
        # A compiled run keeps whole blocks only: its bits are those of the compiled block.
        is_partial = runner.compiled and trace.done < len(steps)
        return Trace(state) if is_partial else trace, block, True
    return trace, block, False


def interrupted_in_setup(samples: Samples, who: str) -> Samples:
    """Warn that a run was interrupted during set-up."""
    draws = max(status.draws for status in samples.status)
    text = f"{who}() was interrupted during set-up; it returns {draws} draws"
    warnings.warn(text, stacklevel=level_of_caller())
    return samples
