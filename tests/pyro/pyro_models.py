"""Models of Pyro's examples and tutorials, with small data: {name: (model, arguments)}."""

from __future__ import annotations

import math

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.infer.reparam import LocScaleReparam


def uniforms(*shape, shift=0.0):
    """Return well spread numbers in (0, 1), the same everywhere, without a generator."""
    count = torch.arange(math.prod(shape), dtype=torch.float64)
    return ((count + 1 + shift) * 0.6180339887498949).frac().reshape(shape)


def normals(*shape, shift=0.0):
    return math.sqrt(2) * torch.erfinv(2 * uniforms(*shape, shift=shift) - 1)


def eight_schools(y, sigma):
    mu = pyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = pyro.sample("tau", dist.HalfCauchy(5.0))
    with pyro.plate("school", len(y)):
        theta = pyro.sample("theta", dist.Normal(mu, tau))
        pyro.sample("y", dist.Normal(theta, sigma), obs=y)


EFFECTS = torch.tensor([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0], dtype=torch.float64)
ERRORS = torch.tensor([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0], dtype=torch.float64)


def eight_schools_reparam(y, sigma):
    with poutine.reparam(config={"theta": LocScaleReparam(0.0)}):
        eight_schools(y, sigma)


def baseball(at_bats, hits):
    """Partial pooling of batting averages (examples/baseball.py)."""
    m = pyro.sample("m", dist.Uniform(0.0, 1.0))
    kappa = pyro.sample("kappa", dist.Pareto(1.0, 1.5))
    with pyro.plate("player", len(at_bats)):
        phi = pyro.sample("phi", dist.Beta(m * kappa, (1 - m) * kappa))
        pyro.sample("hits", dist.Binomial(at_bats, phi), obs=hits)


def baseball_logit(at_bats, hits):
    """The same with a hierarchy of logits (examples/baseball.py)."""
    loc = pyro.sample("loc", dist.Normal(-1.0, 1.0))
    scale = pyro.sample("scale", dist.HalfCauchy(1.0))
    with pyro.plate("player", len(at_bats)):
        alpha = pyro.sample("alpha", dist.Normal(loc, scale))
        pyro.sample("hits", dist.Binomial(at_bats, logits=alpha), obs=hits)


HITS = torch.tensor([18.0, 17, 16, 15, 14, 14, 13, 12, 11, 11, 10, 10, 10, 10, 10, 9, 8, 7], dtype=torch.float64)


def regression(x, y):
    """Bayesian regression with an interaction (tutorial/bayesian_regression)."""
    a = pyro.sample("a", dist.Normal(0.0, 10.0))
    b = pyro.sample("b", dist.Normal(torch.zeros(3), 1.0).to_event(1))
    sigma = pyro.sample("sigma", dist.Uniform(0.0, 10.0))
    mean = pyro.deterministic("mean", a + b[0] * x[:, 0] + b[1] * x[:, 1] + b[2] * x[:, 0] * x[:, 1])
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(mean, sigma), obs=y)


def horseshoe(x, y):
    """A sparse regression with the horseshoe prior."""
    tau = pyro.sample("tau", dist.HalfCauchy(0.1))
    with pyro.plate("feature", x.shape[1]):
        lam = pyro.sample("lambda", dist.HalfCauchy(1.0))
        z = pyro.sample("z", dist.Normal(0.0, 1.0))
    beta = pyro.deterministic("beta", z * lam * tau, event_dim=1)
    sigma = pyro.sample("sigma", dist.HalfNormal(1.0))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ beta, sigma), obs=y)


def gaussian_process(x, y):
    """A Gaussian process with a squared exponential kernel."""
    length = pyro.sample("length", dist.LogNormal(0.0, 1.0))
    variance = pyro.sample("variance", dist.LogNormal(0.0, 1.0))
    noise = pyro.sample("noise", dist.LogNormal(-1.0, 1.0))
    distance = (x[:, None] - x) / length
    covariance = variance * torch.exp(-0.5 * distance**2) + noise * torch.eye(len(x))
    pyro.sample("y", dist.MultivariateNormal(torch.zeros(len(x)), covariance), obs=y)


