"""Compile and call the C loop of a traced formula.

The formula is recorded once (`trace`). Operations between settings stay Python floats and run once
per step, as they do on tensors; operations on elements become the body of a loop in C. Both
versions round at the same points, so their results are equal bit for bit (for the exponential of a
spike-and-slab prior, and the logarithm of a horseshoe: to rounding).

`Fused.source` is the generated program.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from langevin.checks import needs
from langevin.compiler.build import CompilerError, load
from langevin.compiler.runtime import Work, run_compiled
from langevin.execution.fused.table import wide_dtype
from langevin.execution.fused.trace import UntraceableError, numbers, structure, trace
from langevin.execution.fused.write import write
from langevin.kernels import Kernel, StepInputs
from langevin.random.address import MAX_BLOCK, MAX_STEP, lanes_of
from langevin.targets.priors import Prior

__all__ = ["Extent", "Fused", "fuse"]

PIECE = 2**15  # elements that a thread takes at a time
GRAIN = 2**16  # elements per thread; with fewer, starting a thread takes longer
TILE = 2048  # elements with noise in cache, at least `LV_CHUNK` of the header


class _Job(ctypes.Structure):
    """`lv_job` of the header."""

    _fields_ = (
        ("table", ctypes.c_void_p),
        ("scalars", ctypes.c_void_p),
        ("workspace", ctypes.c_void_p),
        ("room", ctypes.c_int64),
        ("rows", ctypes.c_int64),
        ("chain", ctypes.c_int64),
        ("step", ctypes.c_int64),
        ("seed", ctypes.c_uint64),
        ("total", ctypes.c_int64),
        ("piece", ctypes.c_int64),
        ("threads", ctypes.c_int64),
        ("next", ctypes.c_int64),
    )


@dataclass(frozen=True)
class _Code:
    """Compiled code of a structure, for any numbers."""

    source: str
    scalars: Callable[..., list[float]]
    work: Any  # of the type `Work`
    lanes: int  # normals in a block of noise
    num_noises: int
    real: torch.dtype


class Extent(NamedTuple):
    """Sizes in a table."""

    total: int  # elements
    end: int  # the address after the last
    slab: int  # elements of the largest channels-last slab, or 0

    @classmethod
    def of(cls, table: NDArray[np.int64]) -> Extent:
        """Return the extent of a table."""
        sizes, ends = table[:, 0], table[:, 0] + table[:, 1]
        return cls(int(sizes.sum()), int(ends.max()), int((table[:, 2] * table[:, 3]).max()))


class Fused:
    """The compiled update of a kernel and a prior.

    Args:
        code: compiled once per structure.
        numbers: the settings of the kernel and of the prior.
    """

    def __init__(self, code: _Code, numbers: tuple[float, ...]) -> None:
        """Start without the settings of a step."""
        self.code, self.numbers = code, numbers
        self._last: tuple[tuple[StepInputs, float], ctypes.Array[ctypes.c_double]] | None = None

    def _scalars(self, inputs: StepInputs, num_data: float) -> ctypes.Array[ctypes.c_double]:
        """Return the settings as an array of C doubles, the same one until one changes."""
        wanted = (inputs, num_data)
        last = self._last  # one read: another thread may step another optimizer with this update
        if last is not None and last[0] == wanted:
            return last[1]
        scalars = self.code.scalars(*inputs, num_data, *self.numbers)
        array = (ctypes.c_double * len(scalars))(*scalars)
        self._last = wanted, array
        return array

    @property
    def source(self) -> str:
        """The C program."""
        return self.code.source

    def __call__(
        self,
        table: NDArray[np.int64],
        *,
        num_data: float,
        inputs: StepInputs,
        seed: int,
        chain: int,
        step: int,
        extent: Extent | None = None,
    ) -> None:
        """Update every tensor of the table in place; `extent` is that of the table, if known."""
        code = self.code
        total, end, slab = extent or Extent.of(table)
        if end > code.lanes * MAX_BLOCK or not 0 <= step < MAX_STEP:
            condition = f"addresses up to {code.lanes * MAX_BLOCK} and steps below {MAX_STEP}"
            raise needs("Fused", "table", condition, (end, step))
        scalars = self._scalars(inputs, num_data)
        threads = 1 if total < 2 * GRAIN else min(torch.get_num_threads(), total // GRAIN)
        room, workspace = 0, None
        if slab:  # channels-last weights
            room = max(slab, TILE) + 32 * code.lanes
            workspace = torch.empty(
                threads * (code.num_noises + 1) * room, dtype=code.real, device="cpu"
            )
        job = _Job(
            table.ctypes.data, ctypes.addressof(scalars),
            None if workspace is None else workspace.data_ptr(), room,
            len(table), chain, step, seed, total, PIECE, 0, 0,
        )  # fmt: skip
        run_compiled(code.work, job, threads)


def fuse(kernel: Kernel, prior: Prior | None, dtype: torch.dtype) -> Fused:
    """Return the fused update of an elementwise kernel, compiled once per structure.

    Raises:
        UntraceableError: the formula, for example of a user's prior, uses an operation without C
            code, or there is no C compiler; it can run on tensors.

    Example:
        >>> import langevin as lv
        >>> print(fuse(lv.sgld(1.0), None, torch.float32).source[:38])
        #include <stdint.h>
        typedef float REAL
    """
    return _fuse(kernel, prior, dtype)  # type: ignore[arg-type] # without a hash: a TypeError


@functools.lru_cache(maxsize=1024)
def _fuse(kernel: Kernel, prior: Prior | None, dtype: torch.dtype) -> Fused:
    if not kernel.traits.elementwise:
        raise UntraceableError(f"{kernel.name} is not elementwise")
    key = (structure(kernel), kernel.state_names, structure(prior), dtype)
    if key not in _compiled:
        program, names, results = trace(kernel, prior)
        source = write(kernel, program, results, dtype)
        try:
            work = Work(ctypes.cast(load(source).run, ctypes.c_void_p).value or 0)
        except (CompilerError, OSError) as error:
            raise UntraceableError(str(error)) from error
        wide = wide_dtype(dtype)
        _compiled[key] = _Code(
            source, program.scalars(names), work, lanes_of(wide), kernel.traits.num_noises, wide
        )
    return Fused(_compiled[key], numbers(kernel) + numbers(prior))


_compiled: dict[Hashable, _Code] = {}
