"""What was estimated, with its error, and what speaks against it in words."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from langevin.diagnostics.convergence import standard_error
from langevin.store import Samples

__all__ = ["LLC", "Rung", "measure"]

PLATEAU = 0.02
"""λ̂ no longer depends on γ where e times less γ moves it by no more than this share of itself, or by chance only."""

_SIGNIFICANT = 3.0  # standard errors
_BELOW = 0.02  # share of the draws that may have a lower loss than w*: more, and w* is not a minimum


class Rung(NamedTuple):
    """An estimate at one localisation; slopes are changes of λ̂ for e times more β or γ, from covariances of the same draws."""

    localisation: float
    estimate: float
    error: float
    beta_slope: float  # dλ̂ / d log β = λ̂ - Var(x), x = n β (L_n(w) - L_n(w*)): 0 for the regular, (m - 1) / log(n β)^2 for others
    beta_slope_error: float
    localisation_slope: float  # dλ̂ / d log γ = -Cov(x, γ |w - w*|^2 / 2)
    localisation_slope_error: float
    spread: float  # γ E|w - w*|^2 / dim: the share of directions that are flat; above 1, chains are pulled away from w*
    spread_error: float
    below: float  # share of the draws with a lower loss than w*

    @property
    def is_flat(self) -> bool:
        """Whether λ̂ does not depend on γ."""
        slope = abs(self.localisation_slope)
        return slope <= PLATEAU * abs(self.estimate) or slope <= 2 * self.localisation_slope_error

    @property
    def has_left(self) -> bool:
        """Whether chains have left the neighbourhood of w*: on the whole the loss pulls them away from it."""
        return self.spread - 1 > max(0.02, _SIGNIFICANT * self.spread_error)

    @property
    def warnings(self) -> list[str]:
        """A sentence for everything that speaks against the estimate."""
        found = []
        if self.estimate < -_SIGNIFICANT * self.error:
            found.append(
                f"w* is not a minimum: λ̂ is negative, {self.estimate:.3g} ± {self.error:.1g}, so the mean loss of the draws is "
                f"below that at w*. Train on, or raise the localisation."
            )
        elif self.below > _BELOW:
            found.append(
                f"w* is not a minimum: {self.below:.0%} of the draws have a lower loss than w*, so λ̂ is too low. Train on (with "
                f"all data, no weight decay), or raise the localisation."
            )
        if self.has_left:
            found.append(
                f"chains left the neighbourhood: their distance from w* is {self.spread:.2f} times what the localisation alone "
                f"would allow, so the loss pulls them elsewhere, and λ̂ is not that of w*. Raise the localisation above "
                f"{self.localisation:g}."
            )
        if not self.is_flat:
            found.append(
                f"λ̂ depends on γ: e times less localisation changes it by {-self.localisation_slope:+.3g} ± "
                f"{self.localisation_slope_error:.1g}. It is a number at γ = {self.localisation:g} and this β, not a limit: "
                f"compare models at the same γ and β, or extrapolate with llc_limit."
            )
        return found


def measure(excess: Tensor, squared: Tensor, localisation: float, dim: int) -> tuple[Rung, Tensor]:
    """Return the estimate from ``x = n β (L_n(w) - L_n(w*))`` and ``|w - w*|^2``, (chain, draw) each.

    Also the covariance (2, 2) of the means of x and x^2, for `llc_limit`.
    """
    x, pull = excess.double(), 0.5 * localisation * squared.double()
    mean, middle = float(x.mean()), float(pull.mean())
    beta_slope = mean - float((x - mean).square().mean())
    slope = -float(((x - mean) * (pull - middle)).mean())
    # A mean of products is off by the errors of the means it is centred at, to second order only: so these are its terms.
    terms = [x, x - (x - mean).square(), -(x - mean) * (pull - middle), 2 * pull / dim, x.square(), x + x.square()]
    errors = standard_error(torch.stack(terms, -1)).tolist()
    first, second, both = errors[0] ** 2, errors[4] ** 2, errors[5] ** 2
    mixed = (both - first - second) / 2  # from the variance of the sum
    bound = 0.999 * (first * second) ** 0.5
    mixed = min(max(mixed, -bound), bound)
    rung = Rung(
        localisation, mean, errors[0], beta_slope, errors[1], slope, errors[2], 2 * middle / dim, errors[3],
        float((x < -1e-3 * max(1.0, abs(mean))).double().mean()),
    )  # fmt: skip
    return rung, torch.tensor([[first, mixed], [mixed, second]], dtype=torch.float64)


@dataclass(frozen=True, repr=False)
class LLC:
    """The result of `llc`.

    Args:
        estimate: ``λ̂ = n β (E[L_n(w)] - L_n(w*))``.
        error: its standard error, from the chains' means or from their autocorrelation.
        loss_at_start: L_n(w*).
        loss_mean: E[L_n(w)] over the draws.
        n_beta: n β.
        num_data: n.
        dim: the number of parameters.
        rung: what was measured at the localisation that was chosen.
        rungs: the same at every localisation that was tried, from tight to loose.
        second_moment: the mean of x^2, and `covariance` that of the means of x and x^2: what `llc_limit` needs.
        covariance: see there.
        samples: the draws: L_n(w) over all data and |w - w*|^2 of each, (chain, draw, 2).
        warnings: what speaks against the estimate, in words.
        settings: how it was made.
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
        """γ, that of the estimate."""
        return self.rung.localisation

    @property
    def beta(self) -> float:
        """The inverse temperature β."""
        return self.n_beta / self.num_data

    def describe(self) -> str:
        """Say in a few lines what was found, how, and what speaks against it."""
        lines = [
            f"local learning coefficient {self.estimate:.4g} ± {self.error:.2g} ({self.dim} parameters: a regular model has "
            f"{self.dim / 2:g})",
            f"  n β = {self.n_beta:.4g} (n = {self.num_data}, β = {self.beta:.3g}), γ = {self.localisation:g}; loss "
            f"{self.loss_at_start:.6g} at w*, {self.loss_mean:.6g} on average",
            f"  {self.settings['sampler']}; {len(self.samples.status)} chains x {self.settings['num_draws']} draws",
            "  localisation γ     λ̂              for e times less γ    for e times more β    flat directions",
        ]
        lines += [
            f"  {'>' if rung is self.rung else ' '} {rung.localisation:<12g} {rung.estimate:8.4g} ± {rung.error:<7.2g}"
            f"{-rung.localisation_slope:+9.2g} ± {rung.localisation_slope_error:<9.1g}"
            f"{rung.beta_slope:+9.2g} ± {rung.beta_slope_error:<9.1g}{rung.spread:9.1%}"
            for rung in self.rungs
        ]
        return "\n".join([*lines, *(f"! {sentence}" for sentence in self.warnings)])

    __repr__ = __str__ = describe