def saas(x, y):
    """The model of examples/saas_gp.py, as BoTorch writes it."""
    outputscale = pyro.sample("outputscale", dist.Gamma(2.0, 0.15))
    mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
    noise = pyro.sample("noise", dist.Gamma(0.9, 10.0)) + 1e-4
    tausq = pyro.sample("tausq", dist.HalfCauchy(0.1))
    inv_length_sq = pyro.sample("inv_length_sq", dist.HalfCauchy(torch.ones(x.shape[1])).to_event(1))
    scaled = x * (tausq * inv_length_sq).sqrt()
    distance = ((scaled[:, None] - scaled) ** 2).sum(-1).clamp(min=1e-30).sqrt()
    kernel = (1 + math.sqrt(5) * distance + 5 / 3 * distance**2) * torch.exp(-math.sqrt(5) * distance)
    covariance = outputscale * kernel + noise * torch.eye(len(x))
    pyro.sample("y", dist.MultivariateNormal(mean.expand(len(x)), covariance), obs=y)


def multinomial(counts):
    """Proportions of categories that differ between groups: Dirichlet-multinomial counts."""
    share = pyro.sample("share", dist.Dirichlet(torch.ones(counts.shape[1])))
    strength = pyro.sample("strength", dist.Gamma(2.0, 0.1))
    with pyro.plate("group", len(counts)):
        total = counts.sum(-1)
        pyro.sample("counts", dist.DirichletMultinomial(share * strength, total), obs=counts)


def correlated(y):
    """A covariance with an LKJ prior (examples/lkj.py)."""
    d = y.shape[1]
    with pyro.plate("variable", d):
        scale = pyro.sample("scale", dist.HalfCauchy(1.0))
    factor = pyro.sample("factor", dist.LKJCholesky(d, 1.0))
    tril = scale[:, None] * factor
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.MultivariateNormal(torch.zeros(d), scale_tril=tril), obs=y)


def random_walk(y):
    """A local level with a loop over time; the states are sites of their own."""
    step = pyro.sample("step", dist.HalfNormal(1.0))
    noise = pyro.sample("noise", dist.HalfNormal(1.0))
    level = torch.zeros(())
    for t in pyro.markov(range(len(y))):
        level = pyro.sample(f"level_{t}", dist.Normal(level, step))
        pyro.sample(f"y_{t}", dist.Normal(level, noise), obs=y[t])


def mixture(y):
    """Two components, summed out."""
    weights = pyro.sample("weights", dist.Dirichlet(torch.tensor([2.0, 2.0])))
    loc = pyro.sample("loc", dist.Normal(torch.tensor([-2.0, 2.0]), 1.0).to_event(1))
    scale = pyro.sample("scale", dist.LogNormal(0.0, 0.5))
    with pyro.plate("data", len(y)):
        components = dist.Normal(loc, scale)
        pyro.sample("y", dist.MixtureSameFamily(dist.Categorical(weights), components), obs=y)


def logistic(x, y, subsample_size=None):
    """Logistic regression; with `subsample_size` its rows are subsampled."""
    b = pyro.sample("b", dist.Normal(0.0, 2.0).expand([x.shape[1]]).to_event(1))
    with pyro.plate("data", len(x), subsample_size=subsample_size) as rows:
        pyro.sample("y", dist.Bernoulli(logits=x[rows] @ b), obs=y[rows])


