"""Fuse operations of equal iteration space into loop nests.

Values that only one loop nest reads stay in registers.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import torch

from langevin.compiler.graph import CTYPES, Access, Buffer, Step, UncoveredError
from langevin.compiler.pointwise import expression, operands

_MOST_LINES = 96  # of a loop body; longer ones spill registers
_CHEAP = {  # recomputed rather than loaded, if their operands are known
    *("zeros", "new_zeros", "zeros_like", "ones", "new_ones", "ones_like"),
    *("full", "new_full", "full_like", "scalar_tensor"),
    *("neg", "add", "sub", "mul", "div", "clone", "_to_copy"),
}
EMPTY_RESULT = {"sum": "0", "prod": "1", "any": "0", "all": "1"}  # reductions of nothing

Operand: TypeAlias = Access | float | bool
# Buffers: the last group that touches each, and the elements it touches in one iteration (`normal`
# of the access) if these are the same for all operations of the group, else None.
_Touched: TypeAlias = dict[Buffer, tuple[int, Hashable]]


class Reduction(NamedTuple):
    """A sum, or a similar reduction, over some axes of an iteration space."""

    kind: str
    ctype: str
    local: str  # what is added, a local of the body
    total: str  # the local that holds the result
    out: Access  # of the kept axes, in order


@dataclass
class Group:
    """A loop nest, or a piece of C code."""

    shape: tuple[int, ...] = ()
    kept: tuple[int, ...] | None = None  # axes that reductions keep
    number: int = 0
    loads: dict[Hashable, tuple[str, Access]] = field(default_factory=dict)  # by `Access.normal`
    made: dict[Hashable, str] = field(default_factory=dict)  # stored locals, by `Access.normal`
    numbers: dict[int, str] = field(default_factory=dict)  # parameters
    lines: list[tuple[str, str, str]] = field(default_factory=list)  # type, local, expression
    stores: list[tuple[Access, str]] = field(default_factory=list)
    reductions: list[Reduction] = field(default_factory=list)
    code: str | None = None
    reads: set[Buffer] = field(default_factory=set)
    writes: set[Buffer] = field(default_factory=set)
    keeps_axes: bool = False  # whether expressions use loop indices

    def prune(self, wanted: set[Buffer]) -> bool:
        """Drop what no other group reads; return whether anything is left."""
        last = {out.normal(): (out, local) for out, local in self.stores}
        self.stores = [pair for pair in last.values() if _is_kept(pair[0].buffer, wanted)]
        self.reductions = [r for r in self.reductions if _is_kept(r.out.buffer, wanted)]
        if not self.reductions:
            self.kept = None
        needed = {local for _, local in self.stores} | {r.local for r in self.reductions}
        for _, name, text in reversed(self.lines):
            if name in needed:
                needed |= set(re.findall(r"\w+", text))
        self.lines = [line for line in self.lines if line[1] in needed]
        self.loads = {key: load for key, load in self.loads.items() if load[0] in needed}
        self.numbers = {number: name for number, name in self.numbers.items() if name in needed}
        self.reads = {access.buffer for _, access in self.loads.values()}
        self.writes = {out.buffer for out, _ in self.stores}
        self.writes |= {r.out.buffer for r in self.reductions}
        return bool(self.stores or self.reductions)


class _Space(NamedTuple):
    """The iteration space of an operation: its axes longer than 1, longest first, in any layout."""

    shape: tuple[int, ...]
    order: tuple[int, ...]

    @classmethod
    def of(cls, shape: tuple[int, ...], *, is_fixed: bool = False) -> _Space:
        if is_fixed:
            return cls(shape, tuple(range(len(shape))))
        axes = [axis for axis, size in enumerate(shape) if size != 1]
        return cls(shape, tuple(sorted(axes, key=lambda axis: -shape[axis])))

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(self.shape[axis] for axis in self.order)

    def view(self, access: Access) -> Access:
        """Broadcast an access to this space, and order its axes."""
        return access.broadcast(self.shape).permute(self.order)


class Schedule:
    """Groups in order; an operation joins the first with its iteration space and operands.

    Args:
        rewritten: the buffers that several operations write.
    """

    def __init__(self, rewritten: frozenset[Buffer] = frozenset()) -> None:
        """Start without groups."""
        self.groups: list[Group] = []
        self.parameters: list[float] = []
        # Numbers of the groups that others may join, by iteration space.
        self._open: dict[tuple[tuple[int, ...], bool], list[int]] = {}
        self._rewritten = rewritten
        self._uniform: dict[Buffer, Step] = {}  # buffers of a single value, and its operation
        self._written: _Touched = {}
        self._touched: _Touched = {}  # read or written
        self._locals = 0

    def parameter(self, value: float) -> int:
        """Return the number of a parameter of the program."""
        self.parameters.append(float(value))
        return len(self.parameters) - 1

    def point(self, step: Step) -> None:
        """Add a pointwise operation."""
        out, reads = step.out(), operands(step)
        takes_indices = step.base in ("tril", "triu")
        space = _Space.of(out.shape, is_fixed=takes_indices)
        group = self._find(space, reads, None, out if step.mutates else None, takes_indices)
        text = expression(step, lambda value, dtype: self._operand(group, space, value, dtype))
        self._store(group, space.view(out), self._let(group, out.ctype, text))
        is_cheap = step.name in _CHEAP and not step.mutates and out.buffer not in self._rewritten
        if is_cheap and all(map(self._is_uniform, reads)):
            self._uniform[out.buffer] = step

    def copy(self, source: Operand, out: Access, *, after: bool = False) -> None:
        """Copy elements, or a number, to a buffer; with `after`, after earlier writes to it."""
        reads = [source] if isinstance(source, Access) else []
        space = _Space.of(out.shape)
        group = self._find(space, reads, None, out if after else None)
        local = self._let(group, out.ctype, self._operand(group, space, source, out.dtype))
        self._store(group, space.view(out), local)

    def reduce(self, kind: str, source: Access, axes: list[int], out: Access) -> None:
        """Add a reduction of `source` over axes to `out`, which has the other axes in order."""
        if source.numel == 0:
            if kind not in EMPTY_RESULT:
                raise UncoveredError(f"{kind} of nothing")
            return self.copy(float(EMPTY_RESULT[kind]), out)
        space = _Space.of(source.shape)
        left = [axis for axis in range(len(source.shape)) if axis not in axes]
        kept = tuple(position for position, axis in enumerate(space.order) if axis not in axes)
        group = self._find(space, [source], kept, None)
        as_type = torch.bool if kind in ("any", "all") else out.dtype
        local = self._let(group, out.ctype, self._operand(group, space, source, as_type))
        group.kept = kept
        total = self._name("s")
        totals = out.permute([left.index(space.order[position]) for position in kept])
        group.reductions.append(Reduction(kind, out.ctype, local, total, totals))
        self._note_write(out.buffer, group.number, None)
        return None

    def raw(self, code: str, reads: list[Access], writes: list[Access]) -> None:
        """Add C code as a separate group."""
        at = len(self.groups)
        read, written = ({access.buffer for access in each} for each in (reads, writes))
        self.groups.append(Group(code=code, number=at, reads=read, writes=written))
        for buffer in read:
            _note(self._touched, buffer, at, None)
        for buffer in written:
            self._note_write(buffer, at, None)

    def finish(self) -> list[Group]:
        """Return the groups without unused loads, stores, reductions and groups."""
        wanted: set[Buffer] = set()
        found = []
        for group in reversed(self.groups):
            if group.code is not None or group.prune(wanted):
                wanted |= group.reads
                found.append(group)
        return found[::-1]

    def _is_uniform(self, access: Access) -> bool:
        """Return whether all elements are one value that needs no other group."""
        if access.buffer in self._uniform:
            return True
        is_given = access.buffer.kind in ("constant", "input")
        is_same = not any(access.normal()[-1])
        return is_given and is_same and access.buffer not in self._rewritten

    def _find(
        self,
        space: _Space,
        reads: list[Access],
        kept: tuple[int, ...] | None,
        after: Access | None,
        takes_indices: bool = False,
    ) -> Group:
        """Return the first group that an operation of an iteration space can join."""
        low = 0
        for access in reads:
            if access.buffer in self._written and access.buffer not in self._uniform:
                at, elements = self._written[access.buffer]
                low = max(low, at if elements == space.view(access).normal() else at + 1)
        if after is not None and after.buffer in self._touched:
            (at, elements), view = self._touched[after.buffer], space.view(after)
            low = max(low, at if elements == view.normal() and all(view.strides) else at + 1)
        joinable = self._open.setdefault((space.sizes, takes_indices), [])
        for number in joinable[bisect.bisect_left(joinable, low) :]:
            group = self.groups[number]
            if len(group.lines) >= _MOST_LINES:
                joinable.remove(number)
            elif kept is None or group.kept in (None, kept):
                return group
        number = len(self.groups)
        joinable.append(number)
        self.groups.append(Group(shape=space.sizes, number=number, keeps_axes=takes_indices))
        return self.groups[-1]

    def _operand(self, group: Group, space: _Space, value: object, dtype: torch.dtype) -> str:
        ctype = CTYPES[dtype]
        if isinstance(value, Access):
            view = space.view(value)
            key = view.normal()
            made = group.made.get(key) or self._value(group, value.buffer)
            if made is None:
                if key not in group.loads:
                    group.loads[key] = self._name("l"), view
                    _note(self._touched, value.buffer, group.number, key)
                made = group.loads[key][0]
            if value.dtype is dtype:
                return made
            return f"({made} != 0)" if dtype is torch.bool else f"(({ctype}){made})"
        if isinstance(value, bool) or dtype is torch.bool:
            return str(int(bool(value)))
        if isinstance(value, int):
            return f"(({ctype}){value}LL)"
        if not isinstance(value, float):
            raise UncoveredError(f"an argument {value!r}")
        number = self.parameter(value)
        group.numbers[number] = self._name("p")
        return f"(({ctype}){group.numbers[number]})"

    def _value(self, group: Group, buffer: Buffer) -> str | None:
        """Recompute the value of a uniform buffer in this group."""
        if buffer not in self._uniform:
            return None
        if buffer not in group.made:
            step = self._uniform[buffer]
            space = _Space((1,) * len(group.shape), tuple(range(len(group.shape))))

            def operand(value: object, dtype: torch.dtype) -> str:
                if isinstance(value, Access):
                    value = value._replace(shape=(), strides=())
                return self._operand(group, space, value, dtype)

            group.made[buffer] = self._let(group, CTYPES[buffer.dtype], expression(step, operand))
        return group.made[buffer]

    def _let(self, group: Group, ctype: str, text: str) -> str:
        local = self._name("t")
        group.lines.append((ctype, local, text))
        return local

    def _store(self, group: Group, out: Access, local: str) -> None:
        group.stores.append((out, local))
        group.made[out.normal()] = local
        self._note_write(out.buffer, group.number, out.normal())

    def _note_write(self, buffer: Buffer, at: int, elements: Hashable) -> None:
        _note(self._written, buffer, at, elements)
        _note(self._touched, buffer, at, elements)

    def _name(self, letter: str) -> str:
        self._locals += 1
        return f"{letter}{self._locals}"


def _note(touched: _Touched, buffer: Buffer, at: int, elements: Hashable) -> None:
    last, before = touched.get(buffer, (at, elements))
    if at >= last:
        touched[buffer] = at, elements if at > last or before == elements else None


def _is_kept(buffer: Buffer, wanted: set[Buffer]) -> bool:
    return buffer.kind != "work" or buffer in wanted
