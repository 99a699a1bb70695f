"""A Pyro model that cannot be sampled is rejected with the name of the site."""

from __future__ import annotations

import importlib.util

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import NUTS
from pyro_models import MODELS, logistic, normals

import langevin as lv

Y = normals(6)


def discrete():
    z = pyro.sample("z", dist.Bernoulli(0.5))
    pyro.sample("y", dist.Normal(z, 1.0), obs=torch.tensor(0.3))


def counts():
    pyro.sample("n", dist.Poisson(3.0))


def constant():
    pyro.sample("c", dist.Delta(torch.tensor(1.0)))


def random_sites():
    mu = pyro.sample("mu", dist.Normal(0.0, 1.0))
    if torch.randn(()) > 0:
        pyro.sample("extra", dist.Normal(mu, 1.0))


def sites_by_value():
    mu = pyro.sample("mu", dist.Normal(0.0, 1.0))
    for k in range(3 if mu > 0 else 2):
        pyro.sample(f"x_{k}", dist.Normal(mu, 1.0))


def branches():
    mu = pyro.sample("mu", dist.Normal(0.0, 1.0))
    scale = 1.0 if mu > 0 else 2.0
    pyro.sample("y", dist.Normal(mu, scale), obs=Y[0])


def twice():
    pyro.sample("a", dist.Normal(0.0, 1.0))
    pyro.sample("a", dist.Normal(0.0, 1.0))


def sphere():
    pyro.sample("direction", dist.ProjectedNormal(torch.tensor([1.0, 0.0])))


def covariance():
    pyro.sample("sigma", dist.Wishart(torch.tensor(4.0), torch.eye(2)))


def dependent():
    a = pyro.sample("a", dist.Normal(0.0, 1.0))
    pyro.sample("pair", dist.ImproperUniform(dist.constraints.stack([dist.constraints.interval(0.0, a.exp())] * 2), (2,), ()))


def nothing():
    pyro.sample("y", dist.Normal(0.0, 1.0), obs=Y[0])


def two_plates():
    mu = pyro.sample("mu", dist.Normal(0.0, 1.0))
    for name in ("rows", "others"):
        with pyro.plate(name, 6, subsample_size=2) as k:
            pyro.sample(f"y_{name}", dist.Normal(mu, 1.0), obs=Y[k])


def loop():
    mu = pyro.sample("mu", dist.Normal(0.0, 1.0))
    for k in pyro.plate("rows", 6, subsample_size=2):
        pyro.sample(f"y_{int(k)}", dist.Normal(mu, 1.0), obs=Y[k])


def local():
    with pyro.plate("rows", 6, subsample_size=2) as k:
        z = pyro.sample("z", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(z, 1.0), obs=Y[k])


def empty():
    mu = pyro.sample("mu", dist.Normal(0.0, 1.0))
    with pyro.plate("rows", 6, subsample_size=2) as k:
        pyro.deterministic("mean", mu * Y[k])


def single():
    matrix = torch.eye(2, dtype=torch.float32).clone()
    w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    pyro.sample("y", dist.Normal(SINGLE @ w, 1.0).to_event(1), obs=matrix[0])


SINGLE = torch.eye(2, dtype=torch.float32)

CASES = [
    (discrete, r"continuous latent sites: sum 'z' out.*got 'Bernoulli'"),
    (counts, r"continuous latent sites: sum 'n' out.*got 'Poisson'"),
    (constant, r"pyro.deterministic instead of a latent site 'c'"),
    (random_sites, r"the same sample sites in every run.*'extra', which changes between runs"),
    (sites_by_value, r"the same sample sites in every run.*'x_2', which changes between runs"),
    (twice, r"different names, got \"two sites 'a'\""),
    (sphere, r"a support of 'direction' with a bijection.*got Sphere"),
    (covariance, r"a support of 'sigma' with a bijection.*LKJCholesky factor\), got PositiveDefinite"),
    (dependent, r"a support of 'pair' that does not depend on other sites, or an interval"),
    (nothing, r"at least one latent sample site, got \['y'\]"),
    (two_plates, r"at most one plate with subsample_size, got \['rows', 'others'\]"),
    (loop, r"`with pyro.plate\('rows', ...\) as rows:` around 'y_0'"),
    (local, r"no subsample_size in the plate 'rows', which has a latent site of each row, got 'z'"),
    (empty, r"an observed site in the subsampled plate 'rows', got \['mean'\]"),
    (single, r"tensors and modules in float64: those among the arguments are converted"),
]


@pytest.mark.parametrize(("model", "message"), CASES, ids=[model.__name__ for model, _ in CASES])
def test_a_model_that_cannot_be_sampled_is_rejected_by_site(model, message):
    with pytest.raises(ValueError, match=r"^from_pyro\(model=...\) needs " + ".*" + message):
        lv.from_pyro(model)


def test_a_branch_on_a_value_is_explained_before_sampling():
    with pytest.raises(ValueError, match=r"from_pyro\(model=...\) needs torch.where\(condition, a, b\) instead of `if`"):
        lv.sample(lv.from_pyro(branches))


@pytest.mark.parametrize("model", [NUTS(discrete), dist.Normal, 3], ids=["kernel", "class", "number"])
def test_what_is_not_a_model_is_rejected(model):
    with pytest.raises(TypeError, match=r"from_pyro\(model=...\) needs a Pyro model: a function with pyro.sample statements"):
        lv.from_pyro(model)


def test_data_are_the_arguments_of_the_model():
    target = lv.from_pyro(logistic, *MODELS["logistic"][1], 5)
    with pytest.raises(ValueError, match=r"sample\(data=...\) needs None: the data are the arguments of the Pyro model"):
        lv.sample(target, data=torch.arange(5))
    with pytest.raises(ValueError, match=r"sample\(data=...\) needs None"):
        lv.sample(lv.from_pyro(logistic, *MODELS["logistic"][1]), data=torch.arange(5))


def test_batch_size_needs_a_subsampled_plate():
    with pytest.raises(ValueError, match=r"sample\(batch_size=...\) needs None when there is no data"):
        lv.sample(lv.from_pyro(logistic, *MODELS["logistic"][1]), batch_size=5)


def test_a_missing_pyro_is_an_error_with_the_pip_line(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r'from_pyro needs Pyro: pip install "langevin\[pyro\]"'):
        lv.from_pyro(discrete)


def test_a_negative_scale_is_explained():
    def model():
        scale = pyro.sample("scale", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(0.0, scale), obs=torch.tensor(0.5))

    with pytest.raises(ValueError, match=r"positive\(\) for 'scale', since the log density does not exist where it is negative"):
        lv.sample(lv.from_pyro(model))


def test_an_observation_outside_the_support_is_explained():
    def model():
        scale = pyro.sample("scale", dist.HalfNormal(1.0))
        pyro.sample("y", dist.Exponential(scale), obs=torch.tensor(-0.5))

    with pytest.raises(ValueError, match=r"needs values in the support of the log-likelihood's distribution"):
        lv.sample(lv.from_pyro(model))
