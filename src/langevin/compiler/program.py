"""Run recordings as compiled C, or operation by operation if that fails."""

from __future__ import annotations

import ctypes
import functools
import threading
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.linalg import LinAlgError  # type: ignore[attr-defined]

from langevin.checks import level_of_caller
from langevin.compiler import record as recording
from langevin.compiler.build import CompilerError, load
from langevin.compiler.graph import UncoveredError, operator_of
from langevin.compiler.lower import SINGULAR
from langevin.compiler.record import Snapshot, Tape, UnrecordableError, Value
from langevin.compiler.runtime import with_linear_algebra
from langevin.compiler.source import ENTRY, TAKES_LINALG, write

Run: TypeAlias = Callable[[Sequence[Tensor]], list[Tensor]]
Evaluate: TypeAlias = Callable[[Tensor, tuple[Tensor, ...]], Sequence[Tensor]]

_P, _I = ctypes.c_void_p, ctypes.c_int64


class Layout(NamedTuple):
    """The layout that a program expects of an input."""

    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype


class Program:
    """A recording compiled for other inputs of equal layout.

    Args:
        tape: the recording; its tensors, constants excepted, are released.
    """

    def __init__(self, tape: Tape) -> None:
        """Compile.

        Raises:
            UncoveredError: an operation is not covered.
            CompilerError: there is no compiler, or it failed.
        """
        source = write(tape)
        self.parameters = (ctypes.c_double * max(1, len(source.parameters)))(*source.parameters)
        self.constants, self.workspace = source.constants, source.workspace
        self.callees = [callee for callee in tape.callees if isinstance(callee, Program)]
        self.library = _library(source.text, source.flags)
        self.entry = getattr(self.library, ENTRY)
        self.inputs = [Layout(t.shape, t.stride(), t.dtype) for t in tape.inputs]
        results = [tape.tensors[value] for value in tape.results]
        self.outputs = [(tensor.shape, tensor.dtype) for tensor in results]
        self.uses_blas: bool = TAKES_LINALG in source.text or any(p.uses_blas for p in self.callees)
        self.storages = [tensor.untyped_storage() for tensor in self.constants]
        self._memory = [(storage.data_ptr(), storage.nbytes()) for storage in self.storages]
        self._local = threading.local()

    def __call__(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Run on the calling thread, and return new tensors."""
        if not hasattr(self._local, "bound"):
            self._local.bound = Bound(self)
        results: list[Tensor] = self._local.bound(inputs)
        return results

    def check(self) -> None:
        """Fail if a constant's memory moved, since the program's tables hold its address."""
        if [(storage.data_ptr(), storage.nbytes()) for storage in self.storages] != self._memory:
            raise RuntimeError(
                "a tensor that the target closes over was resized during the run: "
                "targets must be pure functions"
            )


@functools.cache
def _library(text: str, flags: tuple[str, ...]) -> ctypes.CDLL:
    if TAKES_LINALG not in text:
        return load(text, flags)
    return with_linear_algebra(text, lambda: load(text, flags))


class Bound:
    """A program with its own workspace; one for each thread."""

    def __init__(self, program: Program) -> None:
        """Allocate."""
        self.program = program
        self._workspace = torch.empty(program.workspace + 64, dtype=torch.uint8)
        self.callees = [Bound(callee) for callee in program.callees]
        self._constants = _pointers([tensor.data_ptr() for tensor in program.constants])
        self._calls = _pointers([address for callee in self.callees for address in callee.table])

    def check(self) -> None:
        """Fail if memory that the code reads has moved."""
        for bound in (self, *self.callees):
            bound.program.check()

    @property
    def table(self) -> list[int]:
        """The addresses of code, constants, parameters and workspace."""
        code = ctypes.cast(self.program.entry, _P).value or 0
        base = -(-self._workspace.data_ptr() // 64) * 64
        constants, parameters = self._constants, self.program.parameters
        return [code, ctypes.addressof(constants), ctypes.addressof(parameters), base]

    @property
    def calls(self) -> int:
        """The address of the table of called programs."""
        return ctypes.addressof(self._calls)

    def __call__(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Run, and return new tensors."""
        program = self.program
        given = []
        for tensor, layout in zip(inputs, program.inputs, strict=True):
            if tensor.dtype is not layout.dtype or tensor.shape != layout.shape:
                found = f"{tuple(tensor.shape)} of {tensor.dtype}"
                raise RuntimeError(f"compiled code takes {layout}, got {found}")
            if tensor.stride() != layout.stride or tensor.is_neg() or tensor.is_conj():
                copy = torch.empty_strided(layout.shape, layout.stride, dtype=layout.dtype)
                tensor = copy.copy_(tensor)
            given.append(tensor)
        self.check()
        results = [torch.empty(shape, dtype=dtype) for shape, dtype in program.outputs]
        pointers = _pointers([tensor.data_ptr() for tensor in (*given, *results)])
        raise_for(program.entry(pointers, *map(_P, self.table[1:]), _P(self.calls)))
        return results


def _pointers(addresses: list[int]) -> ctypes.Array[ctypes.c_void_p]:
    """Return a C array, with room for one entry if empty, so that it has an address."""
    return (_P * max(1, len(addresses)))(*addresses)


def raise_for(bad: int) -> None:
    """Raise an error for the code that a program returned."""
    if bad & SINGULAR:
        raise LinAlgError("a matrix of the target is singular, or not positive definite")
    if bad:
        raise IndexError(
            "index out of range in compiled code: an index of the target points outside its tensor"
        )


def replay(tape: Tape) -> Run:
    """Return a function that runs a recording operation by operation, without autograd or vmap."""
    constants = {Value("constant", k): tensor for k, tensor in enumerate(tape.constants)}
    functions = [None if o.name == recording.CALL else operator_of(o.name) for o in tape.operations]
    operations, results, callees = tape.operations, tape.results, tape.callees

    def run(inputs: Sequence[Tensor]) -> list[Tensor]:
        known = {Value("input", k): tensor for k, tensor in enumerate(inputs)} | constants
        with torch.no_grad():
            for function, (_, arguments, options, made) in zip(functions, operations, strict=True):
                found, named = recording.substitute((arguments, options), known.__getitem__)
                # None stands for a call of a compiled program.
                out = function(*found, **named) if function else callees[found[0]](found[1:])
                leaves: Any = recording.leaves_of(out)
                for value, tensor in zip(made, leaves, strict=True):
                    if value is not None:
                        known[value] = tensor
        return [known[value] for value in results]

    return run


_warned: set[str] = set()


def compile_tape(tape: Tape) -> Program | Run:
    """Compile a recording; if that fails, warn once per reason and return its replay."""
    try:
        return Program(tape)
    except (UncoveredError, CompilerError) as error:
        reason = str(error)
        if reason not in _warned:
            _warned.add(reason)
            text = f"This runs operation by operation, which is slower than compiled code: {reason}"
            warnings.warn(text, stacklevel=level_of_caller())
        return replay(tape)


class CompiledFunction:
    """A compiled function of each chain's position, for any number of chains.

    Other recordings call its program.

    Args:
        evaluate: takes positions (chains, dim) and random tensors (chains, ...); returns tensors
            (chains, ...).
        position: positions to record with, (chains, dim); the program runs on this many chains at
            a time.
        drawn: random tensors to record with.

    Raises:
        UnrecordableError: it cannot be recorded.
    """

    def __init__(self, evaluate: Evaluate, position: Tensor, drawn: tuple[Tensor, ...]) -> None:
        """Record and compile."""
        self._evaluate, self._chains = evaluate, len(position)
        self._inputs = [dense(tensor) for tensor in (position, *drawn)]
        others = [dense(position.flip(0) * 0.5), *self._inputs[1:]]
        tape = recording.agreeing(self._record(self._inputs), self._record(others))
        for value in tape.results:
            if tape.tensors[value].shape[:1] != position.shape[:1]:
                raise UnrecordableError("a result without an axis of chains")
        self.elements = sum(tensor.numel() for tensor in tape.tensors.values())
        self.program = compile_tape(tape)
        self._snapshot = Snapshot.of(tape)

    def _record(self, given: list[Tensor]) -> Tape:
        with torch.no_grad():
            return recording.record(lambda: list(self._evaluate(given[0], tuple(given[1:]))), given)

    def has_changed(self) -> bool:
        """Return whether the function differs from its recording."""
        return not self._snapshot.matches(self._record(self._inputs))

    def __call__(self, position: Tensor, drawn: tuple[Tensor, ...] = ()) -> list[Tensor]:
        """Run; an active recorder records a single call."""
        inputs = [dense(tensor) for tensor in (position, *drawn)]
        chains, size = len(position), self._chains
        recorder = recording.current()
        if recorder is not None and not recorder.is_paused:
            if chains == size and isinstance(self.program, Program):
                return recorder.call(self.program, inputs)
            return list(self._evaluate(position, drawn))
        known = zip(inputs, self._inputs, strict=True)
        if any(a.dtype is not b.dtype or a.shape[1:] != b.shape[1:] for a, b in known):
            return list(self._evaluate(position, drawn))
        if chains == size:
            return list(self.program(inputs))
        parts = []
        for start in range(0, chains, size):
            piece = [tensor[start : start + size] for tensor in inputs]
            missing = size - len(piece[0])
            if missing:  # repeat the last chain
                piece = [torch.cat([x, x[-1:].expand(missing, *x.shape[1:])]) for x in piece]
            parts.append(self.program(piece))
        return [torch.cat(column)[:chains] for column in zip(*parts, strict=True)]


def dense(tensor: Tensor) -> Tensor:
    """Return a tensor without gaps whose strides depend on its shape only."""
    return tensor.contiguous().view(-1).view(tensor.shape)


def to_lanes(tensor: Tensor, in_lanes: bool) -> Tensor:
    """Move the first axis, of chains, to the end, if `in_lanes`."""
    return tensor.movedim(0, -1) if in_lanes else tensor


def from_lanes(tensor: Tensor, in_lanes: bool) -> Tensor:
    """Move the last axis, of chains, to the front, if `in_lanes`."""
    return tensor.movedim(-1, 0) if in_lanes else tensor


# The loop over the steps of a block: `loop.c`.


class _Rows(ctypes.Structure):
    _names = "position", "energy", "norm", "gradient", "residual", "sound"
    _fields_ = [(name, _P) for name in _names] + [
        (f"{name}_stride", _I) for name in ("position", "number", "gradient")
    ]


class _Job(ctypes.Structure):
    _fields_ = [
        *((name, _P) for name in ("run", "constants", "parameters", "workspace", "calls")),
        *((name, _I) for name in ("is_double", "steps", "every", "chains", "dim")),
        *((name, _I) for name in ("num_carried", "num_moving", "num_elements", "in_lanes")),
        *((name, _P) for name in ("elements", "io", "carried", "moving", "strides")),
        *((name, _P) for name in ("energy", "norm", "gradient", "first_position")),
        ("rows", _Rows),
    ]


class LoopRows(NamedTuple):
    """The tensors of a trace that a loop fills: contiguous, of all chains, (rows, chains, ...)."""

    position: Tensor
    energy: Tensor
    norm: Tensor
    gradient: Tensor
    residual: Tensor | None  # if a row has several steps
    sound: Tensor | None


@functools.cache
def _loop() -> Callable[[object], int]:
    return load(Path(__file__).with_name("loop.c").read_text()).lv_loop


class Loop:
    """The steps of a block for some of the chains, on the calling thread.

    Args:
        bound: a step, with its own workspace.
        like: the tensors that a step takes and returns, the position first, (chains, ...).
        elements: of the gradient to keep, int64; None for all.
        in_lanes: whether carried tensors and gradients are (dim, chains).
    """

    def __init__(
        self, bound: Bound, like: Sequence[Tensor], elements: Tensor | None, in_lanes: bool
    ) -> None:
        """Allocate."""
        self._bound, self._elements, self._in_lanes = bound, elements, in_lanes
        chains, dim = like[0].shape
        self._chains, self._dim = chains, dim
        self._count = dim if elements is None else len(elements)
        lanes = [to_lanes(tensor, in_lanes) for tensor in like]
        self._carried = [tensor.new_empty((2, *tensor.shape)) for tensor in lanes]
        shape = lanes[0].shape
        sizes = (2, chains), (2, chains), (2, *shape), tuple(shape)
        self._scratch = [like[0].new_empty(size) for size in sizes]

    def __call__(
        self,
        carried: Sequence[Tensor],
        moving: Sequence[Tensor],
        rows: LoopRows,
        first: int,
        steps: int,
        every: int,
    ) -> list[Tensor]:
        """Take steps and write their rows; return the carried tensors.

        Args:
            carried: initial tensors, (chains, dim) each.
            moving: other inputs, (steps, ...) each, contiguous except for the first axis.
            rows: tensors to fill.
            first: the first of these chains.
            steps: at most the length of `moving`.
            every: steps per row.
        """
        bound, program = self._bound, self._bound.program
        for buffer, tensor in zip(self._carried, carried, strict=True):
            buffer[0].copy_(to_lanes(tensor, self._in_lanes))
        self._check(carried, moving, rows, first, steps, every)
        bound.check()
        size = carried[0].element_size()
        tables = (
            _pointers([0] * (len(program.inputs) + len(program.outputs))),
            _pointers([half.data_ptr() for buffer in self._carried for half in buffer]),
            _pointers([tensor.data_ptr() for tensor in moving]),
            (_I * max(1, len(moving)))(*(t.stride(0) * t.element_size() for t in moving)),
        )
        widths = self._dim, 1, 1, self._count, 1, 1
        at = _Rows(
            *(
                None if row is None else row.data_ptr() + first * width * size
                for row, width in zip(rows, widths, strict=True)
            ),
            *(row.stride(0) * size for row in (rows.position, rows.energy, rows.gradient)),
        )
        is_double = int(carried[0].dtype == torch.float64)
        numbers = steps, every, self._chains, self._dim, len(carried), len(moving), self._count
        job = _Job(
            *(*bound.table, bound.calls, is_double, *numbers, int(self._in_lanes)),
            None if self._elements is None else self._elements.data_ptr(),
            *(ctypes.addressof(each) for each in tables),
            *(tensor.data_ptr() for tensor in self._scratch),
            at,
        )
        raise_for(_loop()(ctypes.byref(job)))
        return [from_lanes(buffer[steps & 1], self._in_lanes) for buffer in self._carried]

    def _check(
        self,
        carried: Sequence[Tensor],
        moving: Sequence[Tensor],
        rows: LoopRows,
        first: int,
        steps: int,
        every: int,
    ) -> None:
        """Fail if the code would access memory outside a tensor."""
        chains, dtype, number = self._chains, carried[0].dtype, len(carried)
        program, kept = self._bound.program, steps // every
        given = [(tuple(layout.shape), layout.dtype) for layout in program.inputs]
        returned = [(tuple(shape), dtype_) for shape, dtype_ in program.outputs]
        widths = self._dim, 1, 1, self._count, *((1, 1) if every > 1 else ())
        good = (
            len(given) == number + len(moving)
            and steps % every == 0
            and returned[:number] == given[:number]
            and given[:number] == [(tuple(b.shape[1:]), b.dtype) for b in self._carried]
            and [torch.Size(shape).numel() for shape, _ in returned[number:]]
            == [chains, chains, chains * self._dim]
            and all(dtype_ is dtype for _, dtype_ in returned[number:])
            and all(
                (len(tensor) >= steps and tensor.dtype is layout.dtype)
                and tensor.shape[1:] == layout.shape
                and (steps == 0 or tensor[0].is_contiguous())
                for tensor, layout in zip(moving, program.inputs[number:], strict=True)
            )
            and all(
                row is not None and _has_room(row, dtype, kept, (first + chains) * width)
                for row, width in zip(rows, widths, strict=False)
            )
        )
        if not good:
            shapes = [tuple(tensor.shape) for tensor in (*carried, *moving)]
            text = f"a block does not fit its compiled code: {program.inputs}, got {shapes}"
            raise RuntimeError(text)


def _has_room(tensor: Tensor, dtype: torch.dtype, count: int, numbers: int) -> bool:
    """Return whether a tensor has room for `count` rows of `numbers` elements."""
    good = tensor.is_contiguous() and tensor.dtype is dtype and len(tensor) >= count
    return good and (count == 0 or tensor[0].numel() >= numbers)
