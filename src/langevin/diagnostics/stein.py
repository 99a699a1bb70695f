"""The kernel Stein discrepancy: the distance of draws from a target, of which only the gradient is needed."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from langevin.checks import check_integer, check_number, needs
from langevin.diagnostics.arrays import check_draws, gradients_at, healthy_positions
from langevin.store import Samples
from langevin.targets import Target
from langevin.targets.priors import is_scale
from langevin.trust import evenly_spaced

__all__ = ["kernel_stein_discrepancy", "ksd"]


def kernel_stein_discrepancy(
    draws: Tensor, gradients: Tensor, *, temperature: float = 1.0, scale: float = 1.0, num: int = 1000, block: int = 512
) -> float:
    """Return the KSD of draws from ``exp(-U / temperature)`` with the inverse multiquadric kernel ``(c^2 + |x - y|^2)^(-1/2)``.

    With the score ``s = -grad U / temperature``, ``q = c^2 + |x - y|^2`` and n draws,

        KSD^2  = (1 / n^2) sum_xy k0(x, y)
        k0     = (s_x . s_y) q^(-1/2) + ((s_x - s_y) . (x - y) + dim) q^(-3/2) - 3 |x - y|^2 q^(-5/2)

    This is the V-statistic: pairs of a draw with itself count, so it is never negative, and for n independent exact draws it is not
    0 but ``sqrt(E k0(x, x) / n)`` in the root mean square, with ``k0(x, x) = |s|^2 / c + dim / c^3``. Compare two samplers with the
    same `num`. It goes to 0 only if the draws' law goes to the target (Gorham and Mackey 2017: slower kernels
    such as the Gaussian miss mass that escapes), but it sees far-apart modes only locally: a missing mode hardly changes it.

    Args:
        draws: (chain, draw, dim).
        gradients: grad U over all data at these draws, of their shape.
        temperature: tau of the target.
        scale: c, a length in the units of theta; 1 in the paper. Take about the posterior's standard deviation when
            that is far from 1.
        num: use at most so many draws, evenly spaced over all chains; time goes with its square.
        block: pairs are taken in squares of this side, so memory does not grow with `num`.

    Returns:
        The KSD, a number >= 0.

    Example:
        >>> from langevin.noise import normal
        >>> draws = normal(0, range(4), range(500), 2).transpose(0, 1)
        >>> right, too_wide = kernel_stein_discrepancy(draws, draws), kernel_stein_discrepancy(1.5 * draws, 1.5 * draws)
        >>> f"{right:.2f} {too_wide:.2f}"
        '0.07 0.34'
    """
    who = "kernel_stein_discrepancy"
    draws, gradients = check_draws(who, "draws", draws), check_draws(who, "gradients", gradients)
    if gradients.shape != draws.shape:
        raise needs(who, "gradients", f"the shape of the draws {tuple(draws.shape)}", tuple(gradients.shape))
    temperature, scale = _check_settings(who, temperature, scale, num, block)
    dim = draws.shape[-1]
    chosen = evenly_spaced(len(draws.reshape(-1, dim)), num)
    return _discrepancy(draws.reshape(-1, dim)[chosen], -gradients.reshape(-1, dim)[chosen] / temperature, scale, block)


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
    """Return the kernel Stein discrepancy of the healthy chains, with the target's gradient over all data.

    Only the `num` draws that are used cost a gradient. The artificial noise of a target (`gradient_noise`) is left out.

    Args:
        samples: the result of `langevin.sample`, with positions; chains that stopped are left out, with a warning.
        target: the target they were drawn from, or another one to compare them with.
        data: its data set, if it has one.
        temperature: tau of the target; that of the sampler unless you want to know how far a cold law is from the posterior.
        scale: c of the kernel, see `kernel_stein_discrepancy`.
        num: use at most so many draws, evenly spaced over the chains.
        block: pairs are taken in squares of this side.

    Returns:
        The KSD, a number >= 0.

    Example:
        >>> import langevin as lv
        >>> target = lv.targets.gaussian([[1.0, 0.9], [0.9, 1.0]])
        >>> for kernel in lv.sgld(0.01), lv.msgld(0.01, bias_factor=1.0):
        ...     samples = lv.sample(kernel, target, torch.zeros(1000, 2), num_steps=400, warmup=399)
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


def _check_settings(who: str, temperature: float, scale: float, num: int, block: int) -> tuple[float, float]:
    """Check the settings; return temperature and scale as floats."""
    check_integer(who, "num", num, 1)
    check_integer(who, "block", block, 1)
    temperature = check_number(who, "temperature", temperature, "> 0", lambda v: v > 0)
    return temperature, check_number(who, "scale", scale, "1e-150 <= scale <= 1e150", is_scale)


def _discrepancy(positions: Tensor, scores: Tensor, scale: float, block: int) -> float:
    """Sum k0 over squares of pairs; k0 is symmetric, so squares above the diagonal count twice."""
    positions = positions - positions.mean(0)  # only differences matter, and small numbers keep their digits
    parts = list(zip(positions.split(block), scores.split(block), strict=True))
    total = 0.0
    for i, (x, score_x) in enumerate(parts):
        for j, (y, score_y) in enumerate(parts[i:], i):
            total += (1 if i == j else 2) * float(_stein_kernel(x, score_x, y, score_y, scale).sum())
    return max(total, 0.0) ** 0.5 / len(positions)


def _stein_kernel(x: Tensor, score_x: Tensor, y: Tensor, score_y: Tensor, scale: float) -> Tensor:
    """Return k0 for all pairs, (n, dim) and (m, dim) -> (n, m)."""
    square = torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist") ** 2
    q = scale**2 + square
    # (s_x - s_y) . (x - y), without an array of shape (n, m, dim)
    cross = (score_x * x).sum(-1)[:, None] - score_x @ y.mT - x @ score_y.mT + (score_y * y).sum(-1)
    return (score_x @ score_y.mT) * q**-0.5 + (cross + x.shape[-1]) * q**-1.5 - 3 * square * q**-2.5
