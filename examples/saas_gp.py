"""A Gaussian process in 20 dimensions of which 3 matter, with BoTorch's SAAS prior: fit, predict, and find the dimensions.

The model is that of BoTorch's SaasFullyBayesianSingleTaskGP (Eriksson and Jankowiak 2021): a Matern-5/2 kernel whose inverse
squared length scales are half-Cauchy times a half-Cauchy, so that most of them are near 0.

    python examples/saas_gp.py
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.distributions import Gamma, HalfCauchy, Normal

import langevin as lv

LEAST_NOISE = 1e-4  # BoTorch's MIN_INFERRED_NOISE_LEVEL


def matern(squared_distance: Tensor) -> Tensor:
    """Return the Matern-5/2 correlation."""
    scaled = (5 * squared_distance.clamp(min=1e-30)).sqrt()
    return (1 + scaled + scaled**2 / 3) * (-scaled).exp()


def saas(x: Tensor, y: Tensor) -> lv.Model:
    """Return the posterior of the kernel's parameters for inputs in [0, 1] and standardised outputs."""
    n, d = x.shape
    low = torch.tril_indices(n, n, -1)
    squares = (x[low[0]] - x[low[1]]) ** 2  # of each pair of rows once, (pairs, d)
    place = torch.full((n, n), len(squares))  # the last entry is a row's distance from itself
    place[low[0], low[1]] = place[low[1], low[0]] = torch.arange(len(squares))
    one, eye = torch.ones(1, dtype=x.dtype), torch.eye(n, dtype=x.dtype)

    def log_likelihood(p: dict[str, Tensor]) -> Tensor:
        correlation = torch.cat([matern(squares @ (p["tausq"] * p["inv_length_sq"])), one])[place]
        covariance = p["outputscale"] * correlation + (p["noise"] + LEAST_NOISE) * eye
        factor = torch.linalg.cholesky(covariance)
        white = torch.linalg.solve_triangular(factor, (y - p["mean"])[:, None], upper=False)
        return -0.5 * white.square().sum() - factor.diagonal().log().sum() - 0.5 * n * math.log(2 * math.pi)

    parameters = {name: lv.positive() for name in ("outputscale", "noise", "tausq")}
    return lv.Model.log_density(
        log_likelihood,
        {**parameters, "mean": lv.real(), "inv_length_sq": lv.positive(d)},
        prior={
            "outputscale": Gamma(2.0, 0.15),
            "noise": Gamma(0.9, 10.0),
            "tausq": HalfCauchy(0.1),
            "mean": Normal(0.0, 1.0),
            "inv_length_sq": HalfCauchy(1.0),
        },
    )


def predict(draws: dict[str, Tensor], x: Tensor, y: Tensor, new: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean and sd of new outputs, (draw, new rows) each, noise included."""
    means, sds = [], []
    for draw in range(len(draws["mean"])):
        p = {name: value[draw] for name, value in draws.items()}
        scale = (p["tausq"] * p["inv_length_sq"]).sqrt()

        def kernel(a: Tensor, b: Tensor, p=p, scale=scale) -> Tensor:
            return p["outputscale"] * matern(torch.cdist(a * scale, b * scale) ** 2)

        noise = p["noise"] + LEAST_NOISE
        factor = torch.linalg.cholesky(kernel(x, x) + noise * torch.eye(len(x), dtype=x.dtype))
        cross = torch.linalg.solve_triangular(factor, kernel(x, new), upper=False)
        white = torch.linalg.solve_triangular(factor, (y - p["mean"])[:, None], upper=False)
        means.append(p["mean"] + (cross.mT @ white)[:, 0])
        sds.append((p["outputscale"] + noise - cross.square().sum(0)).sqrt())
    return torch.stack(means), torch.stack(sds)


def test_log_likelihood(mean: Tensor, sd: Tensor, y: Tensor) -> float:
    """Return the average log density of new outputs under the mixture over draws."""
    logs = Normal(mean, sd).log_prob(y)
    return float((logs.logsumexp(0) - math.log(len(logs))).mean())


def some(samples: lv.Samples, number: int = 128) -> dict[str, Tensor]:
    """Return evenly spaced draws of all chains by name, (number, *shape)."""
    names = ("outputscale", "noise", "tausq", "mean", "inv_length_sq")
    flat = {name: samples[name].flatten(0, 1) for name in names}
    rows = torch.linspace(0, len(flat["mean"]) - 1, number).long()
    return {name: value[rows] for name, value in flat.items()}


def data(n: int, d: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return inputs in [0, 1] and outputs that depend on three of the d dimensions, standardised."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(n, d, generator=generator, dtype=torch.float64)
    noise = 0.1 * torch.randn(n, generator=generator, dtype=torch.float64)
    y = torch.sin(6 * x[:, 0]) + 2 * (x[:, 1] - 0.5) ** 2 + x[:, 0] * x[:, 2] + noise
    return x, (y - 0.4) / 0.7


if __name__ == "__main__":
    x, y = data(150, 20)
    train, new = slice(0, 50), slice(50, 150)
    samples = lv.sample(saas(x[train], y[train]))
    mean, sd = predict(some(samples), x[train], y[train], x[new])
    sensitivity = (samples["tausq"][..., None] * samples["inv_length_sq"]).flatten(0, 1).median(0).values
    print(f"\ntest log-likelihood {test_log_likelihood(mean, sd, y[new]):.3f} per row")
    print(f"test RMSE {(mean.mean(0) - y[new]).square().mean().sqrt():.3f} (sd of the outputs {y[new].std():.3f})")
    print("dimensions by sensitivity:", sensitivity.argsort(descending=True)[:5].tolist())
