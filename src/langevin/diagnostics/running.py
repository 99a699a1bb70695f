"""Running sums that chains accumulate: moments, and the sums behind the measured temperature."""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from langevin.compiler.build import load_or_none
from langevin.diagnostics.arrays import evenly_spaced

__all__ = [
    "Heat",
    "Measured",
    "Moments",
    "add_heat",
    "add_moments",
    "batch_ratio",
    "energy_residuals",
    "epoch_weights",
    "heat_stride",
    "merge",
    "no_heat",
    "no_moments",
    "read_heat",
    "read_moments",
]


class Moments(NamedTuple):
    """Running moments of each chain.

    Example:
        >>> import langevin as lv
        >>> import torch
        >>> target, init = lv.targets.gaussian([[1.0, 0.0], [0.0, 1.0]]), torch.zeros(4, 2)
        >>> settings = {"num_steps": 500, "keep": "moments", "progress": False}
        >>> samples = lv.sample(target, sampler=lv.sgld(0.1), init=init, **settings)
        >>> samples.moments.num, samples.moments.covariance.shape
        (tensor([500, 500, 500, 500]), torch.Size([4, 2, 2]))
    """

    num: Tensor  # (chain,): number of draws, up to where a chain stopped
    mean: Tensor  # (chain, dim); NaN without draws
    covariance: Tensor  # (chain, dim, dim), over num - 1; NaN with fewer than two draws


