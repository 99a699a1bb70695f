"""`to_arviz` fills the container of the installed ArviZ, 0.2x or 1.x; the suite of one is the suite of the other."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch
import torch.distributions as dist

import langevin as lv
from langevin.storage.arviz_data import import_arviz

pytestmark = pytest.mark.core
X = torch.linspace(-1, 1, 30, dtype=torch.float64)
Y = 0.5 + 2 * X + 0.1 * (20 * X).sin()
MODEL = lv.Model(
    lambda p, x, y: dist.Normal(p["a"] + x * p["b"][0], p["sigma"]).log_prob(y),
    {"a": lv.real(), "b": lv.real(2), "sigma": lv.positive(), "weights": lv.simplex(3)},
    prior={"a": lv.priors.gaussian(std=2.0), "b": lv.priors.gaussian(std=2.0), "sigma": dist.HalfNormal(1.0)}
    | {"weights": dist.Dirichlet(torch.ones(3, dtype=torch.float64))},
    dims={"b": ["feature"]},
    coords={"feature": ["width", "height"]},
)


@pytest.fixture(scope="module")
def samples():
    settings = {"init": torch.zeros(3, MODEL.space.dim, dtype=torch.float64), "num_steps": 60, "warmup": 20, "compile": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lv.TrustWarning)
        return lv.sample(MODEL, sampler=lv.msgld(1e-3, invariant=True), data=(X, Y), **settings)


def groups_of(data):
    """Return the names of the groups of an InferenceData or a DataTree."""
    return set(data.groups()) if callable(data.groups) else {name.strip("/") for name in data.groups} - {""}


def test_the_container_is_the_one_of_the_installed_version(samples):
    data, arviz = samples.to_arviz(), import_arviz()
    assert type(data).__name__ == ("InferenceData" if "InferenceData" in vars(arviz) else "DataTree")
    assert groups_of(data) == {"posterior", "sample_stats"}
    np.testing.assert_array_equal(data["posterior"]["a"].values, samples["a"])
    assert data["posterior"]["b"].dims == ("chain", "draw", "feature")
    assert set(data["sample_stats"]) == {"energy", "gradient_norm", "step_size"}


def test_groups_axes_labels_and_settings_survive_a_round_trip_through_a_file(samples, tmp_path):
    pytest.importorskip("h5netcdf")

    def simulate(p, x, y):
        return dist.Normal(p["a"] + x * p["b"][0], p["sigma"]).sample()

    data = samples.to_arviz(lp=True, log_likelihood=True, posterior_predictive=simulate, unconstrained=True)
    data.to_netcdf(tmp_path / "run.nc", engine="h5netcdf")
    if type(data).__name__ == "DataTree":
        import xarray

        again = xarray.open_datatree(tmp_path / "run.nc", engine="h5netcdf")
    else:
        again = import_arviz().from_netcdf(tmp_path / "run.nc", engine="h5netcdf")
    groups = {"posterior", "sample_stats", "unconstrained_posterior", "log_likelihood", "posterior_predictive"}
    assert groups_of(again) == groups_of(data) == groups
    for group in groups:
        for name in data[group].data_vars:
            before, after = data[group][name], again[group][name]
            assert after.dims == before.dims, (group, name)
            np.testing.assert_array_equal(after.values, before.values)
            for axis in before.dims:
                assert list(after[axis].values) == list(before[axis].values)
        for found in (again[group].attrs, again.attrs):
            assert (found["inference_library"], found["inference_library_version"]) == ("langevin", lv.__version__)
            assert "step size ε = 0.001" in found["settings"]
            assert found["temperature"] == 1.0
    free = again["unconstrained_posterior"]
    np.testing.assert_allclose(free["sigma"].values, samples["sigma"].log(), rtol=1e-12)
    assert free["b"].dims == ("chain", "draw", "feature")
    assert (free["weights"].shape, again["posterior"]["weights"].shape) == ((3, 40, 2), (3, 40, 3))
    assert again["log_likelihood"]["obs"].dims == ("chain", "draw", "row")


def test_what_cannot_be_converted_is_reported(samples):
    with pytest.raises(TypeError, match="draws of the warm-up are not stored"):
        samples.to_arviz(include_warmup=True)
    bare = lv.sample(lv.targets.gaussian([[1.0]]), sampler=lv.sgld(0.1), init=torch.zeros(2, 1), num_steps=5)
    with pytest.raises(ValueError, match=r"to_arviz\(unconstrained=\.\.\.\) needs positions of a target with names"):
        bare.to_arviz(unconstrained=True)
    assert bare.to_arviz()["posterior"]["theta"].shape == (2, 5, 1)


BLOCKED = """
import importlib.abc, sys, warnings
class Blocking(importlib.abc.MetaPathFinder):
    def __init__(self, finder):
        self.finder = finder
    def __getattr__(self, name):
        return getattr(self.finder, name)
    def find_spec(self, name, path=None, target=None):
        return None if name.split(".")[0] in {blocked!r} else self.finder.find_spec(name, path, target)
sys.meta_path[:] = map(Blocking, sys.meta_path)
warnings.simplefilter("ignore")
import torch, langevin as lv
"""
EXTRAS = ("arviz", "arviz_base", "pandas", "matplotlib", "typer", "sklearn", "torchmetrics", "ray", "pyro", "xarray")


def without(*blocked, script):
    """Run a script where some modules cannot be imported; return what it prints."""
    code = BLOCKED.format(blocked=blocked) + script
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_core_works_without_any_extra(tmp_path):
    script = f"""
settings = dict(init=torch.zeros(4, 1), num_steps=100, compile=False, progress=False)
samples = lv.sample(lv.targets.gaussian([[1.0]]), sampler=lv.sgld(0.5), out={str(tmp_path / "run")!r}, **settings)
assert "r_hat" in str(samples.summary()) and samples.trust["chains"].value == 4
assert lv.diagnostics.mcse(samples.draws).isfinite().all() and lv.diagnostics.autocorrelation(samples.draws).isfinite().all()
torch.manual_seed(0)
model = torch.nn.Linear(2, 1)
optimizer = lv.optim.MSGLD(model.parameters(), lr=1e-3, num_data=10, prior=lv.priors.gaussian(std=1.0), seed=0)
bank = lv.SampleBank({str(tmp_path / "bank")!r})
for step in range(4):
    optimizer.zero_grad()
    model(torch.ones(10, 2)).square().mean().backward()
    optimizer.step()
    bank.add(model)
found = lv.predict(model, bank, torch.ones(3, 2), likelihood=lv.likelihoods.gaussian(std=1.0))
assert found.mean.shape == (3, 1)
from langevin.__main__ import main
sys.argv = ["langevin", "--version"]
try:
    main()
except SystemExit as left:
    assert not left.code
for call, extra in [(samples.to_arviz, "arviz"), (samples.summary().to_pandas, "pandas"),
                    (lambda: lv.diagnostics.trace(samples), "plots")]:
    try:
        call()
    except ImportError as error:
        assert f"pip install 'langevin[{{extra}}]'" in str(error), error
    else:
        raise AssertionError(extra)
print("fine")
"""
    assert without(*EXTRAS, script=script).splitlines()[-1] == "fine"


def test_the_converters_alone_are_enough():
    pytest.importorskip("arviz_base")
    script = """
settings = dict(init=torch.zeros(4, 1), num_steps=100, compile=False, progress=False)
samples = lv.sample(lv.targets.gaussian([[1.0]]), sampler=lv.sgld(0.5), **settings)
print(type(samples.to_arviz()).__name__)
"""
    assert without("arviz", script=script).split() == ["DataTree"]
