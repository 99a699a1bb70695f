"""Two ways to run a block of steps: eagerly, the oracle, and as one compiled `scan`.

Both take the same kernel and the same gradient, and everything random in a block is drawn ahead by address, so they differ in
rounding only. A block is a fixed stretch of steps: a run cut anywhere goes on with the same blocks, hence with the same bits.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import time
import types
import warnings
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from langevin.gradients import Draws, GradientFn
from langevin.kernels import Clock, Kernel, KernelState
from langevin.noise import UPDATE_NOISES, normal, streams
from langevin.schedules import explores

__all__ = ["Block", "Engine", "Trace", "block_length", "compiled_block", "draw_block"]

_MAX_BLOCK, _MAX_ELEMENTS = 256, 2**22
_MANY_THREADS_FROM = 4096  # elements of all chains; measured on the 36-30-30-6 network and on Gaussians
_COMPILE_SECONDS = 20.0  # what compiling costs, measured: 4 to 20 seconds
_SPEED_UP = 4.0  # what it gains at the least, measured: 5 to 30 times


class Block(NamedTuple):
    """What a stretch of steps needs; the first axis of every tensor is the step."""

    steps: range
    noise: Tensor  # (steps, chains, dim), or (steps, noises, chains, dim)
    clocks: list[Clock]
    drawn: Draws  # what is random in the gradient


class Trace:
    """What a stretch of steps leaves behind; `done` counts the steps so far, for a run that is interrupted."""

    positions: Tensor  # (steps, chains, dim)
    energies: Tensor  # (steps, chains)
    gradient_norms: Tensor  # (steps, chains)
    done: int = 0


def block_length(position: Tensor) -> int:
    """Return how many steps make a block: many for small chains, few for large ones, a function of the shape alone."""
    return max(1, min(_MAX_BLOCK, _MAX_ELEMENTS // position.numel()))


def draw_block(kernel: Kernel, gradient_fn: GradientFn, like: Tensor, seed: int, chains: range, steps: range) -> Block:
    """Draw everything random for a stretch of steps: one stream per chain and per noise of the kernel.

    Steps of an exploration phase get no noise.
    """
    noises = [
        normal(seed, streams(purpose, chains), steps, like.shape[-1], dtype=like.dtype, device=like.device)
        for purpose in UPDATE_NOISES[: kernel.num_noises]
    ]
    noise = noises[0] if kernel.num_noises == 1 else torch.stack(noises, 1)
    silent = [index for index, step in enumerate(steps) if explores(kernel.step_size, step)]  # type: ignore[arg-type]
    if silent:
        noise[silent] = 0.0
    return Block(steps, noise, [kernel.clock(step) for step in steps], gradient_fn.draw(steps))


def run_eagerly(kernel: Kernel, gradient_fn: GradientFn, state: KernelState, block: Block, trace: Trace) -> KernelState:
    """Take the block's steps one by one."""
    length, chains = len(block.steps), len(state.position)
    trace.positions = state.position.new_empty((length, *state.position.shape))
    trace.energies, trace.gradient_norms = (state.position.new_empty((length, chains)) for _ in range(2))
    for index in range(len(block.steps)):
        energy, gradient = gradient_fn.evaluate(state.position, tuple(drawn[index] for drawn in block.drawn))
        state, _ = kernel.step(state, gradient, block.noise[index])
        trace.positions[index], trace.energies[index] = state.position, energy
        trace.gradient_norms[index] = torch.linalg.vector_norm(gradient, dim=-1)
        trace.done = index + 1
    return state


Scan = Callable[[list[Tensor], list[Tensor]], tuple[list[Tensor], list[Tensor]]]


