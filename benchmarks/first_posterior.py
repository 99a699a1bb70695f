"""Time to the first posterior: seconds of the first call in a fresh process, and effective draws per second, beside peers.

    python benchmarks/first_posterior.py --peers PYTHON | tee docs/benchmarks/first_posterior.txt

Four models: eight schools (non-centred), a linear regression of 1,000 rows and 10 columns, a logistic regression of 10,000 rows
and 20 columns, and 50 groups with a mean each (non-centred). Every run is a fresh process; processes take turns. `import` is the
time of the imports, `call` that of the call that returns draws. Ours runs with an empty cache of compiled code (cold) and with a
full one (warm). PYTHON is an interpreter with `pip install numpyro pyro-ppl nutpie jax`: numpyro NUTS, 4 x 1,000 draws after
1,000, chains one after the other; nutpie, 4 x 1,000 after 1,000, on numpyro's density compiled by JAX; with --pyro, Pyro NUTS,
1 x 300 after 300, since it is slow. ESS is the least bulk ESS of all parameters, by this library for everybody; ESS per second
counts import and call.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

import langevin as lv

DATA = """
import json
import numpy as np
generator = np.random.default_rng(1)
y8 = np.array([28.0, 8, -3, 7, -1, 1, 18, 12]); s8 = np.array([15.0, 10, 16, 11, 9, 11, 10, 18])
xr = generator.normal(size=(1000, 10)); yr = xr @ np.linspace(-1, 1, 10) + generator.normal(size=1000)
xl = generator.normal(size=(10_000, 20)); yl = (generator.random(10_000) < 1 / (1 + np.exp(-xl @ np.linspace(-1, 1, 20)))) * 1.0
yg = generator.normal(size=(50, 1)) + generator.normal(size=(50, 10))
"""
OURS = """
import time; begin = time.perf_counter()
import torch, langevin as lv
from torch.distributions import Bernoulli, HalfCauchy, HalfNormal, Normal
lv.sample
imported = time.perf_counter()
{data}
y8, s8, xr, yr, xl, yl, yg = map(torch.from_numpy, (y8, s8, xr, yr, xl, yl, yg))
real, positive = lv.real, lv.positive
{model}
ready = time.perf_counter()
samples = lv.sample(model, progress=False, seed={seed}, **data)
done = time.perf_counter()
np.savez({out!r}, **{{name: np.asarray(samples[name]) for name in names}})
print(json.dumps([imported - begin, done - ready]))
"""
MODELS = {
    "eight schools": """
model = lv.Model.log_density(
    lambda p: Normal(p["mu"] + p["tau"] * p["z"], s8).log_prob(y8).sum(),
    parameters={"mu": real(), "tau": positive(), "z": real(8)},
    prior={"mu": Normal(0.0, 5.0), "tau": HalfCauchy(5.0), "z": Normal(0.0, 1.0)},
)
data, names = {}, ["mu", "tau", "z"]
""",
    "regression 1000 x 10": """
model = lv.Model(
    lambda p, x, y: Normal(p["a"] + x @ p["b"], p["sigma"]).log_prob(y),
    parameters={"a": real(), "b": real(10), "sigma": positive()},
    prior={"a": Normal(0.0, 5.0), "b": Normal(0.0, 1.0), "sigma": HalfNormal(1.0)},
)
data, names = {"data": (xr, yr)}, ["a", "b", "sigma"]
""",
    "logistic 10,000 x 20": """
model = lv.Model(
    lambda p, x, y: Bernoulli(logits=x @ p["b"]).log_prob(y), parameters={"b": real(20)}, prior={"b": Normal(0.0, 1.0)}
)
data, names = {"data": (xl, yl)}, ["b"]
""",
    "50 groups": """
model = lv.Model.log_density(
    lambda p: Normal((p["mu"] + p["tau"] * p["z"])[:, None], p["sigma"]).log_prob(yg).sum(),
    parameters={"mu": real(), "tau": positive(), "sigma": positive(), "z": real(50)},
    prior={"mu": Normal(0.0, 5.0), "tau": HalfNormal(1.0), "sigma": HalfNormal(1.0), "z": Normal(0.0, 1.0)},
)
data, names = {}, ["mu", "tau", "sigma", "z"]
""",
}
PEER_MODELS = """
def eight_schools():
    mu, tau = sample("mu", dist.Normal(zero, 5.0)), sample("tau", dist.HalfCauchy(5.0 * one))
    z = sample("z", dist.Normal(zero, 1.0).expand([8]).to_event(1))
    sample("y", dist.Normal(mu + tau * z, s8).to_event(1), obs=y8)
