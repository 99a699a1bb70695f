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
from langevin.engines.compiled import run_compiled, threads_for
from langevin.engines.eager import first_line, run_eagerly
from langevin.engines.turns import Rows, Turns, turns_of
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
        self._turns: tuple[Turns, int] | None = None

    def length(self, state: KernelState) -> int:
        """Return how many steps make a block; those of a run begin at multiples of it."""
        if not self.compiled:
            return block_length(state.position)
        if self._turns is None:
            with torch.no_grad():
                self._turns = turns_of(self.kernel, self.gradient_fn, state, self.rows)
        return self._turns[1]

    def run(self, block: Block, length: int, trace: Trace, alive: Sequence[int], check: Callable[[], None] = lambda: None) -> None:
        """Take the block's steps from `trace.state`; `length` is that of a full block.

        A compiled block in which something raises is run again eagerly, which finds the chains at fault; where there are none,
        the compiler was.
        """
        if len(alive) < len(trace.state.position):
            trace.state, block = feed(trace.state, block, alive, self.kernel.group_size)
            trace.before = trace.state
        failure: Exception | None = None
        if self.compiled:
            assert self._turns is not None
            turns, before = self._turns[0], trace.state
            try:
                run_compiled(self.kernel, self.gradient_fn, block, length, trace, turns)
                if trace.sound is not None and not bool(
                    torch.isfinite(trace.sound.sum() + trace.positions[-1].sum())
                ):  # when, and why? look at every step
                    trace.state, trace.sound, trace.residuals = before, None, None
                    run_compiled(self.kernel, self.gradient_fn, block, length, trace, turns._replace(every=1, elements=None))
                return
            except Exception as error:  # whatever a compiler or the user's code may raise
                failure = error
        run_eagerly(self.kernel, self.gradient_fn, block, trace, alive, check)
        if failure is not None and not trace.failed:
            self.compiled = False
            warnings.warn(
                f"sample() goes on uncompiled, since compiling failed: {first_line(failure)}", stacklevel=level_of_caller()
            )


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
            runner.run(draw_block(kernel, gradient_fn, position, seed, chains, steps), length, trace, range(len(position)))
        if trace.failed:
            raise RuntimeError(f"run_blocks() needs steps that do not raise, got {trace.failed}")
        yield trace
        state = trace.state
