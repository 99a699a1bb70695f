"""The learning coefficient itself: the limit of estimates at several β for large n β.

The partition function of a singular loss is a sum over poles (Watanabe 2009),
``Z(t) = c t^-λ + c' t^-(λ + δ) + ...`` with t = n β; where two of them meet (δ -> 0) it is
``t^-λ (c log t + c')``, multiplicity two. With two terms Z solves Euler's equation
``t^2 Z'' + (1 + 2 λ + δ) t Z' + λ (λ + δ) Z = 0``. As ``E[x] = -t Z' / Z`` and
``E[x^2] = t^2 Z'' / Z`` for x = t (L(w) - L(w*)),

    ``E[x]   = λ - f``,    ``f(t) = δ / ((1 + δ / y) (t / T)^δ - 1)``,    y = f(T) at the largest t
    = T, ``E[x^2] = λ + λ^2 - f (1 + 2 λ + δ)``.

So both moments at some t determine λ, y and δ, whatever the singularity, if two poles suffice. What
the estimates leave open is averaged with the weights `_SMALL` and `_TOGETHER`. They were chosen
among six such pairs, by the accuracy of the limit and the coverage of its error, for exact moments
of nine normal crossings and six reduced-rank regressions with 0.6 percent of noise added.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from langevin.checks import needs
from langevin.nn.llc.result import LLC

__all__ = ["Limit", "fit", "llc_limit"]

_WIDEST = 0.6  # largest δ: poles further away vanish within a few e-foldings of t
_SPACINGS, _GAPS = 121, 400  # points of the grid over δ and y
_NEWTON = 8  # Newton steps for λ at each point
# relative gap above which the prior of the gap is log-uniform
_SMALL = 0.005
_TOGETHER = 20.0  # prior weight of δ = 0 relative to any other δ of the grid


class Limit(NamedTuple):
    """The learning coefficient, extrapolated."""

    estimate: float  # λ, the mean over what the estimates leave open
    error: float  # its spread: sampling error and unknown δ
    gap: float  # λ - λ̂ at the largest n β
    spacing: float  # δ: 0 for a multiplicity of two
    misfit: float  # chi-square of the best fit
    freedom: int  # fitted numbers less three

    def __str__(self) -> str:
        """Return the estimate in one line."""
        return (
            f"learning coefficient {self.estimate:.4g} ± {self.error:.2g} for n β -> infinity: "
            f"{self.gap:+.2g} beyond the largest n β, pole spacing {self.spacing:.2f}, "
            f"chi-square {self.misfit:.1f} for {self.freedom}"
        )


def llc_limit(results: Sequence[LLC]) -> Limit:
    """Extrapolate estimates at several β to large n β.

    Use a wide ladder: three estimates whose n β differ by 10 or more each. This is meant for losses
    with an exact minimum at w*, such as population losses: on data, β above 1 resolves their noise,
    not the model.

    Args:
        results: two or more results of `llc`, of the same model, data and localisation.

    Returns:
        Mean and spread of λ over a grid of δ and the gap, weighted by the likelihood of the
        estimates.

    Example:
        >>> import langevin as lv
        >>> class Crossing(torch.nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.w = torch.nn.Parameter(torch.zeros(2))
        ...     def forward(self):
        ...         return (self.w[0] * self.w[1]) ** 2
        >>> settings = {"num_data": 1000, "localisation": 1.0, "chains": 100, "num_draws": 40}
        >>> settings |= {"compile": False, "progress": False}
        >>> import warnings
        >>> with warnings.catch_warnings():
        ...     warnings.simplefilter("ignore")  # λ̂ depends on γ: yes
        ...     found = [lv.llc(Crossing(), beta=beta, **settings) for beta in (0.1, 1.0)]
        >>> limit = llc_limit(found)
        >>> abs(limit.estimate - 0.5) < 3 * limit.error
        True
    """
    found = sorted(results, key=lambda result: result.n_beta)
    if len(found) < 2 or not all(isinstance(result, LLC) for result in found):
        raise needs("llc_limit", "results", "two results of llc or more", results, TypeError)
    if len({result.n_beta for result in found}) < len(found):
        raise needs("llc_limit", "results", "different n β", [result.n_beta for result in found])
    for name in ("localisation", "dim", "loss_at_start"):
        values = [getattr(result, name) for result in found]
        if len(set(values)) > 1:
            raise needs("llc_limit", "results", f"the same {name}", values)
    rows = [(math.log(r.n_beta), r.estimate, r.second_moment) for r in found]
    logs, first, second = torch.tensor(rows, dtype=torch.float64).unbind(-1)
    return fit(logs, first, second, torch.stack([result.covariance for result in found]))


def fit(logs: Tensor, first: Tensor, second: Tensor, covariances: Tensor) -> Limit:
    """Fit λ, δ and y to the two moments of x at several t.

    Args:
        logs: log t, (rungs,).
        first: E[x], (rungs,).
        second: E[x^2], (rungs,).
        covariances: of the two moments, (rungs, 2, 2).
    """
    weight = torch.linalg.inv(covariances)
    spacing = torch.linspace(0, _WIDEST, _SPACINGS, dtype=torch.float64)[:, None, None]
    last = float(first[-1].abs())
    root = torch.linspace(0.5 / _GAPS, 1.0, _GAPS, dtype=torch.float64)
    gap = last * root.square()[None, :, None]  # fine where small; each cell has a width ~ `root`
    since = logs - logs[-1]
    f = torch.where(  # (δ, y, rung)
        spacing > 0,
        spacing / ((1 + spacing / gap) * (spacing * since).exp() - 1),
        1 / (1 / gap + since),
    )
    value = first[-1] + gap  # λ at every δ and y, by Gauss-Newton

    def residuals(value: Tensor) -> Tensor:
        expected = value + value**2 - f * (1 + 2 * value + spacing)
        return torch.stack([first - (value - f), second - expected], -1)

    def inner(a: Tensor, b: Tensor) -> Tensor:
        return torch.einsum("...ri,rij,...rj->...", a, weight, b)

    for _ in range(_NEWTON):
        slope = torch.stack([torch.ones_like(f), 1 + 2 * value - 2 * f], -1)
        value = value + (inner(slope, residuals(value)) / inner(slope, slope))[..., None]
    rest = residuals(value)
    misfit = torch.where((f > 0).all(-1), inner(rest, rest), torch.inf)
    share = torch.exp(-(misfit - misfit.min()) / 2) * root / (root.square() + _SMALL)
    share[0] *= _TOGETHER
    share = share / share.sum()
    value = value[..., 0]
    mean = float((share * value).sum())
    spread = float((share * (value - mean).square()).sum()) + float(covariances[-1, 0, 0])
    delta = float((share * spacing[..., 0]).sum())
    freedom = 2 * len(logs) - 3
    return Limit(mean, spread**0.5, mean - float(first[-1]), delta, float(misfit.min()), freedom)