def regression():
    a, b = sample("a", dist.Normal(zero, 5.0)), sample("b", dist.Normal(zero, 1.0).expand([10]).to_event(1))
    sigma = sample("sigma", dist.HalfNormal(one))
    sample("y", dist.Normal(a + xr @ b, sigma).to_event(1), obs=yr)
def logistic():
    b = sample("b", dist.Normal(zero, 1.0).expand([20]).to_event(1))
    sample("y", Bernoulli(logits=xl @ b).to_event(1), obs=yl)
def groups():
    mu, tau = sample("mu", dist.Normal(zero, 5.0)), sample("tau", dist.HalfNormal(one))
    sigma = sample("sigma", dist.HalfNormal(one))
    z = sample("z", dist.Normal(zero, 1.0).expand([50]).to_event(1))
    sample("y", dist.Normal((mu + tau * z)[:, None], sigma).expand([50, 10]).to_event(2), obs=yg)
models = {"eight schools": eight_schools, "regression 1000 x 10": regression, "logistic 10,000 x 20": logistic}
model = (models | {"50 groups": groups})[NAME]
"""
NUMPYRO = """
import time; begin = time.perf_counter()
import jax, numpyro
jax.config.update("jax_enable_x64", True)
import numpyro.distributions as dist
from numpyro import sample
from numpyro.infer import MCMC, NUTS
Bernoulli = dist.Bernoulli
imported = time.perf_counter()
{data}
zero, one, NAME = 0.0, 1.0, {name!r}
{models}
ready = time.perf_counter()
run = MCMC(NUTS(model), num_warmup=1000, num_samples=1000, num_chains=4, chain_method="sequential", progress_bar=False)
run.run(jax.random.PRNGKey({seed}))
draws = {{name: np.asarray(value) for name, value in run.get_samples(group_by_chain=True).items()}}
done = time.perf_counter()
np.savez({out!r}, **draws)
print(json.dumps([imported - begin, done - ready]))
"""
NUTPIE = """
import time; begin = time.perf_counter()
import jax, numpyro, nutpie
jax.config.update("jax_enable_x64", True)
import numpyro.distributions as dist
from numpyro import sample
from numpyro.infer.util import initialize_model
from jax.flatten_util import ravel_pytree
Bernoulli = dist.Bernoulli
imported = time.perf_counter()
{data}
zero, one, NAME = 0.0, 1.0, {name!r}
{models}
ready = time.perf_counter()
found = initialize_model(jax.random.PRNGKey({seed}), model)
flat, unravel = ravel_pytree(found.param_info.z)
value_and_grad = jax.jit(jax.value_and_grad(lambda x: -found.potential_fn(unravel(x))))
constrain = jax.jit(jax.vmap(jax.vmap(lambda x: found.postprocess_fn(unravel(x)))))
def make_logp():
    def logp(x):
        value, gradient = value_and_grad(x)
        return float(value), np.asarray(gradient)
    return logp
def make_expand(*arguments):
    return lambda x: {{"x": np.asarray(x)}}
