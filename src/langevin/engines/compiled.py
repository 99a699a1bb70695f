"""A block of steps as one compiled `scan`; it differs from the eager steps in rounding only."""

from __future__ import annotations

import contextlib
import functools
import types
import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from langevin.engines.blocks import Block, Trace, stack_inputs
from langevin.engines.structure import structure
from langevin.gradients import GradientFn
from langevin.kernels import Kernel, KernelState, StepInputs
from langevin.targets import Evaluation

__all__ = ["compile_pays", "compiled_block", "run_compiled", "threads_for"]

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


Scan = Callable[[Any, Any, list[Tensor], list[Tensor]], tuple[list[Tensor], list[Tensor]]]


@functools.lru_cache(maxsize=16)
def compiled_block(key: Hashable) -> Scan:
    """Return a compiled function of (update, evaluate, carry, what is scanned over) that takes a block of steps.

    It is kept under `key`, the structure of `update` and `evaluate`. They are arguments, not parts of it: the compiler takes the
    tensors in them as inputs and guards the numbers. So nothing is ever stale, and no data are kept alive between calls.
    """
    from torch._higher_order_ops.scan import scan

    fields = len(StepInputs._fields)

    def block(update: Any, evaluate: Any, carry: list[Tensor], scanned: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        def body(carry: list[Tensor], now: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
            position, *memory = carry
            noise, inputs, drawn = now[0], StepInputs(*now[1 : 1 + fields]), tuple(now[1 + fields :])
            energy, gradient = evaluate(position, drawn)
            moved, memory_after = update(position, Evaluation(energy, gradient), noise, tuple(memory), inputs)
            return [moved, *memory_after], [moved.clone(), energy, gradient.clone()]  # a gradient may be the position itself

        return scan(body, carry, scanned)

    # Dynamo counts recompilations per code object and gives up after a few: each key gets its own code object.
    fresh = types.FunctionType(block.__code__.replace(), block.__globals__, block.__name__, None, block.__closure__)
    return torch.compile(fresh, fullgraph=True, dynamic=False, options={"cpp_wrapper": True})


def run_compiled(kernel: Kernel, gradient_fn: GradientFn, block: Block, length: int, trace: Trace) -> None:
    """Take the block's steps; `length` is that of a full block, to which a shorter one is filled up: so there is one program."""
    state, count = trace.state, len(block.steps)

    def padded(tensor: Tensor) -> Tensor:
        return tensor if count == length else torch.cat([tensor, tensor[-1:].expand(length - count, *tensor.shape[1:])])

    scanned = [padded(tensor) for tensor in (block.noise, *stack_inputs(block.inputs, state.position), *block.drawn)]
    update, evaluate, carry = kernel.formula, gradient_fn.evaluate, [state.position, *state.memory]
    function = compiled_block((structure(update), structure(evaluate), structure(carry), structure(scanned)))
    with torch.no_grad(), threads_for(state.position, _MANY_THREADS_FROM), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the compiler's own, about parts of torch
        carry, traced = function(update, evaluate, carry, scanned)
    trace.positions, trace.energies, trace.gradients = (tensor[:count] for tensor in traced)
    if count < length:  # the carry went on over the padding; nothing follows this block
        carry = [traced[0][count - 1], *carry[1:]]
    trace.state = KernelState(carry[0], tuple(carry[1:]), block.steps.stop)


@contextlib.contextmanager
def threads_for(position: Tensor, many_from: int) -> Iterator[None]:
    """Run small chains on one thread: two spend more time waiting for each other than they save, and far more on a busy machine."""
    before = torch.get_num_threads()
    if position.numel() >= many_from or before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
