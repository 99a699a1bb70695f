"""What a function did to tensors, written down: the operations of torch in their order, without the Python around them.

A step is recorded in a few milliseconds, and no compiler is asked: it need not even be imported. Two recordings of the same
function, at different places, are compared before one is believed: where Python looked at values, or NumPy computed something
behind torch's back, they differ.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

__all__ = ["Operation", "Tape", "UnrecordableError", "Value", "agreeing", "digest", "record", "signature"]

_DATA_TAGS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
_WAYS_OUT = {Tensor.numpy, Tensor.__array__, Tensor.__dlpack__, Tensor.tolist, Tensor.data_ptr}  # they are no operations


class UnrecordableError(RuntimeError):
    """A function does what cannot be written down once and for all."""


class Value(NamedTuple):
    """A tensor on the tape: an input, a constant, or a result of an operation."""

    kind: str
    number: int


class Operation(NamedTuple):
    """One of torch's operations."""

    name: str  # such as "aten.add.Tensor"
    arguments: tuple[Any, ...]  # tensors are `Value`s
    options: dict[str, Any]
    results: tuple[Value | None, ...]  # one for each result that is a tensor
    is_single: bool  # whether the result is a tensor itself


class Tape(NamedTuple):
    """What a function did."""

    operations: list[Operation]
    constants: list[Tensor]  # tensors that were there before, in the order in which they were met
    results: list[Value]
    elements: int  # of all results of operations

    def text(self) -> str:
        """Return everything but the values of tensors: equal texts are the same program."""
        return repr((self.operations, [_layout(tensor) for tensor in self.constants], self.results))


def record(function: Callable[[], Sequence[Tensor]], inputs: Sequence[Tensor]) -> Tape:
    """Call a function, and write down what it did.

    Args:
        function: returns tensors.
        inputs: what it sees that will be other tensors the next time; all other tensors are constants.

    Raises:
        UnrecordableError: it looks at values, leaves torch, draws random numbers, or changes what it was given.
    """
    recorder = _Recorder(inputs)
    with recorder, _InTorch():
        results = function()
    return Tape(recorder.operations, recorder.constants, [recorder.value(tensor) for tensor in results], recorder.elements)


def agreeing(first: Tape, second: Tape) -> Tape:
    """Return the first of two recordings that say the same.

    Raises:
        UnrecordableError: they do not: what is done depends on what cannot be seen.
    """
    same = first.text() == second.text() and all(
        a is b or torch.equal(a, b) or bool((a.isnan() & b.isnan() | (a == b)).all())
        for a, b in zip(first.constants, second.constants, strict=True)
    )
    if not same:
        raise UnrecordableError("the step is not the same at two places: it looks at values, or leaves torch (NumPy?)")
    return first


def signature(tensors: Sequence[Tensor]) -> str:
    """Return dtypes, shapes and strides, as text."""
    return repr([_layout(tensor) for tensor in tensors])


def digest(*texts: str) -> str:
    """Return a short name for some texts."""
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:32]


def _layout(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.dtype, tensor.device, tuple(tensor.shape), tensor.stride()


def _is_by_places(func: Any, args: Any) -> bool:
    """Say whether an operation takes elements by their places, not by a mask: then its shape does not depend on values."""
    if func not in (torch.ops.aten.index.Tensor, torch.ops.aten._unsafe_index.Tensor):
        return False
    return all(each is None or each.dtype not in (torch.bool, torch.uint8) for each in args[1])


def _is_constant(argument: Any) -> bool:
    return isinstance(argument, Value) and argument.kind == "constant"


class _InTorch(TorchFunctionMode):
    """Refuses to hand values out: what is made of them may be equal at two places, as signs are, and differ at a third."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _WAYS_OUT:
            raise UnrecordableError(f"a step must not leave torch (Tensor.{func.__name__}, as for NumPy)")
        return func(*args, **(kwargs or {}))


class _Recorder(TorchDispatchMode):
    """Sees every operation, below automatic differentiation and vmap."""

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        super().__init__()
        self.operations: list[Operation] = []
        self.constants: list[Tensor] = []
        self.elements = 0
        self._known: dict[int, Value] = {}  # by identity: everything known is kept alive
        self._alive: list[Tensor] = []
        self._converted: dict[Any, Tensor] = {}  # constants in another dtype
        self._given: set[int] = set()  # where the memory of inputs and constants begins
        for number, tensor in enumerate(inputs):
            self._know(tensor, Value("input", number), is_given=True)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Do not wrap the method below: the wrapper imports torch's compiler."""
        return False

    def value(self, tensor: Tensor) -> Value:
        found = self._known.get(id(tensor))
        if found is None:
            found = Value("constant", len(self.constants))
            self.constants.append(tensor)
            self._know(tensor, found, is_given=True)
        return found

    def _know(self, tensor: Tensor, value: Value, is_given: bool = False) -> None:
        self._known[id(tensor)] = value
        self._alive.append(tensor)
        if is_given:
            self._given.add(tensor.untyped_storage().data_ptr())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = str(func)
        if not isinstance(func, torch._ops.OpOverload):
            raise UnrecordableError(f"{name} cannot be recorded")
        if _DATA_TAGS & set(func.tags) and not _is_by_places(func, args):
            raise UnrecordableError(f"a step must not look at values ({name})")
        if torch.Tag.nondeterministic_seeded in func.tags:
            raise UnrecordableError(f"a step must not draw random numbers ({name})")
        arguments, options = tree_map_only(Tensor, self.value, (tuple(args), dict(kwargs)))
        if func is torch.ops.aten._to_copy.default and _is_constant(arguments[0]):  # the same at every step: once is enough
            same = arguments, repr(options)
            if same not in self._converted:
                self._converted[same] = func(*args, **kwargs)
                self.value(self._converted[same])
            return self._converted[same]
        if func._schema.is_mutable:
            self._check_mutated(func, args, kwargs)
        out = func(*args, **kwargs)
        is_single = isinstance(out, Tensor)
        results = tuple(self._result(each) for each in ((out,) if is_single else tree_leaves(out)))
        self.operations.append(Operation(name, arguments, options, results, is_single))
        return out

    def _check_mutated(self, func: Any, args: Any, kwargs: Any) -> None:
        for place, argument in enumerate(func._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                given = kwargs.get(argument.name, args[place] if place < len(args) else None)
                for tensor in tree_leaves(given):
                    if isinstance(tensor, Tensor) and tensor.untyped_storage().data_ptr() in self._given:
                        raise UnrecordableError(f"a step must not change what it was given ({func})")

    def _result(self, out: Any) -> Value | None:
        if not isinstance(out, Tensor):
            return None
        known = self._known.get(id(out))
        if known is None:
            known = Value("result", len(self._known))
            self._know(out, known)
            self.elements += out.numel()
        return known
