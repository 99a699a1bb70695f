"""What the experiments share: starts by address, chains that report how far they are and go on after a kill."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from langevin import resume, sample
from langevin.checks import needs
from langevin.kernels import Kernel
from langevin.random import Purpose, normal, streams
from langevin.storage import Samples
from langevin.storage.journal import write_atomic
from langevin.storage.manifest import read_manifest
from langevin.targets import Target
from langevin_paper.spec import Progress

__all__ = ["normal_starts", "once", "run_chains"]


def normal_starts(chains: range, dim: int, *, seed: int, std: float = 1.0) -> Tensor:
    """Return starting positions N(0, std^2), (chains, dim), each at its own address."""
    return std * normal(seed, streams(Purpose.INIT, chains), 0, dim, dtype=torch.float64)


def once(path: Path, compute: Callable[[], Any]) -> Any:
    """Return what a stage of a cell gave, as JSON has it; computed unless an earlier, killed run left it in the cell's folder."""
    if not path.exists():
        write_atomic(path, json.dumps(compute()).encode())
    return json.loads(path.read_text())


def run_chains(
    kernel: Kernel,
    target: Target,
    init: Tensor,
    *,
    chains: range,
    seed: int,
    num_steps: int,
    progress: Progress,
    out: Path | None = None,
    data: Sequence[Tensor] | None = None,
    keep: str | Callable[[Tensor], Tensor] = "positions",
    warmup: int = 0,
    thin: int = 1,
    batch_size: int | None = None,
    compile: bool | str = "auto",
) -> Samples:
    """Run `langevin.sample` with progress; with `out`, go on with what an earlier call left there, whatever ended it.

    Seed s of an experiment is chain s of the runs with `seed`: it gives the same numbers alone and together. Nothing in `out` is
    ever deleted: an OSError, such as a full disk, comes through, and the next call goes on from the last checkpoint.

    Raises:
        ValueError: what is in `out` is damaged, or of another run; the message says where it is and what to do.
        RuntimeError: the run was interrupted, so its draws are not those that were asked for; or another process writes to `out`.
    """

    def told(done: int, total: int) -> None:
        progress(done / total)

    if out is not None and out.exists():
        wanted = {
            "num_steps": num_steps, "warmup": warmup, "thin": thin, "batch_size": batch_size, "compile": compile,
            "seed": seed, "first_chain": chains.start, "num_chains": len(init),
        }  # fmt: skip
        with _going_on(out):
            _check_same(read_manifest(out), wanted)
            samples = resume(out, target, sampler=kernel, data=data, keep=keep if callable(keep) else None, progress=told)
    else:
        samples = sample(
            target,
            sampler=kernel,
            init=init,
            num_steps=num_steps,
            warmup=warmup,
            thin=thin,
            data=data,
            batch_size=batch_size,
            compile=compile,
            seed=seed,
            first_chain=chains.start,
            keep=keep,
            out=out,
            progress=told,
        )  # fmt: skip
    if any(status.is_healthy and status.steps < num_steps for status in samples.status):
        raise RuntimeError(f"the chains were interrupted: {samples.status[0]}")
    return samples


@contextmanager
def _going_on(out: Path) -> Iterator[None]:
    """Say where a run is that cannot be gone on with, and what to do; a disk or a process in the way is another matter."""
    try:
        yield
    except (ValueError, KeyError, TypeError, FileNotFoundError) as error:
        raise ValueError(
            f"cannot go on with the run in {out}: {error}. Nothing was deleted; remove that folder to start the run again"
        ) from error


def _check_same(manifest: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    for name, value in wanted.items():
        if manifest[name] != value:
            raise needs("run_chains", name, f"what the run there has, {manifest[name]!r}", value)
