"""Record the torch operations that a function runs, in order.

Functions must be pure. Two recordings at different positions must be equal before one is used: they
differ if Python branches on values, or if NumPy computes outside torch.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from langevin.compiler.decompositions import decomposition_of

CALL = "call"  # the name of an operation that runs another program
_DATA_TAGS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
_VIEWS_IN_PLACE = {
    *("squeeze_", "unsqueeze_", "t_", "transpose_", "swapaxes_", "swapdims_", "as_strided_")
}
_READS_BY_INDEX = {torch.ops.aten.index, torch.ops.aten._unsafe_index}
_INDEXED = _READS_BY_INDEX | {
    getattr(torch.ops.aten, name) for name in ("index_put", "index_put_", "_index_put_impl_")
}
_READS_VALUES = {Tensor.numpy, Tensor.__array__, Tensor.__dlpack__, Tensor.tolist, Tensor.data_ptr}

Tree: TypeAlias = Any  # nested tuples, lists and dicts of anything that torch's operations take
Callee: TypeAlias = Callable[[Sequence[Tensor]], list[Tensor]]  # a program that another one calls


class UnrecordableError(RuntimeError):
    """A function branches on values, leaves torch, or draws random numbers."""


class Value(NamedTuple):
    """A tensor of a recording: an "input", a "constant", or a "result" of an operation."""

    kind: str
    number: int


class Operation(NamedTuple):
    """One of torch's operations, or a call of another program."""

    name: str  # such as "aten.add.Tensor"
    arguments: tuple[Any, ...]  # tensors are `Value`s
    options: dict[str, Any]
    results: tuple[Value | None, ...]  # one for each result that is a tensor


class Tape(NamedTuple):
    """A recording; `tensors` holds the tensor of each value as it was then."""

    operations: list[Operation]
    inputs: list[Tensor]
    constants: list[Tensor]  # tensors that existed before, in the order of their first use
    results: list[Value]
    tensors: dict[Value, Tensor]
    callees: list[Callee]

    def text(self) -> str:
        """Return all but the values of tensors: equal texts are the same program."""
        constants = [_layout(tensor) for tensor in self.constants]
        return repr((self.operations, constants, self.results))

    def num_numbers(self) -> int:
        """Return how many numbers one run reads or computes, roughly.

        An operation counts with its largest tensor, a view with nothing, and an index with what it
        returns: a minibatch of a large data set is small.
        """
        return sum(map(self._num_numbers_of, self.operations))

    def _num_numbers_of(self, operation: Operation) -> int:
        made = [self.tensors[value] for value in operation.results if value is not None]
        read: list[Tensor] = []
        substitute(operation.arguments, lambda value: read.append(self.tensors[value]))
        name = operation.name.split(".")[1] if operation.name != CALL else CALL
        if not name.endswith("_"):
            memory = {tensor.untyped_storage().data_ptr() for tensor in read}
            if made and all(tensor.untyped_storage().data_ptr() in memory for tensor in made):
                return 0
        if "index" in name or name in ("gather", "embedding"):
            read = []
        return max((tensor.numel() for tensor in (*made, *read)), default=0)


def _layout(tensor: Tensor) -> tuple[object, ...]:
    lazy = tensor.is_conj(), tensor.is_neg(), tensor._is_zerotensor()
    about = tensor.dtype, tensor.device, tuple(tensor.shape), tensor.stride()
    return *about, *([lazy] if any(lazy) else [])


def substitute(tree: Tree, function: Callable[[Value], Any]) -> Tree:
    """Apply a function to each `Value` of a tree."""
    if isinstance(tree, Value):
        return function(tree)
    if isinstance(tree, (tuple, list)):
        return type(tree)(substitute(part, function) for part in tree)
    if isinstance(tree, dict):
        return {key: substitute(part, function) for key, part in tree.items()}
    return tree


def record(function: Callable[[], Sequence[Tensor]], inputs: Sequence[Tensor]) -> Tape:
    """Call a function and record its operations.

    Args:
        function: returns tensors.
        inputs: the tensors that later runs replace; all other tensors are constants.

    Raises:
        UnrecordableError: it reads values, leaves torch, draws random numbers, or mutates its
            inputs.
    """
    recorder = _Recorder(inputs)
    _active.recorders.append(recorder)
    try:
        with recorder, _RejectReads():
            results = function()
        values = [recorder.value(tensor) for tensor in results]
    finally:
        _active.recorders.pop()
    made = recorder.operations, list(inputs), recorder.constants, values
    return Tape(*made, recorder.tensors, recorder.callees)


