"""Write a recording as the source of a C program: loop nests, functions, and a workspace."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from torch import Tensor

from langevin.compiler.graph import CTYPES, Access, Buffer, contiguous, graph_of
from langevin.compiler.lower import lower
from langevin.compiler.record import Tape
from langevin.compiler.schedule import EMPTY_RESULT, Group, Reduction, Schedule

ENTRY, TAKES_LINALG = "lv_run", "lv_linalg_table.h"
_ALIGNMENT = 64
_LINES_OF_FUNCTION = 160  # compilers take more than linear time for long functions
_FLAGS = ("-fno-tree-slp-vectorize",)  # gcc 12: wrong eigenvalues with it (lv_eigen.h, AVX-512)
_LONG = 4000  # lines beyond which -O1 is used
_HEAD = """#include "lv_math.h"
#include <float.h>
#include <stdint.h>
typedef int (*lv_program)(void *const *, void *const *, const double *, char *, void *const *);
"""
_HEADERS = {
    TAKES_LINALG: ("lv_mm_", "lv_cholesky_", "lv_trsolve_", "lv_lu_", "lv_slogdet_"),
    "lv_eigen.h": ("lv_eigh_",),
}
_ARGUMENTS = (
    "void *const *restrict io, void *const *restrict C, const double *restrict P, "
    "char *restrict w, void *const *S"
)
_FEW = 16  # terms of an unrolled reduction, so that the loop around it is vectorised
_BLOCK = 256  # terms of a partial sum, for rounding as good as torch's
_ACCUMULATORS = 1024  # most partial sums side by side
_SIMD = "\n#pragma omp simd\n"
_CLAUSE = {"sum": "+", "prod": "*", "any": "|", "all": "&"}
_JOIN = {
    "sum": "{0} += {1}",
    "prod": "{0} *= {1}",
    "any": "{0} |= ({1} != 0)",
    "all": "{0} &= ({1} != 0)",
}
_LIMITS = {
    **{"double": ("-INFINITY", "INFINITY"), "float": ("-INFINITY", "INFINITY")},
    **{f"int{n}_t": (f"INT{n}_MIN", f"INT{n}_MAX") for n in (8, 16, 32, 64)},
    "uint8_t": ("0", "UINT8_MAX"),
}


class Source(NamedTuple):
    """The text of a program and its arguments."""

    text: str
    flags: tuple[str, ...]
    constants: list[Tensor]
    parameters: list[float]
    workspace: int  # bytes


def write(tape: Tape) -> Source:
    """Write a recording as C; the results follow the inputs in `io`, contiguous and in order.

    Raises:
        UncoveredError: an operation is not covered.
    """
    graph = graph_of(tape)
    times = Counter(buffer for s in graph.steps for buffer in {a.buffer for a in s.writes})
    rewritten = {a.buffer for step in graph.steps if step.mutates for a in step.writes}
    rewritten |= {buffer for buffer, count in times.items() if count > 1}
    schedule = Schedule(frozenset(rewritten))
    for step in graph.steps:
        lower(schedule, step)
    for number, access in enumerate(graph.results):
        out = Buffer("output", number, access.dtype, access.numel)
        if access.numel:
            to = Access(out, 0, access.shape, contiguous(access.shape))
            schedule.copy(access, to)
    groups = schedule.finish()
    offsets, size = _plan(groups)
    used = {buffer for group in groups for buffer in group.reads | group.writes}
    defines = []
    for buffer in sorted(used, key=lambda each: (each.kind, each.number)):
        base = {
            "input": f"const {{}} *)io[{buffer.number}]",
            "output": f"{{}} *)io[{len(graph.inputs) + buffer.number}]",
            "constant": f"const {{}} *)C[{buffer.number}]",
            "work": f"{{}} *)(w + {offsets.get(buffer, 0)})",
        }[buffer.kind].format(CTYPES[buffer.dtype])
        defines.append(f"#define {buffer.name} (({base})")
    functions, calls = _functions([_emit(group) for group in groups])
    body = f"int {ENTRY}({_ARGUMENTS}) {{ int bad = 0; {calls} return bad; }}\n"
    code = "\n".join(functions)
    needed = [name for name, words in _HEADERS.items() if any(word in code for word in words)]
    includes = [f'#include "{name}"' for name in needed]
    text = "\n".join([_HEAD, *includes, *defines, *functions, body])
    is_long = sum(len(group.lines) + 1 for group in groups) > _LONG
    flags = (*_FLAGS, "-O1") if is_long else _FLAGS
    return Source(text, flags, graph.constants, schedule.parameters, size)


def _functions(pieces: list[str]) -> tuple[list[str], str]:
    """Cut the program into functions; return them and the calls."""
    chunks: list[list[str]] = [[]]
    length = 0
    for piece in pieces:
        lines = piece.count(";")
        if length and length + lines > _LINES_OF_FUNCTION:
            chunks.append([])
            length = 0
        chunks[-1].append(piece)
        length += lines
    functions = [
        f"static __attribute__((noinline)) int part{k}({_ARGUMENTS}) {{ int bad = 0;\n"
        + "\n".join([*chunk, "return bad; }"])
        for k, chunk in enumerate(chunks)
    ]
    return functions, " ".join(f"bad |= part{k}(io, C, P, w, S);" for k in range(len(chunks)))


def _plan(groups: list[Group]) -> tuple[dict[Buffer, int], int]:
    """Return the offsets of buffers in the workspace; buffers of disjoint lifetime share memory.

    Offsets depend on the recording only, since the text is the key of the cache.
    """
    life: dict[Buffer, list[int]] = {}
    for at, group in enumerate(groups):
        for buffer in group.reads | group.writes:
            if buffer.kind == "work":
                life.setdefault(buffer, [at, at])[1] = at
    offsets: dict[Buffer, int] = {}
    alive: list[tuple[int, int, int]] = []  # begin, end, last group
    size = 0
    for buffer in sorted(life, key=lambda each: (life[each][0], -each.numel, each.number)):
        first, last = life[buffer]
        need = -(-buffer.numel * buffer.dtype.itemsize // _ALIGNMENT) * _ALIGNMENT
        alive = sorted(entry for entry in alive if entry[2] >= first)
        begin = 0
        for start, end, _ in alive:
            if start - begin >= need:
                break
            begin = max(begin, end)
        offsets[buffer] = begin
        alive.append((begin, begin + need, last))
        size = max(size, begin + need)
    return offsets, size


def _emit(group: Group) -> str:
    """Return the C code of a group."""
    return group.code if group.code is not None else _Nest(group).text()


class _Nest:
    """Writes a loop nest; axes are in memory order, and adjacent ones are joined."""

    def __init__(self, group: Group) -> None:
        self.group, self.loads = group, list(group.loads.values())
        everything = [a for _, a in self.loads] + [a for a, _ in group.stores]
        shape = group.shape
        kept = tuple(range(len(shape))) if group.kept is None else group.kept
        axes = [axis for axis in range(len(shape)) if shape[axis] != 1 or group.keeps_axes]
        if not group.keeps_axes:
            if group.stores:  # the access whose order counts
                strides = group.stores[0][0].strides
            else:
                every = [a.strides for _, a in self.loads]
                strides = max(
                    every, key=lambda each: sum(map(bool, each)), default=(0,) * len(shape)
                )
            unit = {axis: sum(abs(a.strides[axis]) == 1 for a in everything) for axis in axes}
            most = max(unit.values(), default=0)
            axes.sort(key=lambda axis: (unit[axis] == most, -abs(strides[axis])))
        self.totals = [_with_axes(r.out, shape, kept) for r in group.reductions]
        everything += self.totals
        self.outer = [axis for axis in axes if axis in kept]
        self.inner = [axis for axis in axes if axis not in kept] if group.reductions else []
        self.side: int | None = None  # the kept axis that is innermost
        many = math.prod(shape[axis] for axis in self.inner)
        is_side = bool(self.inner and self.outer) and axes[-1] == self.outer[-1] and many > _FEW
        if is_side and 4 <= shape[axes[-1]] <= _ACCUMULATORS:
            self.side = self.outer.pop()
        self.is_short = many <= _FEW
        self.sizes = {axis: shape[axis] for axis in axes}
        if not group.keeps_axes:
            self.outer = _joined(self.outer, self.sizes, everything)
            self.inner = _joined(self.inner, self.sizes, everything)

    def index(self, access: Access) -> str:
        axes = [*self.outer, *self.inner, *([] if self.side is None else [self.side])]
        strides = tuple(access.strides[axis] for axis in axes)
        view = access._replace(shape=(2,) * len(axes), strides=strides)
        return view.at([f"i{axis}" for axis in axes])

    def body(self, sums: dict[str, str]) -> str:
        """Return loads, operations, stores and reductions of one element."""
        text = [self._load(name, access) for name, access in self.loads if any(access.strides)]
        for ctype, name, value in self.group.lines:
            if self.group.keeps_axes:
                last = len(self.group.shape) - 1
                value = value.replace("LV_ROW", f"i{last - 1}").replace("LV_COL", f"i{last}")
            text.append(f"const {ctype} {name} = {value};")
        text += [f"{self.index(out)} = {name};" for out, name in self.group.stores]
        text += [_join(r, sums[r.total], r.local) for r in self.group.reductions]
        return " ".join(text)

    def text(self) -> str:
        group = self.group
        head = [f"const double {name} = P[{number}];" for number, name in group.numbers.items()]
        head += [self._load(name, access) for name, access in self.loads if not any(access.strides)]
        if group.reductions:
            rest = self._in_turn() if self.side is None else self._beside(self.side)
        else:
            rest = self._for(self.outer, _SIMD) + "{ " + self.body({}) + " }"
        return "{ " + " ".join(head) + rest + " }"

    def _load(self, name: str, access: Access) -> str:
        return f"const {access.ctype} {name} = {self.index(access)};"

    def _for(self, axes: Iterable[int], pragma: str = "") -> str:
        """Return the heads of loops; `pragma` stands before the last."""
        loops = [f"for (long i{k} = 0; i{k} < {self.sizes[k]}; i{k}++) " for k in axes]
        return "".join([*loops[:-1], pragma, *loops[-1:]]) if loops else ""

    def _each(self, template: str) -> str:
        """Return a statement for each reduction: its index is {o}, its total {t}, its type {c}."""
        outs = zip(self.group.reductions, self.totals, strict=True)
        values = ({"o": self.index(o), "t": r.total, "c": r.ctype, "s": _start(r)} for r, o in outs)
        return " ".join(template.format(**each) for each in values)

    def _blocks(self, started: str, inside: str, pragma: str, joined: str) -> str:
        """Return a loop over the innermost reduced axis, in blocks."""
        k = self.inner[-1]
        size = self.sizes[k]
        stop = f"b{k} + {_BLOCK} < {size} ? b{k} + {_BLOCK} : {size}"
        return (
            f"for (long b{k} = 0; b{k} < {size}; b{k} += {_BLOCK}) {{ {started} "
            f"const long e{k} = {stop};{pragma}for (long i{k} = b{k}; i{k} < e{k}; i{k}++) "
            f"{{ {inside} }} {joined} }}"
        )

    def _in_turn(self) -> str:
        """Return code for one total at a time, with the reduced axes innermost."""
        reductions = self.group.reductions
        begin, end = self._each("{c} {t} = {s};"), self._each("{o} = {t};")
        if self.is_short:
            sums = {r.total: r.total for r in reductions}
            inner = self._for(self.inner) + "{ " + self.body(sums) + " } "
            return self._for(self.outer, _SIMD) + "{ " + begin + inner + end + " }"
        parts = {r.total: f"{r.total}b" for r in reductions}
        pragma = ""
        if all(r.kind in _CLAUSE for r in reductions):
            clauses = [f"reduction({_CLAUSE[r.kind]}:{parts[r.total]})" for r in reductions]
            pragma = f"\n#pragma omp simd {' '.join(clauses)}\n"
        joined = " ".join(_join(r, r.total, parts[r.total]) for r in reductions)
        core = self._blocks(self._each("{c} {t}b = {s};"), self.body(parts), pragma, joined)
        inner = self._for(self.inner[:-1])
        return self._for(self.outer) + "{ " + begin + inner + core + " " + end + " }"

    def _beside(self, axis: int) -> str:
        """Return code for totals side by side, along a kept axis."""
        reductions, at = self.group.reductions, f"[i{axis}]"
        size = self.sizes[axis]
        along = _SIMD + self._for([axis])
        begin = self._each(f"{{c}} {{t}}[{size}], {{t}}b[{size}];")
        begin += along + "{ " + self._each(f"{{t}}{at} = {{s}};") + " }"
        started = along + "{ " + self._each(f"{{t}}b{at} = {{s}};") + " }"
        sums = {r.total: f"{r.total}b{at}" for r in reductions}
        joined = " ".join(_join(r, f"{r.total}{at}", f"{r.total}b{at}") for r in reductions)
        end = along + "{ " + self._each(f"{{o}} = {{t}}{at};") + " }"
        inside = along + " { " + self.body(sums) + " }"
        core = self._blocks(started, inside, " ", along + "{ " + joined + " }")
        head, inner = self._for(self.outer), self._for(self.inner[:-1])
        return head + "{ " + begin + inner + core + " " + end + " }"


def _with_axes(out: Access, shape: tuple[int, ...], kept: tuple[int, ...]) -> Access:
    """Return the access of a total over the whole iteration space."""
    strides = dict(zip(kept, out.strides, strict=True))
    return out._replace(shape=shape, strides=tuple(strides.get(k, 0) for k in range(len(shape))))


def _joined(axes: list[int], sizes: dict[int, int], accesses: list[Access]) -> list[int]:
    """Join axes that are contiguous in every access; the inner one represents both."""
    found: list[int] = []
    for axis in axes:
        if found and all(a.strides[found[-1]] == a.strides[axis] * sizes[axis] for a in accesses):
            sizes[axis] *= sizes[found.pop()]
        found.append(axis)
    return found


def _start(reduction: Reduction) -> str:
    if reduction.kind in EMPTY_RESULT:
        return EMPTY_RESULT[reduction.kind]
    return _LIMITS[reduction.ctype][0 if reduction.kind == "amax" else 1]


def _join(reduction: Reduction, total: str, value: str) -> str:
    if reduction.kind in _JOIN:
        return _JOIN[reduction.kind].format(total, value) + ";"
    is_max = reduction.kind == "amax"
    if reduction.ctype in ("double", "float"):
        suffix = "f" if reduction.ctype == "float" else ""
        function = "lv_maximum" if is_max else "lv_minimum"
        return f"{total} = {function}{suffix}({total}, {value});"
    return f"{total} = {value} {'>' if is_max else '<'} {total} ? {value} : {total};"
