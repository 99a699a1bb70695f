"""A traced formula as Python functions of flat tensors, which generate their noise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from langevin.execution.fused.trace import ARITHMETIC, Program, trace
from langevin.kernels import Kernel
from langevin.random.reference import KINDS_AT
from langevin.targets.priors import Prior

__all__ = ["Code", "write"]


class Code(NamedTuple):
    """Plain functions; `in_order` and `anywhere` are for the compiler."""

    source: str
    scalars: Callable[..., list[float]]  # returns the settings in element operations
    in_order: Callable[..., None]  # for consecutive addresses
    anywhere: Callable[..., None]  # takes the address of each element


_FUNCTIONS = ("arange", "where", "rsqrt", "exp", "log", "sign")
_ON_TENSORS = ARITHMETIC | {
    "rsqrt": "rsqrt({})",
    "abs": "abs({})",
    "maximum": "where(({0} > {1}) | ({0} != {0}), {0}, {1})",
    "exp": "exp({})",
    "log": "log({})",
    "sign": "sign({})",
    "sigmoid": "1 / (1 + exp(-{}))",
    "clamp": "where(where({0} < {1}, {1}, {0}) > {2}, {2}, where({0} < {1}, {1}, {0}))",
    "clamp_min": "where({0} < {1}, {1}, {0})",
    "clamp_max": "where({0} > {1}, {1}, {0})",
}


def _write(kernel: Kernel, program: Program, results: Sequence[str]) -> str:
    settings = "".join(f"s{k}, " for k in range(len(program.hoisted)))
    body = [
        "    key = words[0], words[1]",
        *(
            f"    noise{k} = draw(address, key, "
            f"(words[{3 * k + 3}], words[{3 * k + 4}], words[{3 * k + 5}]), REAL)"
            for k in range(kernel.traits.num_noises)
        ),
        f"    {settings}= scalars.unbind()",
        "    position, gradient = stored.to(REAL), gradient.to(REAL)",
        *(f"    {line}" for line in program.written(_ON_TENSORS)),
        *(
            f"    {old}.copy_({new})"
            for old, new in zip(("stored", *kernel.state_names), results, strict=True)
        ),
        "",
    ]
    arguments = ", ".join(["stored", "gradient", *kernel.state_names, "scalars", "words"])
    return "\n".join(
        [
            f"def in_order({arguments}):",
            "    address = words[2] + arange(stored.numel(), device=stored.device)",
            *body,
            f"def anywhere({arguments}, address):",
            *body,
        ]
    )


def write(kernel: Kernel, prior: Prior | None, real: torch.dtype) -> Code:
    """Generate the update of an elementwise kernel, with elements computed in `real`.

    Operations between settings stay Python floats and run once per step, as they do on tensors;
    operations on elements become a line each. So both round at the same places.

    Raises:
        UntraceableError: the formula, for example of a user's prior, uses an operation without a
            symbol; it can run on tensors.

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
    program, names, results = trace(kernel, prior)
    source = _write(kernel, program, results)
    scope: dict[str, Any] = {
        "REAL": real,
        "draw": KINDS_AT[kernel.traits.noise_kind],
        **{name: getattr(torch, name) for name in _FUNCTIONS},
    }
    exec(compile(source, "<langevin.execution.generated>", "exec"), scope)  # our own text
    return Code(source, program.scalars(names), scope["in_order"], scope["anywhere"])