def agreeing(first: Tape, second: Tape) -> Tape:
    """Return the first of two equal recordings.

    Raises:
        UnrecordableError: they differ, so the function is not determined by its operations.
    """
    if not Snapshot.of(first).matches(second):
        raise UnrecordableError(
            "two recordings differ: the function branches on values or leaves torch (NumPy?)"
        )
    return first


class Snapshot(NamedTuple):
    """What identifies a recording, without its intermediate tensors."""

    text: str
    constants: list[Tensor]
    versions: list[int]  # how often each constant had been changed in place

    @classmethod
    def of(cls, tape: Tape) -> Snapshot:
        """Return the snapshot of a recording."""
        return cls(tape.text(), tape.constants, _versions(tape.constants))

    def matches(self, tape: Tape) -> bool:
        """Return whether a later recording is the same, with constants that have not changed."""
        return (
            self.text == tape.text()
            and all(_are_equal(a, b) for a, b in zip(self.constants, tape.constants, strict=True))
            and self.versions == _versions(self.constants)
        )


def _versions(tensors: Sequence[Tensor]) -> list[int]:
    return [0 if tensor.is_inference() else tensor._version for tensor in tensors]


def _are_equal(a: Tensor, b: Tensor) -> bool:
    return a is b or torch.equal(a, b) or bool((a.isnan() & b.isnan() | (a == b)).all())


def _is_mask(index: Tensor | None) -> bool:
    return index is not None and index.dtype in (torch.bool, torch.uint8)


