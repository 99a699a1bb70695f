"""Hidden classes, summed out: a mixture of two normals, a hidden Markov model of two states."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import Beta, HalfNormal, Normal

from langevin.targets import Model
from langevin.targets.constraints import interval, ordered, positive, simplex, unit
from langevin_paper.check.posteriors.base import Data, KnownPosterior, Parameters, column

__all__ = ["MIXTURES", "log_product"]


def low_dim_gauss_mix(data: Data) -> KnownPosterior:
    """Two normals with ordered means; θ is the share of the lower."""

    def log_likelihood(p: Parameters, y: Tensor) -> Tensor:
        shares = torch.stack([p["theta"].log(), torch.log1p(-p["theta"])])
        return (shares + Normal(p["mu"], p["sigma"]).log_prob(y[:, None])).logsumexp(-1)

    model = Model(
        log_likelihood,
        parameters={"mu": ordered(2), "sigma": positive(2), "theta": unit()},
        prior={"mu": Normal(0.0, 2.0), "sigma": HalfNormal(2.0), "theta": Beta(5.0, 5.0)},
    )
    return KnownPosterior(model, {"y": column(data, "y")})


def log_product(logs: Tensor) -> Tensor:
    """Return the logarithm of the matrix product of exp(logs), (n, k, k), by halves: log2(n) vector operations."""
    while len(logs) > 1:
        pairs, last = logs[: len(logs) // 2 * 2], logs[len(logs) // 2 * 2 :]
        products = (pairs[::2, :, :, None] + pairs[1::2, None, :, :]).logsumexp(2)
        logs = torch.cat([products, last])
    return logs[0]


def hmm_example(data: Data) -> KnownPosterior:
    """Two states with normal outputs of sd 1 and means 0 < μ₁ < μ₂; θ₁ and θ₂ are the rows of the transitions.

    The forward algorithm is the product of the matrices ``θ_jk N(y_t | μ_k, 1)``, t = 2 .. N, after ``N(y_1 | μ_j, 1)``.
    """
    y = column(data, "y")

    def reported(p: Parameters) -> Parameters:
        return {**p, "mu": torch.stack([p["low"], p["high"]], -1)}

    def log_density(p: Parameters) -> Tensor:
        outputs = Normal(reported(p)["mu"], 1.0).log_prob(y[:, None])
        transitions = torch.stack([p["theta1"], p["theta2"]]).log()
        path = outputs[0, :, None] + log_product(transitions + outputs[1:, None, :])
        return path.flatten().logsumexp(-1)

    return KnownPosterior(
        Model.log_density(
            log_density,
            parameters={
                "theta1": simplex(2),
                "theta2": simplex(2),
                "low": positive(),
                "high": interval(lambda p: p["low"], None),
            },
            prior={"low": Normal(3.0, 1.0), "high": Normal(10.0, 1.0)},
        ),
        reported=reported,
    )


MIXTURES = {"hmm_example-hmm_example": hmm_example, "low_dim_gauss_mix-low_dim_gauss_mix": low_dim_gauss_mix}
