"""From estimates at several β to the learning coefficient itself, the limit of large n β.

The partition function of a singular loss is a sum over poles (Watanabe 2009), ``Z(t) = c t^-λ + c' t^-(λ + δ) + ...`` with t = n β;
where two of them meet (δ -> 0) it is ``t^-λ (c log t + c')``, multiplicity two. With two terms Z solves Euler's equation
``t^2 Z'' + (1 + 2 λ + δ) t Z' + λ (λ + δ) Z = 0``. As ``E[x] = -t Z' / Z`` and ``E[x^2] = t^2 Z'' / Z`` for x = t (L(w) - L(w*)),

    ``E[x]   = λ - f``,    ``f(t) = δ / ((1 + δ / y) (t / T)^δ - 1)``,    y = f(T) at the largest t = T,
    ``E[x^2] = λ + λ^2 - f (1 + 2 λ + δ)``.

So both moments at some t give λ, y and δ, whatever the singularity, as long as two poles suffice. What the estimates leave open is
averaged over, with the weights of `_SMALL` and `_TOGETHER`. They were chosen among six such, by how near the limit comes and how
often its error holds, for exact moments of nine normal crossings and six reduced-rank regressions with noise of 0.6 percent added.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from langevin.checks import needs
from langevin.llc.result import LLC

__all__ = ["Limit", "fit", "llc_limit"]

_WIDEST = 0.6  # δ up to here: poles further off are gone after a few e-foldings of t
_SPACINGS, _GAPS, _NEWTON = 121, 400, 8  # points of the grid over δ and y, and steps of Newton's method for λ at each
_SMALL = 0.005  # share of λ̂ above which a gap of any size is as likely, a priori, as one of another (log-uniform)
_TOGETHER = 20.0  # a priori weight of δ = 0, where poles meet, beside 1 for each other point of the grid


class Limit(NamedTuple):
    """The learning coefficient, extrapolated."""

    estimate: float  # λ, the mean over what the estimates leave possible
    error: float  # the spread of that: chance, and not knowing δ
    gap: float  # λ - λ̂ at the largest n β
    spacing: float  # δ: 0 for a multiplicity of two
    misfit: float  # chi-square of the best fit
    freedom: int  # numbers that were fitted, less three

    def __str__(self) -> str:
        """Say it in a line."""
        return (
            f"learning coefficient {self.estimate:.4g} ± {self.error:.2g} for n β -> infinity: {self.gap:+.2g} beyond the largest "
            f"n β, pole spacing {self.spacing:.2f}, chi-square {self.misfit:.1f} for {self.freedom}"
        )


def llc_limit(results: Sequence[LLC]) -> Limit:
    """Extrapolate estimates at several β, of the same model, data and localisation, to large n β.

    Take a wide ladder: three estimates whose n β differ by 10 or more each. It is meant for losses whose w* is an exact minimum,
    such as population losses: in data, β beyond 1 resolves their noise, not the model.

    Args:
        results: of `llc`, two or more.

    Returns:
        The mean and spread of λ over a grid of δ and the gap, weighted by the likelihood of the estimates.

    Example:
        >>> import langevin as lv
        >>> class Crossing(torch.nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.w = torch.nn.Parameter(torch.zeros(2))
        ...     def forward(self):
        ...         return (self.w[0] * self.w[1]) ** 2
        >>> settings = {"localisation": 1.0, "chains": 100, "num_draws": 40, "compile": False, "progress": False}
        >>> import warnings
        >>> with warnings.catch_warnings():
        ...     warnings.simplefilter("ignore")  # λ̂ depends on γ: yes
        ...     found = [lv.llc(Crossing(), num_data=1000, beta=beta, **settings) for beta in (0.1, 1.0)]
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
    columns = ([math.log(r.n_beta) for r in found], [r.estimate for r in found], [r.second_moment for r in found])
    logs, first, second = (torch.tensor(column, dtype=torch.float64) for column in columns)
    return fit(logs, first, second, torch.stack([result.covariance for result in found]))


def fit(logs: Tensor, first: Tensor, second: Tensor, covariances: Tensor) -> Limit:
    """Fit λ, δ and y to the moments E[x] and E[x^2] at log t, (rungs,) each, with covariances (rungs, 2, 2) of the two."""
    weight = torch.linalg.inv(covariances)
    spacing = torch.linspace(0, _WIDEST, _SPACINGS, dtype=torch.float64)[:, None, None]
    last = float(first[-1].abs())
    place = torch.linspace(0.5 / _GAPS, 1.0, _GAPS, dtype=torch.float64)
    gap = last * place.square()[None, :, None]  # fine where it is small; each point stands for a stretch as long as `place`
    since = logs - logs[-1]
    f = torch.where(
        spacing > 0, spacing / ((1 + spacing / gap) * (spacing * since).exp() - 1), 1 / (1 / gap + since)
    )  # (δ, y, rung)
    value = first[-1] + gap  # λ at every δ and y, by Gauss and Newton

    def residuals(value: Tensor) -> Tensor:
        return torch.stack([first - (value - f), second - (value + value**2 - f * (1 + 2 * value + spacing))], -1)

    for _ in range(_NEWTON):
        slope = torch.stack([torch.ones_like(f), 1 + 2 * value - 2 * f], -1)
        left = torch.einsum("...ri,rij,...rj->...", slope, weight, slope)
        value = value + (torch.einsum("...ri,rij,...rj->...", slope, weight, residuals(value)) / left)[..., None]
    rest = residuals(value)
    misfit = torch.einsum("...ri,rij,...rj->...", rest, weight, rest)
    misfit = torch.where((f > 0).all(-1), misfit, torch.inf)
    share = torch.exp(-(misfit - misfit.min()) / 2) * place / (place.square() + _SMALL)
    share[0] *= _TOGETHER
    share = share / share.sum()
    value = value[..., 0]
    mean = float((share * value).sum())
    spread = float((share * (value - mean).square()).sum()) + float(covariances[-1, 0, 0])
    return Limit(
        mean, spread**0.5, mean - float(first[-1]), float((share * spacing[..., 0]).sum()), float(misfit.min()), 2 * len(logs) - 3
    )
