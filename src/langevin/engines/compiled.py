"""A block of steps as one compiled loop; it differs from the eager steps in rounding only.

A turn of the loop is recorded (`tape`), the loop is written by torch's compiler in another process (`compiler`), kept on disk and
called (`loop`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from langevin.cpu.threads import one_thread, run_in_threads
from langevin.engines.blocks import Block, Trace, stack_inputs
from langevin.engines.loop import Loop, find, name_of
from langevin.engines.tape import Tape, UnrecordableError, agreeing, record, signature
from langevin.engines.turns import Turns
from langevin.gradients import GradientFn
from langevin.kernels import Kernel, KernelState, StepInputs
from langevin.targets import Evaluation

__all__ = ["MANY_THREADS_FROM", "Compiled", "compile_pays", "threads_for"]

MANY_THREADS_FROM = 2**14  # elements of all chains: what is done once a block, with all of its steps, pays for a second thread
_PIECES_FROM = 1024  # elements of a piece of the chains; below, a second thread has hardly woken up
_COMPILE_SECONDS = 8.0  # what compiling costs, measured: 6 to 10 seconds; nothing, where the code is on disk
_SPEED_UP = 4.0  # what it gains at the least, measured: 5 to 30 times
# Seconds of an eager step on one thread, measured: a closed form, a function differentiated automatically; then per element of all
# chains, and per number of the data that they look at.
_CLOSED_FORM, _AUTOMATIC, _PER_ELEMENT, _PER_NUMBER = 1.2e-4, 8e-4, 3e-8, 1e-8


def compile_pays(num_steps: int, position: Tensor, columns: Sequence[Tensor], batch_size: int | None, closed_form: bool) -> bool:
    """Say whether a run is long enough to pay for compiling: by sizes alone, so that the same call always decides the same.

    An eager step is taken to cost 0.12 ms for a closed form, 0.8 ms for other targets, plus 30 ns per element of all chains and
    10 ns per number of the data that all chains look at; compiling to cost 8 seconds and to save 3/4 of the rest. It is for the
    CPU: elsewhere steps are large, or chains few.
    """
    if not position.is_cpu:
        return False
    rows = 0 if not columns else len(columns[0]) if batch_size is None else batch_size
    numbers = len(position) * rows * sum(column[0].numel() for column in columns)
    seconds = (_CLOSED_FORM if closed_form else _AUTOMATIC) + _PER_ELEMENT * position.numel() + _PER_NUMBER * numbers
    return num_steps * seconds * (1 - 1 / _SPEED_UP) > _COMPILE_SECONDS


class Program(NamedTuple):
    """A turn that was recorded, and its code, which may not be there yet."""

    tape: Tape
    layouts: str  # of the tensors that the code takes
    code: Future[Path]


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


class Compiled:
    """Takes blocks of steps by compiled code.

    The code is written in another process when a block is first prepared. It depends on what was recorded, and on nothing else: a
    run that is begun anew with the same steps finds it on disk.

    Args:
        kernel: the sampler.
        gradient_fn: the gradient.
    """

    def __init__(self, kernel: Kernel, gradient_fn: GradientFn) -> None:
        """Nothing is recorded yet."""
        self._kernel, self._gradient_fn = kernel, gradient_fn
        self._programs: dict[Turns, Program] = {}
        self._loops: dict[Turns, Loop] = {}

    def prepare(self, block: Block, length: int, state: KernelState, turns: Turns) -> None:
        """Record a turn, and have its code written, unless that was done; return at once."""
        if turns not in self._programs:
            given = _Given(self._kernel, block, length, state, turns)
            self._programs[turns] = self._record(given, turns)

    def _record(self, given: _Given, turns: Turns) -> Program:
        position = given.state.position
        if not position.is_cpu:
            raise UnrecordableError(f"compiled blocks are for the CPU, not for {position.device}")
        elements = None if turns.elements is None else torch.tensor(turns.elements, device=position.device)
        carry, scanned = given.piece(_pieces(self._kernel, position)[0])
        update, evaluate = self._kernel.formula, self._gradient_fn.evaluate

        def recorded(carry: list[Tensor], at: int) -> tuple[Tape, list[Tensor]]:
            now = [tensor[at] for tensor in scanned]
            after: list[Tensor] = []

            def turn() -> list[Tensor]:
                moved, rows = _turn(turns, given.by_chain, update, evaluate, elements, carry, now)
                after.extend(moved)
                return [*moved, *rows]

            return record(turn, [*carry, *now]), after

        with torch.no_grad(), one_thread():
            first, after = recorded(carry, 0)
            tape = agreeing(first, recorded(after, -1)[0])
        name = name_of(tape, carry, scanned)
        path = find(name)
        code: Future[Path] = Future()
        if path is not None:
            code.set_result(path)
        else:
            from langevin.engines.compiler import build  # not needed where code is found

            code = build(name, tape, carry, scanned)
        return Program(tape, signature([*carry, *scanned, *tape.constants]), code)

    def run(self, block: Block, length: int, trace: Trace, turns: Turns, check: Callable[[], None] = lambda: None) -> None:
        """Take the block's steps; `length` is that of a full block, to which a shorter one is filled up: so there is one program.

        Chains that do not meet are cut into pieces, one for each thread: no thread waits for another before the end. `check` may
        end the waiting for the compiler by a KeyboardInterrupt.
        """
        self.prepare(block, length, trace.state, turns)
        loop = self._loop(turns, check)
        constants = self._programs[turns].tape.constants
        given, pieces = _Given(self._kernel, block, length, trace.state, turns), _pieces(self._kernel, trace.state.position)
        num_carried = 1 + len(trace.state.memory)

        def run(piece: slice) -> tuple[list[Tensor], list[Tensor]]:
            with torch.no_grad():  # for the thread that this runs on
                carry, scanned = given.piece(piece)
                results = loop([*carry, *scanned, *constants])
                return results[:num_carried], results[num_carried:]

        results = _run_pieces(run, pieces)
        with threads_for(trace.state.position, MANY_THREADS_FROM):
            _collect(results, pieces, turns, block, trace)

    def _loop(self, turns: Turns, check: Callable[[], None]) -> Loop:
        if turns not in self._loops:
            program = self._programs[turns]
            while not program.code.done():
                check()
                with contextlib.suppress(TimeoutError):
                    program.code.result(0.05)
            self._loops[turns] = Loop(program.code.result(), program.layouts, len(program.tape.results))
        return self._loops[turns]


class _Given:
    """What a block is made from: for a piece of the chains, what it starts from, and what it is scanned over."""

    def __init__(self, kernel: Kernel, block: Block, length: int, state: KernelState, turns: Turns) -> None:
        self.state, self._block, self._turns = state, block, turns
        self._missing = length - len(block.steps)
        numbers, tensors = stack_inputs(block.inputs, state.position)
        self.by_chain, self._numbers = tuple(tensors), self._turned(numbers)
        self._apart = [self._turned(tensor) for tensor in (*tensors.values(), *block.drawn)]

    def _turned(self, tensor: Tensor) -> Tensor:
        """Fill up a part of a block, and give each turn a row."""
        if self._missing:
            tensor = torch.cat([tensor, tensor[-1:].expand(self._missing, *tensor.shape[1:])])
        return tensor.unflatten(0, (len(tensor) // self._turns.steps, self._turns.steps))

    def piece(self, piece: slice) -> tuple[list[Tensor], list[Tensor]]:
        """Return both; without gaps, which compiled code would have to know of."""
        in_lanes = self._turns.in_lanes
        noise = self._turned(self._block.noise.of(piece, in_lanes=in_lanes))
        scanned = [noise, self._numbers, *(tensor[:, :, piece] for tensor in self._apart)]
        carry = [tensor[piece] for tensor in (self.state.position, *self.state.memory)]
        carry = [tensor.movedim(0, -1) if in_lanes else tensor for tensor in carry]
        return [_plain(tensor) for tensor in carry], [_plain(tensor) for tensor in scanned]


def _plain(tensor: Tensor) -> Tensor:
    """Return a tensor without gaps, whose strides follow from its shape: those of an axis of length 1 could be any."""
    return tensor.contiguous().flatten().view(tensor.shape)


def _pieces(kernel: Kernel, position: Tensor) -> list[slice]:
    """Cut the chains into as many pieces as there are threads, all of one size: the last may begin inside the one before."""
    group, chains = kernel.group_size, len(position)
    many = 1 if kernel.differs_by_chain else torch.get_num_threads()
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

    def parts(index: int, is_wide: bool = False) -> list[Tensor]:
        found = [traced[index].flatten(0, 1)[:count] for _, traced in results]
        return [part.movedim(-1, 1) if turns.in_lanes and is_wide else part for part in found]

    trace.every = turns.every
    trace.positions, trace.energies, trace.norms = (_join(parts(k, k == 0), pieces, 1) for k in range(3))
    trace.beside = _Beside(parts(3, True), pieces)
    if turns.every > 1:
        trace.residuals, trace.sound = (_join(parts(k), pieces, 1) for k in (4, 5))
    carries = [[back(tensor) for tensor in carry] for carry, _ in results]
    carry = [_join(list(parts), pieces, 0) for parts in zip(*carries, strict=True)]
    # The carry of a part of a block went on over the padding; nothing follows such a block.
    trace.state = KernelState(trace.positions[-1].contiguous(), tuple(carry[1:]), block.steps.stop)


class _Beside:
    """Pieces of the chains beside each other, joined when rows are asked for: of many gradients few are looked at."""

    def __init__(self, parts: list[Tensor], pieces: list[slice]) -> None:
        self._parts, self._pieces = parts, pieces

    def __getitem__(self, rows: Any) -> Tensor:
        return _join([part[rows] for part in self._parts], self._pieces, 1)


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
def threads_for(position: Tensor, many_from: int) -> Iterator[None]:
    """Run small chains on one thread: two spend more time waiting for each other than they save, and far more on a busy machine."""
    if position.numel() >= many_from:
        yield
        return
    with one_thread():
        yield
