"""Short runs that find the step of the default sampler: as large as the work over a step allows where the chains are."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import torch
from torch import Tensor

from langevin.chains.sample import sample
from langevin.checks import needs
from langevin.llc.localised import Localised
from langevin.store import Samples
from langevin.trust import TrustWarning
from langevin.trust.judge import EXCURSION
from langevin.tuning import sampler_at

__all__ = ["Found", "crossing", "find_size", "quietly", "threw_out"]

MOST_RESIDUAL = 0.1
"""Root mean square of the trapezoid residual of the energy over a step, in units of tau, that is taken (`langevin.tuning.work`)."""

_AIM = 0.08
_STEPS, _LOOKS, _ROUNDS, _ARRIVED = (
    200,
    4,
    200,
    10.0,
)  # steps and looks of a pilot, pilots at most, crossings to spread
_MARGIN = 0.25  # of the size that pilots allow: they are short, and places where the loss is steeper are rare


class Found(NamedTuple):
    """What the pilots came to."""

    size: float  # 2 ε + h^2 of the invariant MSGLD
    position: Tensor  # where the chains are, (chains, dim)
    residual: float
    steps: int


def crossing(size: float, localisation: float) -> float:
    """Return how many steps a chain takes along a flat direction, ``1 / sqrt(size γ)``: where only the localisation holds it."""
    return (size * localisation) ** -0.5


def quietly(*args: Any, **settings: Any) -> Samples:
    """Run `sample`; what it has to say is read off the samples."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TrustWarning)
        return sample(*args, **settings)


def threw_out(samples: Samples) -> bool:
    """Say whether a chain stopped, or came to energies that no law explains: the step was too large there."""
    return not all(status.is_healthy for status in samples.status) or samples.trust["excursions"].is_fine is False


def find_size(target: Localised, start: Tensor, localisation: float, *, data: object, seed: int, first_chain: int) -> Found:
    """Run pilots from `start`, (chains, dim), until the chains have crossed flat directions a few times without too much work.

    The sampler's friction suits the localisation: so flat directions, the slowest there are, are crossed at a run. A step is too
    large where it throws chains out, or where the energy is no quadratic over it.
    """
    most = EXCURSION[0] + EXCURSION[1] * start.shape[-1]
    size, position, crossed, taken = 1 / localisation, start, 0.0, 0
    for _ in range(_ROUNDS):
        kernel = sampler_at(size, localisation)
        run = quietly(
            kernel, target, position, num_steps=_STEPS, thin=_STEPS // _LOOKS, data=data, seed=seed,
            first_chain=first_chain + taken, compile=False, progress=False,
        )  # fmt: skip
        taken += len(start)  # the next pilot has the noise of other chains
        residual = float(run.trust["energy residual"].value or 0.0)
        is_thrown = not bool(((run.energy - target.energy_at_start) < most).all())  # NaN, too
        if is_thrown or not all(status.is_healthy for status in run.status):
            size, position, crossed = size / 4, start, 0.0
        elif residual > MOST_RESIDUAL:
            size, position, crossed = size * max(0.1, 0.8 * (_AIM / residual) ** (2 / 3)), run.draws[:, -1], 0.0
        else:
            position, crossed = run.draws[:, -1], crossed + _STEPS / crossing(size, localisation)
            if crossed > _ARRIVED:
                break
    if not torch.isfinite(position).all():
        raise needs("llc", "sampler", "one with a step size: no step was small enough for the default sampler", None)
    return Found(_MARGIN * size, position, residual, taken // len(start) * _STEPS)
