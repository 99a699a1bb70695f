"""A block of steps as one compiled `scan`; it differs from the eager steps in rounding only."""

from __future__ import annotations

import contextlib
import functools
import threading
import types
import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from langevin.cpu.threads import run_in_threads
from langevin.engines.blocks import Block, Trace, stack_inputs
from langevin.engines.structure import structure
from langevin.engines.turns import Turns
from langevin.gradients import GradientFn
from langevin.kernels import Kernel, KernelState, StepInputs
from langevin.targets import Evaluation

__all__ = ["compile_pays", "compiled_block", "run_compiled", "threads_for"]

_PIECES_FROM = 1024  # elements of a piece of the chains; below, a second thread has hardly woken up
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


Scan = Callable[[Any, Any, list[Tensor], list[Tensor], Tensor | None], tuple[list[Tensor], list[Tensor]]]


class Program:
    """A compiled function; the threads that call it first wait for one of them to compile it."""

    def __init__(self, function: Scan) -> None:
        """Nothing is compiled yet."""
        self._function, self._lock, self._is_ready = function, threading.Lock(), False

    def __call__(self, *given: Any) -> tuple[list[Tensor], list[Tensor]]:
        """Run."""
        if self._is_ready:
            return self._function(*given)
        with self._lock:
            result = self._function(*given)
            self._is_ready = True
            return result


@functools.lru_cache(maxsize=16)
def compiled_block(turns: Turns, by_chain: tuple[int, ...], key: Hashable) -> Program:
    """Return a compiled function of (update, evaluate, carry, what is scanned over, elements) that takes a block of steps.

    It is kept under `key`, the structure of `update` and `evaluate`. They are arguments, not parts of it: the compiler takes the
    tensors in them as inputs and guards the numbers. So nothing is ever stale, and no data are kept alive between calls.

    Args:
        turns: how the block is gone through.
        by_chain: the fields of `StepInputs` that are tensors.
        key: what the code depends on besides.
    """
    from torch._higher_order_ops.scan import scan

    turn = functools.partial(_turn, turns, by_chain)

    def block(
        update: Any, evaluate: Any, carry: list[Tensor], scanned: list[Tensor], elements: Tensor | None
    ) -> tuple[list[Tensor], list[Tensor]]:
        return scan(functools.partial(turn, update, evaluate, elements), carry, scanned)

    # Dynamo counts recompilations per code object and gives up after a few: each key gets its own code object.
    fresh = types.FunctionType(block.__code__.replace(), block.__globals__, block.__name__, None, block.__closure__)
    return Program(torch.compile(fresh, fullgraph=True, dynamic=False, backend=_compile))


def _compile(graph: Any, examples: Any) -> Any:
    """Compile a graph as torch does by default, for one thread: it is the pieces of the chains that run beside each other."""
    from torch._inductor.compile_fx import compile_fx
    from torch._inductor.decomposition import select_decomp_table

    from langevin.engines.small import with_small_products

    settings = {"cpp_wrapper": True, "cpp.threads": 1}
    return compile_fx(graph, examples, config_patches=settings, decompositions=with_small_products(select_decomp_table()))


def _turn(
    turns: Turns,
    by_chain: tuple[int, ...],
    update: Any,
    evaluate: Any,
    elements: Tensor | None,
    carry: list[Tensor],
    now: list[Tensor],
) -> tuple[list[Tensor], list[Tensor]]:
    """Take the steps of a turn: return what the next one starts from, and what this one leaves in the trace."""
    position, *memory = (tensor.movedim(-1, 0) for tensor in carry) if turns.in_lanes else carry
    noise, numbers = now[:2]
    tensors, drawn = now[2 : 2 + len(by_chain)], now[2 + len(by_chain) :]
    rows: list[list[Tensor]] = []
    first: tuple[Tensor, Evaluation] | None = None
    residual = sound = None
    for index in range(turns.steps):
        fields = [numbers[index, field] for field in range(numbers.shape[-1])]
        for field, tensor in zip(by_chain, tensors, strict=True):
            fields[field] = tensor[index]
        evaluation = Evaluation(*evaluate(position, tuple(tensor[index] for tensor in drawn)))
        here = noise[index].movedim(-1, -2) if turns.in_lanes else noise[index]
        moved, memory = update(position, evaluation, here, tuple(memory), StepInputs(*fields))
        norm = torch.linalg.vector_norm(evaluation.gradient, dim=-1)
        if turns.every == 1:
            looked_at = evaluation.gradient if elements is None else evaluation.gradient.index_select(-1, elements)
            rows.append([_out(turns, moved), evaluation.energy, norm, _out(turns, looked_at)])
        else:
            finite = 0.0 * (evaluation.energy + norm)
            sound = finite if sound is None else sound + finite
            if first is None:
                first = position, evaluation
            elif residual is None:
                middle = ((position - first[0]) * (evaluation.gradient + first[1].gradient)).sum(-1) / 2
                residual = evaluation.energy - first[1].energy - middle
        position = moved
    if first is not None:
        assert residual is not None
        assert sound is not None
        looked_at = first[1].gradient if elements is None else first[1].gradient.index_select(-1, elements)
        rows = [[_out(turns, position), evaluation.energy, norm, _out(turns, looked_at), residual, sound]]
    # A result may not be what was carried in, nor stand in two places: a copy costs nothing where it is fused.
    return [_out(turns, tensor) for tensor in (position, *memory)], [torch.stack(parts) for parts in zip(*rows, strict=True)]


