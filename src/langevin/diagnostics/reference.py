"""How far draws are from a law that is known: its moments, draws from it, its modes, or its density on a grid."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from langevin.checks import check_dense, check_integer, check_number, check_tensor, needs
from langevin.diagnostics.arrays import check_draws, evaluate_fully
from langevin.diagnostics.convergence import standard_error
from langevin.noise import Purpose, normal, stream
from langevin.noise.address import check_seed
from langevin.targets import Mixture, Target
from langevin.targets.base import check_target

__all__ = ["MomentErrors", "grid_total_variation", "mode_shares", "moment_errors", "sliced_wasserstein"]

POINTS_PER_CELL = 4
"""A cell's probability is the mean density of 4 by 4 points in it."""


@dataclass(frozen=True)
class MomentErrors:
    """Mean absolute errors of the elements of a mean and of a covariance.

    Args:
        mean: mean over i of |m_i - mean_i|.
        covariance: mean over i, j of |C_ij - covariance_ij|.
        mean_in_errors: mean over i of |m_i - mean_i| / its Monte Carlo standard error; about 0.8 when there is no bias.
        covariance_in_errors: the same for the covariance.
    """

    mean: float
    covariance: float
    mean_in_errors: float
    covariance_in_errors: float


def moment_errors(draws: Tensor, mean: Tensor | Sequence[float], covariance: Tensor | Sequence[Sequence[float]]) -> MomentErrors:
    """Compare the draws' mean and covariance with known ones.

    The absolute errors say how large the difference is, the errors in standard errors whether it is more than chance: a standard
    normal has a mean absolute value of sqrt(2 / pi) = 0.8.

    Args:
        draws: (chain, draw, dim).
        mean: (dim,).
        covariance: (dim, dim).

    Returns:
        The four errors.

    Example:
        >>> from langevin.noise import normal
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


def sliced_wasserstein(draws: Tensor, reference: Tensor, *, num_directions: int = 64, seed: int = 0) -> float:
    """Return the sliced Wasserstein-2 distance between two sets of draws.

    ``SW^2 = mean over unit u of W_2^2(u . x, u . y)``, where in one dimension ``W_2^2 = int_0^1 (F^-1(p) - G^-1(p))^2 dp`` of the
    two empirical quantile functions, exactly, whatever the two sizes. Both sets are noise too: two exact sets of n draws are about
    n**-0.5 apart, so compare with that of a second reference of the size of `draws`.

    Args:
        draws: (chain, draw, dim).
        reference: (..., dim), draws from the law to compare with.
        num_directions: random directions u, the same for the same seed.
        seed: of the directions.

    Returns:
        The distance, in the units of theta. A shift by d gives |d| / sqrt(dim).

    Example:
        >>> from langevin.noise import normal
        >>> draws = normal(0, range(2), range(500), 3).transpose(0, 1)
        >>> f"{sliced_wasserstein(draws, draws + 1):.1f}"  # |(1, 1, 1)| / sqrt(3), up to the choice of directions
        '1.0'
    """
    who = "sliced_wasserstein"
    draws = check_draws(who, "draws", draws).flatten(0, 1)
    dim = draws.shape[-1]
    if not isinstance(reference, Tensor) or reference.ndim < 2 or reference.shape[-1] != dim:
        raise needs(who, "reference", f"a tensor of shape (..., {dim})", getattr(reference, "shape", reference))
    other = check_draws(who, "reference", check_dense(who, "reference", reference).reshape(1, -1, dim))[0]
    check_integer(who, "num_directions", num_directions, 1)
    check_seed(who, seed)

    directions = normal(seed, stream(Purpose.DATA), range(num_directions), dim, dtype=torch.float64)
    directions = directions / directions.norm(dim=-1, keepdim=True)
    weights, left, right = _quantile_steps(len(draws), len(other))
    squares = [(weights * ((draws @ u).sort().values[left] - (other @ u).sort().values[right]) ** 2).sum() for u in directions]
    return float(torch.stack(squares).mean() ** 0.5)


def mode_shares(draws: Tensor, target: Mixture) -> Tensor:
    """Return the share of the draws that is nearest to each mode of a mixture; compare with `target.weights`.

    Args:
        draws: (chain, draw, dim).
        target: a mixture of Gaussians.

    Returns:
        (components,), of sum 1. A component that overlaps with others loses and gains draws at the borders.

    Example:
        >>> from langevin.targets import mixture
        >>> mode_shares(torch.tensor([[[-3.0, -3.0], [0.1, 0.0], [3.0, 2.8], [2.9, 3.0]]]), mixture())
        tensor([0.2500, 0.0000, 0.2500, 0.0000, 0.5000], dtype=torch.float64)
    """
    draws = check_draws("mode_shares", "draws", draws)
    if not hasattr(target, "nearest_mode") or isinstance(target, type):
        raise needs("mode_shares", "target", "a mixture of targets.mixture(...)", type(target).__name__, TypeError)
    if target.means.shape[-1] != draws.shape[-1]:
        raise needs("mode_shares", "draws", f"shape (chain, draw, {target.means.shape[-1]})", tuple(draws.shape))
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
    """Return the total variation distance between a histogram of the draws and the target's density, in the plane.

    ``TV = (1/2) sum over cells |share of the draws - probability|`` on ``[-half_width, half_width]^2``, with the outside as one
    more cell, to which the target is taken to give nothing: choose a square that holds its mass. Chance alone gives about
    ``sqrt(cells / (2 pi ESS))`` for cells that are equally likely, so take bins that the draws can fill.

    Args:
        draws: (chain, draw, 2).
        target: with any constant in its energy.
        half_width: half the side of the square, which lies around the origin.
        bins: cells per axis.
        data: the target's data set, if it has one.
        temperature: tau of the target.

    Returns:
        A number from 0 (the same) to 1 (nothing in common); a missing mode costs its weight.

    Example:
        >>> from langevin.noise import normal
        >>> from langevin.targets import gaussian
        >>> draws = normal(0, range(10), range(2000), 2).transpose(0, 1)
        >>> f"{grid_total_variation(draws, gaussian(torch.eye(2)), half_width=5.0, bins=20):.2f}"
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
    target: Target, half_width: float, bins: int, data: Sequence[Tensor] | Tensor | None, temperature: float
) -> Tensor:
    """Return exp(-U / tau) over the cells of a square, of sum 1, (bins * bins,), first axis first."""
    points = bins * POINTS_PER_CELL
    axis = (torch.arange(points, dtype=torch.float64) + 0.5) * (2 * half_width / points) - half_width
    logs = -evaluate_fully("grid_total_variation", target, torch.cartesian_prod(axis, axis), data).energy / temperature
    density = (logs - logs.max()).exp().reshape(bins, POINTS_PER_CELL, bins, POINTS_PER_CELL).sum((1, 3))
    return (density / density.sum()).flatten()


def _quantile_steps(n: int, m: int) -> tuple[Tensor, Tensor, Tensor]:
    """Cut [0, 1] wherever one of two empirical quantile functions jumps; return lengths and the index into each set.

    Levels are integers in units of 1 / (n m), so no rounding moves a draw to its neighbour.
    """
    levels = torch.cat([torch.arange(n + 1) * m, torch.arange(m + 1) * n]).unique()
    start = levels[:-1]
    return levels.diff().double() / (n * m), start // m, start // n
