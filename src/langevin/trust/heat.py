"""The temperature of the law that chains really sample, gathered while they run, from the gradients that they take anyway.

For a density ``exp(-U / T)`` whose tails decay, integration by parts gives ``E[(theta_i - c_i) dU/dtheta_i] = T`` for every
element i and any fixed c. A step too large, or minibatch noise, makes it hot; the published MSGLD makes it cold. Chains that agree
show neither. The sums below are taken over all steps after the warm-up, but for exploration phases, in batches of consecutive
steps: at most `BATCHES` for each chain, joined two by two when they are full. So they take constant memory, and have an error that
honours autocorrelation.

**Minibatches.** The noisy gradient serves as well where its noise is independent of the position it is taken at. That of
minibatches is not: every datum comes once per epoch, so the rows that are left know those that already moved the chain. Where a
share u of the epoch has gone by, noise of variance s^2 adds about ``eps s^2 u`` to the expectation above: on average
``eps s^2 / 2``, the heat of rows drawn with replacement, whereas in truth the noise cancels over the epoch. At u = 0 nothing is
added. So steps are weighted: the mean with the weights of `epoch_weights` is the intercept at u = 0 of the least-squares line in u.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor

from langevin.trust.mixing import evenly_spaced

__all__ = [
    "Heat",
    "Measured",
    "add_heat",
    "batch_ratio",
    "energy_residuals",
    "epoch_weights",
    "heat_stride",
    "no_heat",
    "read_heat",
]

BATCHES = 64
"""Batches of steps that a chain has at the most."""

MIN_GROUPS = 16
"""Below so many batches in all chains, nothing is said of an error."""

MAX_ELEMENTS = 200
"""Elements of theta that are looked at, evenly spaced."""

ENOUGH = 512
"""Numbers of a step, over all chains, that are gathered of every step; of more, every second step is looked at, and so on."""

_MAX_NUMBERS = 2**19  # of all sums: 4 MB in every checkpoint
_SUMS = 3


class Measured(NamedTuple):
    """A mean over the run with its error; NaN where it is not known."""

    value: Tensor
    error: Tensor


def no_heat(position: Tensor) -> dict[str, Tensor]:
    """Return the sums of no steps yet, as tensors for a checkpoint; chains are like `position`, (chains, dim)."""
    chains, dim = position.shape
    elements = min(dim, MAX_ELEMENTS, max(1, _MAX_NUMBERS // (_SUMS * 4 * chains)))
    batches = 4
    while batches < BATCHES and 2 * batches * _SUMS * chains * elements <= _MAX_NUMBERS:
        batches *= 2
    zeros = functools.partial(torch.zeros, dtype=torch.float64, device=position.device)
    return {
        "heat_count": torch.zeros((), dtype=torch.int64),
        "heat_weights": torch.zeros((batches, 2), dtype=torch.float64),  # of gradients and of positions, in each batch
        "heat_centre": zeros((chains, elements)),
        "heat_sums": zeros((batches, _SUMS, chains, elements)),  # of (theta - c) g, g and theta - c
        "heat_residuals": zeros((3, chains)),  # number, sum and sum of squares
    }


def heat_stride(heat: Mapping[str, Tensor]) -> int:
    """Return every how many steps are gathered: all, unless chains and elements are so many that some say as much."""
    return 1 + heat["heat_centre"].numel() // ENOUGH


def epoch_weights(steps: Sequence[int], batch_size: int | None, num_data: int) -> Tensor:
    """Return the weight of each step's gradient, (steps,): 1 for exact gradients, 4 - 6 u at the share u of a long epoch.

    ``w(u) = 1 + m (m - u) / v`` with mean m and variance v of u, which steps run through evenly: the weights that give the
    intercept of a least-squares line.
    """
    if batch_size is None:
        return torch.ones(len(steps), dtype=torch.float64)
    places = num_data // math.gcd(num_data, batch_size)  # different shares u: k / places
    if places == 1:
        return torch.ones(len(steps), dtype=torch.float64)
    shares = torch.tensor([step * batch_size % num_data / num_data for step in steps], dtype=torch.float64)
    mean, variance = (places - 1) / (2 * places), (places**2 - 1) / (12 * places**2)
    return 1 + mean * (mean - shares) / variance


def add_heat(
    heat: Mapping[str, Tensor], positions: Tensor, gradients: Tensor, weights: Tensor, residuals: Tensor, good: Tensor
) -> dict[str, Tensor]:
    """Add some steps to the sums, one after the other, so that a run cut anywhere has the same bits.

    Args:
        heat: the sums so far; they are not changed.
        positions: where the steps began, (steps, chains, elements): those of `evenly_spaced` as many as are looked at.
        gradients: of U, or estimates of it, there.
        weights: of `epoch_weights`.
        residuals: of `energy_residuals`, (pairs, chains).
        good: chains that count, (chains,); nothing is said of others.
    """
    found = {name: tensor.clone() for name, tensor in heat.items()}
    done, batches = int(found["heat_count"]), len(found["heat_weights"])
    if done == 0 and len(positions):
        found["heat_centre"] = positions[0].double()
    add = _adder(positions, gradients, weights, good)
    shares = torch.stack([weights, torch.ones_like(weights)], 1)
    at = 0
    while at < len(positions):
        size = _batch_size(done + 1, batches)
        if size != _batch_size(done, batches):  # full: join two by two
            for name in ("heat_sums", "heat_weights"):
                joined = found[name][::2] + found[name][1::2]
                found[name] = torch.cat([joined, torch.zeros_like(joined)])
        count = min(len(positions) - at, batches * size - done)
        add(found["heat_sums"], found["heat_centre"], at, count, done, size)
        index = torch.arange(done, done + count) // size
        found["heat_weights"].index_add_(0, index, shares[at : at + count])
        at, done = at + count, done + count
    found["heat_count"] = torch.tensor(done)
    wide = torch.where(good, residuals.double(), 0.0)
    powers = torch.stack([torch.ones_like(wide), wide, wide**2], 1)
    found["heat_residuals"].index_add_(0, torch.arange(3, device=wide.device).repeat(len(wide)), powers.flatten(0, 1))
    return found


@functools.cache
def _compiled() -> ModuleType | None:
    """Return the version for the CPU, loaded when first asked for; None where numba cannot be imported."""
    try:
        from langevin.trust import gather
    except ImportError:
        return None
    return gather


def _adder(
    positions: Tensor, gradients: Tensor, weights: Tensor, good: Tensor
) -> Callable[[Tensor, Tensor, int, int, int, int], None]:
    """Return what adds `count` steps from `begin` on to sums whose batches have `size` steps, after `done` others."""
    is_plain = positions.device.type == "cpu" and positions.dtype in (torch.float32, torch.float64)
    engine = _compiled() if is_plain else None
    if engine is not None:
        given = positions.numpy(), gradients.numpy(), weights.numpy(), good.numpy()

        def add(sums: Tensor, centre: Tensor, begin: int, count: int, done: int, size: int) -> None:
            engine.gather(sums.numpy(), centre.numpy(), *given, begin, count, done, size)

        return add
    return functools.partial(_add_by_torch, positions, gradients, weights, good)


def _add_by_torch(
    positions: Tensor,
    gradients: Tensor,
    weights: Tensor,
    good: Tensor,
    sums: Tensor,
    centre: Tensor,
    begin: int,
    count: int,
    done: int,
    size: int,
) -> None:
    """Add on any device: the oracle of `gather`."""
    some = slice(begin, begin + count)
    gaps, weighted = positions[some].double() - centre, gradients[some].double() * weights[some].to(gradients.device)[:, None, None]
    terms = torch.where(good[:, None], torch.stack([gaps * weighted, weighted, gaps], 1), 0.0)
    sums.index_add_(0, (torch.arange(done, done + count) // size).to(terms.device), terms)


def energy_residuals(positions: Tensor, energies: Tensor, gradients: Tensor) -> Tensor:
    """Return ``U_1 - U_0 - (theta_1 - theta_0) . (g_0 + g_1) / 2`` of consecutive positions, (steps - 1, chains).

    Zero on any quadratic energy: it says how far a step reaches beyond where the energy is one. Gradients must be exact.
    """
    return energies.diff(dim=0) - (positions.diff(dim=0) * (gradients[1:] + gradients[:-1])).sum(-1) / 2


def _batch_size(count: int, batches: int) -> int:
    """Return how many steps a batch has when there are `count`: the smallest power of two that makes room."""
    size = 1
    while count > batches * size:
        size *= 2
    return size


class Heat(NamedTuple):
    """What the sums say."""

    temperature: Measured  # of all elements that were looked at
    by_element: Measured  # of each of them
    elements: Tensor  # which they are
    by_chain: Tensor  # temperature of each chain
    residual: float  # root mean square of `energy_residuals`; NaN where gradients are noisy


def read_heat(tensors: Mapping[str, Tensor], chains: Sequence[int], dim: int) -> Heat:
    """Read the sums of the chains that count, given by index.

    Each chain is centred at the mean of the others, which it knows nothing of (its own would lower the estimate by 1 / ESS), and
    the halves of a lone chain at each other's.
    """
    if not tensors:
        unknown, none = torch.tensor(torch.nan, dtype=torch.float64), torch.empty(0, dtype=torch.float64)
        return Heat(Measured(unknown, unknown), Measured(none, none), torch.empty(0, dtype=torch.int64), none, math.nan)
    sums, centre = tensors["heat_sums"][:, :, list(chains)].cpu(), tensors["heat_centre"][list(chains)].cpu()
    elements = evenly_spaced(dim, centre.shape[-1])
    shares = tensors["heat_weights"][:, :, None].expand(-1, -1, len(chains))
    used = int((shares[:, 1] > 0).sum(0).max()) if len(chains) else 0
    if len(chains) == 1:
        half = used // 2
        sums, shares = (torch.cat([tensor[:half], tensor[half : 2 * half]], 2) for tensor in (sums, shares))
        centre, used = centre.repeat(2, 1), half
    products, slopes, gaps = sums[:used].unbind(1)  # (batches, chains, elements)
    weights, counts = shares[:used].unbind(1)  # (batches, chains)
    if weights.numel() < MIN_GROUPS:
        unknown, each = (torch.full(shape, torch.nan, dtype=torch.float64) for shape in ((), (len(elements),)))
        return Heat(Measured(unknown, unknown), Measured(each, each), elements, each[:0], _root_mean_square(tensors, chains))
    means = centre + gaps.sum(0) / counts.sum(0)[:, None]
    others = (means.sum(0) - means) / (len(means) - 1)
    products = products - (others - centre) * slopes
    total = batch_ratio(products.mean(-1, keepdim=True), weights)
    by_chain = products.mean(-1).sum(0) / weights.sum(0)
    return Heat(
        Measured(total.value[0], total.error[0]), batch_ratio(products, weights), elements, by_chain,
        _root_mean_square(tensors, chains),
    )  # fmt: skip


def batch_ratio(products: Tensor, weights: Tensor) -> Measured:
    """Return the ratio of sums of products (batches, chains, elements) and weights (batches, chains), with its error.

    The error is the largest of those that longer and longer batches give: each says the same where batches are longer than the
    chains' memory, and short ones too little where they are not. Deviations are from the mean of all chains, so that the spread of
    chains is in it.
    """
    total = weights.sum()
    value = products.sum((0, 1)) / total
    deviations = products - value * weights[..., None]
    error = torch.zeros_like(value)
    while True:
        groups = deviations.shape[0] * deviations.shape[1]
        error = torch.maximum(error, (deviations.square().sum((0, 1)) * groups / (groups - 1)).sqrt() / total)
        if deviations.shape[1] * -(-len(deviations) // 2) < MIN_GROUPS or len(deviations) == 1:
            return Measured(value, error)
        if len(deviations) % 2:
            deviations = torch.cat([deviations, torch.zeros_like(deviations[:1])])
        deviations = deviations[::2] + deviations[1::2]


def _root_mean_square(tensors: Mapping[str, Tensor], chains: Sequence[int]) -> float:
    number, _, squares = tensors["heat_residuals"][:, list(chains)].sum(-1).tolist()
    return math.sqrt(squares / number) if number else math.nan
