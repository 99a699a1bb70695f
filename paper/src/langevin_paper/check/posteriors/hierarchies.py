"""A hierarchy and two Gaussian processes."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import Gamma, HalfCauchy, HalfNormal, Normal, Poisson

from langevin.targets import Model
from langevin.targets.constraints import positive, real
from langevin_paper.check.posteriors.base import Data, KnownPosterior, Parameters, column

__all__ = ["HIERARCHIES"]


def eight_schools_noncentered(data: Data) -> KnownPosterior:
    """Effects of coaching in eight schools, non-centred: ``θ = μ + τ z``."""
    y, sigma = column(data, "y"), column(data, "sigma")

    def reported(p: Parameters) -> Parameters:
        return {**p, "theta": p["mu"] + p["tau"] * p["z"]}

    return KnownPosterior(
        Model.log_density(
            lambda p: Normal(reported(p)["theta"], sigma).log_prob(y).sum(),
            parameters={"z": real(len(y)), "mu": real(), "tau": positive()},
            prior={"z": Normal(0.0, 1.0), "mu": Normal(0.0, 5.0), "tau": HalfCauchy(5.0)},
        ),
        reported=reported,
    )


def _root_of_covariance(x: Tensor, p: Parameters, diagonal: Tensor | float) -> tuple[Tensor, Tensor]:
    """Return the Cholesky factor of ``α² exp(-(x - x')² / (2 ρ²)) + diagonal``, and 0 or, where there is none, -infinity."""
    covariance = p["alpha"].square() * torch.exp(-0.5 * ((x[:, None] - x) / p["rho"]).square())
    root, failed = torch.linalg.cholesky_ex(covariance + diagonal * torch.eye(len(x), dtype=x.dtype))
    return root, torch.where(failed == 0, 0.0, -torch.inf)


def gp_regr(data: Data) -> KnownPosterior:
    """A Gaussian process with normal errors of variance σ, with the function summed out."""
    x, y = column(data, "x"), column(data, "y")

    def log_density(p: Parameters) -> Tensor:
        root, support = _root_of_covariance(x, p, p["sigma"])
        whitened = torch.linalg.solve_triangular(root, y[:, None], upper=False)
        return -0.5 * whitened.square().sum() - root.diagonal().log().sum() + support

    return KnownPosterior(
        Model.log_density(
            log_density,
            parameters={"rho": positive(), "alpha": positive(), "sigma": positive()},
            prior={"rho": Gamma(25.0, 4.0), "alpha": HalfNormal(2.0), "sigma": HalfNormal(1.0)},
        )
    )


def gp_pois_regr(data: Data) -> KnownPosterior:
    """Counts with ``log rate = f``, a Gaussian process, non-centred: ``f = L z``."""
    x, counts = column(data, "x"), column(data, "k")

    def reported(p: Parameters) -> Parameters:
        root, support = _root_of_covariance(x, p, 1e-10)
        return {**p, "f": root @ p["z"], "support": support}

    def log_density(p: Parameters) -> Tensor:
        values = reported(p)
        return Poisson(values["f"].exp()).log_prob(counts).sum() + values["support"]

    return KnownPosterior(
        Model.log_density(
            log_density,
            parameters={"rho": positive(), "alpha": positive(), "z": real(len(x))},
            prior={"rho": Gamma(25.0, 4.0), "alpha": HalfNormal(2.0), "z": Normal(0.0, 1.0)},
        ),
        reported=reported,
    )


HIERARCHIES = {
    "eight_schools-eight_schools_noncentered": eight_schools_noncentered,
    "gp_pois_regr-gp_pois_regr": gp_pois_regr,
    "gp_pois_regr-gp_regr": gp_regr,
}
