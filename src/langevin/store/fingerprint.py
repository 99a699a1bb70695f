"""Fingerprints of a run's sampler, target and data, so that a resumed run is known to be the same one."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from langevin.gradients import GradientFn
from langevin.kernels import Kernel

__all__ = ["check_fingerprints", "fingerprints"]

_PROBES = (0, 1, 10, 100, 1_000, 10_000, 100_000)  # steps at which a schedule is compared
_KEPT = 1000  # elements of what `keep` returns that are compared


def _inputs(kernel: Kernel) -> list[float]:
    """Return the inputs of some steps; a schedule of the user's may have no value beyond the run, or underflow there."""
    found: list[float] = []
    with suppress(ValueError, TypeError, ArithmeticError, LookupError):
        for step in _PROBES:
            for value in kernel.inputs(step):  # a number, or one per chain
                found += torch.as_tensor(value, dtype=torch.float64).flatten().tolist()
    return found


def _words(value: Any) -> str:
    """Write a kernel's settings with all their digits; functions by their results or not at all, for they have no stable name."""
    if is_dataclass(value) and not isinstance(value, type):
        return f"{type(value).__name__}({', '.join(f'{f.name}={_words(getattr(value, f.name))}' for f in fields(value))})"
    if isinstance(value, tuple):
        return f"({', '.join(map(_words, value))})"
    if isinstance(value, Tensor):  # its repr has four digits
        return repr(value.tolist()) if value.numel() <= _KEPT else _digest((value,))
    return "function" if callable(value) else repr(value)


def _digest(columns: tuple[Tensor, ...]) -> str:
    digest = hashlib.sha256()
    for column in columns:
        plain = column.detach().cpu().contiguous()
        digest.update(f"{plain.dtype} {tuple(plain.shape)}".encode())
        digest.update(plain.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def fingerprints(
    kernel: Kernel,
    gradient_fn: GradientFn,
    position: Tensor,
    data: Sequence[Tensor] | Tensor | None,
    keep: Callable[[Tensor], Tensor] | None = None,
) -> dict[str, Any]:
    """Return what identifies a run, as plain values: settings, step sizes, data, and energy and `keep` at the first position."""
    columns = () if data is None else (data,) if isinstance(data, Tensor) else tuple(data)
    return {
        "sampler": _words(kernel),
        "inputs": _inputs(kernel),
        "data": _digest(columns) if columns else None,
        "probe": position[:1].double().tolist(),
        "energy": [_energy(gradient_fn, position[:1])],
        "keep": [] if keep is None else keep(position[0]).double().flatten()[:_KEPT].tolist(),
    }


def _energy(gradient_fn: GradientFn, position: Tensor) -> float:
    """Return the energy of the first chain as step 0 sees it."""
    drawn = tuple(tensor[0] for tensor in gradient_fn.draw(range(1)))
    # A gradient that has draws for every chain takes positions for every chain.
    chains = drawn[0].shape[0] if drawn else 1
    return float(gradient_fn.evaluate(position.expand(chains, -1), drawn).energy[0])


def check_fingerprints(
    path: str | Path,
    saved: dict[str, Any],
    kernel: Kernel,
    gradient_fn: GradientFn,
    data: Sequence[Tensor] | Tensor | None,
    like: Tensor,
    keep: Callable[[Tensor], Tensor] | None = None,
) -> None:
    """Fail, in words, when sampler, data, energy or `keep` are not those of the run, whose positions are like `like`."""
    try:
        probe = torch.tensor(saved["probe"], dtype=torch.float64).reshape(1, like.shape[-1]).to(like)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{path} has no position at which its fingerprints were taken: {error}") from error
    found = fingerprints(kernel, gradient_fn, probe, data, keep)
    for name, what in (("sampler", "sampler"), ("inputs", "step size, temperature or schedule"), ("data", "data set")):
        if saved.get(name) != found[name]:
            raise ValueError(f"{path} was run with another {what}: {saved.get(name)}, now {found[name]}")
    for name in ("energy", "keep"):
        if not _are_close(saved.get(name), found[name]):
            raise ValueError(f"{path} was run with another {name}: {saved.get(name)} at its first position, now {found[name]}")


def _are_close(saved: Any, found: list[float]) -> bool:
    """Compare numbers that another machine or another number of chains may have rounded otherwise."""
    if not isinstance(saved, list) or len(saved) != len(found) or any(type(value) not in (int, float) for value in saved):
        return False
    pairs = zip(saved, found, strict=True)
    return all(math.isclose(a, b, rel_tol=1e-4, abs_tol=1e-4) or (math.isnan(a) and math.isnan(b)) for a, b in pairs)
