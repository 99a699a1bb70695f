"""The block runner: one of the two places that step a kernel; the other is the optimizer.

Eager and compiled blocks take the same kernel and the same gradient, and everything random is drawn ahead by address.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from langevin.checks import level_of_caller
from langevin.engines.blocks import Block, Trace, block_length, draw_block, feed
from langevin.engines.compiled import Compiled, threads_for
from langevin.engines.eager import first_line, run_eagerly
from langevin.engines.turns import Pace, Rows, pace_of
from langevin.gradients import GradientFn
from langevin.kernels import Kernel, KernelState

__all__ = ["Runner", "run_blocks"]


_MANY_THREADS_FROM = 2**16  # elements of all chains; below, two threads wait for each other more than they save


class Runner:
    """Runs blocks, eagerly or compiled.

    Args:
        kernel: the sampler.
        gradient_fn: the gradient.
        compiled: whether to compile. It turns False, with a warning, when that fails.
        rows: what is needed of the steps, by default everything; eager ones leave everything.
    """

    def __init__(self, kernel: Kernel, gradient_fn: GradientFn, compiled: bool, rows: Rows | None = None) -> None:
        """Start in the mode that `compiled` says."""
        self.kernel, self.gradient_fn, self.compiled, self.rows = kernel, gradient_fn, compiled, rows or Rows()
        self._code = Compiled(kernel, gradient_fn)
        self._pace: Pace | None = None

    def next_steps(self, state: KernelState, last: int) -> range:
        """Return the steps of the next block of a run that ends before step `last`: the same, wherever the run was begun anew."""
        first, length, head = state.step, block_length(state.position), 0
        if self.compiled:
            if self._pace is None:
                with torch.no_grad():
                    self._pace = pace_of(self.kernel, self.gradient_fn, state, self.rows)
            length, head = self._pace.length, self._pace.head
        return range(first, min(last, head if first < head else head + ((first - head) // length + 1) * length))

    def run(self, block: Block, trace: Trace, alive: Sequence[int], check: Callable[[], None] = lambda: None) -> None:
        """Take the block's steps from `trace.state`.

        The first steps of a run are taken one by one, so that it begins at once; what compiles goes on meanwhile, and is waited for
        when they are done. A compiled block in which something raises is run again eagerly, which finds the chains at fault; where
        there are none, the compiler was.
        """
        if len(alive) < len(trace.state.position):
            trace.state, block = feed(trace.state, block, alive, self.kernel.group_size)
            trace.before = trace.state
        failure: Exception | None = None
        if self.compiled:
            assert self._pace is not None
            try:
                if block.steps.start >= self._pace.head:
                    self._run_compiled(block, trace, self._pace, check)
                    return
                self._code.prepare(block, self._pace.length, trace.state, self._pace.turns)
            except Exception as error:  # whatever a compiler or the user's code may raise
                failure = error
                trace.forget()
        run_eagerly(self.kernel, self.gradient_fn, block, trace, alive, check)
        if failure is not None and not trace.failed:
            self.compiled = False
            warnings.warn(
                f"sample() goes on uncompiled, since compiling failed: {first_line(failure)}", stacklevel=level_of_caller()
            )

    def _run_compiled(self, block: Block, trace: Trace, pace: Pace, check: Callable[[], None]) -> None:
        """Take the block's steps; where one of several of a row was not finite, take them again, with a look at every step."""
        before = trace.state
        self._code.run(block, pace.length, trace, pace.turns, check)
        if trace.sound is not None and not bool(torch.isfinite(trace.sound.sum() + trace.positions[-1].sum())):
            trace.forget(before)
            self._code.run(block, pace.length, trace, pace.turns._replace(every=1, elements=None), check)


def run_blocks(
    kernel: Kernel, gradient_fn: GradientFn, start: Tensor | KernelState, *, seed: int, chains: Sequence[int], num_steps: int
) -> Iterator[Trace]:
    """Take steps eagerly and yield what each block leaves behind, for searches and studies that look at every position.

    Args:
        kernel: the sampler.
        gradient_fn: the gradient.
        start: where the chains start, (chains, dim); or a state of theirs, whose memory and steps are gone on with.
        seed: of the noise.
        chains: number of each chain; those of the same number share their noise.
        num_steps: steps to take.

    Raises:
        RuntimeError: a step raised. A chain that goes non-finite goes on: it disturbs no other.
    """
    state = start if isinstance(start, KernelState) else kernel.init(start)
    position, last = state.position, state.step + num_steps
    length, runner = block_length(position), Runner(kernel, gradient_fn, compiled=False)
    while state.step < last:
        steps, trace = range(state.step, min(last, state.step + length)), Trace(state)
        with torch.no_grad(), threads_for(position, _MANY_THREADS_FROM):
            runner.run(draw_block(kernel, gradient_fn, position, seed, chains, steps), trace, range(len(position)))
        if trace.failed:
            raise RuntimeError(f"run_blocks() needs steps that do not raise, got {trace.failed}")
        yield trace
        state = trace.state
