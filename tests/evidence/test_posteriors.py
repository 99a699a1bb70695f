"""Posteriors of three regressions by every sampler, against NUTS (`make_references.py`), a sampler that is not ours.

Every comparison allows for three things, each written down here:

1. Monte Carlo error. Chains are independent and start around the mode with twice the posterior's spread, so the standard error of a
   moment is the spread of the chains' own moments over the root of their number; that of NUTS is added. Both count K = 5 times.
2. Bias of the sampler, which is predicted, not bounded: the law of its recursion on the Gaussian with NUTS's covariance
   (`tests/law/exact.py`). It holds the O(eps) heat of the step, the momentum, and the cooling of the published MSGLD and ASGLD.
   Since posteriors are not Gaussian, a SHARE of a quarter of the predicted change of a variance is allowed for.
3. Bias of the mean. At stationarity E[grad U] = 0 for the sampler as for the posterior, so to second order a change of the
   covariance by a factor 1 + r moves the mean by r (mean - mode).

pSGLD runs without its Gamma, SGRLD's metric moves within a step: what that adds is small here and has no allowance of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from exact import hamiltonian_covariance, langevin_covariance, momentum_covariance, stationary
from torch.nn.functional import softplus

import langevin as lv

K, SHARE = 5.0, 0.25
CHAINS = 300
REFERENCES = dict(np.load(Path(__file__).parent / "references.npz"))
DEGREES, SCALE = float(REFERENCES["degrees"]), float(REFERENCES["scale"])


def logistic(theta, x, y):
    return y * (x @ theta) - softplus(x @ theta)


def poisson(theta, x, y):
    return y * (x @ theta) - (x @ theta).exp()


def student(theta, x, y):
    return -(DEGREES + 1) / 2 * torch.log1p(((y - x @ theta) / SCALE) ** 2 / DEGREES)


LIKELIHOODS = {"logistic": logistic, "poisson": poisson, "student": student}
MODELS = list(LIKELIHOODS)


@dataclass(frozen=True)
class Model:
    """A posterior with its data, its moments by NUTS, and a step size of 0.2 over the largest curvature."""

    name: str
    prior_std: float

    def __getattr__(self, name):
        return REFERENCES[f"{self.name}_{name}"]

    @property
    def data(self):
        return torch.tensor(self.x), torch.tensor(self.y)

    @property
    def target(self):
        return lv.targets.likelihood(LIKELIHOODS[self.name], prior=lv.priors.gaussian(std=self.prior_std))

    @property
    def precision(self):
        return np.linalg.inv(self.covariance)

    @property
    def step_size(self):
        return 0.2 / np.linalg.eigvalsh(self.precision)[-1]

    def init(self, chains):
        noise = lv.random.normal(
            3, lv.random.streams(lv.random.Purpose.INIT, range(chains)), 0, len(self.mean), dtype=torch.float64
        )
        return mode(self.name) + 2 * noise @ torch.linalg.cholesky(torch.tensor(self.covariance)).mT


def model(name):
    return Model(name, float(REFERENCES[f"{name}_prior_std"]))


@cache
def mode(name):
    posterior = model(name)
    return lv.gradients.find_mode(
        posterior.target, posterior.data, torch.zeros(len(posterior.mean), dtype=torch.float64), tolerance=1e-6
    )


@dataclass(frozen=True)
class Moments:
    """Means and variances over chains and draws, with their standard errors."""

    mean: np.ndarray
    mean_error: np.ndarray
    variance: np.ndarray
    variance_error: np.ndarray

    @classmethod
    def of(cls, draws):
        draws = draws.numpy()
        mean = draws.mean((0, 1))
        by_chain, squares = draws.mean(1), ((draws - mean) ** 2).mean(1)
        root = len(draws) ** 0.5
        return cls(mean, by_chain.std(0, ddof=1) / root, squares.mean(0), squares.std(0, ddof=1) / root)


def run(posterior, kernel, *, chains=CHAINS, warmup=150, steps=200, **settings):
    samples = lv.sample(
        posterior.target,
        sampler=kernel,
        init=posterior.init(chains),
        data=posterior.data,
        num_steps=warmup + steps,
        warmup=warmup,
        seed=7,
        compile=False,
        progress=False,
        **settings,
    )  # fmt: skip
    return Moments.of(samples.draws)


def assert_posterior(found, posterior, expected, *, extra=0.0):
    """Compare with NUTS's mean and with `expected`, the covariance that NUTS's becomes under the sampler.

    `extra` is a relative change of the variances that is allowed for on top.
    """
    variance, target = np.diag(expected), np.diag(posterior.covariance)
    # NUTS's covariance goes into the prediction as a factor, and so does its error.
    reference_error = posterior.variance_error * variance / target
    gap = found.variance - variance
    allowed = K * np.hypot(found.variance_error, reference_error) + SHARE * np.abs(variance - target) + extra * target
    change = np.abs(np.linalg.eigvals(np.linalg.solve(posterior.covariance, expected)).real - 1).max() + extra
    mean_gap = found.mean - posterior.mean
    mean_allowed = K * np.hypot(found.mean_error, posterior.mean_error) + change * np.abs(
        posterior.mean - mode(posterior.name).numpy()
    )
    report = (
        f"{posterior.name}: mean off by {np.abs(mean_gap / np.sqrt(target)).max():.4f} sd "
        f"({np.abs(mean_gap / mean_allowed).max():.2f} of what is allowed), "
        f"variance / NUTS {np.round(found.variance / target, 3)}, "
        f"expected {np.round(variance / target, 3)} ({np.abs(gap / allowed).max():.2f} of what is allowed, "
        f"which is {np.round(allowed / target, 3)})"
    )
    print(report)
    assert np.all(np.abs(mean_gap) < mean_allowed), report
    assert np.all(np.abs(gap) < allowed), report


@pytest.mark.parametrize("name", MODELS)
def test_sgld(name):
    posterior = model(name)
    eps = posterior.step_size
    assert_posterior(run(posterior, lv.sgld(eps)), posterior, langevin_covariance(posterior.precision, eps=eps))


@pytest.mark.parametrize("name", MODELS)
def test_psgld(name):
    """V stands near the mean square of the gradients, diag(P) when P is the precision. The missing Gamma has a bias of its own."""
    posterior = model(name)
    metric = np.diag(1 / np.sqrt(np.diag(posterior.precision)))
    eps = 0.2 / np.abs(np.linalg.eigvals(metric @ posterior.precision)).max()
    found = run(posterior, lv.psgld(eps, beta=0.995), warmup=400)
    assert_posterior(found, posterior, langevin_covariance(posterior.precision, eps=eps, metric=metric))


@pytest.mark.parametrize("name", MODELS)
def test_sghmc(name):
    posterior = model(name)
    eps = posterior.step_size
    found = run(posterior, lv.sghmc(eps, beta=0.7))
    assert_posterior(found, posterior, hamiltonian_covariance(posterior.precision, eps=eps, beta=0.7))


def test_sgrld_with_the_fisher_metric_of_the_logistic_model():
    posterior = model("logistic")
    x = posterior.data[0]
    dim = x.shape[1]
    products = (x[:, :, None] * x[:, None, :]).flatten(1)  # x_i x_i^T, so that F is one product of a vector and a matrix
    prior = torch.eye(dim, dtype=x.dtype) / posterior.prior_std**2

    def fisher(theta):
        probability = torch.sigmoid(x @ theta)
        return ((probability * (1 - probability)) @ products).reshape(dim, dim) + prior

    eps = 0.2
    found = run(posterior, lv.sgrld(eps, metric=fisher), chains=120, warmup=20, steps=50)
    assert_posterior(found, posterior, langevin_covariance(posterior.precision, eps=eps, metric=posterior.covariance))


@pytest.mark.parametrize("a", [0.05, 1.0])
@pytest.mark.parametrize("name", MODELS)
def test_published_msgld_gives_the_cooled_posterior(name, a):
    posterior = model(name)
    eps = posterior.step_size / (1 + a)
    found = run(posterior, lv.msgld(eps, bias_factor=a))
    expected = momentum_covariance(posterior.precision, eps=eps, a=a, beta=0.9)
    assert_posterior(found, posterior, expected)
    if a == 1.0:  # in the direction of 1 / (1 + a), which takes still smaller steps, and clearly not the posterior's own variance
        assert np.all(found.variance + K * found.variance_error < np.diag(posterior.covariance))


@pytest.mark.parametrize("name", MODELS)
def test_published_asgld_with_a_small_bias_factor(name):
    """V stands near diag(P) again; a is a twentieth of its root, so the cooling is about 1.05.

    V averages a hundred steps, in which slow directions hardly move, so it fluctuates, and E[V^(-1/2)] exceeds E[V]^(-1/2): for a
    relative variance of V up to 1 by 3/8 to a half (Jensen). Half the cooling is allowed for on top.
    """
    posterior = model(name)
    eps, square = posterior.step_size, np.diag(posterior.precision)
    a = 0.05 * square.mean() ** 0.5
    found = run(posterior, lv.asgld(eps, bias_factor=a, betas=(0.9, 0.99)), warmup=300)
    cooling = np.diag(1 / np.sqrt(square + 1e-5))
    expected = momentum_covariance(posterior.precision, eps=eps, a=a, beta=0.9, scale=cooling)
    assert_posterior(found, posterior, expected, extra=0.5 * a * cooling.max())


def minibatch_heat(posterior, per_datum, eps, batch_size):
    """Return the largest relative change of a variance that minibatch noise makes, were its draws independent.

    The noise has covariance N^2 / n (1 - n / N) C with C that of the data's gradients `per_datum`, (draws, N, dim), and enters the
    recursion as eps^2 times it. Batches without replacement cancel over an epoch, so the truth lies between 0 and this.
    """
    centred = per_datum - per_datum.mean(1, keepdims=True)
    count = per_datum.shape[1]
    covariance = np.einsum("sni,snj->ij", centred, centred) / centred.shape[0] / count
    noise = count**2 / batch_size * (1 - batch_size / count) * covariance
    transition = np.eye(len(posterior.mean)) - eps * posterior.precision
    cold, hot = (
        np.diag(stationary(transition, 2 * eps * np.eye(len(transition)) + eps**2 * extra)) for extra in (0 * noise, noise)
    )
    return float((hot / cold - 1).max())


@pytest.mark.parametrize("name", MODELS)
def test_sgld_with_minibatches_and_control_variates(name):
    posterior = model(name)
    eps, batch_size = posterior.step_size, 10
    found = run(posterior, lv.sgld(eps), batch_size=batch_size, control_variate=mode(name))
    x, y = posterior.data

    def gradients(theta):
        return torch.func.jacrev(lambda at: -LIKELIHOODS[name](at, x, y))(theta)

    at_mode = gradients(mode(name))
    near = mode(name) + (posterior.init(100) - mode(name)) / 2  # draws of N(mode, covariance)
    heat = minibatch_heat(posterior, (torch.func.vmap(gradients)(near) - at_mode).numpy(), eps, batch_size)
    plain = minibatch_heat(posterior, at_mode[None].numpy(), eps, batch_size)
    print(f"heat at most {heat:.3f}, without control variates {plain:.3f}")
    assert heat < 0.2 < plain / 5
    assert_posterior(found, posterior, langevin_covariance(posterior.precision, eps=eps), extra=heat)
    hot = run(posterior, lv.sgld(eps), batch_size=batch_size)
    stiff = np.diag(posterior.precision).argmax()  # where the noise shows most
    error = np.hypot(hot.variance_error, found.variance_error)[stiff]
    assert hot.variance[stiff] > 1.5 * found.variance[stiff] + K * error
