"""Run blocks of steps, eager or compiled. Only this package and `optim` step a kernel.

Both use the same kernel, gradient and noise.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from langevin.checks import level_of_caller
from langevin.execution.blocks import Block, Trace, block_length, draw_block, feed
from langevin.execution.compiled import Compiled, Rows, threads_for
from langevin.execution.eager import first_line, run_eagerly
from langevin.kernels import Kernel, KernelState
from langevin.targets.gradients import GradientFn

__all__ = ["Runner", "run_blocks"]


_MANY_THREADS_FROM = 2**16  # elements of all chains; below, one thread is faster


class Runner:
    """Runs blocks, eagerly or compiled.

    Args:
        kernel: the sampler.
        gradient_fn: the gradient.
        compiled: whether to compile. Becomes False, with a warning, if that fails.
        rows: what the trace keeps, by default everything; eager steps keep everything.
        adjustable: whether compiled code takes the kernel's settings as inputs, for `adjust`.
        is_silent: whether to fall back to eager steps without a warning.
    """

    def __init__(
        self,
        kernel: Kernel,
        gradient_fn: GradientFn,
        compiled: bool,
        rows: Rows | None = None,
        *,
        adjustable: bool = False,
        is_silent: bool = False,
    ) -> None:
        """Compile nothing yet."""
        self.kernel, self.gradient_fn, self.compiled = kernel, gradient_fn, compiled
        self._rows, self._adjustable, self._is_silent = rows or Rows(), adjustable, is_silent
        self._code = Compiled(kernel, gradient_fn, self._rows, adjustable)

    def adjust(self, kernel: Kernel, gradient_fn: GradientFn) -> None:
        """Switch to another kernel and gradient; keep adjustable code if it fits."""
        if gradient_fn is not self.gradient_fn or not self._code.adjust(kernel):
            self._code = Compiled(kernel, gradient_fn, self._rows, self._adjustable)
        self.kernel, self.gradient_fn = kernel, gradient_fn

    def next_steps(self, state: KernelState, last: int, seed: int, chains: Sequence[int]) -> range:
        """Return the steps of the next block, the same wherever the run was resumed."""
        first, length = state.step, block_length(state.position)
        if self.compiled:
            try:
                steps, like = range(first, first + 1), state.position
                block = draw_block(self.kernel, self.gradient_fn, like, seed, chains, steps)
                with torch.no_grad():
                    length = self._code.prepare(block, state).length
            except Exception as error:  # user code may raise anything
                self._give_up(error)
        return range(first, min(last, (first // length + 1) * length))

    def has_changed(self) -> bool:
        """Return whether the target changed after its steps were compiled."""
        try:
            return self.compiled and self._code.has_changed()
        except Exception:  # it did not raise when it was recorded
            return True

    def _give_up(self, error: Exception) -> None:
        """Continue with eager steps."""
        self.compiled = False
        if self._is_silent:
            return
        warnings.warn(
            f"compilation failed; continuing with eager execution: {first_line(error)}",
            stacklevel=level_of_caller(),
        )

    def run(
        self,
        block: Block,
        trace: Trace,
        alive: Sequence[int],
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """Take the block's steps from `trace.state`.

        If a compiled block raises, its steps are repeated eagerly to find the failed chains.
        """
        if len(alive) < len(trace.state.position):
            trace.state, block = feed(trace.state, block, alive, self.kernel.traits.group_size)
            trace.before = trace.state
        failure: Exception | None = None
        if self.compiled:
            try:
                self._run_compiled(block, trace)
                return
            except Exception as error:
                failure = error
                trace.forget()
        run_eagerly(self.kernel, self.gradient_fn, block, trace, alive, check)
        if failure is not None and not trace.failed:
            self._give_up(failure)

    def _run_compiled(self, block: Block, trace: Trace) -> None:
        """Take the block's steps; if one is not finite, repeat them with a row for each step."""
        before = trace.state
        self._code.run(block, trace)
        if trace.sound is not None:
            total = trace.sound.sum() + trace.positions[-1].sum()
            if not torch.isfinite(total):
                trace.forget(before)
                self._code.run(block, trace, every=1)


def run_blocks(
    kernel: Kernel,
    gradient_fn: GradientFn,
    start: Tensor | KernelState,
    *,
    seed: int,
    chains: Sequence[int],
    num_steps: int,
    runner: Runner | None = None,
) -> Iterator[Trace]:
    """Take steps and yield the trace of each block.

    Args:
        kernel: the sampler.
        gradient_fn: the gradient.
        start: initial positions (chains, dim), or a state to continue.
        seed: of the noise.
        chains: number of each chain; chains with the same number share noise.
        num_steps: steps to take.
        runner: for this kernel and gradient; eager by default.

    Raises:
        RuntimeError: a step raised. Non-finite chains continue and affect no other.
    """
    state = start if isinstance(start, KernelState) else kernel.init(start)
    position, last = state.position, state.step + num_steps
    length, runner = block_length(position), runner or Runner(kernel, gradient_fn, compiled=False)
    while state.step < last:
        steps, trace = range(state.step, min(last, state.step + length)), Trace(state)
        with torch.no_grad(), threads_for(position, _MANY_THREADS_FROM):
            block = draw_block(kernel, gradient_fn, position, seed, chains, steps)
            runner.run(block, trace, range(len(position)))
        if trace.failed:
            raise RuntimeError(f"run_blocks() needs steps that do not raise, got {trace.failed}")
        yield trace
        state = trace.state
