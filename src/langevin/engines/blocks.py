"""Two ways to run a block of steps: eagerly, the oracle, and as one compiled `scan`.

Both take the same kernel and the same gradient, and everything random in a block is drawn ahead by address, so they differ in
rounding only. A block is a fixed stretch of steps: a run cut anywhere goes on with the same blocks, hence with the same bits.

A chain whose step raises is out, and so is one that went non-finite; both keep their rows in the tensors, where they follow another
chain (`feed`), so that they can do no harm.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import types
import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from langevin.engines.structure import structure
from langevin.gradients import Draws, GradientFn
from langevin.kernels import Clock, Kernel, KernelState
from langevin.noise import UPDATE_NOISES, normal, streams
from langevin.schedules import explores
from langevin.targets import Evaluation

__all__ = ["Block", "Engine", "Trace", "block_length", "compile_pays", "compiled_block", "draw_block", "evaluate_chains"]

_MAX_BLOCK, _MAX_ELEMENTS = 256, 2**22
_MANY_THREADS_FROM = 4096  # elements of all chains; measured on the 36-30-30-6 network and on Gaussians
_COMPILE_SECONDS = 20.0  # what compiling costs, measured: 4 to 20 seconds
_SPEED_UP = 4.0  # what it gains at the least, measured: 5 to 30 times
# Seconds of an eager step on one thread, measured: a closed form, a function differentiated automatically; then per element of all
# chains, and per number of the data that they look at.
_CLOSED_FORM, _AUTOMATIC, _PER_ELEMENT, _PER_NUMBER = 1.2e-4, 8e-4, 3e-8, 1e-8


def compile_pays(num_steps: int, position: Tensor, columns: Sequence[Tensor], batch_size: int | None, closed_form: bool) -> bool:
    """Say whether a run is long enough to pay for compiling: by sizes alone, so that the same call always decides the same.

    An eager step is taken to cost 0.12 ms for a closed form, 0.8 ms for other targets, plus 30 ns per element of all chains and
    10 ns per number of the data that all chains look at; compiling to cost 20 seconds and to save 3/4 of the rest.
    """
    rows = 0 if not columns else len(columns[0]) if batch_size is None else batch_size
    numbers = len(position) * rows * sum(column[0].numel() for column in columns)
    seconds = (_CLOSED_FORM if closed_form else _AUTOMATIC) + _PER_ELEMENT * position.numel() + _PER_NUMBER * numbers
    return num_steps * seconds * (1 - 1 / _SPEED_UP) > _COMPILE_SECONDS


class Block(NamedTuple):
    """What a stretch of steps needs; the first axis of every tensor is the step."""

    steps: range
    noise: Tensor  # (steps, chains, dim), or (steps, noises, chains, dim)
    clocks: list[Clock]
    drawn: Draws  # what is random in the gradient, (steps, chains, ...)


class Trace:
    """What a stretch of steps leaves behind; it is whole after every step, for a run that is interrupted.

    Args:
        state: where the chains are before the first step.
    """

    positions: Tensor  # (steps, chains, dim), after each step
    energies: Tensor  # (steps, chains), before it
    gradient_norms: Tensor  # (steps, chains), before it

    def __init__(self, state: KernelState) -> None:
        """Nothing has happened."""
        self.before = self.state = state
        self.failed: dict[int, tuple[int, str]] = {}  # chain -> the step at which it raised, and what

    @property
    def done(self) -> int:
        """How many steps were taken."""
        return self.state.step - self.before.step


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


def feed(state: KernelState, block: Block, alive: Sequence[int]) -> tuple[KernelState, Block]:
    """Let every chain that is not in `alive` go the way of the first one that is: same place, same memory, same draws."""
    rows = _rows(alive, state.position)
    memory = tuple(tensor[rows] for tensor in state.memory)
    drawn = tuple(tensor[:, rows] for tensor in block.drawn)
    return KernelState(state.position[rows], memory, state.step), block._replace(
        noise=block.noise.index_select(-2, rows), drawn=drawn
    )


def _rows(chains: Sequence[int], like: Tensor) -> Tensor:
    """Return the chain that each row stands for: itself where it is one of `chains`, else the first of them."""
    rows = torch.full((len(like),), chains[0], device=like.device)
    rows[list(chains)] = torch.tensor(chains, device=like.device)
    return rows


def _failing(attempt: Callable[[Tensor], Any], chains: Sequence[int], like: Tensor) -> dict[int, str]:
    """Return the chains with which `attempt(rows)` raises, each with the error's text, by halving."""
    try:
        attempt(_rows(chains, like))
        return {}
    except Exception as error:
        if len(chains) == 1:
            return {chains[0]: first_line(error)}
    half = len(chains) // 2
    return _failing(attempt, chains[:half], like) | _failing(attempt, chains[half:], like)


