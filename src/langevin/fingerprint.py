"""Fingerprints of a run's sampler, target and data, so that a resumed run is known to be the same one."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from langevin.gradients import GradientFn
from langevin.kernels import Kernel

__all__ = ["check_fingerprints", "fingerprints"]

_PROBES = (0, 1, 10, 100, 1_000, 10_000, 100_000)  # steps at which a schedule is compared


def _words(value: Any) -> str:
    """Write a kernel's settings with all their digits; functions by their results or not at all, for they have no stable name."""
    if is_dataclass(value) and not isinstance(value, type):
        return f"{type(value).__name__}({', '.join(f'{f.name}={_words(getattr(value, f.name))}' for f in fields(value))})"
    if isinstance(value, tuple):
        return f"({', '.join(map(_words, value))})"
    return "function" if callable(value) else repr(value)


def _digest(columns: tuple[Tensor, ...]) -> str:
    digest = hashlib.sha256()
    for column in columns:
        plain = column.detach().cpu().contiguous()
        digest.update(f"{plain.dtype} {tuple(plain.shape)}".encode())
        digest.update(plain.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def fingerprints(
    kernel: Kernel, gradient_fn: GradientFn, position: Tensor, data: Sequence[Tensor] | Tensor | None
) -> dict[str, Any]:
    """Return what identifies a run, as plain values: settings, step sizes, data, and the energy at the starting positions."""
    columns = () if data is None else (data,) if isinstance(data, Tensor) else tuple(data)
    return {
        "sampler": _words(kernel),
        "step_sizes": [value for step in _PROBES for value in kernel.clock(step)],
        "data": _digest(columns) if columns else None,
        "probe": position[:1].double().tolist(),
        "energy": _energy(gradient_fn, position[:1]),
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
) -> None:
    """Fail, in words, when sampler, data or energy are not those of the run, whose positions are like `like`."""
    found = fingerprints(kernel, gradient_fn, torch.tensor(saved["probe"], dtype=torch.float64).to(like), data)
    for name, what in (("sampler", "sampler"), ("step_sizes", "step sizes"), ("data", "data set")):
        if saved[name] != found[name]:
            raise ValueError(f"{path} was run with another {what}: {saved[name]}, now {found[name]}")
    if abs(saved["energy"] - found["energy"]) > 1e-4 * max(1.0, abs(saved["energy"])):
        raise ValueError(f"{path} was run with another energy: {saved['energy']} at its probe, now {found['energy']}")