def nested(y):
    """Nested plates, a transformed distribution, a mask, a scale, a factor."""
    scale = pyro.sample("scale", dist.TransformedDistribution(dist.Normal(0.0, 1.0), dist.transforms.ExpTransform()))
    shared = pyro.sample("shared", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    outer, inner = pyro.plate("outer", 3, dim=-1), pyro.plate("inner", 4, dim=-2)
    with outer:
        a = pyro.sample("a", dist.Normal(shared, scale))
    with inner, poutine.scale(scale=0.5):
        b = pyro.sample("b", dist.StudentT(4.0, 0.0, 1.0))
    with inner, outer:
        c = pyro.sample("c", dist.Normal(a + b, 1.0))
        with poutine.mask(mask=y > -1.0):
            pyro.sample("y", dist.Laplace(c, 0.5), obs=y)
    pyro.factor("soft", -0.1 * (a.sum() - 1.0) ** 2)


def bounds(y):
    """Supports that depend on other sites, ordered values, a missing observation."""
    low = pyro.sample("low", dist.Normal(0.0, 1.0))
    width = pyro.sample("width", dist.Exponential(1.0))
    inside = pyro.sample("inside", dist.Uniform(low, low + width))
    below = pyro.sample("below", dist.ImproperUniform(dist.constraints.less_than(0.0), (2,), ()).to_event(1))
    pyro.sample("fall", dist.Exponential(1.0).expand([2]).to_event(1), obs=-below)
    cuts = pyro.sample("cuts", dist.ImproperUniform(dist.constraints.ordered_vector, (), (2,)))
    pyro.sample("order", dist.Normal(0.0, 1.0).expand([2]).to_event(1), obs=cuts)
    mean = inside + below.sum()
    with pyro.plate("data", len(y)):
        obs_mask = torch.arange(len(y)) > 0
        pyro.sample("y", dist.Normal(mean, 1.0), obs=y, obs_mask=obs_mask)


def _regression_data():
    x = normals(20, 2)
    return x, 0.5 + x[:, 0] - 0.5 * x[:, 0] * x[:, 1] + 0.3 * normals(20, shift=7.3)


def _sparse_data():
    x = normals(30, 8)
    return x, 2.0 * x[:, 0] + 0.5 * normals(30, shift=2.7)


def _logistic_data(n=60):
    x = normals(n, 3)
    return x, (uniforms(n, shift=0.4) < torch.sigmoid(x @ torch.tensor([1.0, -0.5, 0.0]).double())).double()


def _saas_data():
    x = uniforms(12, 2)
    return x, torch.sin(6 * x[:, 0]) + 0.1 * normals(12, shift=4.2)


_TIME = torch.linspace(0.0, 3.0, 12, dtype=torch.float64)
MODELS = {
    "eight schools": (eight_schools, (EFFECTS, ERRORS)),
    "eight schools, reparameterised": (eight_schools_reparam, (EFFECTS, ERRORS)),
    "baseball": (baseball, (torch.full((18,), 45.0).double(), HITS)),
    "baseball, logits": (baseball_logit, (torch.full((18,), 45.0).double(), HITS)),
    "regression": (regression, _regression_data()),
    "horseshoe": (horseshoe, _sparse_data()),
    "gaussian process": (gaussian_process, (_TIME, torch.sin(2 * _TIME) + 0.1 * normals(12))),
    "saas": (saas, _saas_data()),
    "dirichlet multinomial": (multinomial, (torch.tensor([[3.0, 5, 9], [2, 8, 7], [1, 4, 12], [6, 6, 6]]).double(),)),
    "lkj": (correlated, (normals(25, 3) @ torch.tensor([[1.0, 0.5, 0], [0, 1, 0.3], [0, 0, 2]]).double(),)),
    "random walk": (random_walk, (torch.tensor([0.2, 0.5, 1.2, 0.9, 1.4, 2.1]).double(),)),
    "mixture": (mixture, (torch.cat([normals(15) - 2, normals(10, shift=3.1) + 2]),)),
    "logistic": (logistic, _logistic_data()),
    "nested": (nested, (normals(4, 3),)),
    "bounds": (bounds, (normals(5),)),
}
