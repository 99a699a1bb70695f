"""Lower operations that are not pointwise to copies, reductions and C code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch

from langevin.compiler.graph import Access, Step, UncoveredError
from langevin.compiler.pointwise import is_pointwise
from langevin.compiler.record import CALL
from langevin.compiler.schedule import Schedule

SINGULAR = 2  # returned by a program if a matrix has no factors; 1 is an index out of range
_MOST_EIGEN = 128  # columns of a matrix that is decomposed on the stack
_ONE_AXIS = ("index_select", "index_add", "index_copy")  # negative indices are errors

Lowering: TypeAlias = Callable[[Schedule, Step], None]
_LOWERINGS: dict[str, Lowering] = {}


def lower(schedule: Schedule, step: Step) -> None:
    """Add a step to a schedule.

    Raises:
        UncoveredError: the generator does not cover it.
    """
    if step.name != CALL and step.writes and all(out.numel == 0 for out in step.writes):
        return
    if step.base in _LOWERINGS:
        _LOWERINGS[step.base](schedule, step)
    elif is_pointwise(step):
        schedule.point(step)
    else:
        raise UncoveredError(f"aten.{step.name}.{step.overload}")


def _lowers(*names: str) -> Callable[[Lowering], Lowering]:
    def note(function: Lowering) -> Lowering:
        _LOWERINGS.update(dict.fromkeys(names, function))
        return function

    return note


def _axis(axis: int, access: Access) -> int:
    return axis % max(1, len(access.shape))


def _indices(count: int, begin: int = 0) -> list[str]:
    return [f"j{k}" for k in range(begin, begin + count)]


def _loops(shape: Sequence[int], body: str, begin: int = 0) -> str:
    """Return a loop nest over `j0`, `j1`, ..., numbered from `begin`."""
    names = _indices(len(shape), begin)
    loops = (f"for (long {j} = 0; {j} < {n}; {j}++) " for j, n in zip(names, shape, strict=True))
    return "".join(loops) + "{ " + body + " }"


# Reductions.


@_lowers("sum", "prod", "amax", "amin", "any", "all")
def _reduction(schedule: Schedule, step: Step) -> None:
    source, dims = step.arguments[0], step.get(1, "dim")
    dims = [dims] if isinstance(dims, int) else dims or range(len(source.shape))
    axes = sorted({_axis(dim, source) for dim in dims}) if source.shape else []
    schedule.reduce(step.name, source, axes, _squeezed(step.out(), source, axes))


def _squeezed(out: Access, source: Access, axes: list[int]) -> Access:
    """Return a result without the reduced axes of length 1."""
    if len(out.shape) == len(source.shape) and source.shape:
        for axis in reversed(axes):
            out = out.select(axis, 0)
    return out


@_lowers("max", "min")
def _extreme(schedule: Schedule, step: Step) -> None:
    source, *rest = step.arguments
    if rest and isinstance(rest[0], Access):
        schedule.point(step._replace(name=step.name + "imum"))
    elif not rest:
        schedule.reduce("a" + step.name, source, list(range(len(source.shape))), step.out())
    else:
        _extreme_at(schedule, source, rest[0], step.name, step.out(), step.out(1))


@_lowers("argmax", "argmin")
def _arg_extreme(schedule: Schedule, step: Step) -> None:
    _extreme_at(schedule, step.arguments[0], step.get(1, "dim"), step.name[3:], None, step.out())


def _extreme_at(
    schedule: Schedule, source: Access, dim: int, kind: str, value: Access | None, where: Access
) -> None:
    axis = _axis(dim, source)
    outs = {
        text: _squeezed(out, source, [axis])
        for text, out in (("m", value), ("a", where))
        if out is not None
    }
    source = source.at_least_1d()
    last, indices = _move_last(source, axis), _indices(len(source.shape) - 1)
    sign, ctype = ">" if kind == "max" else "<", source.ctype
    body = (
        f"{ctype} m = {last.at([*indices, '0'])}; int64_t a = 0; "
        f"for (long k = 1; k < {last.shape[-1]}; k++) "
        f"{{ const {ctype} x = {last.at([*indices, 'k'])}; "
        f"if (x {sign} m || (x != x && m == m)) {{ m = x; a = k; }} }} "
    )
    body += "".join(f"{out.at(indices)} = {text}; " for text, out in outs.items())
    schedule.raw(_loops(last.shape[:-1], body), [source], list(outs.values()))


def _move_last(access: Access, axis: int) -> Access:
    return access.permute([*(k for k in range(len(access.shape)) if k != axis), axis])


@_lowers("cumsum", "cumprod", "logcumsumexp")
def _cumulative(schedule: Schedule, step: Step) -> None:
    source, out = step.arguments[0], step.out()
    axis = _axis(step.arguments[1], source)
    if not source.shape:
        schedule.copy(source, out)
        return
    last, to = _move_last(source, axis), _move_last(out, axis)
    at = [*_indices(len(source.shape) - 1), "k"]
    suffix = "f" if out.dtype == torch.float32 else ""
    start, join = {
        "cumsum": ("0", "s + x"),
        "cumprod": ("1", "s * x"),
        "logcumsumexp": ("-INFINITY", f"lv_logaddexp{suffix}(s, x)"),
    }[step.name]
    body = (
        f"{out.ctype} s = {start}; for (long k = 0; k < {last.shape[-1]}; k++) "
        f"{{ const {out.ctype} x = {last.at(at)}; s = {join}; {to.at(at)} = s; }}"
    )
    schedule.raw(_loops(last.shape[:-1], body), [source], [out])


# Copies.


@_lowers("cat", "concat", "stack")
def _cat(schedule: Schedule, step: Step) -> None:
    out, at = step.out(), 0
    axis = _axis(step.get(1, "dim", 0), out)
    for part in step.arguments[0]:
        if step.name == "stack":
            part = part.unsqueeze(axis)
        elif part.shape == (0,) and len(out.shape) != 1:
            continue
        if part.numel:
            schedule.copy(part, out.narrow(axis, at, part.shape[axis]))
        at += part.shape[axis]


@_lowers("repeat")
def _repeat(schedule: Schedule, step: Step) -> None:
    source, repeats, out = step.arguments[0], step.arguments[1], step.out()
    missing = len(repeats) - len(source.shape)
    parts, strides = [], []
    for axis, count in enumerate(repeats):
        size = source.shape[axis - missing] if axis >= missing else 1
        parts += [count, size]
        strides += [out.strides[axis] * size, out.strides[axis]]
    where = Access(out.buffer, out.offset, tuple(parts), tuple(strides))
    for axis in range(len(source.shape)):
        source = source.unsqueeze(2 * axis, 1)
    schedule.copy(source.broadcast(where.shape), where)


@_lowers(
    *("slice_backward", "select_backward", "diagonal_backward"),
    *("constant_pad_nd", "slice_scatter", "select_scatter"),
)
def _into_part(schedule: Schedule, step: Step) -> None:
    """Write a tensor into a part of zeros, of a number or of a copy of another tensor."""
    out, is_scatter = step.out(), step.name.endswith("_scatter")
    source: Access = step.arguments[int(is_scatter)]
    part, background = out, step.arguments[0] if is_scatter else 0.0
    if step.name.startswith("slice"):
        axis = _axis(step.get(2, "dim", 0), out)
        bounds = slice(step.get(3, "start"), step.get(4, "end"), step.get(5, "step", 1))
        first, last, stride = bounds.indices(out.shape[axis])
        part = out.narrow(axis, first, max(0, -(-(last - first) // stride)), stride)
    elif step.name.startswith("select"):
        axis = _axis(step.arguments[2], out)
        part = out.select(axis, step.arguments[3] % out.shape[axis])
    elif step.name == "diagonal_backward":
        part = _diagonal(out, *(step.get(2 + k, "", (0, 0, 1)[k]) for k in range(3)))
    else:
        pads, background = step.arguments[1], float(step.get(2, "value", 0))
        for k in range(len(pads) // 2):
            axis, low, high = len(out.shape) - 1 - k, pads[2 * k], pads[2 * k + 1]
            left = max(0, source.shape[axis] + min(0, low) + min(0, high))
            source = source.narrow(axis, max(0, -low), left)
            part = part.narrow(axis, max(0, low), left)
    schedule.copy(background, out)
    if part.numel:
        schedule.copy(source, part, after=True)


def _diagonal(out: Access, offset: int, one: int, two: int) -> Access:
    one, two = _axis(one, out), _axis(two, out)
    height, width = out.shape[one], out.shape[two]
    length = max(0, min(height, width - offset) if offset >= 0 else min(height + offset, width))
    begin = out.offset + abs(offset) * out.strides[two if offset >= 0 else one]
    others = out.permute([axis for axis in range(len(out.shape)) if axis not in (one, two)])
    strides = *others.strides, out.strides[one] + out.strides[two]
    return Access(out.buffer, begin, (*others.shape, length), strides)


@_lowers("diag_embed")
def _diag_embed(schedule: Schedule, step: Step) -> None:
    out, defaults = step.out(), {"offset": 0, "dim1": -2, "dim2": -1}
    where = (step.get(1 + k, name, defaults[name]) for k, name in enumerate(defaults))
    schedule.copy(0.0, out)
    schedule.copy(step.arguments[0], _diagonal(out, *where), after=True)


@_lowers("flip")
def _flip(schedule: Schedule, step: Step) -> None:
    source, out = step.arguments[0], step.out()
    for dim in step.arguments[1]:
        axis = _axis(dim, source)
        strides = list(source.strides)
        strides[axis] = -strides[axis]
        begin = source.offset - (source.shape[axis] - 1) * strides[axis]
        source = source._replace(offset=begin, strides=tuple(strides))
    schedule.copy(source, out)


@_lowers("roll")
def _roll(schedule: Schedule, step: Step) -> None:
    source, shifts, out = step.arguments[0], step.arguments[1], step.out()
    axis = _axis(step.get(2, "dims")[0], source)
    size, shift = source.shape[axis], shifts[0] % source.shape[axis]
    for begin, to, length in ((0, shift, size - shift), (size - shift, 0, shift)):
        if length:
            part = source.narrow(axis, begin, length)
            schedule.copy(part, out.narrow(axis, to, length))


# Indexing.


def _checked(name: str, index: str, size: int, *, wraps: bool = False) -> str:
    """Return C code that sets an index out of range to 0; if it wraps, -1 is the last one."""
    wrapped = f"if ({name} < 0) {name} += {size}; " if wraps else ""
    check = f"if ((unsigned long){name} >= {size}UL) {{ bad = 1; {name} = 0; }} "
    return f"long {name} = {index}; {wrapped}{check}"


class _Indexed:
    """An access indexed by tensors: loops with checks, and the order of the loop indices."""

    def __init__(self, source: Access, step: Step) -> None:
        indices, wraps = step.arguments[1], True
        if step.base in _ONE_AXIS:
            if not source.shape:
                raise UncoveredError(f"aten.{step.name} of a number")
            axis, wraps = _axis(indices, source), False
            indices = [*[None] * axis, step.arguments[2].at_least_1d()]
        given = {axis: index for axis, index in enumerate(indices) if index is not None}
        if any(index.dtype in (torch.bool, torch.uint8) for index in given.values()):
            raise UncoveredError("an index that is a mask")
        axes = list(given)
        others = [axis for axis in range(len(source.shape)) if axis not in axes]
        self.common = tuple(torch.broadcast_shapes(*(index.shape for index in given.values())))
        self.given = [index.broadcast(self.common) for index in given.values()]
        self.sizes = [source.shape[axis] for axis in others]
        outer = _indices(len(self.common))
        inner = _indices(len(others), len(outer))
        checks = enumerate(zip(axes, self.given, strict=True))
        self.checks = "".join(
            _checked(f"q{k}", index.at(outer), source.shape[axis], wraps=wraps)
            for k, (axis, index) in checks
        )
        names = dict(zip(others, inner, strict=True)) | {
            axis: f"q{k}" for k, axis in enumerate(axes)
        }
        self.element = source.at([names[axis] for axis in range(len(source.shape))])
        # The indices' axes replace theirs where those are neighbours, and come first elsewhere.
        begin = axes[0] if axes == list(range(axes[0], axes[0] + len(axes))) else 0
        self.order = [*inner[:begin], *outer, *inner[begin:]]

    def loops(self, body: str) -> str:
        """Return loops that run `body` for each element."""
        return _loops(self.common, self.checks + _loops(self.sizes, body, len(self.common)))


@_lowers("index", "_unsafe_index", "index_select")
def _index(schedule: Schedule, step: Step) -> None:
    source, out = step.arguments[0], step.out()
    indexed = _Indexed(source, step)
    code = indexed.loops(f"{out.at(indexed.order)} = {indexed.element};")
    schedule.raw(code, [source, *indexed.given], [out])


@_lowers("index_put", "_unsafe_index_put", "_index_put_impl", "index_add", "index_copy")
def _index_put(schedule: Schedule, step: Step) -> None:
    target, out, alpha = step.arguments[0], step.out(), step.options.get("alpha", 1)
    if step.base in _ONE_AXIS:
        values, adds = step.arguments[3], step.base == "index_add"
    else:
        values, adds = step.arguments[2], step.get(3, "accumulate", False)
    indexed = _Indexed(out, step)
    _start_from(schedule, step, target)
    sizes = [*indexed.common, *indexed.sizes]
    values = values.broadcast(tuple(sizes[int(name[1:])] for name in indexed.order))
    factor = "" if alpha == 1 else f" * ({values.ctype})P[{schedule.parameter(alpha)}]"
    text = f"{indexed.element} {'+=' if adds else '='} {values.at(indexed.order)}{factor};"
    schedule.raw(indexed.loops(text), [values, out, *indexed.given], [out])


def _start_from(schedule: Schedule, step: Step, target: Access) -> None:
    if not step.mutates:
        schedule.copy(target, step.out())


def _along(dim: int, index: Access, whole: Access) -> tuple[list[str], list[str], str]:
    """Return the indices of a loop over `index`, those of the indexed element, and a check."""
    names, axis = _indices(len(index.shape)), _axis(dim, whole)
    at = ["q" if k == axis else name for k, name in enumerate(names)]
    return names, at, _checked("q", index.at(names), whole.shape[axis])


@_lowers("gather")
def _gather(schedule: Schedule, step: Step) -> None:
    source, dim, index = step.arguments[:3]
    source, index, out = (each.at_least_1d() for each in (source, index, step.out()))
    names, at, check = _along(dim, index, source)
    code = _loops(index.shape, f"{check}{out.at(names)} = {source.at(at)};")
    schedule.raw(code, [source, index], [out])


@_lowers("scatter", "scatter_add", "scatter_reduce")
def _scatter(schedule: Schedule, step: Step) -> None:
    target, dim, index, value = step.arguments[:4]
    if step.options or "reduce" in step.name or len(step.arguments) > 4:
        raise UncoveredError(f"aten.{step.name} with reduce")
    _start_from(schedule, step, target)
    index, out = index.at_least_1d(), step.out().at_least_1d()
    names, at, check = _along(dim, index, out)
    read = [value.at_least_1d()] if isinstance(value, Access) else []
    text = read[0].at(names) if read else f"P[{schedule.parameter(value)}]"
    sign = "+=" if "add" in step.name else "="
    code = _loops(index.shape, f"{check}{out.at(at)} {sign} {text};")
    schedule.raw(code, [index, out, *read], [out])


# Linear algebra.


def _suffix(access: Access) -> str:
    if access.dtype not in (torch.float64, torch.float32):
        raise UncoveredError(f"linear algebra of {access.dtype}")
    return "f64" if access.dtype == torch.float64 else "f32"


def _matrix(access: Access) -> str:
    """Return a pointer to a matrix of a batch, and its strides, as C arguments."""
    corner = access.at([*_indices(len(access.shape) - 2), "0", "0"])
    return f"&{corner}, {access.strides[-2]}, {access.strides[-1]}"


@_lowers("mm", "bmm")
def _product(schedule: Schedule, step: Step) -> None:
    a, b = step.arguments[:2]
    out = step.out()
    (m, k), n = a.shape[-2:], b.shape[-1]
    if k == 0 and min(m, n) > 0:
        schedule.copy(0.0, out)
    elif min(m, n) > 0:
        matrices = ", ".join(map(_matrix, (a, b, out)))
        call = f"lv_mm_{_suffix(out)}({m}, {n}, {k}, {matrices}, 1, 0);"
        schedule.raw(_loops(out.shape[:-2], call), [a, b], [out])


@_lowers("linalg_cholesky_ex")
def _cholesky(schedule: Schedule, step: Step) -> None:
    a, out, info = step.arguments[0], step.out(), step.out(1)
    upper = int(step.get(1, "upper", False))
    if step.get(2, "check_errors", False):
        raise UncoveredError("aten.linalg_cholesky_ex with check_errors")
    call = f"lv_cholesky_{_suffix(out)}({a.shape[-1]}, {_matrix(a)}, {_matrix(out)}, {upper});"
    code = f"{info.at(_indices(len(info.shape)))} = {call}"
    schedule.raw(_loops(out.shape[:-2], code), [a], [out, info])


@_lowers("_linalg_check_errors")
def _check_errors(schedule: Schedule, step: Step) -> None:
    info: Access = step.arguments[0]
    code = f"if ({info.at(_indices(len(info.shape)))}) bad |= {SINGULAR};"
    schedule.raw(_loops(info.shape, code), [info], [])


def _factor(
    schedule: Schedule,
    a: Access,
    factors: Sequence[Access],
    info: Access | None,
    more: str = "",
    outs: Sequence[Access] = (),
) -> None:
    """Factor P A = L U; `more` is C code for each matrix that may use the factors."""
    if _is_turned(a):
        a = a.transpose()
    lu, pivots = factors
    batch, n = _indices(len(a.shape) - 2), lu.shape[-1]
    code = f"int *p = &{pivots.at([*batch, '0'])}; "
    code += f"const int code = lv_lu_{_suffix(lu)}({n}, {_matrix(a)}, {_matrix(lu)}, p); "
    code += "" if info is None else f"{info.at(batch)} = code; "
    writes = [lu, pivots, *([] if info is None else [info]), *outs]
    schedule.raw(_loops(a.shape[:-2], code + more), [a], writes)


def _is_turned(a: Access) -> bool:
    """Return whether torch factors the transpose, as its derivatives expect."""
    return a.is_contiguous


def _solve_factored(
    schedule: Schedule,
    lu: Access,
    pivots: Access,
    b: Access,
    out: Access,
    left: bool,
    adjoint: bool,
) -> None:
    lead, n = out.shape[:-2], lu.shape[-1]
    schedule.copy(b.broadcast(out.shape), out)
    columns = out.shape[-1] if left else out.shape[-2]
    lu, pivots = lu.broadcast((*lead, n, n)), pivots.broadcast((*lead, n))
    factors = f"{_matrix(lu)}, &{pivots.at([*_indices(len(lead)), '0'])}"
    sides = f"{int(left)}, {int(adjoint)}"
    call = f"lv_lu_solve_{_suffix(lu)}({n}, {columns}, {factors}, {_matrix(out)}, {sides});"
    schedule.raw(_loops(lead, call), [lu, pivots, out], [out])


@_lowers("_linalg_solve_ex")
def _solve(schedule: Schedule, step: Step) -> None:
    a, b = step.arguments[:2]
    out, lu, pivots, info = map(step.out, range(4))
    _factor(schedule, a, (lu, pivots), info)
    if len(b.shape) == 1 or (len(b.shape) == len(a.shape) - 1 and b.shape == a.shape[:-1]):
        b, out = b.unsqueeze(len(b.shape)), out.unsqueeze(len(out.shape))
    left = step.options.get("left", True)
    _solve_factored(schedule, lu, pivots, b, out, left, _is_turned(a))


@_lowers("linalg_lu_factor_ex")
def _lu_factor(schedule: Schedule, step: Step) -> None:
    a = step.arguments[0]
    if step.options.get("pivot", True) is False or a.shape[-1] != a.shape[-2]:
        raise UncoveredError("aten.linalg_lu_factor_ex without pivots")
    if _is_turned(a):  # the factors are the result
        raise UncoveredError("aten.linalg_lu_factor_ex of a contiguous matrix")
    _factor(schedule, a, (step.out(), step.out(1)), step.out(2))


@_lowers("linalg_lu_solve")
def _lu_solve(schedule: Schedule, step: Step) -> None:
    lu, pivots, b = step.arguments[:3]
    left, adjoint = step.options.get("left", True), step.options.get("adjoint", False)
    _solve_factored(schedule, lu, pivots, b, step.out(), left, adjoint)


@_lowers("_linalg_det")
def _det(schedule: Schedule, step: Step) -> None:
    out, lu, pivots = map(step.out, range(3))
    batch = _indices(len(out.shape))
    diagonal = _diagonal(lu, 0, -2, -1).at([*batch, "k"])
    more = f"{lu.ctype} d = 1; for (long k = 0; k < {lu.shape[-1]}; k++) "
    more += f"d *= p[k] == k + 1 ? {diagonal} : -{diagonal}; {out.at(batch)} = d;"
    _factor(schedule, step.arguments[0], (lu, pivots), None, more, [out])


@_lowers("_linalg_slogdet")
def _slogdet(schedule: Schedule, step: Step) -> None:
    sign, size, lu, pivots = map(step.out, range(4))
    batch, n = _indices(len(sign.shape)), lu.shape[-1]
    call = f"lv_slogdet_from_lu_{_suffix(lu)}({n}, {_matrix(lu)}, p, &s)"
    more = f"{lu.ctype} s; {sign.at(batch)} = {call}; {size.at(batch)} = s;"
    _factor(schedule, step.arguments[0], (lu, pivots), None, more, [sign, size])


@_lowers("linalg_solve_triangular")
def _triangular(schedule: Schedule, step: Step) -> None:
    a, b = step.arguments[:2]
    defaults = {"upper": False, "left": True, "unitriangular": False}
    upper, left, unit = (int(step.options.get(name, value)) for name, value in defaults.items())
    out = step.out()
    a = a.broadcast((*out.shape[:-2], *a.shape[-2:]))
    schedule.copy(b.broadcast(out.shape), out)
    n, m = out.shape[-2:] if left else out.shape[:-3:-1]
    kind = f"{upper}, 0, {left}, {unit}"
    call = f"lv_trsolve_{_suffix(out)}({n}, {m}, {_matrix(a)}, {_matrix(out)}, {kind});"
    schedule.raw(_loops(out.shape[:-2], call), [a, out], [out])


@_lowers("cholesky_solve")
def _cholesky_solve(schedule: Schedule, step: Step) -> None:
    b, factor = step.arguments[:2]
    out = step.out()
    factor = factor.broadcast((*out.shape[:-2], *factor.shape[-2:]))
    schedule.copy(b.broadcast(out.shape), out)
    turned, upper = factor.transpose(), step.get(2, "upper", False)
    sizes = f"{out.shape[-2]}, {out.shape[-1]}"
    calls = [
        f"lv_trsolve_{_suffix(out)}({sizes}, {_matrix(a)}, {_matrix(out)}, {k}, 0, 1, 0);"
        for k, a in enumerate((turned, factor) if upper else (factor, turned))
    ]
    schedule.raw(_loops(out.shape[:-2], " ".join(calls)), [factor, out], [out])


@_lowers("_linalg_eigh")
def _eigh(schedule: Schedule, step: Step) -> None:
    a, values, vectors = step.arguments[0], step.out(), step.out(1)
    n, batch = a.shape[-1], _indices(len(a.shape) - 2)
    if vectors.numel == 0:
        raise UncoveredError("aten._linalg_eigh without vectors")
    if n > _MOST_EIGEN:
        raise UncoveredError(f"aten._linalg_eigh of more than {_MOST_EIGEN} columns")
    at = ["(r > c ? r : c)", "(r > c ? c : r)"]
    element = a.at([*batch, *(at if step.get(1, "UPLO", "L") == "L" else at[::-1])])
    to = f"&{values.at([*batch, '0'])}, {values.strides[-1]}, {_matrix(vectors)}"
    body = (
        f"{a.ctype} m[{n * n}]; for (long r = 0; r < {n}; r++) for (long c = 0; c < {n}; c++) "
        f"m[r * {n} + c] = {element}; lv_eigh_{_suffix(a)}({n}, m, {to});"
    )
    schedule.raw(_loops(a.shape[:-2], body), [a], [values, vectors])


@_lowers(CALL)
def _call(schedule: Schedule, step: Step) -> None:
    """Call another program with the entries of its table `S`."""
    number, *inputs = step.arguments
    if not all(access.is_contiguous for access in inputs):
        raise UncoveredError("a call with strided arguments")
    corners = [access.at(["0"] * len(access.shape)) for access in [*inputs, *step.writes]]
    pointers = ", ".join(f"(void *)&{corner}" for corner in corners)
    arguments = "io_, (void *const *)s_[1], (const double *)s_[2], (char *)s_[3], 0"
    code = f"void *io_[] = {{ {pointers} }}; void *const *s_ = S + 4 * {number}; "
    code += f"bad |= ((lv_program)s_[0])({arguments});"
    schedule.raw("{ " + code + " }", inputs, step.writes)
