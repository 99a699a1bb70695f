"""Linear regressions with normal errors: earnings, children's scores, mesquite, elections, diamonds, temperatures."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributions import HalfCauchy, HalfNormal, Normal, StudentT

from langevin.targets import Model
from langevin.targets.constraints import positive, real
from langevin_paper.check.posteriors.base import Data, KnownPosterior, Parameters, column

__all__ = ["REGRESSIONS"]


def _linear_log_likelihood(p: Parameters, x: Tensor, y: Tensor) -> Tensor:
    return Normal(x @ p["beta"], p["sigma"]).log_prob(y)


def _linear(y: Tensor, *predictors: Tensor, **prior: Any) -> KnownPosterior:
    """``y ~ Normal(x β, σ)``; the first column of x is 1. What has no prior is flat."""
    x = torch.stack([torch.ones_like(y), *predictors], -1)
    parameters = {"beta": real(x.shape[-1]), "sigma": positive()}
    return KnownPosterior(Model(_linear_log_likelihood, parameters, prior), {"x": x, "y": y})


def earn_height(data: Data) -> KnownPosterior:
    """Earnings on height."""
    return _linear(column(data, "earn"), column(data, "height"))


def log10earn_height(data: Data) -> KnownPosterior:
    """Decimal logarithm of earnings on height."""
    return _linear(column(data, "earn").log10(), column(data, "height"))


def logearn_interaction(data: Data) -> KnownPosterior:
    """Logarithm of earnings on height, sex and their product."""
    height, male = column(data, "height"), column(data, "male")
    return _linear(column(data, "earn").log(), height, male, height * male)


def kidscore_momhs(data: Data) -> KnownPosterior:
    """Children's scores on whether the mother finished high school."""
    return _linear(column(data, "kid_score"), column(data, "mom_hs"), sigma=HalfCauchy(2.5))


def kidscore_momiq(data: Data) -> KnownPosterior:
    """Children's scores on the mother's."""
    return _linear(column(data, "kid_score"), column(data, "mom_iq"), sigma=HalfCauchy(2.5))


def kidscore_interaction_c(data: Data) -> KnownPosterior:
    """Children's scores on both, centred, and their product."""
    school, iq = (values - values.mean() for values in (column(data, "mom_hs"), column(data, "mom_iq")))
    return _linear(column(data, "kid_score"), school, iq, school * iq)


def mesquite(data: Data) -> KnownPosterior:
    """Weight of bushes on their measures."""
    names = ("diam1", "diam2", "canopy_height", "total_height", "density", "group")
    return _linear(column(data, "weight"), *(column(data, name) for name in names))


def logmesquite(data: Data) -> KnownPosterior:
    """Weight of bushes on their measures, in logarithms."""
    names = ("diam1", "diam2", "canopy_height", "total_height", "density")
    return _linear(column(data, "weight").log(), *(column(data, name).log() for name in names), column(data, "group"))


def logmesquite_logva(data: Data) -> KnownPosterior:
    """Weight of bushes on volume and area of the canopy, in logarithms."""
    area = column(data, "diam1") * column(data, "diam2")
    volume = area * column(data, "canopy_height")
    return _linear(column(data, "weight").log(), volume.log(), area.log(), column(data, "group"))


def nes(data: Data) -> KnownPosterior:
    """Party identification of voters; age in four classes, of which the first is the base."""
    ages = [(column(data, "age_discrete") == k).double() for k in (2, 3, 4)]
    before, after = ("real_ideo", "race_adj"), ("educ1", "gender", "income")
    return _linear(
        column(data, "partyid7"), *(column(data, name) for name in before), *ages, *(column(data, name) for name in after)
    )


def blr(data: Data) -> KnownPosterior:
    """Bayesian linear regression without an intercept."""
    x = column(data, "X")
    prior = {"beta": Normal(0.0, 10.0), "sigma": HalfNormal(10.0)}
    model = Model(_linear_log_likelihood, {"beta": real(x.shape[-1]), "sigma": positive()}, prior)
    return KnownPosterior(model, {"x": x, "y": column(data, "y")})


def diamonds(data: Data) -> KnownPosterior:
    """Logarithm of a diamond's price on 24 strongly correlated, centred columns."""
    x = column(data, "X")[:, 1:]
    x = x - x.mean(0)
    model = Model(
        lambda p, x, y: Normal(p["Intercept"] + x @ p["b"], p["sigma"]).log_prob(y),
        parameters={"b": real(x.shape[-1]), "Intercept": real(), "sigma": positive()},
        prior={"b": Normal(0.0, 1.0), "Intercept": StudentT(3.0, 8.0, 10.0), "sigma": StudentT(3.0, 0.0, 10.0)},
    )
    return KnownPosterior(model, {"x": x, "y": column(data, "Y")})


def kilpisjarvi(data: Data) -> KnownPosterior:
    """Summer temperatures on the year; intercept and slope are correlated to 5 digits."""
    model = Model(
        lambda p, x, y: Normal(p["alpha"] + p["beta"] * x, p["sigma"]).log_prob(y),
        parameters={"alpha": real(), "beta": real(), "sigma": positive()},
        prior={
            "alpha": Normal(column(data, "pmualpha"), column(data, "psalpha")),
            "beta": Normal(column(data, "pmubeta"), column(data, "psbeta")),
        },
    )
    return KnownPosterior(model, {"x": column(data, "x"), "y": column(data, "y")})


REGRESSIONS = {
    "diamonds-diamonds": diamonds,
    "earnings-earn_height": earn_height,
    "earnings-log10earn_height": log10earn_height,
    "earnings-logearn_interaction": logearn_interaction,
    "kidiq-kidscore_momhs": kidscore_momhs,
    "kidiq-kidscore_momiq": kidscore_momiq,
    "kidiq_with_mom_work-kidscore_interaction_c": kidscore_interaction_c,
    "kilpisjarvi_mod-kilpisjarvi": kilpisjarvi,
    "mesquite-logmesquite": logmesquite,
    "mesquite-logmesquite_logva": logmesquite_logva,
    "mesquite-mesquite": mesquite,
    "nes1972-nes": nes,
    "nes1988-nes": nes,
    "nes2000-nes": nes,
    "sblrc-blr": blr,
}
