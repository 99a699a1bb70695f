"""Fingerprints of a run's sampler, target and data, which `resume` compares."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from pathlib import Path

import torch
from torch import Tensor

from langevin.kernels import Kernel
from langevin.serialization import Json, digest_of_tensors
from langevin.targets.gradients import GradientFn

__all__ = ["check_fingerprints", "fingerprints"]

_STEPS = (0, 1, 10, 100, 1_000, 10_000, 100_000)  # steps at which schedules are compared
_MAX_ELEMENTS = 1000  # compared elements of a result of `keep`


def _inputs(kernel: Kernel) -> list[float]:
    """Return the inputs of some steps; a user's schedule may fail beyond the run."""
    found: list[float] = []
    with suppress(ValueError, TypeError, ArithmeticError, LookupError):
        for step in _STEPS:
            for value in kernel.inputs(step):  # a number, or one per chain
                found += torch.as_tensor(value, dtype=torch.float64).flatten().tolist()
    return found


def _text(value: object) -> str:
    """Return a kernel's settings as text with all digits, without names of functions."""
    if is_dataclass(value) and not isinstance(value, type):
        settings = (f"{field.name}={_text(getattr(value, field.name))}" for field in fields(value))
        return f"{type(value).__name__}({', '.join(settings)})"
    if isinstance(value, tuple):
        return f"({', '.join(map(_text, value))})"
    if isinstance(value, Tensor):  # its repr has four digits
        is_small = value.numel() <= _MAX_ELEMENTS
        return repr(value.tolist()) if is_small else digest_of_tensors([value])
    return "function" if callable(value) else repr(value)


def fingerprints(
    kernel: Kernel,
    gradient_fn: GradientFn,
    position: Tensor,
    data: Sequence[Tensor] | Tensor | None,
    keep: Callable[[Tensor], Tensor] | None = None,
) -> Json:
    """Return settings, step sizes, data digest, and energy and `keep` at the first position."""
    columns = () if data is None else (data,) if isinstance(data, Tensor) else tuple(data)
    kept = torch.empty(0) if keep is None else keep(position[0])
    return {
        "sampler": _text(kernel),
        "inputs": _inputs(kernel),
        "data": digest_of_tensors(columns) if columns else None,
        "probe": position[:1].double().tolist(),
        "energy": [_energy(gradient_fn, position[:1])],
        "keep": kept.double().flatten()[:_MAX_ELEMENTS].tolist(),
    }


def _energy(gradient_fn: GradientFn, position: Tensor) -> float:
    """Return the energy of the first chain at step 0."""
    drawn = tuple(tensor[0] for tensor in gradient_fn.draw(range(1)))
    # A gradient with draws for every chain takes positions for every chain.
    chains = drawn[0].shape[0] if drawn else 1
    return float(gradient_fn.evaluate(position.expand(chains, -1), drawn).energy[0])


def check_fingerprints(
    path: str | Path,
    saved: Json,
    kernel: Kernel,
    gradient_fn: GradientFn,
    data: Sequence[Tensor] | Tensor | None,
    like: Tensor,
    keep: Callable[[Tensor], Tensor] | None = None,
) -> None:
    """Raise a ValueError if sampler, data, energy or `keep` differ from those of the run."""
    try:
        probe = torch.tensor(saved["probe"], dtype=torch.float64)
        probe = probe.reshape(1, like.shape[-1]).to(like)
    except (KeyError, TypeError, ValueError, RuntimeError, OverflowError) as error:
        reason = f"has no position at which its fingerprints were computed: {error}"
        raise ValueError(f"{path} {reason}") from error
    found = fingerprints(kernel, gradient_fn, probe, data, keep)
    for name, what in (
        ("sampler", "sampler"),
        ("inputs", "step size, temperature or schedule"),
        ("data", "data set"),
    ):
        before, now = saved.get(name), found[name]
        if before != now:
            raise ValueError(f"{path} was run with another {what}: {before}, now {now}")
    for name in ("energy", "keep"):
        before, now = saved.get(name), found[name]
        if not _are_close(before, now):
            values = f"{before} at its first position, now {now}"
            raise ValueError(f"{path} was run with another {name}: {values}")


def _is_number(value: object) -> bool:
    # Larger ints do not convert to floats.
    return isinstance(value, float) or (type(value) is int and abs(value) < 2**63)


def _are_close(saved: object, found: list[float]) -> bool:
    """Compare numbers up to the rounding of another machine or number of chains."""
    if not isinstance(saved, list) or len(saved) != len(found) or not all(map(_is_number, saved)):
        return False
    pairs = zip(saved, found, strict=True)
    return all(
        math.isclose(a, b, rel_tol=1e-4, abs_tol=1e-4) or (math.isnan(a) and math.isnan(b))
        for a, b in pairs
    )
