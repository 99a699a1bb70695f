"""The fused CPU engine: a kernel's `update`, traced once, becomes one pass over memory with its noise made in cache.

The formula is not written a second time. It is called with symbols instead of tensors, and each operator appends a line to a
program. Operations between settings stay Python floats and run once per step, as they do in the tensor version; operations
that touch an element become the body of a loop that numba compiles. Both versions round at the same places, so their results are
equal bit for bit (for the exponential of a spike-and-slab prior: to rounding).

`Fused.source` shows the generated loop.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import numba
import numpy as np
import torch
from numba import carray
from numpy.typing import NDArray
from torch import Tensor

from langevin import elementary
from langevin.checks import needs
from langevin.gradients import energy_gradient
from langevin.kernels import Clock, Kernel
from langevin.noise import cpu as noise_cpu
from langevin.targets.priors import Prior
from langevin.threads import run_in_threads

__all__ = ["Fused", "fuse", "table_row"]

TILE = 4096  # elements whose noise is made at a time: 16 KB, so it is still in the cache when the update reads it
GRAIN = 2**16  # elements: less is done before a second thread has woken up
REALS: dict[torch.dtype, type[np.floating[Any]]] = {torch.float32: np.float32, torch.float64: np.float64}


class Program:
    """The lines that a traced formula leaves behind."""

    def __init__(self) -> None:
        self.setting_lines: list[str] = []  # Python floats, once per step
        self.element_lines: list[str] = []  # reals, once per element
        self.hoisted: dict[str, int] = {}  # settings that elements meet, in the order they are passed

    def operate(self, template: str, *operands: Symbol | float) -> Symbol:
        """Append the operation that `template` describes and return its result."""
        is_element = any(isinstance(operand, Symbol) and operand.is_element for operand in operands)
        names = [self._name(operand, is_element) for operand in operands]
        lines = self.element_lines if is_element else self.setting_lines
        result = f"{'x' if is_element else 'c'}{len(lines)}"
        lines.append(f"{result} = {template.format(*names)}")
        return Symbol(self, result, is_element)

    def _name(self, operand: Symbol | float, for_element: bool) -> str:
        if isinstance(operand, Symbol) and (operand.is_element or not for_element):
            return operand.name
        name = operand.name if isinstance(operand, Symbol) else repr(float(operand))
        return f"s{self.hoisted.setdefault(name, len(self.hoisted))}" if for_element else name


@dataclass(frozen=True, eq=False)
class Symbol:
    """What stands for a tensor or a setting while a formula is traced."""

    program: Program
    name: str
    is_element: bool

    def __add__(self, other: Any) -> Symbol:
        return self.program.operate("{} + {}", self, other)

    def __radd__(self, other: Any) -> Symbol:
        return self.program.operate("{} + {}", other, self)

    def __sub__(self, other: Any) -> Symbol:
        return self.program.operate("{} - {}", self, other)

    def __rsub__(self, other: Any) -> Symbol:
        return self.program.operate("{} - {}", other, self)

    def __mul__(self, other: Any) -> Symbol:
        return self.program.operate("{} * {}", self, other)

    def __rmul__(self, other: Any) -> Symbol:
        return self.program.operate("{} * {}", other, self)

    def __truediv__(self, other: Any) -> Symbol:
        return self.program.operate("{} / {}", self, other)

    def __rtruediv__(self, other: Any) -> Symbol:
        return self.program.operate("{} / {}", other, self)

    def __neg__(self) -> Symbol:
        return self.program.operate("-{}", self)

    def __pow__(self, power: float) -> Symbol:
        if not self.is_element:
            return self.program.operate("{} ** {}", self, power)
        if power != -0.5:  # torch.sqrt is not correctly rounded on the CPU (MKL), torch.rsqrt is: the bits must agree
            raise NotImplementedError(f"a fused formula may take elements to the power -0.5 only, got {power}")
        return self.program.operate("{} / square_root({})", 1.0, self)

    def abs(self) -> Symbol:
        """Return the modulus, as `Tensor.abs` does."""
        return self.program.operate("abs({})", self)

    def maximum(self, other: Any) -> Symbol:
        """Return the larger of two, as `Tensor.maximum` does: not a number if either is none."""
        return self.program.operate("{0} if {0} > {1} or {0} != {0} else {1}", self, other)

    def exp(self) -> Symbol:
        """Return e to this power, as `Tensor.exp` does."""
        return self.program.operate("exponential({})", self)


def _symbolic(value: Any, name: str, program: Program, names: list[str]) -> Any:
    """Return a twin of `value` (a kernel, a drift, a prior, ...) whose numbers are symbols, and list their names."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        names.append(name)
        return Symbol(program, name, is_element=False)
    if isinstance(value, tuple):
        return tuple(_symbolic(entry, f"{name}_{k}", program, names) for k, entry in enumerate(value))
    if is_dataclass(value) and not isinstance(value, type):
        twin = object.__new__(type(value))
        for field in fields(value):
            object.__setattr__(twin, field.name, _symbolic(getattr(value, field.name), f"{name}_{field.name}", program, names))
        return twin
    return value


