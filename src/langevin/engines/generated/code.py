"""A traced formula as functions of flat tensors, with the noise made in place."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from langevin.engines.fused.symbols import trace
from langevin.kernels import Kernel
from langevin.noise.at import KINDS_AT
from langevin.targets.priors import Prior

__all__ = ["Code", "write"]


class Code(NamedTuple):
    """Plain functions; `in_order` and `anywhere` are for the compiler."""

    source: str
    scalars: Callable[..., list[float]]  # the settings that elements meet, as Python floats
    in_order: Callable[..., None]  # addresses follow each other from the first
    anywhere: Callable[..., None]  # each element has an address of its own


class _OnTensors(ast.NodeTransformer):
    """Turns a line about an element, which may branch, into one about a tensor, which cannot."""

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        self.generic_visit(node)
        return ast.Call(ast.Name("where", ast.Load()), [node.test, node.body, node.orelse], [])

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        if (
            isinstance(node.right, ast.Call) and ast.unparse(node.right.func) == "square_root"
        ):  # 1 / sqrt(x): x ** -0.5 in a formula
            return ast.Call(ast.Name("reciprocal_root", ast.Load()), node.right.args, [])
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        self.generic_visit(node)
        return functools.reduce(lambda left, right: ast.BinOp(left, ast.BitOr(), right), node.values)  # formulas have `or` only


def _write(kernel: Kernel, prior: Prior | None) -> str:
    program, names, results = trace(kernel, prior)
    lines = ast.unparse(_OnTensors().visit(ast.parse("\n".join(program.element_lines)))).splitlines()
    settings = "".join(f"s{k}, " for k in range(len(program.hoisted)))
    body = [
        "    key = words[0], words[1]",
        *(
            f"    noise{k} = draw(address, key, (words[{3 * k + 3}], words[{3 * k + 4}], words[{3 * k + 5}]), REAL)"
            for k in range(kernel.num_noises)
        ),
        f"    {settings}= scalars.unbind()",
        "    position, gradient = stored.to(REAL), gradient.to(REAL)",
        *(f"    {line}" for line in lines),
        *(f"    {old}.copy_({new})" for old, new in zip(("stored", *kernel.memory), results, strict=True)),
        "",
    ]
    arguments = ", ".join(["stored", "gradient", *kernel.memory, "scalars", "words"])
    return "\n".join(
        [
            f"def scalars({', '.join(names)}):",
            *(f"    {line}" for line in program.setting_lines),
            f"    return [{', '.join(program.hoisted)}]",
            "",
            f"def in_order({arguments}):",
            "    address = words[2] + arange(stored.numel(), device=stored.device)",
            *body,
            f"def anywhere({arguments}, address):",
            *body,
        ]
    )


def write(kernel: Kernel, prior: Prior | None, real: torch.dtype) -> Code:
    """Write the update of an elementwise kernel, whose elements are computed in `real`.

    The formula is not written a second time: operations between settings stay Python floats and run once per step, as they do on
    tensors; operations that touch an element become a line each. So both round at the same places.

    Raises:
        UntraceableError: the formula, a user's prior for one, uses what has no symbol; it can run on tensors.

    Example:
        >>> import langevin as lv
        >>> print(write(lv.sgld(1.0), None, torch.float32).source[-217:])
            s0, s1, s2, = scalars.unbind()
            position, gradient = stored.to(REAL), gradient.to(REAL)
            x0 = s0 * gradient
            x1 = s1 * x0
            x2 = s2 * noise0
            x3 = position - x1
            x4 = x3 + x2
            stored.copy_(x4)
        <BLANKLINE>
    """
    source = _write(kernel, prior)
    scope: dict[str, Any] = {
        "REAL": real, "draw": KINDS_AT[kernel.noise_kind], "arange": torch.arange, "where": torch.where,
        "reciprocal_root": torch.rsqrt, "exponential": torch.exp, "natural_logarithm": torch.log, "sign_of": torch.sign,
    }  # fmt: skip
    exec(compile(source, "<langevin.engines.generated>", "exec"), scope)  # our own text, written a few lines above
    return Code(source, scope["scalars"], scope["in_order"], scope["anywhere"])
