"""Turn a recording into steps on buffers: resolve views, fold constants, drop unused operations.

A buffer is an input, a constant, an output or a part of the workspace. An access is a strided view
of a buffer, which stands for a tensor or for a view of one.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from langevin.compiler.record import CALL, Operation, Tape, Tree, Value, substitute

CTYPES = {
    **{torch.float64: "double", torch.float32: "float", torch.int64: "int64_t"},
    **{torch.int32: "int32_t", torch.int16: "int16_t", torch.int8: "int8_t"},
    **{torch.uint8: "uint8_t", torch.bool: "uint8_t"},
}
_FILLS = {
    *("zeros", "ones", "full", "new_zeros", "new_ones", "new_full"),
    *("zeros_like", "ones_like", "full_like", "scalar_tensor"),
}
_MOST_FOLDED = 2**22  # elements of a constant that is computed while compiling


class UncoveredError(RuntimeError):
    """An operation has no C code; the message names it."""


class Buffer(NamedTuple):
    """Memory: `kind` is "input", "constant", "output" or "work"."""

    kind: str
    number: int
    dtype: torch.dtype
    numel: int

    @property
    def name(self) -> str:
        """Its name in C."""
        return f"{self.kind[0].upper()}{self.number}"


class Access(NamedTuple):
    """A strided view of a buffer, in elements."""

    buffer: Buffer
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of its buffer."""
        return self.buffer.dtype

    @property
    def ctype(self) -> str:
        """The C type of its elements."""
        return CTYPES[self.buffer.dtype]

    @property
    def numel(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def is_contiguous(self) -> bool:
        """Whether its elements are adjacent in memory, in order."""
        dense = zip(self.shape, self.strides, contiguous(self.shape), strict=True)
        return all(size == 1 or stride == expected for size, stride, expected in dense)

    def at(self, indices: Sequence[str]) -> str:
        """Return the C expression of an element."""
        terms = [str(self.offset)] if self.offset else []
        for index, size, stride in zip(indices, self.shape, self.strides, strict=True):
            if size != 1 and stride != 0:
                terms.append(index if stride == 1 else f"{index}*{stride}L")
        return f"{self.buffer.name}[{'+'.join(terms) or '0'}]"

    def narrow(self, axis: int, start: int, length: int, step: int = 1) -> Access:
        """Return every `step`-th element of a range along an axis."""
        shape, strides = list(self.shape), list(self.strides)
        offset = self.offset + start * strides[axis]
        shape[axis], strides[axis] = length, strides[axis] * step
        return Access(self.buffer, offset, tuple(shape), tuple(strides))

    def select(self, axis: int, index: int) -> Access:
        """Return the elements at an index of an axis, without that axis."""
        return self.narrow(axis, index, 1).permute([k for k in range(len(self.shape)) if k != axis])

    def unsqueeze(self, axis: int, size: int = 1) -> Access:
        """Return it with another axis, of stride 0."""
        shape, strides = list(self.shape), list(self.strides)
        shape.insert(axis, size)
        strides.insert(axis, 0)
        return self._replace(shape=tuple(shape), strides=tuple(strides))

    def at_least_1d(self) -> Access:
        """Return it with at least one axis."""
        return self if self.shape else self.unsqueeze(0)

    def permute(self, axes: Sequence[int]) -> Access:
        """Return it with these axes, in this order."""
        shape, strides = (tuple(each[axis] for axis in axes) for each in (self.shape, self.strides))
        return self._replace(shape=shape, strides=strides)

    def transpose(self) -> Access:
        """Return it with the last two axes exchanged."""
        *lead, row, column = range(len(self.shape))
        return self.permute([*lead, column, row])

    def broadcast(self, shape: tuple[int, ...]) -> Access:
        """Return it expanded to a shape."""
        if self.shape == shape:
            return self
        missing = len(shape) - len(self.shape)
        strides = [0] * missing
        for size, stride, wanted in zip(self.shape, self.strides, shape[missing:], strict=True):
            strides.append(0 if size == 1 and wanted != 1 else stride)
        return Access(self.buffer, self.offset, shape, tuple(strides))

    def normal(self) -> tuple[Buffer, int, tuple[int, ...], tuple[int, ...]]:
        """Return a key: equal ones touch the same elements in the same order."""
        sizes = zip(self.shape, self.strides, strict=True)
        strides = tuple(0 if size == 1 else stride for size, stride in sizes)
        return self.buffer, self.offset, self.shape, strides


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a contiguous tensor."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


class Step(NamedTuple):
    """An operation on accesses; other arguments are as recorded."""

    name: str  # such as "add", without namespace and overload
    overload: str
    arguments: tuple[Any, ...]
    options: dict[str, Any]
    results: tuple[Access | None, ...]
    mutates: bool

    @property
    def base(self) -> str:
        """The name, without the underscore of operations in place."""
        return self.name[:-1] if self.mutates else self.name

    @property
    def reads(self) -> list[Access]:
        """The accesses that it reads, mutated ones included."""
        return _leaves(Access, (self.arguments, self.options))

    @property
    def writes(self) -> list[Access]:
        """The accesses that it writes."""
        return [access for access in self.results if access is not None]

    def out(self, number: int = 0) -> Access:
        """Return a result."""
        out = self.results[number]
        assert out is not None
        return out

    def get(self, position: int, name: str, default: Any = None) -> Any:
        """Return an argument, by position or by name."""
        if position < len(self.arguments):
            return self.arguments[position]
        return self.options.get(name, default)


class Graph(NamedTuple):
    """Steps in order, with their inputs, constants and results."""

    steps: list[Step]
    inputs: list[Access]
    constants: list[Tensor]
    results: list[Access]


def graph_of(tape: Tape) -> Graph:
    """Return a recording as a graph.

    Raises:
        UncoveredError: it has tensors of a dtype, device or layout without C code.
    """
    return _Builder(tape).build()


class _Builder:
    def __init__(self, tape: Tape) -> None:
        self.tape, self.steps = tape, list[Step]()
        self.known: dict[Value, Access] = {}
        self.constants: list[Tensor] = []
        self.folded: set[Value] = set()
        # The storages that some operation mutates.
        changes = [o.arguments[:1] for o in tape.operations if _is_mutable(o)]
        self.mutated = {self._storage(value) for value in _leaves(Value, changes)}

    def _storage(self, value: Value) -> int:
        return self.tape.tensors[value].untyped_storage().data_ptr()

    def build(self) -> Graph:
        tape = self.tape
        inputs = [Value("input", number) for number in range(len(tape.inputs))]
        for value, tensor in zip(inputs, tape.inputs, strict=True):
            self.known[value] = self._given(tensor, "input", value.number)
        for number, tensor in enumerate(tape.constants):
            self._constant(Value("constant", number), tensor)
        for operation in tape.operations:
            self._add(operation)
        results = [self.known[value] for value in tape.results]
        steps = _needed(self.steps, results)
        return Graph(steps, [self.known[value] for value in inputs], self.constants, results)

    def _constant(self, value: Value, tensor: Tensor) -> None:
        self.known[value] = self._given(tensor, "constant", len(self.constants))
        self.constants.append(tensor)
        self.folded.add(value)

    def _given(self, tensor: Tensor, kind: str, number: int) -> Access:
        buffer = Buffer(kind, number, tensor.dtype, tensor.numel())
        article = "an" if kind == "input" else "a"
        return self._fresh(tensor, buffer, f"{article} {kind}")._replace(offset=0)

    def _fresh(self, tensor: Tensor, buffer: Buffer, what: str) -> Access:
        if tensor.dtype not in CTYPES or not tensor.is_cpu or tensor.layout is not torch.strided:
            raise UncoveredError(f"{what} is a tensor of {tensor.dtype} on {tensor.device}")
        if tensor.is_neg() or tensor.is_conj() or tensor._is_zerotensor():
            raise UncoveredError(f"{what} is a tensor with a lazy conjugate, negative or zero bit")
        shape, strides = tuple(tensor.shape), tuple(tensor.stride())
        return Access(buffer, int(tensor.storage_offset()), shape, strides)

    def _add(self, operation: Operation) -> None:
        values = _leaves(Value, (operation.arguments, operation.options))
        mutates = _is_mutable(operation)
        is_pure = operation.name != CALL and not mutates
        made = dict.fromkeys(v for v in operation.results if v is not None)
        new = [value for value in made if value not in self.known]
        if is_pure and self._can_fold(operation, values):
            for value in new:
                self._constant(value, self.tape.tensors[value])
            return
        is_view = is_pure
        for value in new:
            tensor = self.tape.tensors[value]
            parent = None if operation.name == CALL else self._parent(tensor, values)
            if parent is not None:
                self.known[value] = self._view(operation.name, tensor, parent)
            else:
                is_view = False
                size = tensor.untyped_storage().nbytes() // tensor.element_size()
                buffer = Buffer("work", len(self.known), tensor.dtype, max(1, size))
                self.known[value] = self._fresh(tensor, buffer, f"a result of {operation.name}")
        results = tuple(None if v is None else self.known[v] for v in operation.results)
        if is_view and any(results):
            return
        given = substitute((operation.arguments, operation.options), self.known.__getitem__)
        *_, name, overload = [*operation.name.split("."), ""][:3]
        self.steps.append(Step(name, overload, given[0], given[1], results, mutates))

    def _view(self, name: str, tensor: Tensor, parent: Value) -> Access:
        before = self.tape.tensors[parent]
        if before.dtype is not tensor.dtype:
            raise UncoveredError(f"{name} of another dtype")
        if tensor.is_neg() or tensor.is_conj():
            raise UncoveredError("a tensor with a lazy conjugate or negative bit")
        base = self.known[parent]
        moved = base.offset + int(tensor.storage_offset() - before.storage_offset())
        return Access(base.buffer, moved, tuple(tensor.shape), tuple(tensor.stride()))

    def _parent(self, tensor: Tensor, values: list[Value]) -> Value | None:
        """Return an argument that shares memory with a result."""
        if not tensor.numel():
            return None
        where, tensors = tensor.untyped_storage().data_ptr(), self.tape.tensors
        return next((v for v in values if tensors[v].numel() and self._storage(v) == where), None)

    def _can_fold(self, operation: Operation, values: list[Value]) -> bool:
        """Return whether an operation depends on constants only, and can be computed now."""
        made = [value for value in operation.results if value is not None]
        if not made or not all(value in self.folded for value in values):
            return False
        tensors = [self.tape.tensors[value] for value in made]
        if any(t.untyped_storage().data_ptr() in self.mutated for t in tensors):
            return False
        is_small = all(t.numel() <= _MOST_FOLDED for t in tensors)
        return is_small and operation.name.split(".")[1] not in _FILLS


def _leaves(kind: type, tree: Tree) -> list[Any]:
    leaves = tree_leaves(tree, is_leaf=lambda x: isinstance(x, kind))
    return [leaf for leaf in leaves if isinstance(leaf, kind)]


def _is_mutable(operation: Operation) -> bool:
    """Return whether an operation changes its first argument.

    Raises:
        UncoveredError: it changes something else.
    """
    if operation.name == CALL:
        return False
    schema = operator_of(operation.name)._schema
    if not schema.is_mutable:
        return False
    infos = [argument.alias_info for argument in schema.arguments]
    written = [info is not None and info.is_write for info in infos]
    is_first = written == [True] + [False] * (len(written) - 1)
    if not is_first or operation.results[:1] != operation.arguments[:1]:
        raise UncoveredError(operation.name)
    return True


@functools.cache
def operator_of(name: str) -> Any:
    """Return torch's operation for a name such as "aten.add.Tensor"."""
    return functools.reduce(getattr, name.split("."), torch.ops)


def _needed(steps: list[Step], results: list[Access]) -> list[Step]:
    """Drop the steps whose results are not read."""
    wanted = {access.buffer for access in results}
    kept = []
    for step in reversed(steps):
        if step.name == "_linalg_check_errors" or any(a.buffer in wanted for a in step.writes):
            kept.append(step)
            wanted |= {access.buffer for access in step.reads}
    return kept[::-1]