def first_line(error: Exception) -> str:
    """Return an error's kind and the first line of its text."""
    return f"{type(error).__name__.lstrip('_')}: {str(error).strip()}".splitlines()[0].removesuffix(": ")


def _take_step(
    kernel: Kernel, gradient_fn: GradientFn, state: KernelState, block: Block, index: int, rows: Tensor | None = None
) -> tuple[KernelState, Evaluation]:
    """Take one step of a block; with `rows`, with those chains in the places of all."""
    drawn, noise = tuple(tensor[index] for tensor in block.drawn), block.noise[index]
    if rows is not None:
        state = KernelState(state.position[rows], tuple(tensor[rows] for tensor in state.memory), state.step)
        drawn, noise = tuple(tensor[rows] for tensor in drawn), noise.index_select(-2, rows)
    evaluation = gradient_fn.evaluate(state.position, drawn)
    return kernel.step(state, evaluation.gradient, noise)[0], evaluation


def run_eagerly(
    kernel: Kernel,
    gradient_fn: GradientFn,
    block: Block,
    trace: Trace,
    alive: Sequence[int],
    check: Callable[[], None] = lambda: None,
) -> None:
    """Take the block's steps one by one; `check` may end it after any of them by a KeyboardInterrupt.

    Where a step raises, the chains that raise in it by themselves are noted in `trace.failed`, and the others take it without them.
    """
    state, length = trace.state, len(block.steps)
    trace.positions = state.position.new_empty((length, *state.position.shape))
    trace.energies, trace.gradient_norms = (state.position.new_empty((length, len(state.position))) for _ in range(2))
    for index, step in enumerate(block.steps):
        try:
            moved, evaluation = _take_step(kernel, gradient_fn, state, block, index)
        except Exception as error:
            # An error that no chain raises alone is everybody's.
            attempt = functools.partial(_take_step, kernel, gradient_fn, state, block, index)
            failing = _failing(attempt, alive, state.position) or dict.fromkeys(alive, first_line(error))
            if step == 0 and len(failing) == len(alive):
                raise
            trace.failed |= {chain: (step, text) for chain, text in failing.items()}
            alive = [chain for chain in alive if chain not in failing]
            if not alive:
                return
            state, block = feed(state, block, alive)
            moved, evaluation = _take_step(kernel, gradient_fn, state, block, index)
        state = moved
        trace.positions[index], trace.energies[index] = state.position, evaluation.energy
        trace.gradient_norms[index] = torch.linalg.vector_norm(evaluation.gradient, dim=-1)
        trace.state = state
        check()


def evaluate_chains(gradient_fn: GradientFn, state: KernelState, alive: Sequence[int]) -> tuple[Evaluation, dict[int, str]]:
    """Evaluate the target where the chains are, as their next step would; also return the chains for which that raises."""
    drawn = tuple(tensor[0] for tensor in gradient_fn.draw(range(state.step, state.step + 1)))

    def attempt(rows: Tensor) -> Evaluation:
        return gradient_fn.evaluate(state.position[rows], tuple(tensor[rows] for tensor in drawn))

    failing = _failing(attempt, alive, state.position)
    good = [chain for chain in alive if chain not in failing]
    nothing = Evaluation(torch.zeros_like(state.position[:, 0]), torch.zeros_like(state.position))
    return (attempt(_rows(good, state.position)) if good else nothing), failing


