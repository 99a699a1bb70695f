"""The result of `llc`: the estimate with its error, its dependence on β and γ, and warnings."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from langevin.diagnostics.convergence import standard_error
from langevin.storage import Samples

__all__ = ["LLC", "Rung", "measure"]

PLATEAU = 0.02
"""λ̂ is flat in γ where e times less γ changes it by at most this share, or within the error."""

_SIGNIFICANT = 3.0  # standard errors
_BELOW = 0.02  # largest share of draws below the loss at w*, if w* is a minimum


class Rung(NamedTuple):
    """An estimate at one localisation; slopes are changes of λ̂ for e times more β or γ."""

    localisation: float
    estimate: float
    error: float
    # dλ̂ / d log β = λ̂ - Var(x), x = n β (L_n(w) - L_n(w*)): 0 for regular models,
    # (m - 1) / log(n β)^2 for multiplicity m
    beta_slope: float
    beta_slope_error: float
    localisation_slope: float  # dλ̂ / d log γ = -Cov(x, γ |w - w*|^2 / 2)
    localisation_slope_error: float
    # γ E|w - w*|^2 / dim: the share of flat directions; above 1 the loss pulls chains from w*
    spread: float
    spread_error: float
    below: float  # share of the draws with a lower loss than w*

    @property
    def is_flat(self) -> bool:
        """Whether λ̂ does not depend on γ."""
        slope = abs(self.localisation_slope)
        return slope <= PLATEAU * abs(self.estimate) or slope <= 2 * self.localisation_slope_error

    @property
    def has_left(self) -> bool:
        """Whether chains have left the neighbourhood of w*."""
        return self.spread - 1 > max(0.02, _SIGNIFICANT * self.spread_error)

    @property
    def warnings(self) -> list[str]:
        """One sentence for every reason not to trust the estimate."""
        found = []
        if self.estimate < -_SIGNIFICANT * self.error:
            found.append(
                f"w* is not a minimum: λ̂ is negative, {self.estimate:.3g} ± {self.error:.1g}, so "
                f"the mean loss of the draws is below that at w*. Train further, or raise the "
                f"localisation."
            )
        elif self.below > _BELOW:
            found.append(
                f"w* is not a minimum: {self.below:.0%} of the draws have a lower loss than w*, so "
                f"λ̂ is too low. Train further (with all data, no weight decay), or raise the "
                f"localisation."
            )
        if self.has_left:
            found.append(
                f"chains left the neighbourhood: their squared distance from w* is "
                f"{self.spread:.2f} times what the localisation alone would allow, so λ̂ is not "
                f"that of w*. Raise the localisation above {self.localisation:g}."
            )
        if not self.is_flat:
            found.append(
                f"λ̂ depends on γ: e times less localisation changes it by "
                f"{-self.localisation_slope:+.3g} ± {self.localisation_slope_error:.1g}. It is a "
                f"number at γ = {self.localisation:g} and this β, not a limit: compare models at "
                f"the same γ and β, or extrapolate with llc_limit."
            )
        return found


def measure(excess: Tensor, squared: Tensor, localisation: float, dim: int) -> tuple[Rung, Tensor]:
    """Estimate λ̂ and its slopes from the draws of one run.

    Args:
        excess: ``x = n β (L_n(w) - L_n(w*))``, (chain, draw).
        squared: ``|w - w*|^2``, (chain, draw).
        localisation: γ.
        dim: number of parameters.

    Returns:
        The rung, and the covariance (2, 2) of the means of x and x^2, for `llc_limit`.
    """
    x, pull = excess.double(), 0.5 * localisation * squared.double()
    mean, middle = float(x.mean()), float(pull.mean())
    centred = x - mean
    product = -centred * (pull - middle)
    beta_slope = mean - float(centred.square().mean())
    slope = -float((centred * (pull - middle)).mean())
    # Centring at estimated means changes a mean of products to second order only, so the errors
    # of the slopes are those of the means of these terms.
    terms = [x, x - centred.square(), product, 2 * pull / dim, x.square(), x + x.square()]
    errors = standard_error(torch.stack(terms, -1)).tolist()
    first, second, both = errors[0] ** 2, errors[4] ** 2, errors[5] ** 2
    mixed = (both - first - second) / 2  # from the variance of the sum
    bound = 0.999 * (first * second) ** 0.5
    mixed = min(max(mixed, -bound), bound)
    below = float((x < -1e-3 * max(1.0, abs(mean))).double().mean())
    slopes = beta_slope, errors[1], slope, errors[2]
    rung = Rung(localisation, mean, errors[0], *slopes, 2 * middle / dim, errors[3], below)
    return rung, torch.tensor([[first, mixed], [mixed, second]], dtype=torch.float64)


@dataclass(frozen=True, repr=False)
class LLC:
    """The result of `llc`.

    Args:
        estimate: ``λ̂ = n β (E[L_n(w)] - L_n(w*))``.
        error: standard error, from the chains' means or their autocorrelation.
        loss_at_start: L_n(w*).
        loss_mean: E[L_n(w)] over the draws.
        n_beta: n β.
        num_data: n.
        dim: number of parameters.
        rung: measurements at the chosen localisation.
        rungs: measurements at every localisation tried, from tight to loose.
        second_moment: mean of x^2, for `llc_limit`.
        covariance: covariance (2, 2) of the means of x and x^2, for `llc_limit`.
        samples: L_n(w) over all data and |w - w*|^2 of each draw, (chain, draw, 2).
        warnings: reasons not to trust the estimate.
        settings: how it was computed.
    """

    estimate: float
    error: float
    loss_at_start: float
    loss_mean: float
    n_beta: float
    num_data: int
    dim: int
    rung: Rung
    rungs: tuple[Rung, ...]
    second_moment: float
    covariance: Tensor
    samples: Samples
    warnings: tuple[str, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def localisation(self) -> float:
        """γ of the estimate."""
        return self.rung.localisation

    @property
    def beta(self) -> float:
        """The inverse temperature β."""
        return self.n_beta / self.num_data

    def describe(self) -> str:
        """Return the estimate, the settings, a table of localisations, and warnings."""
        lines = [
            f"local learning coefficient {self.estimate:.4g} ± {self.error:.2g} ({self.dim} "
            f"parameters: a regular model has {self.dim / 2:g})",
            f"  n β = {self.n_beta:.4g} (n = {self.num_data}, β = {self.beta:.3g}), "
            f"γ = {self.localisation:g}; loss {self.loss_at_start:.6g} at w*, "
            f"{self.loss_mean:.6g} on average",
            f"  {self.settings['sampler']}; {len(self.samples.status)} chains x "
            f"{self.settings['num_draws']} draws",
            "  localisation γ     λ̂              for e times less γ    for e times more β    "
            "flat directions",
        ]
        lines += [
            f"  {'>' if rung is self.rung else ' '} {rung.localisation:<12g} "
            f"{rung.estimate:8.4g} ± {rung.error:<7.2g}"
            f"{-rung.localisation_slope:+9.2g} ± {rung.localisation_slope_error:<9.1g}"
            f"{rung.beta_slope:+9.2g} ± {rung.beta_slope_error:<9.1g}{rung.spread:9.1%}"
            for rung in self.rungs
        ]
        return "\n".join([*lines, *(f"! {sentence}" for sentence in self.warnings)])

    __repr__ = __str__ = describe
