"""A traced formula as C: `elements` is generated, the loop around it is `lv_fused.h`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from langevin.execution.fused.table import DTYPES
from langevin.execution.fused.trace import ARITHMETIC, Program
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

_IN_C = ARITHMETIC | {  # {f}: of the C library, {s}: of our headers
    "rsqrt": "1 / __builtin_sqrt{f}({0})",
    "abs": "__builtin_fabs{f}({0})",
    "maximum": "{0} > {1} || {0} != {0} ? {0} : {1}",
    "exp": "lv_exp_{s}({0})",
    "log": "__builtin_log{f}({0})",
    "sign": "lv_sign({0})",
    "sigmoid": "1 / (1 + lv_exp_{s}(-{0}))",
    "clamp": "({0} < {1} ? {1} : {0}) > {2} ? {2} : ({0} < {1} ? {1} : {0})",
    "clamp_min": "{0} < {1} ? {1} : {0}",
    "clamp_max": "{0} > {1} ? {1} : {0}",
}


def write(kernel: Kernel, program: Program, results: Sequence[str], dtype: torch.dtype) -> str:
    """Return the C program of an update.

    Args:
        kernel: its noises and the names of its state.
        program: the traced formula.
        results: names of the new position and state.
        dtype: of positions and gradients.
    """
    types = _TYPES[dtype]
    short = "f" if types.real == "float" else ""
    functions = {
        name: template.replace("{f}", short).replace("{s}", types.suffix)
        for name, template in _IN_C.items()
    }
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
        # Names end in _: they are no keyword of C, nor another name of the program.
        *(f"        const REAL {line};" for line in program.written(functions, "_")),
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
