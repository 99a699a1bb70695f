"""The loop behind a traced formula: written, compiled, called.

The formula is not written a second time. It is called with symbols instead of tensors, and each operator appends a line to a
program. Operations between settings stay Python floats and run once per step, as they do in the tensor version; operations
that touch an element become the body of a loop that numba compiles. Both versions round at the same places, so their results are
equal bit for bit (for the exponential of a spike-and-slab prior, and the logarithm of a horseshoe: to rounding).

`Fused.source` shows the generated loop.
"""

from __future__ import annotations

import ctypes
import functools
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numba
import numpy as np
import torch
from numba import carray, types
from numpy.typing import NDArray

from langevin.checks import needs
from langevin.cpu import elementary
from langevin.cpu.code_cache import cached, private_folder
from langevin.cpu.threads import run_compiled
from langevin.engines.fused import fill
from langevin.engines.fused.symbols import Program, UntraceableError, numbers, structure, trace
from langevin.engines.fused.table import FORMATS, POINTERS
from langevin.kernels import Kernel, StepInputs
from langevin.noise import UPDATE_NOISES
from langevin.noise import cpu as noise_cpu
from langevin.noise.address import MAX_BLOCK, MAX_STEP, lanes_of
from langevin.targets.priors import Prior

__all__ = ["Fused", "fuse"]

TILE = 4096  # elements whose noise is made at a time: 16 KB, so it is still in the cache when the update reads it
PIECE = 8  # tiles that a thread takes at a time
GRAIN = 2**16  # elements: less is done before a second thread has woken up
JOB = ("table_at", "scalars_at", "num_rows", "seed", "chain", "step", "total", "next")
"""The int64 numbers that `loop` is given the address of; `next` is the first element that no thread has taken."""


def _write(kernel: Kernel, program: Program, names: Sequence[str], results: Sequence[str], is_wide: bool) -> str:
    """Write two functions: `scalars`, plain Python, and `loop`, for numba, which every thread calls with the same job.

    A row of `table` is a tensor: see `table_row`. All tensors end to end, in the order of memory, are updated in place, in pieces
    that go to whichever thread is free. With `is_wide` parameters and gradients are stored in fewer bits than they are computed in.
    """
    noises, written = [f"noise{k}" for k in range(kernel.num_noises)], ["position", *kernel.memory]
    stored = ["position", "gradient"]
    arrays = [*stored, *kernel.memory]
    wide, narrow = ("widen({})", "narrow({})") if is_wide else ("{}", "{}")

    def kind(name: str) -> str:
        return "STORED" if name in stored else "REAL"

    def load(name: str) -> str:
        return (wide if name in stored else "{}").format(f"{name}_tile[i]")

    def save(name: str, result: str) -> str:
        return f"{name}_tile[i] = " + (narrow if name in stored else "{}").format(result)

    lines = [
        f"def scalars({', '.join(names)}):",
        *(f"    {line}" for line in program.setting_lines),
        f"    return [{', '.join(program.hoisted)}]",
        "",
        "def loop(job):",
        f"    call = carray(pointer(job), {len(JOB)}, np.int64)",
        *(f"    {name} = call[{k}]" for k, name in enumerate(JOB[:-1])),
        f"    table = carray(pointer(table_at), (num_rows, {POINTERS + len(arrays)}), np.int64)",
        f"    scalars = carray(pointer(scalars_at), {len(program.hoisted)}, np.float64)",
        *(f"    s{k} = REAL(scalars[{k}])" for k in range(len(program.hoisted))),
        "    key = np.uint64(seed)",
        f"    room = {TILE}",
        "    for row in range(num_rows):",
        "        room = max(room, table[row, 2] * table[row, 3])",
        "    spare = np.empty(room, REAL)",
        *(f"    {noise}_all = np.empty(room, REAL)" for noise in noises),
        "    scratch = make_scratch(spare)",
        "    while True:",
        f"        begin = fetch_add(job + {8 * JOB.index('next')}, {PIECE} * room)",
        f"        end = min(begin + {PIECE} * room, total)",
        "        if begin >= end:",
        "            return",
        "        for row in range(num_rows):",
        "            size, offset, channels, spatial = table[row, 0], table[row, 1], table[row, 2], table[row, 3]",
        "            slab = max(1, channels * spatial)  # noise is made for whole slabs",
        "            low, high = max(begin, 0), min(end, size)",
        "            while low < high:",
        "                first = low // slab * slab",
        f"                made = min(max(1, {TILE} // slab) * slab, size - first)",
        *(
            f"                fill_{kernel.noise_kind}({noise}_all, spare, made, offset + first, key, "
            f"({int(purpose)} << 32) + chain, step, channels, spatial, scratch)"
            for purpose, noise in zip(UPDATE_NOISES, noises, strict=False)
        ),
        "                count = min(first + made, high) - low",
        *(f"                {noise}_tile = {noise}_all[low - first : low - first + count]" for noise in noises),
        *(
            f"                {name}_tile = carray(pointer(table[row, {k}] + low * {kind(name)}_WIDTH), count, {kind(name)})"
            for k, name in enumerate(arrays, POINTERS)
        ),
        "                for i in range(count):",
        *(f"                    {name} = {load(name)}" for name in arrays),
        *(f"                    {noise} = {noise}_tile[i]" for noise in noises),
        *(f"                    {line}" for line in program.element_lines),
        *(f"                    {save(name, result)}" for name, result in zip(written, results, strict=True)),
        "                low += count",
        "            begin, end = begin - size, end - size",
    ]
    return "\n".join(lines) + "\n"