def merge(
    count: Tensor,
    mean: Tensor,
    spread: Tensor,
    more: Tensor,
    more_mean: Tensor,
    more_spread: Tensor,
    *,
    outer: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return number, mean and sum of squared deviations of the union of two groups of draws.

    Numbers broadcast with the means, (..., dim). The sum is (..., dim, dim) if `outer`, else of the
    shape of the mean (Chan, Golub and LeVeque 1983).
    """
    share = more.double() / (count + more).clamp(min=1)
    gap = torch.where((more > 0).to(more_mean.device), more_mean - mean, 0.0)
    weight = count * share
    between = gap * gap * weight
    if outer:
        between = gap[..., :, None] * gap[..., None, :] * weight[..., None]
    return count + more, mean + gap * share, spread + more_spread + between


def no_moments(position: Tensor) -> dict[str, Tensor]:
    """Return the moments of no draws, for chains like `position` (chains, dim)."""
    wide = position.double()
    return {
        "moments_count": torch.zeros(len(wide), dtype=torch.int64, device=wide.device),
        "moments_mean": torch.zeros_like(wide),
        "moments_spread": wide.new_zeros((*wide.shape, wide.shape[-1])),
    }


def add_moments(
    moments: Mapping[str, Tensor], positions: Tensor, counts: Tensor
) -> dict[str, Tensor]:
    """Merge positions (draw, chain, dim) into running moments, in float64.

    Args:
        moments: the moments so far, which are not changed.
        positions: the new draws.
        counts: which of them count, (draw, chain).

    Returns:
        The new moments.
    """
    wide = torch.where(counts[..., None], positions.double(), 0.0)
    more = counts.sum(0)[:, None]
    mean = wide.sum(0) / more.clamp(min=1)
    centred = torch.where(counts[..., None], wide - mean, 0.0).transpose(0, 1)
    before = moments["moments_count"][:, None], moments["moments_mean"], moments["moments_spread"]
    count, mean, spread = merge(*before, more, mean, centred.mT @ centred, outer=True)
    return {"moments_count": count[:, 0], "moments_mean": mean, "moments_spread": spread}


def read_moments(tensors: Mapping[str, Tensor]) -> Moments | None:
    """Return the moments in a checkpoint, or None."""
    if "moments_mean" not in tensors:
        return None
    num = tensors["moments_count"]
    mean = torch.where(num[:, None] > 0, tensors["moments_mean"], torch.nan)
    covariance = tensors["moments_spread"] / (num - 1).clamp(min=1)[:, None, None]
    return Moments(num, mean, torch.where(num[:, None, None] > 1, covariance, torch.nan))


BATCHES = 64
"""Largest number of batches of steps per chain."""

MIN_GROUPS = 16
"""Smallest number of batches, over all chains, for an error estimate."""

MAX_ELEMENTS = 200
"""Largest number of elements of theta that are measured, evenly spaced."""

ENOUGH = 512
"""Elements over all chains up to which every step is measured; above, every second one, etc."""

_MAX_NUMBERS = 2**19  # of all sums: 4 MB in every checkpoint
_SUMS = 3


class Measured(NamedTuple):
    """An estimate with its standard error; NaN if unknown."""

    value: Tensor
    error: Tensor


def no_heat(position: Tensor) -> dict[str, Tensor]:
    """Return the sums of no steps, for chains like `position` (chains, dim)."""
    chains, dim = position.shape
    elements = min(dim, MAX_ELEMENTS, max(1, _MAX_NUMBERS // (_SUMS * 4 * chains)))
    batches = 4
    while batches < BATCHES and 2 * batches * _SUMS * chains * elements <= _MAX_NUMBERS:
        batches *= 2
    zeros = functools.partial(torch.zeros, dtype=torch.float64, device=position.device)
    return {
        "heat_count": torch.zeros((), dtype=torch.int64),
        # of gradients and of positions, in each batch
        "heat_weights": torch.zeros((batches, 2), dtype=torch.float64),
        "heat_centre": zeros((chains, elements)),
        # of (theta - c) g, g and theta - c
        "heat_sums": zeros((batches, _SUMS, chains, elements)),
        # number, clipped forces, sum of squares
        "heat_residuals": zeros((3, chains)),
    }


def heat_stride(heat: Mapping[str, Tensor]) -> int:
    """Return the stride of the measured steps: 1 unless there are many chains and elements."""
    return 1 + heat["heat_centre"].numel() // ENOUGH


def epoch_weights(steps: Sequence[int], batch_size: int | None, num_data: int) -> Tensor:
    """Return the weight of each step's gradient, (steps,): 4 - 6 u at the share u of a long epoch.

    ``w(u) = 1 + m (m - u) / v`` with mean m and variance v of u, which is uniform over the steps:
    the weights of the intercept of a least-squares line. Exact gradients have weight 1.
    """
    number = 1 if batch_size is None else num_data // math.gcd(num_data, batch_size)
    if batch_size is None or number == 1:
        return torch.ones(len(steps), dtype=torch.float64)
    epoch = [step * batch_size % num_data / num_data for step in steps]  # multiples of 1 / number
    shares = torch.tensor(epoch, dtype=torch.float64)
    mean, variance = (number - 1) / (2 * number), (number**2 - 1) / (12 * number**2)
    return 1 + mean * (mean - shares) / variance


def add_heat(
    heat: Mapping[str, Tensor],
    positions: Tensor,
    gradients: Tensor,
    weights: Tensor,
    residuals: Tensor,
    good: Tensor,
    limited: Tensor | None = None,
) -> dict[str, Tensor]:
    """Add some steps to the sums, in order, so that the bits do not depend on the blocks of a run.

    Args:
        heat: the sums so far, which are not changed.
        positions: positions at the beginning of the steps, (steps, chains, elements).
        gradients: of U there, or estimates.
        weights: of `epoch_weights`.
        residuals: of `energy_residuals`, (pairs, chains).
        good: chains that count, (chains,).
        limited: whether the force was clipped, (steps, chains); None without a limit.
    """
    found = {name: tensor.clone() for name, tensor in heat.items()}
    done, batches = int(found["heat_count"]), len(found["heat_weights"])
    if done == 0 and len(positions):
        found["heat_centre"] = positions[0].double()
    tensors = positions, gradients, weights, good
    add = _compiled_adder(*tensors) or functools.partial(_add_by_torch, *tensors)
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
    powers = torch.stack([torch.ones_like(wide), torch.zeros_like(wide), wide**2], 1)
    rows = torch.arange(3, device=wide.device).repeat(len(wide))
    found["heat_residuals"].index_add_(0, rows, powers.flatten(0, 1))
    if limited is not None:
        found["heat_residuals"][1] += (limited & good).sum(0)
    return found


Adder = Callable[[Tensor, Tensor, int, int, int, int], None]
_TYPES = {torch.float32: "float", torch.float64: "double"}
_SOURCE = """
#include <stdint.h>

void gather(double *restrict sums, const double *restrict centre,
            const {position} *restrict positions, const {gradient} *restrict gradients,
            const double *restrict weights, const uint8_t *restrict good, int64_t begin,
            int64_t count, int64_t done, int64_t size, int64_t chains, int64_t dim) {{
    for (int64_t k = 0; k < count; k++) {{
        const double weight = weights[begin + k];
        for (int64_t chain = 0; chain < chains; chain++) {{
            if (!good[chain]) continue;
            double *restrict sum = sums + ((done + k) / size * 3 * chains + chain) * dim;
            const {position} *position = positions + ((begin + k) * chains + chain) * dim;
            const {gradient} *gradient = gradients + ((begin + k) * chains + chain) * dim;
            for (int64_t i = 0; i < dim; i++) {{
                const double gap = (double)position[i] - centre[chain * dim + i];
                const double slope = (double)gradient[i] * weight;
                sum[i] += gap * slope;
                sum[chains * dim + i] += slope;
                sum[2 * chains * dim + i] += gap;
            }}
        }}
    }}
}}
"""


def _compiled_adder(
    positions: Tensor, gradients: Tensor, weights: Tensor, good: Tensor
) -> Adder | None:
    """Return compiled code that adds steps to the sums, or None if it does not apply.

    The tensors are those of `add_heat`. The function takes sums (batches, 3, chains, elements),
    which it changes, centres (chains, elements), the first step and the number of steps to add, the
    number of earlier steps, and the steps per batch.
    """
    tensors, (steps, chains, dim) = (positions, gradients, weights, good), positions.shape
    is_known = positions.dtype in _TYPES and gradients.dtype in _TYPES and good.dtype == torch.bool
    fits = gradients.shape == positions.shape and weights.shape == (steps,)
    if not is_known or not fits or not all(tensor.is_cpu for tensor in tensors):
        return None
    types = {"position": _TYPES[positions.dtype], "gradient": _TYPES[gradients.dtype]}
    library = load_or_none(_SOURCE.format(**types))
    if library is None:
        return None
    run = library.gather
    run.argtypes, run.restype = [ctypes.c_void_p] * 6 + [ctypes.c_int64] * 6, None
    given = [part.contiguous() for part in (positions, gradients, weights.double(), good)]

    def add(sums: Tensor, centre: Tensor, begin: int, count: int, done: int, size: int) -> None:
        whole = centre.contiguous()
        is_double = sums.dtype == centre.dtype == torch.float64 and sums.is_cpu and centre.is_cpu
        is_shape = sums.shape[1:] == (3, chains, dim) and centre.shape == (chains, dim)
        is_inside = begin >= 0 and 0 <= count <= steps - begin and done >= 0
        is_inside &= sums.is_contiguous() and (done + count - 1) // size < len(sums)
        if not (is_double and is_shape and is_inside):
            found = f"{tuple(sums.shape)} {sums.dtype}"
            raise ValueError(f"steps {begin} to {begin + count} do not fit into sums {found}")
        addresses = [tensor.data_ptr() for tensor in (sums, whole, *given)]
        run(*addresses, begin, count, done, size, chains, dim)

    return add


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
    """Add on any device: the oracle of the compiled version."""
    some = slice(begin, begin + count)
    gaps = positions[some].double() - centre
    weighted = gradients[some].double() * weights[some].to(gradients.device)[:, None, None]
    terms = torch.where(good[:, None], torch.stack([gaps * weighted, weighted, gaps], 1), 0.0)
    sums.index_add_(0, (torch.arange(done, done + count) // size).to(terms.device), terms)


def energy_residuals(positions: Tensor, energies: Tensor, gradients: Tensor) -> Tensor:
    """Return ``U_1 - U_0 - (theta_1 - theta_0) . (g_0 + g_1) / 2``, (steps - 1, chains).

    The energy error of each step, which is zero on any quadratic energy. Gradients must be exact.
    """
    work = (positions.diff(dim=0) * (gradients[1:] + gradients[:-1])).sum(-1) / 2
    return energies.diff(dim=0) - work


def _batch_size(count: int, batches: int) -> int:
    """Return the steps per batch for `count` steps: the smallest power of two that suffices."""
    size = 1
    while count > batches * size:
        size *= 2
    return size


class Heat(NamedTuple):
    """The temperatures of a run."""

    temperature: Measured  # of all measured elements
    by_element: Measured  # of each of them
    elements: Tensor  # which these are
    by_chain: Tensor  # temperature of each chain
    residual: float  # root mean square of `energy_residuals`; NaN if gradients are noisy
    limited: float = 0.0  # share of the steps with a clipped force


def read_heat(tensors: Mapping[str, Tensor], chains: Sequence[int], dim: int) -> Heat:
    """Return the temperatures of some chains, by index.

    Each chain is centred at the mean of the others, since its own would lower the estimate by
    1 / ESS, and the halves of a single chain at each other's.
    """
    unknown = torch.tensor(torch.nan, dtype=torch.float64)
    if not tensors:
        none, nowhere = unknown.new_empty(0), torch.empty(0, dtype=torch.int64)
        return Heat(Measured(unknown, unknown), Measured(none, none), nowhere, none, math.nan)
    sums = tensors["heat_sums"][:, :, list(chains)].cpu()
    centre = tensors["heat_centre"][list(chains)].cpu()
    elements = evenly_spaced(dim, centre.shape[-1])
    shares = tensors["heat_weights"][:, :, None].expand(-1, -1, len(chains))
    used = int((shares[:, 1] > 0).sum(0).max()) if len(chains) else 0
    if len(chains) == 1:
        half = used // 2
        sums, shares = (
            torch.cat([tensor[:half], tensor[half : 2 * half]], 2) for tensor in (sums, shares)
        )
        centre, used = centre.repeat(2, 1), half
    products, slopes, gaps = sums[:used].unbind(1)  # (batches, chains, elements)
    weights, counts = shares[:used].unbind(1)  # (batches, chains)
    if weights.numel() < MIN_GROUPS:
        each = unknown.repeat(len(elements))
        measured = Measured(unknown, unknown), Measured(each, each)
        return Heat(*measured, elements, each[:0], *_errors(tensors, chains))
    means = centre + gaps.sum(0) / counts.sum(0)[:, None]
    others = (means.sum(0) - means) / (len(means) - 1)
    products = products - (others - centre) * slopes
    total = batch_ratio(products.mean(-1, keepdim=True), weights)
    by_chain = products.mean(-1).sum(0) / weights.sum(0)
    measured = Measured(total.value[0], total.error[0]), batch_ratio(products, weights)
    return Heat(*measured, elements, by_chain, *_errors(tensors, chains))


def batch_ratio(products: Tensor, weights: Tensor) -> Measured:
    """Return the ratio of sums of products (batches, chains, elements) and weights, with its error.

    The error is the maximum over longer and longer batches: batches longer than the autocorrelation
    time agree, and shorter ones underestimate. Deviations are from the mean of all chains, so the
    error includes the variance between chains.
    """
    total = weights.sum()
    value = products.sum((0, 1)) / total
    deviations = products - value * weights[..., None]
    error = torch.zeros_like(value)
    while True:
        groups = deviations.shape[0] * deviations.shape[1]
        variance = deviations.square().sum((0, 1)) * groups / (groups - 1)
        error = torch.maximum(error, variance.sqrt() / total)
        if deviations.shape[1] * -(-len(deviations) // 2) < MIN_GROUPS or len(deviations) == 1:
            return Measured(value, error)
        if len(deviations) % 2:
            deviations = torch.cat([deviations, torch.zeros_like(deviations[:1])])
        deviations = deviations[::2] + deviations[1::2]


def _errors(tensors: Mapping[str, Tensor], chains: Sequence[int]) -> tuple[float, float]:
    """Return the root mean square of the residuals, and the share of clipped forces."""
    number, limited, squares = tensors["heat_residuals"][:, list(chains)].sum(-1).tolist()
    return (math.sqrt(squares / number), limited / number) if number else (math.nan, 0.0)
