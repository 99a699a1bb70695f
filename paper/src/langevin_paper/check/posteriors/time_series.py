"""Time series: AR(K), ARMA(1, 1), GARCH(1, 1)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import HalfCauchy, Normal

from langevin.targets import Model
from langevin.targets.constraints import interval, positive, real, unit
from langevin_paper.check.posteriors.base import Data, KnownPosterior, Parameters, column

__all__ = ["TIME_SERIES", "recursion"]


def recursion(factor: Tensor, inputs: Tensor) -> Tensor:
    """Return x with ``x_t = factor x_{t-1} + inputs_t``, x before the first = 0, in log2(T) vector operations.

    After k of them x_t holds the last 2**k inputs with their powers of the factor; the same sum over t - 2**k comes on top.
    """
    values, shift = inputs, 1
    while shift < len(inputs):
        values = values + factor * torch.cat([torch.zeros_like(values[:shift]), values[:-shift]])
        factor, shift = factor * factor, 2 * shift
    return values


def autoregression(data: Data) -> KnownPosterior:
    """AR(K): a regression on the last K values; ``lags[t, k] = y[t - 1 - k]``."""
    y, order = column(data, "y"), data["K"]
    lags = y.unfold(0, order, 1)[:-1].flip(-1)
    model = Model(
        lambda p, lags, y: Normal(p["alpha"] + lags @ p["beta"], p["sigma"]).log_prob(y),
        parameters={"alpha": real(), "beta": real(order), "sigma": positive()},
        prior={"alpha": Normal(0.0, 10.0), "beta": Normal(0.0, 10.0), "sigma": HalfCauchy(2.5)},
    )
    return KnownPosterior(model, {"lags": lags, "y": y[order:]})


def arma11(data: Data) -> KnownPosterior:
    """ARMA(1, 1): ``y_t = μ + φ y_{t-1} + θ err_{t-1} + err_t``; before the first y stands μ, with no error."""
    y = column(data, "y")

    def log_density(p: Parameters) -> Tensor:
        before = torch.cat([p["mu"].reshape(1), y[:-1]])
        errors = recursion(-p["theta"], y - p["mu"] - p["phi"] * before)
        return Normal(0.0, p["sigma"]).log_prob(errors).sum()

    return KnownPosterior(
        Model.log_density(
            log_density,
            parameters={"mu": real(), "phi": real(), "theta": real(), "sigma": positive()},
            prior={"mu": Normal(0.0, 10.0), "phi": Normal(0.0, 2.0), "theta": Normal(0.0, 2.0), "sigma": HalfCauchy(2.5)},
        )
    )


def garch11(data: Data) -> KnownPosterior:
    """GARCH(1, 1): ``σ²_t = α₀ + α₁ (y_{t-1} - μ)² + β₁ σ²_{t-1}`` with ``α₁ + β₁ < 1``, flat."""
    y, first = column(data, "y"), data["sigma1"]

    def log_density(p: Parameters) -> Tensor:
        inputs = p["alpha0"] + p["alpha1"] * (y[:-1] - p["mu"]).square()
        variances = recursion(p["beta1"], torch.cat([torch.full_like(inputs[:1], first**2), inputs]))
        return Normal(p["mu"], variances.sqrt()).log_prob(y).sum()

    return KnownPosterior(
        Model.log_density(
            log_density,
            parameters={"mu": real(), "alpha0": positive(), "alpha1": unit(), "beta1": interval(0, lambda p: 1 - p["alpha1"])},
        )
    )


TIME_SERIES = {"arK-arK": autoregression, "arma-arma11": arma11, "garch-garch11": garch11}