def _without_masks(indices: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Replace masks, which make shapes depend on values, by the indices of their true elements."""
    found: list[Tensor | None] = []
    for index in indices:
        is_mask = index is not None and _is_mask(index) and index.ndim
        found += index.nonzero().unbind(1) if index is not None and is_mask else [index]
    return found


def _memory(tensor: Tensor) -> int:
    """Return the address of a tensor's memory; 0 for tensors of zeros without memory."""
    return 0 if tensor._is_zerotensor() else tensor.untyped_storage().data_ptr()


class _Active(threading.local):
    """The recorders that are running in a thread, the innermost last."""

    def __init__(self) -> None:
        self.recorders: list[_Recorder] = []


_active = _Active()


def current() -> _Recorder | None:
    """Return the innermost recorder that is running in this thread, or None."""
    return _active.recorders[-1] if _active.recorders else None


class _RejectReads(TorchFunctionMode):
    """Rejects data-dependent reads while recording."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        recorder = current()
        if func in _READS_VALUES and recorder and not recorder.is_paused:
            try:
                varies = recorder.varies(args[0])
            except (NotImplementedError, RuntimeError):  # torch.func wrapper without memory
                varies = True
            if varies:
                name = f"Tensor.{func.__name__}"
                raise UnrecordableError(f"the function leaves torch ({name}, as for NumPy)")
        return func(*args, **(kwargs or {}))


class _Recorder(TorchDispatchMode):
    """Records operations below automatic differentiation and vmap."""

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        super().__init__()
        self.operations: list[Operation] = []
        self.constants: list[Tensor] = []
        self.tensors: dict[Value, Tensor] = {}
        self.callees: list[Callee] = []
        self.is_paused = False
        # By id, which is unique: `tensors` and `_originals` hold references.
        self._known: dict[int, Value] = {}
        self._originals: list[Tensor] = []
        self._converted: dict[object, Tensor] = {}  # constants in another dtype
        self._given: set[int] = set()  # memory of inputs and constants
        self._varying: set[int] = set()  # memory of tensors that depend on inputs
        for number, tensor in enumerate(inputs):
            self._know(tensor, Value("input", number), is_given=True)
            self._mark(tensor)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Do not wrap the method below: the wrapper imports torch's compiler."""
        return False

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Record nothing in this context."""
        before, self.is_paused = self.is_paused, True
        try:
            yield
        finally:
            self.is_paused = before

    def value(self, tensor: Tensor) -> Value:
        """Return the value of a tensor; an unknown tensor becomes a constant."""
        found = self._known.get(id(tensor))
        if found is None:
            found = Value("constant", len(self.constants))
            with self.paused():
                # C code reads memory, so lazy conjugate, negative and zero bits must be resolved.
                plain = tensor.resolve_conj().resolve_neg()
                if plain._is_zerotensor():
                    plain = torch.zeros(plain.shape, dtype=plain.dtype)
            self.constants.append(plain)
            self._originals.append(tensor)
            self._know(tensor, found, is_given=True)
            self.tensors[found] = plain
        return found

    def call(self, callee: Callee, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Record the call of another program, and run it."""
        arguments = tuple(self.value(tensor) for tensor in inputs)
        with self.paused():
            results = callee(inputs)
        if callee not in self.callees:
            self.callees.append(callee)
        values = tuple(self._result(each) for each in results)
        self._mark(results)
        number = self.callees.index(callee)
        self.operations.append(Operation(CALL, (number, *arguments), {}, values))
        return results

    def varies(self, tree: Tree) -> bool:
        """Return whether a tensor of a tree depends on inputs."""
        leaves = [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]
        return any(_memory(leaf) in self._varying for leaf in leaves)

    def _mark(self, tree: Tree) -> None:
        leaves = [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]
        self._varying |= {_memory(leaf) for leaf in leaves} - {0}

    def _know(self, tensor: Tensor, value: Value, is_given: bool = False) -> None:
        self._known[id(tensor)] = value
        self.tensors[value] = tensor
        if is_given:
            self._given |= {_memory(tensor)} - {0}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.is_paused:
            return func(*args, **kwargs)
        name = str(func)
        if not isinstance(func, torch._ops.OpOverload):
            raise UnrecordableError(f"{name} cannot be recorded")
        varies = self.varies((args, kwargs))
        if func.overloadpacket in _INDEXED and not self.varies(args[1]):
            args = args[0], _without_masks(args[1]), *args[2:]
        if decomposition := decomposition_of(name):
            with self:
                out = decomposition(*args, **kwargs)
            if out is not NotImplemented:
                return out
        keeps_shape = func.overloadpacket in _READS_BY_INDEX and not any(map(_is_mask, args[1]))
        if _DATA_TAGS & set(func.tags) and not keeps_shape:
            if varies:
                raise UnrecordableError(f"the function reads values ({name})")
            return func(*args, **kwargs)
        if torch.Tag.nondeterministic_seeded in func.tags:
            raise UnrecordableError(f"the function draws random numbers ({name})")
        with self:
            out = func.decompose(*args, **kwargs)  # where torch has a sequence of other operations
        if out is not NotImplemented:
            return out
        arguments, options = tree_map_only(Tensor, self.value, (tuple(args), dict(kwargs)))
        args, kwargs = tree_map_only(Tensor, self._plain, (args, kwargs))
        converted = arguments[0] if func is torch.ops.aten._to_copy.default else None
        if isinstance(converted, Value) and converted.kind == "constant":
            same = arguments, repr(options)  # convert it once
            if same not in self._converted:
                self._converted[same] = func(*args, **kwargs)
                self.value(self._converted[same])
            return self._converted[same]
        if func.overloadpacket.__name__ in _VIEWS_IN_PLACE:
            return self._view_in_place(func, args, kwargs, arguments, options)
        if func._schema.is_mutable:
            self._check_mutated(func, args, kwargs, varies)
        out = func(*args, **kwargs)
        if varies:
            self._mark(out)
        results = tuple(self._result(each) for each in leaves_of(out))
        self.operations.append(Operation(name, arguments, options, results))
        return out

    def _view_in_place(
        self, func: torch._ops.OpOverload, args: Tree, kwargs: Tree, arguments: Tree, options: Tree
    ) -> Tensor:
        """Record `x.squeeze_()` as a view: the tensor becomes a new value of another shape."""
        self.tensors[arguments[0]] = args[0].detach()
        out: Tensor = func(*args, **kwargs)
        made = Value("result", len(self.tensors))
        self._known[id(out)], self.tensors[made] = made, out.detach()
        self._originals.append(out)
        packet, overload = str(func).removeprefix("aten.").split(".")
        name = f"aten.{packet[:-1]}.{overload}"
        self.operations.append(Operation(name, arguments, options, (made,)))
        return out

    def _plain(self, tensor: Tensor) -> Tensor:
        """Return a tensor, or the constant recorded for it."""
        known = self._known.get(id(tensor))
        return self.tensors[known] if known is not None and known.kind == "constant" else tensor

    def _check_mutated(
        self, func: torch._ops.OpOverload, args: Tree, kwargs: Tree, varies: bool
    ) -> None:
        for position, argument in enumerate(func._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                given = kwargs.get(argument.name, args[position] if position < len(args) else None)
                for tensor in tree_leaves(given):
                    if isinstance(tensor, Tensor) and _memory(tensor) in self._given:
                        raise UnrecordableError(f"the function mutates its input ({func})")
                if varies:
                    self._mark(given)

    def _result(self, out: object) -> Value | None:
        if not isinstance(out, Tensor):
            return None
        known = self._known.get(id(out))
        if known is None:
            known = Value("result", len(self.tensors))
            self._know(out, known)
        return known


def leaves_of(out: Tree) -> Sequence[object]:
    """Return the results of one of torch's operations, in order."""
    return (out,) if isinstance(out, Tensor) else tree_leaves(out)
