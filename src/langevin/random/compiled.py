"""Addressed noise in C on the CPU: functions of `lv_noise.h`, each compiled at its first use."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import torch
from torch import Tensor

from langevin.checks import needs
from langevin.compiler.build import load_or_none
from langevin.compiler.runtime import run_in_threads
from langevin.random.address import Grid, lanes_of

__all__ = ["draw_batches", "draw_chains_last", "draw_rows"]

GRAIN = 2**14  # blocks or batch indices per thread; waking a thread takes longer than fewer
_SUFFIX = {torch.float32: "f32", torch.float64: "f64"}
# Type of `out`, by the end of a function's name.
_TYPES = {"f32": "float", "f64": "double", "rows": "int64_t"}

_ROW = ("seed", "stream", "step", "num_streams", "begin", "end")
_ARGUMENTS: dict[str, tuple[str, ...]] = {"batch_rows": ("batch_size", "num_data", *_ROW)}
for _kind in ("normal", "uniform"):
    for _end in _SUFFIX.values():
        _ARGUMENTS[f"{_kind}_rows_{_end}"] = ("size", "offset", *_ROW)
        _ARGUMENTS[f"{_kind}_short_rows_{_end}"] = ("size", *_ROW)
        _ARGUMENTS[f"{_kind}_lanes_{_end}"] = ("size", *_ROW)

_functions: dict[str, Callable[..., None] | None] = {}


def _function(name: str) -> Callable[..., None] | None:
    """Return `lv_<name>` of the header as a ctypes function; None without a compiler."""
    if name not in _functions:
        names = _ARGUMENTS[name]
        unsigned = ["u" if argument == "seed" else "" for argument in names]
        typed = [f"{u}int64_t {argument}" for u, argument in zip(unsigned, names, strict=True)]
        parameters = ", ".join([f"{_TYPES[name.rpartition('_')[2]]} *out", *typed])
        call = f"lv_{name}(out, {', '.join(names)});"
        library = load_or_none(f'#include "lv_noise.h"\n\nvoid run({parameters}) {{ {call} }}\n')
        run = None if library is None else library.run
        if run is not None:
            integers = [ctypes.c_uint64 if u else ctypes.c_int64 for u in unsigned]
            run.argtypes, run.restype = [ctypes.c_void_p, *integers], None
        _functions[name] = run
    return _functions[name]


def _fill(
    name: str, out: Tensor, numbers: tuple[int, ...], rows: Grid, count: int, grain: int
) -> bool:
    """Run a function on `count` work items on all torch threads; False without a compiler."""
    run = _function(name)
    if run is None:
        return False
    address = out.data_ptr()
    arguments = (address, *numbers, rows.stream, rows.step, rows.num_streams)
    run_in_threads(lambda begin, end: run(*arguments, begin, end), count, grain)
    return True


def _check(out: Tensor, dtype: torch.dtype, numel: int) -> None:
    """Check the buffer, since C writes `numel` contiguous elements of a dtype."""
    if out.dtype != dtype or not out.is_cpu or not out.is_contiguous() or out.numel() != numel:
        condition = f"a contiguous CPU tensor of {numel} {dtype}"
        raise ValueError(f"noise needs {condition}, got {tuple(out.shape)} {out.dtype}")


def draw_rows(kind: str, out: Tensor, size: int, offset: int, seed: int, rows: Grid) -> bool:
    """Fill `out` with (step, stream) rows of `size` elements; False without a compiler.

    Args:
        kind: "normal" or "uniform".
        out: float32 or float64, contiguous.
        size: elements of a row, at least 1.
        offset: address of a row's first element.
        seed: in [0, 2**64).
        rows: checked by `check_normal`; at least one.
    """
    suffix, lanes = _SUFFIX[out.dtype], lanes_of(out.dtype)
    count = rows.num_steps * rows.num_streams
    _check(out, out.dtype, count * size)
    if offset == 0 and size <= lanes:
        return _fill(f"{kind}_short_rows_{suffix}", out, (size, seed), rows, count, GRAIN)
    blocks = count * ((offset + size - 1) // lanes - offset // lanes + 1)
    return _fill(f"{kind}_rows_{suffix}", out, (size, offset, seed), rows, blocks, GRAIN)


def draw_chains_last(kind: str, out: Tensor, size: int, seed: int, rows: Grid) -> bool:
    """Fill `out` (step, element, stream) with `size` elements; False without a compiler."""
    if size > lanes_of(out.dtype):
        raise needs("draw_chains_last", "size", f"at most {lanes_of(out.dtype)}", size)
    _check(out, out.dtype, rows.num_steps * size * rows.num_streams)
    name = f"{kind}_lanes_{_SUFFIX[out.dtype]}"
    return _fill(name, out, (size, seed), rows, rows.num_steps, 1 + GRAIN // rows.num_streams)


def draw_batches(out: Tensor, batch_size: int, num_data: int, seed: int, rows: Grid) -> bool:
    """Fill an int64 `out` with the minibatches of `rows`; False without a compiler."""
    count = rows.num_steps * rows.num_streams
    _check(out, torch.int64, count * batch_size)
    numbers = batch_size, num_data, seed
    return _fill("batch_rows", out, numbers, rows, count, 1 + GRAIN // batch_size)
