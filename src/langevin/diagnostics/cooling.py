"""Which draws of a cyclical step size are cold enough to count: measured, by their energies."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from langevin.checks import check_number, needs
from langevin.store import Samples

__all__ = ["Cooled", "cooled"]

_PARTS = 20  # of the draws, by step size
_COLD = 4  # of these, the smallest steps, that the others are compared with


class Cooled(NamedTuple):
    """The draws of a run that are cold."""

    keep: Tensor  # (draw,): True for draws that count; all chains share their step sizes
    step_size: float  # the largest that is cold
    excess: Tensor  # (parts,): energy above that of the smallest steps, as a share of dim tau / 2; from the smallest steps on
    error: Tensor  # (parts,): its standard error


def cooled(samples: Samples, *, tolerance: float = 0.05) -> Cooled:
    """Find the draws of a cyclical schedule that have cooled: their steps are so small that energies are those of small steps.

    The mean energy near a mode is ``dim τ / 2`` above its minimum, so an excess of 5 percent of that is a temperature 5 percent too
    high. Draws are sorted by step size into 20 parts; the last quarter of them, the smallest steps, says what cold is.

    This makes the draws of each mode right, not the weights of modes: those come from where large steps stop crossing
    (`langevin.cyclical_annealing` has both).

    Args:
        samples: of a run with a cyclical schedule, several chains and cycles.
        tolerance: share of dim τ / 2 by which the energy may be too high.

    Example:
        >>> import langevin as lv
        >>> kernel = lv.sgld(lv.schedules.cyclical(1.2, cycle_length=200))
        >>> samples = lv.sample(kernel, lv.targets.gaussian([[1.0]]), torch.zeros(64, 1), num_steps=4000)
        >>> found = cooled(samples)
        >>> bool(samples.draws.var() > 1.2), bool(samples.draws[:, found.keep].var() < 1.06)
        (True, True)
    """
    if not isinstance(samples, Samples) or samples.kept == "moments" or not samples.temperature:
        raise needs("cooled", "samples", "draws of one temperature > 0", samples, TypeError)
    tolerance = check_number("cooled", "tolerance", tolerance, "> 0", lambda v: v > 0)
    sizes, energy = samples.step_size.cpu(), samples.energy[samples._good].double().cpu()
    if sizes.ndim != 1 or len(sizes) < 10 * _PARTS or len(energy) < 2:
        raise needs("cooled", "samples", f"two chains or more, of {10 * _PARTS} draws or more, with one schedule", samples)
    parts = sizes.argsort().tensor_split(_PARTS)
    means = torch.stack([energy[:, part].mean(1) for part in parts], 1)  # (chain, part)
    above = (means - means[:, :_COLD].mean(1, keepdim=True)) / (samples.dim * samples.temperature / 2)
    excess, error = above.mean(0), above.std(0) / len(above) ** 0.5
    is_hot = (excess - error > tolerance).nonzero()
    last = _PARTS if not len(is_hot) else max(_COLD, int(is_hot[0]))
    keep = torch.zeros(len(sizes), dtype=torch.bool)
    keep[torch.cat(parts[:last])] = True
    return Cooled(keep, float(sizes[keep].max()), excess, error)
