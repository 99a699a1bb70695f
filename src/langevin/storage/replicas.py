"""Samples of chains at several temperatures: select the coldest, and estimate swap rates."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from langevin.checks import needs
from langevin.diagnostics.running import Moments
from langevin.storage.memory import Arrays

if TYPE_CHECKING:
    from langevin.storage.samples import Samples

__all__ = ["coldest", "swap_rates"]

_MAX_DRAWS = 2000  # used to estimate swap rates


def coldest(samples: Samples, temperatures: tuple[float, ...]) -> Samples:
    """Return samples at the target's temperature; their `replicas` are those of all chains."""
    size, moments = len(temperatures), samples.moments
    assert isinstance(samples.arrays, Arrays)
    chain_axis = {"heat_centre": 0, "heat_sums": 2, "heat_residuals": 1}
    heat = dict(samples.heat)
    for name in heat.keys() & chain_axis.keys():
        axis = chain_axis[name]
        heat[name] = heat[name].movedim(axis, 0)[::size].movedim(0, axis)
    return dataclasses.replace(
        samples,
        arrays=dataclasses.replace(samples.arrays, stride=size),
        status=samples.status[::size],
        moments=None if moments is None else Moments(*(tensor[::size] for tensor in moments)),
        heat=heat,
        replicas=dataclasses.replace(samples, temperature=None, temperatures=temperatures),
    )


def swap_rates(replicas: Samples) -> Tensor:
    """Return estimated swap rates of neighbouring temperatures, (temperatures - 1,).

    They are computed from the energies of draws. With noisy energies, the correction for noise
    makes swaps less frequent than this estimate.

    Args:
        replicas: samples of all chains, such as ``samples.replicas``.
    """
    if not replicas.temperatures:
        condition = "samples of chains at several temperatures, such as samples.replicas"
        raise needs("swap_rates", "replicas", condition, replicas)
    draws = max(status.draws for status in replicas.status)
    energy = replicas._some("energy", max(1, draws // _MAX_DRAWS)).double()
    groups = energy.unflatten(0, (-1, len(replicas.temperatures)))
    inverse = 1 / torch.tensor(replicas.temperatures, dtype=torch.float64)
    gain = (inverse[:-1] - inverse[1:])[:, None] * (groups[:, :-1] - groups[:, 1:])
    return gain.clamp(max=0).exp().movedim(1, 0).flatten(1).nanmean(1)
