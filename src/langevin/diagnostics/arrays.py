"""What the diagnostics share: checked draws, even subsamples, and energies over all data with flat memory."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from langevin.checks import check_dense, check_finite, needs
from langevin.gradients import full
from langevin.store import Samples
from langevin.targets import Evaluation
from langevin.targets.base import check_target

__all__ = [
    "check_draws",
    "check_samples",
    "evaluate_fully",
    "gradients_at",
    "healthy_positions",
]

NUMBERS_AT_ONCE = 2**22  # positions times data rows in one evaluation of a target: 32 MB per float64 intermediate


def check_draws(who: str, argument: str, draws: Any) -> Tensor:
    """Return `draws` as float64 on the CPU when they are finite numbers of shape (chain, draw, dim), none of them empty."""
    return _check_finite(who, argument, draws).detach().to("cpu", torch.float64)


def _check_finite(who: str, argument: str, draws: Any) -> Tensor:
    if not isinstance(draws, Tensor):
        raise needs(who, argument, "a torch.Tensor of shape (chain, draw, dim)", type(draws).__name__, TypeError)
    if not draws.is_floating_point():
        raise needs(who, argument, "a floating-point tensor", draws.dtype, TypeError)
    check_dense(who, argument, draws)
    if draws.ndim != 3 or draws.numel() == 0:
        raise needs(who, argument, "shape (chain, draw, dim) with no empty axis", tuple(draws.shape))
    return check_finite(who, argument, draws, hint="; `samples.healthy` leaves out chains that stopped")


def check_samples(who: str, samples: Any) -> Samples:
    """Return `samples` when they are the result of `langevin.sample`, with draws that are vectors."""
    if not isinstance(samples, Samples):
        raise needs(who, "samples", "the result of langevin.sample(...)", type(samples).__name__, TypeError)
    if samples.kept == "moments":
        raise needs(who, "samples", 'draws, sample(keep="positions")', 'keep="moments"')
    if samples.draws.ndim != 3 or samples.draws.shape[2] == 0:
        raise needs(who, "samples", "draws of shape (chain, draw, dim)", tuple(samples.draws.shape))
    return samples


def healthy_positions(who: str, samples: Any) -> Tensor:
    """Return the positions (chain, draw, dim) of the chains that ran to their end, finite, and warn of those that did not.

    Where draws are not positions, the target's gradient at them says nothing.
    """
    samples = check_samples(who, samples)
    if samples.kept != "positions":
        raise needs(who, "samples", 'positions, sample(keep="positions")', "what a function `keep` made of them")
    draws = samples.healthy
    if draws.numel() == 0:
        raise needs(who, "samples", "a healthy chain with draws", "; ".join(map(str, samples.status)))
    _check_finite(who, "samples", draws)
    if len(draws) < len(samples.status):
        left = f"{len(draws)} of {len(samples.status)} chains"
        warnings.warn(f"{who}() looks at {left}: the others stopped, and leaving them out is a bias", stacklevel=3)
    return draws


def evaluate_fully(who: str, target: Any, positions: Tensor, data: Sequence[Tensor] | Tensor | None) -> Evaluation:
    """Return U and grad U over all data, without artificial noise, at positions (n, dim), some positions at a time."""
    check_target(who, target, data)
    columns = None if data is None else target.as_columns(who, data)
    gradient_fn = full(target, columns)
    rows = 1 if columns is None else len(columns[0])
    dim = positions.shape[-1]
    condition = f"an energy of positions like the draws, {dim} elements of {positions.dtype}"
    if target.dim not in (None, dim):  # torch would broadcast one element to many
        raise needs(who, "target", condition, f"one of {target.dim}")
    try:
        gradient_fn(positions[:1], 0)
    except (RuntimeError, IndexError) as error:  # torch's words for shapes and dtypes that do not fit
        raise needs(who, "target", condition, str(error)) from error
    parts = [gradient_fn(part, 0) for part in positions.split(max(1, NUMBERS_AT_ONCE // max(rows, dim)))]
    return Evaluation(torch.cat([part.energy for part in parts]), torch.cat([part.gradient for part in parts]))


def gradients_at(who: str, target: Any, positions: Tensor, data: Sequence[Tensor] | Tensor | None) -> Tensor:
    """Return grad U over all data at positions (n, dim), all of which must have a finite one."""
    energy, gradient = evaluate_fully(who, target, positions, data)
    bad = ~(torch.isfinite(gradient).all(-1) & torch.isfinite(energy))
    if bad.any():
        first = int(bad.nonzero()[0])
        condition = f"a finite energy and gradient at every draw ({int(bad.sum())} of {len(bad)} draws have none)"
        raise needs(who, "target", condition, f"energy {float(energy[first]):g} at {positions[first].tolist()[:4]}")
    return gradient