Scan = Callable[[Any, Any, list[Tensor], list[Tensor]], tuple[list[Tensor], list[Tensor]]]


@functools.lru_cache(maxsize=16)
def compiled_block(key: Hashable) -> Scan:
    """Return a compiled function of (update, evaluate, carry, what is scanned over) that takes a block of steps.

    It is kept under `key`, the structure of `update` and `evaluate`. They are arguments, not parts of it: the compiler takes the
    tensors in them as inputs and guards the numbers. So nothing is ever stale, and no data are kept alive between calls.
    """
    from torch._higher_order_ops.scan import scan

    def block(update: Any, evaluate: Any, carry: list[Tensor], scanned: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        def body(carry: list[Tensor], now: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
            position, *memory = carry
            noise, *drawn = now
            clock, drawn = Clock(*drawn[: len(Clock._fields)]), drawn[len(Clock._fields) :]  # type: ignore[arg-type]
            energy, gradient = evaluate(position, tuple(drawn))
            moved, memory_after = update(position, gradient, noise, tuple(memory), clock)
            norm = (gradient * gradient).sum(-1).sqrt()
            return [moved, *memory_after], [moved.clone(), energy, norm]

        return scan(body, carry, scanned)

    # Dynamo counts recompilations per code object and gives up after a few: each key gets a code object of its own.
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
    """Runs blocks, eagerly or compiled.

    Args:
        kernel: the sampler.
        gradient_fn: the gradient.
        compiled: whether to compile. It turns False, with a warning, when that fails.
    """

    def __init__(self, kernel: Kernel, gradient_fn: GradientFn, compiled: bool) -> None:
        """Start in the mode that `compiled` says."""
        self.kernel, self.gradient_fn, self.compiled = kernel, gradient_fn, compiled

    def run(self, block: Block, length: int, trace: Trace, alive: Sequence[int], check: Callable[[], None] = lambda: None) -> None:
        """Take the block's steps from `trace.state`; `length` is that of a full block.

        A compiled block in which something raises is run again eagerly, which finds the chains at fault; where there are none,
        the compiler was.
        """
        if len(alive) < len(trace.state.position):
            trace.state, block = feed(trace.state, block, alive)
            trace.before = trace.state
        failure: Exception | None = None
        if self.compiled:
            try:
                self._run_compiled(block, length, trace)
                return
            except Exception as error:  # whatever a compiler or the user's code may raise
                failure = error
        run_eagerly(self.kernel, self.gradient_fn, block, trace, alive, check)
        if failure is not None and not trace.failed:
            self.compiled = False
            warnings.warn(f"sample() goes on uncompiled, since compiling failed: {first_line(failure)}", stacklevel=4)

    def _run_compiled(self, block: Block, length: int, trace: Trace) -> None:
        state, count = trace.state, len(block.steps)

        def padded(tensor: Tensor) -> Tensor:
            """Fill a shorter block up: every block has the same shape, so there is one program."""
            return tensor if count == length else torch.cat([tensor, tensor[-1:].expand(length - count, *tensor.shape[1:])])

        clocks = torch.tensor(block.clocks, dtype=torch.float64, device=state.position.device)
        scanned = [padded(tensor) for tensor in (block.noise, *clocks.T.contiguous(), *block.drawn)]
        # Step sizes are scanned over, so that one program serves all schedules.
        update = dataclasses.replace(self.kernel, step_size=1.0).update
        evaluate = self.gradient_fn.evaluate
        carry = [state.position, *state.memory]
        function = compiled_block((structure(update), structure(evaluate), structure(carry), structure(scanned)))
        with torch.no_grad(), _threads_for(state.position), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the compiler's own, about parts of torch
            carry, traced = function(update, evaluate, carry, scanned)
        trace.positions, trace.energies, trace.gradient_norms = (tensor[:count] for tensor in traced)
        if count < length:  # the carry went on over the padding; nothing follows this block
            carry = [traced[0][count - 1], *carry[1:]]
        trace.state = KernelState(carry[0], tuple(carry[1:]), block.steps.stop)
