"""Check draws, and evaluate targets over all data with bounded memory."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from langevin.checks import check_dense, check_finite, needs
from langevin.targets import Evaluation
from langevin.targets.base import check_target
from langevin.targets.gradients import full

if TYPE_CHECKING:
    from langevin.storage import Samples

__all__ = [
    "evenly_spaced",
    "check_draws",
    "check_samples",
    "evaluate_fully",
    "gradients_at",
    "healthy_positions",
    "is_samples",
]


NUMBERS_AT_ONCE = 2**22  # positions times data rows per evaluation: 32 MB in float64


def check_draws(who: str, argument: str, draws: object) -> Tensor:
    """Return finite draws (chain, draw, dim), with no empty axis, as float64 on the CPU."""
    return _check_finite(who, argument, draws).detach().to("cpu", torch.float64)


def _check_finite(who: str, argument: str, draws: object) -> Tensor:
    if not isinstance(draws, Tensor):
        what = "a torch.Tensor of shape (chain, draw, dim)"
        raise needs(who, argument, what, type(draws).__name__, TypeError)
    if not draws.is_floating_point():
        raise needs(who, argument, "a floating-point tensor", draws.dtype, TypeError)
    check_dense(who, argument, draws)
    if draws.ndim != 3 or draws.numel() == 0:
        what = "shape (chain, draw, dim) with no empty axis"
        raise needs(who, argument, what, tuple(draws.shape))
    hint = "; `samples.healthy` leaves out chains that stopped"
    return check_finite(who, argument, draws, hint=hint)


def check_samples(who: str, samples: Any) -> Samples:
    """Return `samples` if they are the result of `langevin.sample`, with draws that are vectors."""
    if not is_samples(samples):
        what = "the result of langevin.sample(...)"
        raise needs(who, "samples", what, type(samples).__name__, TypeError)
    if samples.kept == "moments":
        raise needs(who, "samples", 'draws, sample(keep="positions")', 'keep="moments"')
    if samples.draws.ndim != 3 or samples.draws.shape[2] == 0:
        raise needs(who, "samples", "draws of shape (chain, draw, dim)", tuple(samples.draws.shape))
    found: Samples = samples
    return found


def is_samples(value: object) -> bool:
    """Return whether a value has the attributes of `Samples` that the diagnostics read."""
    return all(hasattr(type(value), name) for name in ("draws", "healthy", "trust"))


def healthy_positions(who: str, samples: object) -> Tensor:
    """Return the positions (chain, draw, dim) of finished chains; warn if other chains stopped."""
    samples = check_samples(who, samples)
    if samples.kept != "positions":
        what = 'positions, sample(keep="positions")'
        raise needs(who, "samples", what, "the results of a function `keep`")
    draws = samples.healthy
    if draws.numel() == 0:
        found = "; ".join(map(str, samples.status))
        raise needs(who, "samples", "a healthy chain with draws", found)
    _check_finite(who, "samples", draws)
    if len(draws) < len(samples.status):
        used = f"{len(draws)} of {len(samples.status)} chains"
        text = f"{who}() uses {used}: the others stopped, and leaving them out is a bias"
        warnings.warn(text, stacklevel=3)
    return draws


def evaluate_fully(
    who: str, target: Any, positions: Tensor, data: Sequence[Tensor] | Tensor | None
) -> Evaluation:
    """Return U and grad U over all data, without artificial noise, at positions (n, dim)."""
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
    except (RuntimeError, IndexError) as error:  # shapes and dtypes that do not match
        raise needs(who, "target", condition, str(error)) from error
    size = max(1, NUMBERS_AT_ONCE // max(rows, dim))
    parts = [gradient_fn(part, 0) for part in positions.split(size)]
    return Evaluation(*(torch.cat(values) for values in zip(*parts, strict=True)))


def gradients_at(
    who: str, target: object, positions: Tensor, data: Sequence[Tensor] | Tensor | None
) -> Tensor:
    """Return grad U over all data at positions (n, dim); fail if any is not finite."""
    energy, gradient = evaluate_fully(who, target, positions, data)
    bad = ~(torch.isfinite(gradient).all(-1) & torch.isfinite(energy))
    if bad.any():
        first = int(bad.nonzero()[0])
        missing = f"{int(bad.sum())} of {len(bad)} draws have none"
        condition = f"a finite energy and gradient at every draw ({missing})"
        found = f"energy {float(energy[first]):g} at {positions[first].tolist()[:4]}"
        raise needs(who, "target", condition, found)
    return gradient


def evenly_spaced(length: int, num: int) -> Tensor:
    """Return at most `num` evenly spaced indices from 0 to length - 1, with both ends.

    Example:
        >>> evenly_spaced(10, 4), evenly_spaced(3, 4)
        (tensor([0, 3, 6, 9]), tensor([0, 1, 2]))
    """
    if num >= length:
        return torch.arange(length)
    return torch.linspace(0, length - 1, num, dtype=torch.float64).round().long()
