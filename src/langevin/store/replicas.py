"""Samples of chains at several temperatures: those of the target's own, and how often neighbours swap."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from langevin.checks import needs
from langevin.moments import Moments
from langevin.store.memory import Arrays

if TYPE_CHECKING:
    from langevin.store.samples import Samples

__all__ = ["coldest", "swap_rates"]

_MOST_DRAWS = 2000  # that swaps are counted at


def coldest(samples: Samples, temperatures: tuple[float, ...]) -> Samples:
    """Return the samples of the first chain of each group, at the target's temperature; `replicas` has those of all chains."""
    size, arrays, moments = len(temperatures), samples.arrays, samples.moments
    assert isinstance(arrays, Arrays)
    chain_axis = {"heat_centre": 0, "heat_sums": 2, "heat_residuals": 1}
    heat = {
        name: tensor if name not in chain_axis else tensor.movedim(chain_axis[name], 0)[::size].movedim(0, chain_axis[name])
        for name, tensor in samples.heat.items()
    }
    return dataclasses.replace(
        samples,
        arrays=dataclasses.replace(arrays, stride=size),
        status=samples.status[::size],
        moments=None if moments is None else Moments(*(tensor[::size] for tensor in moments)),
        heat=heat,
        replicas=dataclasses.replace(samples, temperature=None, temperatures=temperatures),
    )


def swap_rates(replicas: Samples) -> Tensor:
    """Return how often neighbouring temperatures swap, (temperatures - 1,), where they have a round: by the energies of the draws.

    Energies that are estimates are taken as they are: the correction for their noise makes swaps rarer than this.

    Args:
        replicas: of all chains, such as ``samples.replicas``.
    """
    if not replicas.temperatures:
        raise needs("swap_rates", "replicas", "samples of chains at several temperatures, such as samples.replicas", replicas)
    draws = max(status.draws for status in replicas.status)
    energy = replicas._some("energy", max(1, draws // _MOST_DRAWS)).double()
    groups = energy.unflatten(0, (-1, len(replicas.temperatures)))
    inverse = 1 / torch.tensor(replicas.temperatures, dtype=torch.float64)
    gain = (inverse[:-1] - inverse[1:])[:, None] * (groups[:, :-1] - groups[:, 1:])
    return gain.clamp(max=0).exp().movedim(1, 0).flatten(1).nanmean(1)