@functools.lru_cache(maxsize=16)
def compiled_block(kernel: Kernel, gradient_fn: GradientFn) -> Scan:
    """Return a compiled function of (carry, what is scanned over) that takes a block of steps; kept between calls.

    `kernel` comes with a step size of 1, for step sizes are scanned over; so the same code serves every schedule.
    """
    from torch._higher_order_ops.scan import scan

    def block(carry: list[Tensor], scanned: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        def body(carry: list[Tensor], now: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
            position, *memory = carry
            noise, *drawn = now
            clock, drawn = Clock(*drawn[: len(Clock._fields)]), drawn[len(Clock._fields) :]  # type: ignore[arg-type]
            energy, gradient = gradient_fn.evaluate(position, tuple(drawn))
            moved, memory_after = kernel.update(position, gradient, noise, tuple(memory), clock)
            norm = (gradient * gradient).sum(-1).sqrt()
            return [moved, *memory_after], [moved.clone(), energy, norm]

        return scan(body, carry, scanned)

    # Dynamo counts recompilations per code object and gives up after a few: each kernel gets a code object of its own.
    fresh = types.FunctionType(block.__code__.replace(), block.__globals__, block.__name__, None, block.__closure__)
    return torch.compile(fresh, fullgraph=True, dynamic=False, options={"cpp_wrapper": True})


@contextlib.contextmanager
def _threads_for(position: Tensor) -> Iterator[None]:
    """Run small chains on one thread: two spend more time waiting for each other than they save, and far more on a busy machine."""
    before = torch.get_num_threads()
    if position.numel() >= _MANY_THREADS_FROM or before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Engine:
    """Runs blocks; starts eagerly and, where asked or where it pays, goes on compiled.

    Args:
        kernel: the sampler.
        gradient_fn: the gradient.
        compile: False never, True from the first block, "auto" when the rest of the run is long enough to pay for it.
        compile_from: the step from which on an earlier part of this run was compiled, to repeat its choice; None for no such part.
    """

    def __init__(self, kernel: Kernel, gradient_fn: GradientFn, compile: bool | str, compile_from: int | None = None) -> None:
        """Start in the mode that `compile` says."""
        self.kernel, self.gradient_fn = kernel, gradient_fn
        self.compile = compile
        self.compiled_from: int | None = 0 if compile is True else compile_from
        self._seconds_per_step: float | None = None

    def run(self, state: KernelState, block: Block, length: int, remaining: int, trace: Trace) -> KernelState:
        """Take the block's steps; `length` is that of a full block, `remaining` counts the run's steps from here on."""
        if self.compiled_from is None and self.compile == "auto" and self._pays(remaining):
            self.compiled_from = block.steps.start
        if self.compiled_from is not None and block.steps.start >= self.compiled_from:
            try:
                return self._run_compiled(state, block, length, trace)
            except KeyboardInterrupt:
                raise
            except Exception as error:  # whatever a compiler may raise
                if trace.done:
                    raise
                reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
                warnings.warn(f"sample() goes on uncompiled, since compiling failed: {reason}", stacklevel=4)
                self.compile, self.compiled_from = False, None
        start = time.perf_counter()
        state = run_eagerly(self.kernel, self.gradient_fn, state, block, trace)
        self._seconds_per_step = (time.perf_counter() - start) / len(block.steps)
        return state

    def _pays(self, remaining: int) -> bool:
        if self._seconds_per_step is None:
            return False
        return remaining * self._seconds_per_step * (1 - 1 / _SPEED_UP) > _COMPILE_SECONDS

    def _run_compiled(self, state: KernelState, block: Block, length: int, trace: Trace) -> KernelState:
        count, position = len(block.steps), state.position

        def padded(tensor: Tensor) -> Tensor:
            """Fill the last, shorter block up: every block has the same shape, so there is one program."""
            return tensor if count == length else torch.cat([tensor, tensor[-1:].expand(length - count, *tensor.shape[1:])])

        clocks = torch.tensor(block.clocks, dtype=torch.float64, device=position.device)
        scanned = [block.noise, *clocks.T.contiguous(), *block.drawn]
        function = compiled_block(dataclasses.replace(self.kernel, step_size=1.0), self.gradient_fn)
        with torch.no_grad(), _threads_for(position), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the compiler's own, about parts of torch
            carry, traced = function([position, *state.memory], [padded(tensor) for tensor in scanned])
        trace.positions, trace.energies, trace.gradient_norms = (tensor[:count] for tensor in traced)
        trace.done = count
        if count < length:  # the carry went on over the padding; nothing follows this block
            carry = [traced[0][count - 1], *carry[1:]]
        return KernelState(carry[0], tuple(carry[1:]), block.steps.stop)