@dataclass(frozen=True, eq=False)
class Fused:
    """The compiled update of a kernel and a prior."""

    source: str
    scalars: Callable[..., list[float]]
    loop: Callable[[], Any]  # returns the compiled function, made when it is first asked for
    numbers: tuple[float, ...]  # the settings of the kernel and of the prior
    lanes: int  # normals in a block of noise

    def __call__(self, table: NDArray[np.int64], *, num_data: float, inputs: StepInputs, seed: int, chain: int, step: int) -> None:
        """Update, in place, every tensor of the table; see `table_row`."""
        sizes, offsets = table[:, 0].tolist(), table[:, 1].tolist()
        end = max(map(sum, zip(sizes, offsets, strict=True)))
        if end > self.lanes * MAX_BLOCK or not 0 <= step < MAX_STEP:
            raise needs("Fused", "table", f"addresses up to {self.lanes * MAX_BLOCK} and steps below {MAX_STEP}", (end, step))
        scalars, total = self.scalars(*inputs, num_data, *self.numbers), sum(sizes)
        held = (ctypes.c_double * len(scalars))(*scalars)
        job = (ctypes.c_int64 * len(JOB))(table.ctypes.data, ctypes.addressof(held), len(table), seed, chain, step, total, 0)
        run_compiled(self.loop().address, job, max(1, min(torch.get_num_threads(), total // GRAIN)))


@functools.lru_cache(maxsize=1024)
def fuse(kernel: Kernel, prior: Prior | None, dtype: torch.dtype) -> Fused:
    """Return the fused update of an elementwise kernel; code is compiled once per structure, whatever the numbers.

    Raises:
        UntraceableError: the formula, a user's prior for one, uses what the engine has no code for; it can run on tensors.

    Example:
        >>> import langevin as lv
        >>> print(fuse(lv.sgld(1.0), None, torch.float32).source[:60])
        def scalars(step_size, temperature, annealing, adapting, sta
    """
    if not kernel.is_elementwise:
        raise UntraceableError(f"{kernel.name} is not elementwise")
    key = (structure(kernel), kernel.memory, structure(prior), dtype)
    if key not in _compiled:
        program, names, results = trace(kernel, prior)
        source = _write(kernel, program, names, results, FORMATS[dtype].stored is not FORMATS[dtype].real)
        _compiled[key] = source, *_compile(source, dtype)
    return Fused(*_compiled[key], numbers(kernel) + numbers(prior), lanes_of(FORMATS[dtype].wide))


_compiled: dict[Any, tuple[str, Callable[..., list[float]], Callable[[], Any]]] = {}


def _compile(source: str, dtype: torch.dtype) -> tuple[Callable[..., list[float]], Callable[[], Any]]:
    """Compile the generated functions, through a file where one can be written so that numba keeps the machine code."""
    form = FORMATS[dtype]
    parts = [*noise_cpu.SOURCES, Path(fill.__file__)]
    folder, name = private_folder(), f"fused_{sha256(f'{dtype} {source}'.encode()).hexdigest()[:24]}.py"
    path = folder and folder / name
    if path is not None and folder is not None:
        try:
            if not path.exists() or path.read_text() != source:
                draft = folder / f".{name}.{os.getpid()}.{os.urandom(4).hex()}"
                draft.write_text(source)
                draft.replace(path)
        except (OSError, UnicodeDecodeError):  # it costs seconds of compiling per process, nothing else
            path = None
    scope: dict[str, Any] = {
        "__name__": __name__, "np": np, "carray": carray, "pointer": elementary.pointer, "fetch_add": elementary.fetch_add,
        "REAL": form.real, "REAL_WIDTH": form.real_width, "STORED": form.stored, "STORED_WIDTH": form.stored_width,
        "make_scratch": noise_cpu.make_scratch, **fill.FILLS,
        "square_root": elementary.square_root, "exponential": elementary.exponential,
        "natural_logarithm": math.log, "sign_of": np.sign, "widen": elementary.widen, "narrow": elementary.narrow,
    }  # fmt: skip
    exec(compile(source, str(path or "<langevin.engines.fused>"), "exec"), scope)  # our own text, written a few lines above
    decorator = functools.partial(numba.cfunc, types.void(types.int64), error_model="numpy")
    if path is None:
        return scope["scalars"], functools.cache(lambda: decorator()(scope["loop"]))
    return scope["scalars"], functools.cache(lambda: cached(decorator, scope["loop"], *parts, str(dtype)))