compiled = nutpie.compiled_pyfunc.from_pyfunc(
    ndim=len(flat), make_logp_fn=make_logp, make_expand_fn=make_expand, expanded_dtypes=[np.dtype("float64")],
    expanded_shapes=[(len(flat),)], expanded_names=["x"],
)
trace = nutpie.sample(compiled, draws=1000, tune=1000, chains=4, seed={seed}, progress_bar=False)
draws = {{name: np.asarray(value) for name, value in constrain(trace.posterior["x"].values).items()}}
done = time.perf_counter()
np.savez({out!r}, **draws)
print(json.dumps([imported - begin, done - ready]))
"""
PYRO = """
import time; begin = time.perf_counter()
import torch, pyro
import pyro.distributions as dist
from pyro import sample
from pyro.infer import MCMC, NUTS
torch.set_default_dtype(torch.float64)
imported = time.perf_counter()
{data}
y8, s8, xr, yr, xl, yl, yg = map(torch.from_numpy, (y8, s8, xr, yr, xl, yl, yg))
zero, one, NAME, Bernoulli = torch.tensor(0.0), torch.tensor(1.0), {name!r}, dist.Bernoulli
{models}
pyro.set_rng_seed({seed})
ready = time.perf_counter()
run = MCMC(NUTS(model), num_samples=300, warmup_steps=300, num_chains=1, disable_progbar=True)
run.run()
draws = {{name: value.numpy() for name, value in run.get_samples(group_by_chain=True).items()}}
done = time.perf_counter()
np.savez({out!r}, **draws)
print(json.dumps([imported - begin, done - ready]))
"""


def run(python: str, script: str, environment: dict[str, str], out: Path) -> tuple[float, float, float]:
    """Run a process; return seconds of import and call, and the least ESS."""
    done = subprocess.run([python, "-W", "ignore", "-c", script], env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    imported, called = json.loads(done.stdout.splitlines()[-1])
    with np.load(out) as kept:
        draws = [torch.from_numpy(kept[name]).double() for name in kept.files]
    flat = torch.cat([each.reshape(*each.shape[:2], -1) for each in draws], -1)
    return imported, called, float(lv.diagnostics.ess(flat).min())


def show(name: str, seconds: Sequence[tuple[float, float, float]]) -> float:
    imported, called, ess = (statistics.median(column) for column in zip(*seconds, strict=True))
    rate = statistics.median(e / (i + c) for i, c, e in seconds)
    calls = [c for _, c, _ in seconds]
    print(
        f"  {name:28s} import {imported:5.2f}  call {called:6.2f} ({min(calls):.2f} to {max(calls):.2f})  "
        f"ESS {ess:6.0f}  ESS/s {rate:7.1f}",
        flush=True,
    )
    return rate


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--peers", help="python of an environment with numpyro and pyro")
    parser.add_argument("--pyro", action="store_true", help="Pyro NUTS, too: minutes a model")
    options = parser.parse_args()
    print(
        f"{datetime.date.today()}, langevin {lv.__version__}, torch {torch.__version__}, Python {platform.python_version()}, "
        f"{os.cpu_count()} cores, one thread; seconds, medians of {options.runs} fresh processes (range)"
    )
    if options.peers:
        versions = (
            "import importlib.metadata as m; print(*(f'{n} {m.version(n)}' for n in ('numpyro', 'nutpie', 'pyro-ppl', 'jax')))"
        )
        print("peers:", subprocess.run([options.peers, "-c", versions], capture_output=True, text=True).stdout.strip())
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "draws.npz"
        base = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "XDG_CACHE_HOME": f"{folder}/cache"}
        base["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
        for name, model in MODELS.items():
            print(f"\n{name}")
            rows: dict[str, list[tuple[float, float, float]]] = {}
            for seed in range(options.runs):
                shared = {"data": DATA, "name": name, "models": PEER_MODELS, "seed": seed, "out": str(out)}
                ours = OURS.format(model=model, **shared)
                shutil.rmtree(f"{folder}/cache", ignore_errors=True)
                for way in ("langevin, cold", "langevin, warm"):
                    rows.setdefault(way, []).append(run(sys.executable, ours, base, out))
                if options.peers:
                    peers = {"numpyro NUTS, 4 x 1000": NUMPYRO, "nutpie on JAX, 4 x 1000": NUTPIE}
                    peers |= {"Pyro NUTS, 1 x 300": PYRO} if seed == 0 and options.pyro else {}
                    for way, script in peers.items():
                        rows.setdefault(way, []).append(run(options.peers, script.format(**shared), base, out))
            rates = {way: show(way, seconds) for way, seconds in rows.items()}
            for peer in list(rates)[2:]:
                ratios = (rates[f"langevin, {way}"] / rates[peer] for way in ("cold", "warm"))
                print(f"  ESS per second over {peer}:", *(f"{ratio:.1f}" for ratio in ratios), "(cold, warm)")


if __name__ == "__main__":
    main()