def _out(turns: Turns, tensor: Tensor) -> Tensor:
    return tensor.movedim(0, -1).clone(memory_format=torch.contiguous_format) if turns.in_lanes else tensor.clone()


def run_compiled(kernel: Kernel, gradient_fn: GradientFn, block: Block, length: int, trace: Trace, turns: Turns) -> None:
    """Take the block's steps; `length` is that of a full block, to which a shorter one is filled up: so there is one program.

    Chains that do not meet are cut into pieces, one for each thread: no thread waits for another before the end.
    """
    state, count = trace.state, len(block.steps)

    def padded(tensor: Tensor) -> Tensor:
        return tensor if count == length else torch.cat([tensor, tensor[-1:].expand(length - count, *tensor.shape[1:])])

    def turned(tensor: Tensor) -> Tensor:
        return tensor.unflatten(0, (length // turns.steps, turns.steps))

    numbers, by_chain = stack_inputs(block.inputs, state.position)
    numbers = turned(padded(numbers))
    apart = [turned(padded(tensor)) for tensor in (*by_chain.values(), *block.drawn)]
    update, evaluate = kernel.formula, gradient_fn.evaluate
    elements = None if turns.elements is None else torch.tensor(turns.elements, device=state.position.device)
    pieces = _pieces(kernel, state.position)

    def given(piece: slice) -> tuple[list[Tensor], list[Tensor]]:
        """Return what a piece of the chains starts from, and what it is scanned over: torch's scan copies anew what has gaps."""
        noise = turned(padded(block.noise.of(piece, in_lanes=turns.in_lanes)))
        scanned = [noise, numbers, *(tensor[:, :, piece].contiguous() for tensor in apart)]
        carry = [tensor[piece] for tensor in (state.position, *state.memory)]
        return [(tensor.movedim(0, -1) if turns.in_lanes else tensor).contiguous() for tensor in carry], scanned

    def run(piece: slice) -> tuple[list[Tensor], list[Tensor]]:
        with torch.no_grad():  # for the thread that this runs on
            carry, scanned = given(piece)
            program = compiled_block(turns, tuple(by_chain), structure([update, evaluate, carry, scanned]))
            return program(update, evaluate, carry, scanned, elements)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the compiler's own, about parts of torch
        results = _run_pieces(run, pieces)
    _collect(results, pieces, turns, block, trace)


def _pieces(kernel: Kernel, position: Tensor) -> list[slice]:
    """Cut the chains into as many pieces as there are threads, all of one size: the last may begin inside the one before."""
    group, chains = kernel.group_size, len(position)
    many = 1 if kernel.differs_by_chain or position.device.type != "cpu" else torch.get_num_threads()
    many = max(1, min(many, chains // group, position.numel() // _PIECES_FROM))
    size = -(-(chains // group) // many) * group
    return [slice(min(start, chains - size), min(start, chains - size) + size) for start in range(0, chains, size)]


def _run_pieces(run: Callable[[slice], Any], pieces: list[slice]) -> list[Any]:
    """Run the pieces beside each other, each on one thread."""
    if len(pieces) == 1:
        with one_thread():
            return [run(pieces[0])]
    results: list[Any] = [None] * len(pieces)

    def work(begin: int, end: int) -> None:
        for index in range(begin, end):
            results[index] = run(pieces[index])

    run_in_threads(work, len(pieces), 1)
    return results


def _collect(results: list[Any], pieces: list[slice], turns: Turns, block: Block, trace: Trace) -> None:
    """Write what the pieces left behind into the trace."""
    count = len(block.steps) // turns.every
    back = (lambda tensor: tensor.movedim(-1, 0)) if turns.in_lanes else (lambda tensor: tensor)

    def joined(index: int, is_wide: bool) -> Tensor:
        parts = [traced[index].flatten(0, 1)[:count] for _, traced in results]
        parts = [part.movedim(-1, 1) if turns.in_lanes and is_wide else part for part in parts]
        return _join(parts, pieces, 1)

    trace.every = turns.every
    trace.positions, trace.energies, trace.norms, trace.gradients = (joined(k, k in (0, 3)) for k in range(4))
    if turns.every > 1:
        trace.residuals, trace.sound = joined(4, False), joined(5, False)
    carries = [[back(tensor) for tensor in carry] for carry, _ in results]
    carry = [_join(list(parts), pieces, 0) for parts in zip(*carries, strict=True)]
    # The carry of a part of a block went on over the padding; nothing follows such a block.
    trace.state = KernelState(trace.positions[-1].contiguous(), tuple(carry[1:]), block.steps.stop)


def _join(parts: list[Tensor], pieces: list[slice], axis: int) -> Tensor:
    """Put the pieces of the chains beside each other; where two overlap they are equal."""
    if len(parts) == 1:
        return parts[0]
    kept = [
        part.narrow(axis, 0, (after.start if after else piece.stop) - piece.start)
        for part, piece, after in zip(parts, pieces, [*pieces[1:], None], strict=True)
    ]
    return torch.cat(kept, axis)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Run on one thread: for small chains two spend more time waiting for each other than they save."""
    before = torch.get_num_threads()
    if before > 1:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if before > 1:
            torch.set_num_threads(before)


@contextlib.contextmanager
def threads_for(position: Tensor, many_from: int) -> Iterator[None]:
    """Run small chains on one thread: two spend more time waiting for each other than they save, and far more on a busy machine."""
    if position.numel() >= many_from:
        yield
        return
    with one_thread():
        yield
