"""What the experiments share: starts by address, chains that report how far they are and go on after a kill."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from langevin.experiments.spec import Progress
from langevin.kernels import Kernel
from langevin.noise import Purpose, normal, streams
from langevin.sample import resume, sample
from langevin.schedules import Schedule, explores
from langevin.store import Samples
from langevin.targets import Target

__all__ = ["normal_starts", "run_chains"]

SEED = 0
"""Seed s of an experiment is chain s of the runs with this seed: it gives the same numbers alone and together."""


def normal_starts(chains: range, dim: int, std: float = 1.0) -> Tensor:
    """Return starting positions N(0, std^2), (chains, dim), each at its own address."""
    return std * normal(SEED, streams(Purpose.INIT, chains), 0, dim, dtype=torch.float64)


def run_chains(
    kernel: Kernel,
    target: Target,
    init: Tensor,
    *,
    chains: range,
    num_steps: int,
    progress: Progress,
    out: Path | None = None,
    data: Sequence[Tensor] | None = None,
    keep: str | Callable[[Tensor], Tensor] = "positions",
    **options: Any,
) -> Samples:
    """Run `langevin.sample` with progress; with `out`, go on with what a killed run left there.

    Raises:
        RuntimeError: the run was interrupted, so its draws are not those that were asked for.
    """
    kernel = dataclasses.replace(kernel, step_size=_watched(kernel.step_size, num_steps, progress))
    if out is not None and out.exists():
        try:
            again = keep if callable(keep) else None
            return _whole(resume(out, kernel, target, data=data, keep=again, progress=False), num_steps)
        except (OSError, KeyError, ValueError):  # killed before its first checkpoint, or made by another version
            shutil.rmtree(out)
    given = {"num_steps": num_steps, "data": data, "keep": keep, "out": out, **options}
    return _whole(sample(kernel, target, init, seed=SEED, first_chain=chains.start, progress=False, **given), num_steps)


def _watched(schedule: Any, num_steps: int, progress: Progress) -> Schedule:
    """Return the same schedule, which tells how far the run is whenever it is asked for a step."""

    def value(step: int) -> float:
        if step < num_steps:  # a run's fingerprint asks for later ones too
            progress(step / num_steps)
        return schedule(step)

    return Schedule(str(schedule), value, lambda step: explores(schedule, step))


def _whole(samples: Samples, num_steps: int) -> Samples:
    if any(status.is_healthy and status.steps < num_steps for status in samples.status):
        raise RuntimeError(f"the chains were interrupted: {samples.status[0]}")
    return samples
