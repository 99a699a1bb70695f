"""Distances of draws from a known distribution or target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from langevin.checks import check_dense, check_integer, check_number, check_tensor, needs
from langevin.diagnostics.arrays import (
    check_draws,
    evaluate_fully,
    evenly_spaced,
    gradients_at,
    healthy_positions,
)
from langevin.diagnostics.convergence import standard_error
from langevin.random import Purpose, normal, stream
from langevin.random.address import check_seed
from langevin.targets import Mixture, Target
from langevin.targets.base import check_target
from langevin.targets.priors import is_scale

if TYPE_CHECKING:
    from langevin.storage import Samples

__all__ = [
    "MomentErrors",
    "grid_total_variation",
    "kernel_stein_discrepancy",
    "ksd",
    "mode_shares",
    "moment_errors",
    "sliced_wasserstein",
]


POINTS_PER_CELL = 4
"""The probability of a cell is the mean density at 4 by 4 points."""


@dataclass(frozen=True)
class MomentErrors:
    """Mean absolute errors of the elements of a mean and of a covariance.

    Args:
        mean: mean over i of |m_i - mean_i|.
        covariance: mean over i, j of |C_ij - covariance_ij|.
        mean_in_errors: mean over i of |m_i - mean_i| / its Monte Carlo standard error; about 0.8
            without bias.
        covariance_in_errors: the same for the covariance.
    """

    mean: float
    covariance: float
    mean_in_errors: float
    covariance_in_errors: float


def moment_errors(
    draws: Tensor, mean: Tensor | Sequence[float], covariance: Tensor | Sequence[Sequence[float]]
) -> MomentErrors:
    """Compare the draws' mean and covariance with known ones.

    Absolute errors measure the size of the difference; errors in standard errors measure its
    significance. The mean absolute value of a standard normal is sqrt(2 / pi) = 0.8.

    Args:
        draws: (chain, draw, dim).
        mean: (dim,).
        covariance: (dim, dim).

    Returns:
        The four errors.

    Example:
        >>> from langevin.random import normal
        >>> draws = normal(0, range(10), range(1000), 2, dtype=torch.float64).transpose(0, 1)
        >>> found = moment_errors(draws, [0.0, 0.0], torch.eye(2))
        >>> found.mean < 0.02, found.covariance < 0.03, found.covariance_in_errors < 4
        (True, True, True)
    """
    draws = check_draws("moment_errors", "draws", draws)
    dim = draws.shape[-1]
    true_mean = check_tensor("moment_errors", "mean", mean, dim)
    true_covariance = check_tensor("moment_errors", "covariance", covariance, dim, dim)

    estimate = draws.mean((0, 1))
    centred = draws - estimate
    mean_error = (estimate - true_mean).abs()
    products = torch.stack([(centred * centred[..., i : i + 1]).mean((0, 1)) for i in range(dim)])
    covariance_error = (products - true_covariance).abs()
    spread = torch.stack([standard_error(centred * centred[..., i : i + 1]) for i in range(dim)])
    return MomentErrors(
        float(mean_error.mean()),
        float(covariance_error.mean()),
        float((mean_error / standard_error(draws)).mean()),
        float((covariance_error / spread).mean()),
    )


def sliced_wasserstein(
    draws: Tensor, reference: Tensor, *, num_directions: int = 64, seed: int = 0
) -> float:
    """Return the sliced Wasserstein-2 distance between two sets of draws.

    ``SW^2 = mean over unit u of W_2^2(u . x, u . y)``, where in one dimension
    ``W_2^2 = int_0^1 (F^-1(p) - G^-1(p))^2 dp`` of the two empirical quantile functions, exactly,
    for any two sizes. Two exact sets of n draws are about n**-0.5 apart, so compare with the
    distance of a second reference of the size of `draws`.

    Args:
        draws: (chain, draw, dim).
        reference: (..., dim), draws of the reference distribution.
        num_directions: random directions u, the same for the same seed.
        seed: of the directions.

    Returns:
        The distance, in the units of theta. A shift by d gives |d| / sqrt(dim).

    Example:
        >>> from langevin.random import normal
        >>> draws = normal(0, range(2), range(500), 3).transpose(0, 1)
        >>> f"{sliced_wasserstein(draws, draws + 1):.1f}"  # about |(1, 1, 1)| / sqrt(3)
        '1.0'
    """
    who = "sliced_wasserstein"
    draws = check_draws(who, "draws", draws).flatten(0, 1)
    dim = draws.shape[-1]
    if not isinstance(reference, Tensor) or reference.ndim < 2 or reference.shape[-1] != dim:
        found = getattr(reference, "shape", reference)
        raise needs(who, "reference", f"a tensor of shape (..., {dim})", found)
    flat = check_dense(who, "reference", reference).reshape(1, -1, dim)
    other = check_draws(who, "reference", flat)[0]
    check_integer(who, "num_directions", num_directions, 1)
    check_seed(who, seed)

    directions = normal(seed, stream(Purpose.DATA), range(num_directions), dim, dtype=torch.float64)
    directions = directions / directions.norm(dim=-1, keepdim=True)
    weights, left, right = _quantile_steps(len(draws), len(other))
    squares = [
        (weights * ((draws @ u).sort().values[left] - (other @ u).sort().values[right]) ** 2).sum()
        for u in directions
    ]
    return float(torch.stack(squares).mean() ** 0.5)


def mode_shares(draws: Tensor, target: Mixture) -> Tensor:
    """Return the share of draws nearest to each mode of a mixture, to compare with its weights.

    Args:
        draws: (chain, draw, dim).
        target: a mixture of Gaussians.

    Returns:
        (components,), of sum 1. Overlapping components exchange draws at their borders.

    Example:
        >>> from langevin.targets import mixture
        >>> draws = torch.tensor([[[-3.0, -3.0], [0.1, 0.0], [3.0, 2.8], [2.9, 3.0]]])
        >>> mode_shares(draws, mixture())
        tensor([0.2500, 0.0000, 0.2500, 0.0000, 0.5000], dtype=torch.float64)
    """
    draws = check_draws("mode_shares", "draws", draws)
    if not hasattr(target, "nearest_mode") or isinstance(target, type):
        what = "a mixture of targets.mixture(...)"
        raise needs("mode_shares", "target", what, type(target).__name__, TypeError)
    if target.means.shape[-1] != draws.shape[-1]:
        what = f"shape (chain, draw, {target.means.shape[-1]})"
        raise needs("mode_shares", "draws", what, tuple(draws.shape))
    counts = torch.bincount(target.nearest_mode(draws).flatten(), minlength=len(target.means))
    return counts.double() / counts.sum()


def grid_total_variation(
    draws: Tensor,
    target: Target,
    half_width: float,
    bins: int,
    *,
    data: Sequence[Tensor] | Tensor | None = None,
    temperature: float = 1.0,
) -> float:
    """Return the total variation distance between a histogram of draws and a density in the plane.

    ``TV = (1/2) sum over cells |share of the draws - probability|`` on
    ``[-half_width, half_width]^2``, with the outside as one more cell of probability zero: choose a
    square that contains the mass of the target. Chance alone gives about
    ``sqrt(cells / (2 pi ESS))`` for equally likely cells, so use large enough bins.

    Args:
        draws: (chain, draw, 2).
        target: with any constant in its energy.
        half_width: half the side of the square around the origin.
        bins: cells per axis.
        data: the target's data set, if it has one.
        temperature: tau of the target.

    Returns:
        A number from 0 (equal) to 1 (disjoint); a missing mode adds its weight.

    Example:
        >>> from langevin.random import normal
        >>> from langevin.targets import gaussian
        >>> draws = normal(0, range(10), range(2000), 2).transpose(0, 1)
        >>> target = gaussian(torch.eye(2))
        >>> f"{grid_total_variation(draws, target, half_width=5.0, bins=20):.2f}"
        '0.03'
    """
    who = "grid_total_variation"
    draws = check_draws(who, "draws", draws)
    if draws.shape[-1] != 2:
        raise needs(who, "draws", "shape (chain, draw, 2)", tuple(draws.shape))
    check_target(who, target, data)
    half_width = check_number(who, "half_width", half_width, "> 0", lambda v: v > 0)
    check_integer(who, "bins", bins, 1)
    temperature = check_number(who, "temperature", temperature, "> 0", lambda v: v > 0)

    probability = _cell_probabilities(target, half_width, bins, data, temperature)
    cell = ((draws.flatten(0, 1) + half_width) * (bins / (2 * half_width))).floor()
    inside = ((cell >= 0) & (cell < bins)).all(-1)
    index = (cell[inside, 0] * bins + cell[inside, 1]).long()
    share = torch.bincount(index, minlength=bins * bins).double() / len(cell)
    outside = 1 - inside.double().mean()
    return float(0.5 * ((share - probability).abs().sum() + outside))


def _cell_probabilities(
    target: Target,
    half_width: float,
    bins: int,
    data: Sequence[Tensor] | Tensor | None,
    temperature: float,
) -> Tensor:
    """Return the probabilities of the cells of a square, (bins * bins,), first axis first."""
    points = bins * POINTS_PER_CELL
    width = 2 * half_width / points
    axis = (torch.arange(points, dtype=torch.float64) + 0.5) * width - half_width
    grid = torch.cartesian_prod(axis, axis)
    logs = -evaluate_fully("grid_total_variation", target, grid, data).energy / temperature
    density = (logs - logs.max()).exp()
    density = density.reshape(bins, POINTS_PER_CELL, bins, POINTS_PER_CELL).sum((1, 3))
    return (density / density.sum()).flatten()


def _quantile_steps(n: int, m: int) -> tuple[Tensor, Tensor, Tensor]:
    """Split [0, 1] at the jumps of two empirical quantile functions; return lengths and indices.

    Levels are integers in units of 1 / (n m), so rounding cannot move a draw to its neighbour.
    """
    levels = torch.cat([torch.arange(n + 1) * m, torch.arange(m + 1) * n]).unique()
    start = levels[:-1]
    return levels.diff().double() / (n * m), start // m, start // n


def kernel_stein_discrepancy(
    draws: Tensor,
    gradients: Tensor,
    *,
    temperature: float = 1.0,
    scale: float = 1.0,
    num: int = 1000,
    block: int = 512,
) -> float:
    """Return the kernel Stein discrepancy of draws from ``exp(-U / temperature)``.

    With the inverse multiquadric kernel ``q^(-1/2)``, ``q = c^2 + |x - y|^2``, the score
    ``s = -grad U / temperature`` and n draws,

        KSD^2 = (1 / n^2) sum_xy k0(x, y)
        k0 = (s_x . s_y) q^(-1/2) + ((s_x - s_y) . (x - y) + dim) q^(-3/2) - 3 |x - y|^2 q^(-5/2)

    This is the V-statistic, with pairs of a draw with itself: it is never negative, and its root
    mean square for n independent exact draws is ``sqrt(E k0(x, x) / n)``, with
    ``k0(x, x) = |s|^2 / c + dim / c^3``. Compare two samplers with the same `num`. It tends to 0
    only if the distribution of the draws tends to the target (Gorham and Mackey 2017: kernels that
    decay faster, such as the Gaussian, miss escaping mass). It is local between modes: a missing
    mode hardly changes it.

    Args:
        draws: (chain, draw, dim).
        gradients: grad U over all data at these draws, of their shape.
        temperature: tau of the target.
        scale: c, a length in the units of theta; 1 in the paper. Take about the posterior's
            standard deviation if that is far from 1.
        num: largest number of draws, evenly spaced over all chains; the cost grows with its square.
        block: pairs are evaluated in squares of this side, so memory does not grow with `num`.

    Returns:
        The KSD, a number >= 0.

    Example:
        >>> from langevin.random import normal
        >>> draws = normal(0, range(4), range(500), 2).transpose(0, 1)
        >>> right = kernel_stein_discrepancy(draws, draws)
        >>> too_wide = kernel_stein_discrepancy(1.5 * draws, 1.5 * draws)
        >>> f"{right:.2f} {too_wide:.2f}"
        '0.07 0.34'
    """
    who = "kernel_stein_discrepancy"
    draws, gradients = check_draws(who, "draws", draws), check_draws(who, "gradients", gradients)
    if gradients.shape != draws.shape:
        what = f"the shape of the draws {tuple(draws.shape)}"
        raise needs(who, "gradients", what, tuple(gradients.shape))
    temperature, scale = _check_settings(who, temperature, scale, num, block)
    positions, slopes = draws.flatten(0, 1), gradients.flatten(0, 1)
    chosen = evenly_spaced(len(positions), num)
    return _discrepancy(positions[chosen], -slopes[chosen] / temperature, scale, block)


def ksd(
    samples: Samples,
    target: Target,
    data: Sequence[Tensor] | Tensor | None = None,
    *,
    temperature: float = 1.0,
    scale: float = 1.0,
    num: int = 1000,
    block: int = 512,
) -> float:
    """Return the kernel Stein discrepancy of the healthy chains, with gradients over all data.

    Takes a gradient for each of the `num` draws, without the artificial noise of a target
    (`gradient_noise`).

    Args:
        samples: the result of `langevin.sample`, with positions; chains that stopped are left out,
            with a warning.
        target: the target of the run, or another one to compare with.
        data: its data set, if it has one.
        temperature: tau of the target; that of the sampler, or 1 to compare cold draws with the
            posterior.
        scale: c of the kernel, see `kernel_stein_discrepancy`.
        num: largest number of draws, evenly spaced over the chains.
        block: pairs are evaluated in squares of this side.

    Returns:
        The KSD, a number >= 0.

    Example:
        >>> import langevin as lv
        >>> target = lv.targets.gaussian([[1.0, 0.9], [0.9, 1.0]])
        >>> settings = {"init": torch.zeros(1000, 2), "num_steps": 400, "warmup": 399}
        >>> for kernel in lv.sgld(0.01), lv.msgld(0.01, bias_factor=1.0):
        ...     samples = lv.sample(target, sampler=kernel, **settings)
        ...     print(kernel.name, f"{ksd(samples, target):.2f}")
        sgld 0.08
        msgld 0.20
    """
    temperature, scale = _check_settings("ksd", temperature, scale, num, block)
    draws = healthy_positions("ksd", samples)
    flat = draws.reshape(-1, draws.shape[-1])
    chosen = flat[evenly_spaced(len(flat), num)]
    positions = chosen.to("cpu", torch.float64)
    gradients = gradients_at("ksd", target, chosen, data).to(positions)
    return _discrepancy(positions, -gradients / temperature, scale, block)


def _check_settings(
    who: str, temperature: float, scale: float, num: int, block: int
) -> tuple[float, float]:
    """Check the settings; return temperature and scale as floats."""
    check_integer(who, "num", num, 1)
    check_integer(who, "block", block, 1)
    temperature = check_number(who, "temperature", temperature, "> 0", lambda v: v > 0)
    return temperature, check_number(who, "scale", scale, "1e-150 <= scale <= 1e150", is_scale)


def _discrepancy(positions: Tensor, scores: Tensor, scale: float, block: int) -> float:
    """Sum k0 over squares of pairs; k0 is symmetric, so squares above the diagonal count twice."""
    positions = positions - positions.mean(0)  # only differences matter; this reduces rounding
    parts = list(zip(positions.split(block), scores.split(block), strict=True))
    total = 0.0
    for i, (x, score_x) in enumerate(parts):
        for j, (y, score_y) in enumerate(parts[i:], i):
            pairs = _stein_kernel(x, score_x, y, score_y, scale)
            total += (1 if i == j else 2) * float(pairs.sum())
    return max(total, 0.0) ** 0.5 / len(positions)


def _stein_kernel(x: Tensor, score_x: Tensor, y: Tensor, score_y: Tensor, scale: float) -> Tensor:
    """Return k0 for all pairs, (n, dim) and (m, dim) -> (n, m)."""
    square = torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist") ** 2
    q = scale**2 + square
    # (s_x - s_y) . (x - y), without an array of shape (n, m, dim)
    cross = (score_x * x).sum(-1)[:, None] - score_x @ y.mT - x @ score_y.mT + (score_y * y).sum(-1)
    return (score_x @ score_y.mT) * q**-0.5 + (cross + x.shape[-1]) * q**-1.5 - 3 * square * q**-2.5