def _numbers(value: Any) -> tuple[float, ...]:
    """Return the numbers that `_symbolic` replaced, in its order."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return (float(value),)
    if is_dataclass(value) and not isinstance(value, type):
        value = tuple(getattr(value, field.name) for field in fields(value))
    return tuple(number for entry in value for number in _numbers(entry)) if isinstance(value, tuple) else ()


def _trace(kernel: Kernel, prior: Prior | None) -> tuple[Program, list[str], list[str]]:
    """Trace one step; return the program, the names of its settings, and the names of the new position and memory."""
    program, names = Program(), [*Clock._fields, "num_data"]
    *now, num_data = (Symbol(program, name, is_element=False) for name in names)
    clock: Any = Clock(*now)  # type: ignore[arg-type]
    twin, twin_prior = (_symbolic(value, name, program, names) for value, name in ((kernel, "kernel"), (prior, "prior")))
    position, gradient, *memory = (Symbol(program, name, is_element=True) for name in ("position", "gradient", *kernel.memory))
    noises = [Symbol(program, f"noise{k}", is_element=True) for k in range(kernel.num_noises)]
    gradient = energy_gradient(gradient, position, num_data, twin_prior)
    noise = noises[0] if kernel.num_noises == 1 else noises
    moved, new_memory = twin.update(position, gradient, noise, tuple(memory), clock)
    return program, names, [symbol.name for symbol in (moved, *new_memory)]


def _write(kernel: Kernel, program: Program, names: Sequence[str], results: Sequence[str]) -> str:
    """Write two functions: `scalars`, plain Python, and `loop`, for numba.

    A row of `table` is a tensor: its size, the address of its first element, its pointers. Elements `begin` to `end` of all
    tensors end to end are updated, in place.
    """
    arrays, noises = ["position", "gradient", *kernel.memory], [f"noise{k}" for k in range(kernel.num_noises)]
    lines = [
        f"def scalars({', '.join(names)}):",
        *(f"    {line}" for line in program.setting_lines),
        f"    return [{', '.join(program.hoisted)}]",
        "",
        "def loop(table, scalars, seed, step, begin, end):",
        *(f"    {noise}_tile = np.empty({TILE}, REAL)" for noise in noises),
        "    scratch = make_scratch(noise0_tile)",
        *(f"    s{k} = REAL(scalars[{k}])" for k in range(len(program.hoisted))),
        "    for row in range(len(table)):",
        "        size, offset = table[row, 0], table[row, 1]",
        "        low, high = max(begin, 0), min(end, size)",
        "        while low < high:",
        f"            count = min({TILE}, high - low)",
        *(
            f"            fill_normal({noise}_tile, count, offset + low, seed, {k} << 32, step, scratch)"
            for k, noise in enumerate(noises)
        ),
        *(
            f"            {name}_tile = carray(pointer(table[row, {k}] + low * WIDTH), count, REAL)"
            for k, name in enumerate(arrays, 2)
        ),
        "            for i in range(count):",
        *(f"                {name} = {name}_tile[i]" for name in (*arrays, *noises)),
        *(f"                {line}" for line in program.element_lines),
        *(f"                {name}_tile[i] = {result}" for name, result in zip(("position", *kernel.memory), results, strict=True)),
        "            low += count",
        "        begin, end = begin - size, end - size",
    ]
    return "\n".join(lines) + "\n"


@dataclass(frozen=True, eq=False)
class Fused:
    """The compiled update of a kernel and a prior."""

    source: str
    scalars: Callable[..., list[float]]
    loop: Callable[..., None]
    numbers: tuple[float, ...]  # the settings of the kernel and of the prior

    def __call__(self, table: NDArray[np.int64], *, num_data: float, clock: Clock, seed: int, step: int) -> None:
        """Update, in place, every tensor of the table; see `table_row`."""
        scalars = np.array(self.scalars(*clock, num_data, *self.numbers), dtype=np.float64)
        key = np.uint64(seed)
        run_in_threads(lambda begin, end: self.loop(table, scalars, key, step, begin, end), int(table[:, 0].sum()), GRAIN)


def table_row(position: Tensor, gradient: Tensor, memory: Sequence[Tensor], offset: int) -> list[int]:
    """Describe one contiguous tensor to `Fused`; the caller keeps the tensors alive during the call."""
    return [position.numel(), offset, position.data_ptr(), gradient.data_ptr(), *(entry.data_ptr() for entry in memory)]


def _structure(value: Any) -> Any:
    """Return what the generated code depends on: the types of the parts, not their numbers."""
    if is_dataclass(value) and not isinstance(value, type):
        return type(value), *(_structure(getattr(value, field.name)) for field in fields(value))
    return tuple(map(_structure, value)) if isinstance(value, tuple) else type(value)


@functools.lru_cache(maxsize=1024)
def fuse(kernel: Kernel, prior: Prior | None, dtype: torch.dtype) -> Fused:
    """Return the fused update of an elementwise kernel; code is compiled once per structure, whatever the numbers.

    Example:
        >>> import langevin as lv
        >>> print(fuse(lv.sgld(1.0), None, torch.float32).source[:60])
        def scalars(step_size, started, annealing, adapting, num_dat
    """
    if not kernel.is_elementwise:
        raise needs("fuse", "kernel", "an elementwise kernel", kernel.name)
    key = (_structure(kernel), kernel.memory, _structure(prior), dtype)
    if key not in _compiled:
        program, names, results = _trace(kernel, prior)
        source = _write(kernel, program, names, results)
        _compiled[key] = source, *_compile(source, REALS[dtype])
    return Fused(*_compiled[key], _numbers(kernel) + _numbers(prior))


_compiled: dict[Any, tuple[str, Callable[..., list[float]], Callable[..., None]]] = {}


def _compile(source: str, real: type[np.floating[Any]]) -> tuple[Callable[..., list[float]], Callable[..., None]]:
    """Compile the generated functions, through a file where one can be written so that numba keeps the machine code."""
    versions = [numba.__version__, *(Path(module.__file__ or "").read_text() for module in (noise_cpu, elementary))]
    digest = hashlib.sha256("\n".join([source, real.__name__, *versions]).encode()).hexdigest()[:24]
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "langevin"
    path = folder / f"fused_{digest}.py"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            draft = folder / f"{path.name}.{os.getpid()}"
            draft.write_text(source)
            draft.replace(path)
    except OSError:  # a read-only home costs seconds of compiling per process, nothing else
        path = Path("<langevin.fused>")
    scope: dict[str, Any] = {
        "__name__": __name__, "np": np, "REAL": real, "WIDTH": real(0).itemsize,
        "carray": carray, "pointer": elementary.pointer,
        "make_scratch": noise_cpu.make_scratch, "fill_normal": noise_cpu.fill_normal,
        "square_root": elementary.square_root, "exponential": elementary.exponential,
    }  # fmt: skip
    exec(compile(source, str(path), "exec"), scope)  # our own text, written a few lines above
    return scope["scalars"], numba.njit(nogil=True, error_model="numpy", cache=path.is_absolute())(scope["loop"])
