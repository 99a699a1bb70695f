"""A traced formula as C: `elements` is generated, the loop around it is `lv_fused.h`."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import NamedTuple

import torch

from langevin.execution.fused.symbols import Program, UntraceableError
from langevin.execution.fused.table import DTYPES
from langevin.kernels import Kernel
from langevin.random import UPDATE_NOISES

__all__ = ["write"]


class _Types(NamedTuple):
    """C types of a dtype, and functions of `lv_fused.h`."""

    real: str
    suffix: str
    stored: str
    load: str
    save: str


_FLOAT = _Types("float", "f32", "float", "{}", "{}")
_TYPES = {
    torch.float32: _FLOAT,
    torch.float64: _Types("double", "f64", "double", "{}", "{}"),
    torch.bfloat16: _FLOAT._replace(stored="uint16_t", load="lv_widen({})", save="lv_narrow({})"),
}
assert _TYPES.keys() == set(DTYPES)

_OPERATORS = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.Lt: "<",
    ast.Gt: ">",
    ast.NotEq: "!=",
    ast.Or: "||",
}


def _function(name: str, suffix: str) -> str:
    short = "f" if suffix == "f32" else ""
    return {
        "square_root": f"__builtin_sqrt{short}", "abs": f"__builtin_fabs{short}",
        "exponential": f"lv_exp_{suffix}", "natural_logarithm": f"__builtin_log{short}",
        "sign_of": "lv_sign",
    }[name]  # fmt: skip


def _in_c(node: ast.expr, suffix: str) -> str:
    """Return an element expression in C, parenthesized as Python evaluates it."""
    match node:
        case ast.Name(id=name):
            return f"{name}_"  # no keyword of C, nor another name of the program
        case ast.BinOp(left=left, op=operator, right=right):
            return f"({_in_c(left, suffix)} {_OPERATORS[type(operator)]} {_in_c(right, suffix)})"
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return f"(-{_in_c(operand, suffix)})"
        case ast.IfExp(test=test, body=body, orelse=other):
            return f"({_in_c(test, suffix)} ? {_in_c(body, suffix)} : {_in_c(other, suffix)})"
        case ast.Compare(left=left, ops=[operator], comparators=[right]):
            return f"({_in_c(left, suffix)} {_OPERATORS[type(operator)]} {_in_c(right, suffix)})"
        case ast.BoolOp(op=ast.Or(), values=values):
            return "(" + " || ".join(_in_c(value, suffix) for value in values) + ")"
        case ast.Call(func=ast.Name(id=name), args=[argument]):
            return f"{_function(name, suffix)}({_in_c(argument, suffix)})"
    raise UntraceableError(f"no C code for {ast.unparse(node)}")


def _statement(line: str, suffix: str) -> str:
    (assignment,) = ast.parse(line).body
    assert isinstance(assignment, ast.Assign)
    (target,) = assignment.targets
    return f"const REAL {ast.unparse(target)}_ = {_in_c(assignment.value, suffix)};"


def write(kernel: Kernel, program: Program, results: Sequence[str], dtype: torch.dtype) -> str:
    """Return the C program of an update.

    Args:
        kernel: its noises and the names of its state.
        program: the traced formula.
        results: names of the new position and state.
        dtype: of positions and gradients.
    """
    types = _TYPES[dtype]
    noises = [f"noise{k}" for k in range(kernel.traits.num_noises)]
    tensors = ["position", "gradient", *kernel.state_names]
    stored = {"position", "gradient"}
    purposes = ", ".join(str(int(purpose)) for purpose in UPDATE_NOISES[: len(noises)])

    def kind(name: str) -> str:
        const = "const " if name == "gradient" else ""
        return f"{const}{'STORED' if name in stored else 'REAL'} *restrict {name}_at"

    def load(name: str) -> str:
        return (types.load if name in stored else "{}").format(f"{name}_at[i]")

    def save(name: str, result: str) -> str:
        return f"{name}_at[i] = " + (types.save if name in stored else "{}").format(f"{result}_")

    parameters = [
        "int64_t count",
        *map(kind, tensors),
        *(f"const REAL *restrict {noise}_at" for noise in noises),
        "const double *scalars",
    ]
    at = [
        *(f"(void *)at[{k}]" for k in range(len(tensors))),
        *(f"noise[{k}]" for k in range(len(noises))),
    ]
    lines = [
        "#include <stdint.h>",
        f"typedef {types.real} REAL;",
        f"typedef {types.stored} STORED;",
        f"#define LV_NOISES {len(noises)}",
        f"#define LV_TENSORS {len(tensors)}",
        f"#define LV_PURPOSES {{{purposes}}}",
        f"#define LV_BLOCKS lv_{kernel.traits.noise_kind}_blocks_{types.suffix}",
        '#include "lv_fused.h"',
        "",
        f"static void update({', '.join(parameters)}) {{",
        *(f"    const REAL s{k}_ = (REAL)scalars[{k}];" for k in range(len(program.hoisted))),
        "    for (int64_t i = 0; i < count; i++) {",
        *(f"        const REAL {name}_ = {load(name)};" for name in tensors),
        *(f"        const REAL {noise}_ = {noise}_at[i];" for noise in noises),
        *(f"        {_statement(line, types.suffix)}" for line in program.element_lines),
        *(
            f"        {save(name, result)};"
            for name, result in zip(["position", *kernel.state_names], results, strict=True)
        ),
        "    }",
        "}",
        "",
        "static void elements(int64_t count, char *const *at, REAL *const *noise, "
        "const double *scalars) {",
        f"    update(count, {', '.join(at)}, scalars);",
        "}",
    ]
    return "\n".join(lines) + "\n"
