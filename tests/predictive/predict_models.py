"""Models, banks and exact answers that the tests of predictions share."""

from __future__ import annotations

import math

import torch
from torch import nn

import langevin as lv


def seeded(make, seed=0):
    """Build a module with the global generator put back afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()


def randn(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape)), dtype=dtype)


def small(seed=0):
    parts = lambda: (nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2))  # noqa: E731
    return nn.Sequential(*seeded(parts, seed))


class Pair(nn.Module):
    """A model of two inputs, by position or by name."""

    def __init__(self):
        super().__init__()
        self.layer, self.norm = nn.Linear(3, 2), nn.BatchNorm1d(2)

    def forward(self, a, b, *, scale=1.0):
        return scale * self.norm(self.layer(a) - 2 * b)


def bank_of(path, modules):
    bank = lv.SampleBank(path)
    for module in modules:
        bank.add(module)
    return bank


def stacked(modules, *args, **kwargs):
    """Return the outputs of modules in evaluation mode, all at once."""
    with torch.no_grad():
        return torch.stack([module.eval()(*args, **kwargs) for module in modules])


class Regression:
    """Bayesian linear regression with a known noise: the posterior and what it predicts in closed form, in float64."""

    std, prior_std, rows = 0.5, 0.8, 40

    def __init__(self):
        design = torch.cat([randn(self.rows, 3, seed=1, dtype=torch.float64), torch.ones(self.rows, 1, dtype=torch.float64)], 1)
        y = design @ torch.tensor([1.0, -2.0, 0.5, 0.7], dtype=torch.float64)
        y = y + self.std * randn(self.rows, seed=2, dtype=torch.float64)
        precision = design.T @ design / self.std**2 + torch.eye(4, dtype=torch.float64) / self.prior_std**2
        self.covariance = torch.linalg.inv(precision)
        self.mean = self.covariance @ (design.T @ y) / self.std**2
        likelihood, prior = lv.likelihoods.gaussian(std=self.std), lv.priors.gaussian(std=self.prior_std)
        self.model = seeded(lambda: nn.Sequential(nn.Linear(3, 1), nn.Flatten(0)).double())
        self.posterior = lv.Posterior(self.model, likelihood, prior=prior, num_data=self.rows)

    def draws(self, num, seed=3):
        root = torch.linalg.cholesky(self.covariance)
        return self.mean + randn(num, 4, seed=seed, dtype=torch.float64) @ root.T

    def law(self, x):
        """Return the mean and the variance of the regression function at new inputs; y has the noise in addition."""
        design = torch.cat([x, torch.ones(len(x), 1, dtype=torch.float64)], 1)
        return design @ self.mean, (design @ self.covariance * design).sum(-1)


def normal_quantile(probability):
    return math.sqrt(2) * float(torch.erfinv(torch.tensor(2 * probability - 1, dtype=torch.float64)))
