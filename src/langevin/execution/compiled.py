"""Run blocks of steps as compiled C; they differ from eager steps in rounding only.

A step (kernel update, energy and gradient) is recorded, written as C and compiled
(`langevin.compiler`). Step size, settings, metric and data are arguments of the code, so changing
them compiles nothing. Large runs are cut into pieces of the chains that fit the cache, which
threads share.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from langevin.compiler.program import (
    Bound,
    Loop,
    LoopRows,
    Program,
    compile_tape,
    dense,
    from_lanes,
    to_lanes,
)
from langevin.compiler.record import Snapshot, Tape, UnrecordableError, agreeing, record
from langevin.compiler.runtime import one_blas_thread, one_thread, run_in_threads
from langevin.execution.blocks import Block, Trace, compiled_length, stack_inputs
from langevin.execution.settings import settings_of, structure_of, with_settings
from langevin.kernels import Kernel, KernelState, StepInputs
from langevin.targets import Evaluation
from langevin.targets.gradients import CompiledEvaluation, GradientFn

__all__ = ["MANY_THREADS_FROM", "Compiled", "Pace", "Rows", "compile_pays", "threads_for"]

MANY_THREADS_FROM = 2**14  # elements of all chains, for work on all steps of a block at once
_COMPILE_SECONDS = 0.5  # to record, write and compile
# Measured seconds of an eager step on one thread: of a closed form, of automatic differentiation;
# in addition per element of all chains, and per number of the data that they read.
_CLOSED_FORM, _AUTOMATIC, _PER_ELEMENT, _PER_NUMBER = 1.2e-4, 8e-4, 3e-8, 1e-8
_LANES_FROM, _MOST_LANED = 16, 4  # chains, and elements of a chain
_MOST_EVERY = 16
_THREADS_FROM = 2**15  # numbers computed in a step
_CACHE = 2**17  # bytes of a step's workspace that fit in a core's cache
_LEAST_CHAINS = 64  # of a piece
_MOST_NUMBERS = 2**28  # per block: about a quarter of a second, the longest that Ctrl-C waits


def compile_pays(
    num_steps: int,
    position: Tensor,
    columns: Sequence[Tensor],
    batch_size: int | None,
    closed_form: bool,
) -> bool:
    """Return whether a run is long enough to compile; depends on sizes only, not on timings.

    Assumes a CPU, half a second to compile, and eager steps of 0.12 ms for a closed form, 0.8 ms
    for other targets, plus 30 ns per element of all chains and 10 ns per number of the data that
    all chains read.
    """
    if not position.is_cpu:
        return False
    rows = 0 if not columns else len(columns[0]) if batch_size is None else batch_size
    numbers = len(position) * rows * sum(column[0].numel() for column in columns)
    seconds = _CLOSED_FORM if closed_form else _AUTOMATIC
    seconds += _PER_ELEMENT * position.numel() + _PER_NUMBER * numbers
    return num_steps * seconds > _COMPILE_SECONDS


class Rows(NamedTuple):
    """The rows and elements that a trace needs."""

    thinned: int = 1  # of this many consecutive steps only the last is kept
    elements: tuple[int, ...] | None = None  # of the gradient that are kept; None for all


class Pace(NamedTuple):
    """The steps of a row and of a block."""

    every: int  # steps per row of the trace
    length: int  # steps of a block; blocks begin at multiples of it, and only the last is shorter
    elements: tuple[int, ...] | None


class Compiled:
    """Runs blocks of steps as compiled code.

    Args:
        kernel: the sampler.
        gradient_fn: the gradient.
        rows: what the trace keeps.
        adjustable: whether the kernel's settings are inputs of the code, so that `adjust` need not
            compile again.
    """

    def __init__(
        self, kernel: Kernel, gradient_fn: GradientFn, rows: Rows, adjustable: bool = False
    ) -> None:
        """Record nothing yet."""
        self._settings = settings_of(kernel) if adjustable else []
        self._kernel, self._gradient_fn, self._rows = kernel, gradient_fn, rows
        self._step: Any = None
        self._pace: Pace | None = None
        self._snapshot: Snapshot | None = None
        self._first: tuple[Block, KernelState] | None = None
        self._pieces: list[slice] = []
        self._by_chain: tuple[int, ...] = ()
        self._in_lanes = False

    def prepare(self, block: Block, state: KernelState) -> Pace:
        """Record and compile a step, unless that was done; return the steps of rows and blocks."""
        if self._pace is not None:
            return self._pace
        position = state.position
        if not position.is_cpu:
            raise UnrecordableError(f"compiled blocks are for the CPU, not for {position.device}")
        chains, dim = position.shape
        is_small = chains >= _LANES_FROM and dim <= _MOST_LANED
        self._in_lanes = is_small and self._kernel.traits.group_size == 1
        self._by_chain = tuple(stack_inputs(block.inputs, position)[1])
        tape = self._record(block, state)
        self._snapshot, self._first = Snapshot.of(tape), (block, state)
        self._step = compile_tape(tape)
        every = max(n for n in range(1, _MOST_EVERY + 1) if self._rows.thinned % n == 0)
        if not isinstance(self._step, Program):
            every = 1
        made = tape.num_numbers() * len(self._pieces)
        drawn = sum(tensor[0].numel() for tensor in block.drawn)
        drawn += self._kernel.traits.num_noises * position.numel()
        length = compiled_length(position, drawn, every)
        length = max(every, min(length, _MOST_NUMBERS // max(1, made) // every * every))
        elements = self._rows.elements if every > 1 or block.drawn else None
        self._pace = Pace(every, length, elements)
        return self._pace

    def adjust(self, kernel: Kernel) -> bool:
        """Take the settings of another kernel; return whether the code fits it."""
        if not self._settings or structure_of(kernel) != structure_of(self._kernel):
            return False
        self._kernel, self._settings = kernel, settings_of(kernel)
        return True

    def has_changed(self) -> bool:
        """Return whether a step differs from its recording, as impure targets may."""
        if self._snapshot is None or self._first is None:
            return False
        inner = self._gradient_fn.evaluate
        if isinstance(inner, CompiledEvaluation) and inner.has_changed():
            return True
        with torch.no_grad(), one_thread():
            return not self._snapshot.matches(self._record_once(*self._first, 1.0))

    def _record(self, block: Block, state: KernelState) -> Tape:
        """Choose the pieces of the chains, and record a step of the first one."""
        chains, threads = len(state.position), torch.get_num_threads()
        self._pieces = _pieces(self._kernel, chains, chains)
        tape = self._record_piece(block, state)
        made = sum(tensor.numel() for tensor in tape.tensors.values())
        size = chains
        if made >= _THREADS_FROM and not self._kernel.traits.differs_by_chain:
            size = -(-chains // threads)
            bytes_each = made * state.position.element_size() / chains
            constant = sum(tensor.numel() * tensor.element_size() for tensor in tape.constants)
            fitting = max(_LEAST_CHAINS, int(max(_CACHE, constant) / bytes_each))
            size = min(size, fitting)
        self._pieces = _pieces(self._kernel, chains, size)
        return tape if len(self._pieces) == 1 else self._record_piece(block, state)

    def _record_piece(self, block: Block, state: KernelState) -> Tape:
        with torch.no_grad(), one_thread():
            return agreeing(*(self._record_once(block, state, scale) for scale in (1.0, 0.5)))

    def _record_once(self, block: Block, state: KernelState, scale: float) -> Tape:
        carried, moving = self._given(block, state, self._pieces[0])
        given = [dense(to_lanes(tensor, self._in_lanes) * scale) for tensor in carried]
        given += [dense(tensor[0]) for tensor in moving]
        return record(lambda: self._steps(given, len(carried)), given)

    def _steps(self, given: Sequence[Tensor], num_carried: int) -> list[Tensor]:
        """Take one step; return the carried tensors, energy, norm and gradient."""
        lanes = self._in_lanes
        position, *state = (from_lanes(tensor, lanes) for tensor in given[:num_carried])
        noise, numbers, *rest = given[num_carried:]
        fields = [numbers[field] for field in range(len(numbers))]
        for field, tensor in zip(self._by_chain, rest, strict=False):
            fields[field] = tensor
        count = len(rest) - len(self._settings)
        drawn, settings = rest[len(self._by_chain) : count], rest[count:]
        kernel = with_settings(self._kernel, settings) if settings else self._kernel
        evaluation = Evaluation(*self._gradient_fn.evaluate(position, tuple(drawn)))
        here = noise.movedim(-1, -2) if lanes else noise
        inputs = StepInputs(*fields)
        moved, after = kernel.update(position, evaluation, here, tuple(state), inputs)
        norm = torch.linalg.vector_norm(evaluation.gradient, dim=-1)
        pairs = zip((moved, *after), (position, *state), strict=True)
        carried = [to_lanes(new.to(old.dtype).expand_as(old), lanes) for new, old in pairs]
        results = evaluation.energy, norm, evaluation.gradient
        energy, norm, gradient = (tensor.to(position.dtype) for tensor in results)
        return [*carried, energy, norm, to_lanes(gradient, lanes)]

    def _given(
        self, block: Block, state: KernelState, piece: slice
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Return the initial tensors of some chains, and the inputs of steps, (steps, ...) each."""
        numbers, tensors = stack_inputs(block.inputs, state.position)
        noise = block.noise.of(piece, in_lanes=self._in_lanes)
        by_chain = (tensor[:, piece] for tensor in (*tensors.values(), *block.drawn))
        settings = (tensor.expand(len(noise), *tensor.shape) for tensor in self._settings)
        moving = [noise, numbers, *by_chain, *settings]
        carried = [tensor[piece] for tensor in (state.position, *state.tensors)]
        return carried, [t if t[0].is_contiguous() else t.contiguous() for t in moving]

    def run(self, block: Block, trace: Trace, *, every: int | None = None) -> None:
        """Take the block's steps."""
        pace = self.prepare(block, trace.state)
        every, like, steps = every or pace.every, trace.state.position, len(block.steps)
        elements = pace.elements if every == pace.every else None
        kept = None if elements is None else torch.tensor(elements)
        shape, dim = (steps // every, len(like)), like.shape[-1]
        rows = LoopRows(
            like.new_empty(*shape, dim),
            like.new_empty(shape),
            like.new_empty(shape),
            like.new_empty(*shape, dim if elements is None else len(elements)),
            *(like.new_empty(shape) if every > 1 else None for _ in range(2)),
        )
        ends = [torch.empty_like(tensor) for tensor in (like, *trace.state.tensors)]
        loops: list[Any] = []

        def work(begin: int, end: int) -> None:
            with torch.no_grad():  # for the thread that this runs on
                first = [tensor[self._pieces[0]] for tensor in ends]
                loop = loops.pop() if loops else self._new_loop(first, kept)
                for piece in self._pieces[begin:end]:
                    given, moving = self._given(block, trace.state, piece)
                    found = loop(given, moving, rows, piece.start, steps, every)
                    for whole, part in zip(ends, found, strict=True):
                        whole[piece] = part
                loops.append(loop)

        if len(self._pieces) == 1:
            with one_thread():
                work(0, 1)
        else:
            uses_blas = isinstance(self._step, Program) and self._step.uses_blas
            with one_blas_thread() if uses_blas else contextlib.nullcontext():
                run_in_threads(work, len(self._pieces), 1)
        trace.positions, trace.energies, trace.norms, trace.gradients = rows[:4]
        trace.every, trace.residuals, trace.sound = every, rows.residual, rows.sound
        trace.state = KernelState(ends[0], tuple(ends[1:]), block.steps.stop)

    def _new_loop(self, like: Sequence[Tensor], kept: Tensor | None) -> Any:
        if isinstance(self._step, Program):
            return Loop(Bound(self._step), like, kept, self._in_lanes)
        return functools.partial(_replay, self._step, kept, self._in_lanes)


def _replay(
    take_step: Callable[[Sequence[Tensor]], list[Tensor]],
    kept: Tensor | None,
    lanes: bool,
    carried: Sequence[Tensor],
    moving: Sequence[Tensor],
    rows: LoopRows,
    first: int,
    steps: int,
    every: int,
) -> list[Tensor]:
    """Run the steps of a `Loop` operation by operation, with a row for each."""
    now = [to_lanes(tensor, lanes) for tensor in carried]
    piece = slice(first, first + len(carried[0]))
    for step in range(steps):
        given = [*map(dense, now), *(dense(tensor[step]) for tensor in moving)]
        *now, energy, norm, gradient = take_step(given)
        gradient = from_lanes(gradient, lanes)
        rows.position[step, piece] = from_lanes(now[0], lanes)
        rows.energy[step, piece], rows.norm[step, piece] = energy, norm
        rows.gradient[step, piece] = gradient if kept is None else gradient.index_select(-1, kept)
    return [from_lanes(tensor, lanes) for tensor in now]


def _pieces(kernel: Kernel, chains: int, size: int) -> list[slice]:
    """Cut the chains into pieces of equal size; the last one may overlap the one before."""
    group = kernel.traits.group_size
    many = -(-chains // max(1, size))
    size = -(-(chains // group) // many) * group
    return [
        slice(min(start, chains - size), min(start, chains - size) + size)
        for start in range(0, chains, size)
    ]


def threads_for(position: Tensor, many_from: int) -> AbstractContextManager[None]:
    """Return a context that runs small chains on one thread, where several would be slower."""
    return contextlib.nullcontext() if position.numel() >= many_from else one_thread()
