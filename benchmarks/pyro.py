"""Pyro models: time to 1,000 effective samples of the default call, of Pyro's NUTS and of numpyro's.

    python benchmarks/pyro.py                                     ours and Pyro's NUTS on all models
    python benchmarks/pyro.py --peers /path/to/python             numpyro's NUTS, too, in the environment of that Python
    python benchmarks/pyro.py --models regression --draws 100     one model, few draws: a trial
    python benchmarks/pyro.py --out record.json                   the numbers as JSON, too

Each run is a fresh process with one thread, and its time starts after its imports: compilation, warm-up and draws count. Models and
data are those of tests/pyro/pyro_models.py; the numpyro models below are written a second time. The time to 1,000 effective samples
is that before the draws plus that of the draws times 1,000 / ESS, where ESS is the smallest bulk ESS of all elements of all latent
sites. Gradients per effective sample count the draws only. Settings are the defaults of each library, with jit_compile=True for
Pyro, on 4 chains one after the other (8 for ours, together).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != ROOT / "benchmarks"]  # this file is not Pyro
MODELS = ["eight schools, reparameterised", "regression", "gaussian process", "dirichlet multinomial", "lkj", "mixture", "logistic"]
CHAINS, WARMUP = 4, 1000


def pyro_model(name):
    sys.path.insert(0, str(ROOT / "tests" / "pyro"))
    import torch
    from pyro_models import MODELS as KNOWN

    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    return KNOWN[name]


def ours(name, data, draws):
    import langevin as lv

    model, args = pyro_model(name)
    start = time.perf_counter()
    target = lv.from_pyro(model, *args)
    samples = lv.sample(target, num_draws=draws, progress=False)
    total = time.perf_counter() - start
    found = {site: samples[site].numpy() for site in target.space.names}
    steps = samples.status[0].steps * len(samples.status)
    return found, total - samples.seconds, samples.seconds, steps


def pyro(name, data, draws):
    import pyro
    import torch
    from pyro.infer import MCMC, NUTS

    model, args = pyro_model(name)
    chains, before, during, steps = [], 0.0, 0.0, 0
    for seed in range(CHAINS):
        pyro.set_rng_seed(seed)
        start, marks = time.perf_counter(), []
        kernel = NUTS(model, jit_compile=True, ignore_jit_warnings=True)
        counter = _Counter(kernel)

        def hook(kernel, state, stage, index, marks=marks, counter=counter):
            if stage == "Sample" and index == 0:  # the first draw is made
                marks += [time.perf_counter(), counter.calls]

        run = MCMC(kernel, draws, WARMUP, disable_progbar=True, hook_fn=hook)
        run.run(*args)
        before, during = before + marks[0] - start, during + time.perf_counter() - marks[0]
        steps += counter.calls - marks[1]
        chains.append(run.get_samples())
    return {site: torch.stack([chain[site] for chain in chains]).numpy() for site in chains[0]}, before, during, steps


class _Counter:
    """Count the gradients of a Pyro kernel: calls of `velocity_verlet`'s gradient."""

    def __init__(self, kernel):
        from pyro.infer.mcmc import nuts

        self.calls = 0
        step = nuts.velocity_verlet

        def counted(*args, **kwargs):
            self.calls += kwargs.get("num_steps", 1)
            return step(*args, **kwargs)

        nuts.velocity_verlet = counted


def numpyro(name, data, draws):
    import jax
    from numpyro.infer import MCMC, NUTS

    jax.config.update("jax_enable_x64", True)
    start = time.perf_counter()
    kernel = NUTS(numpyro_models()[name])
    run = MCMC(kernel, num_warmup=WARMUP, num_samples=draws, num_chains=CHAINS, chain_method="sequential", progress_bar=False)
    run.warmup(jax.random.PRNGKey(0), *data)
    warm = time.perf_counter()
    run.run(jax.random.PRNGKey(1), *data, extra_fields=("num_steps",))
    found = {site: np.asarray(value) for site, value in run.get_samples(group_by_chain=True).items()}
    steps = int(np.asarray(run.get_extra_fields()["num_steps"]).sum())
    return found, warm - start, time.perf_counter() - warm, steps


def numpyro_models():
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist

    def schools(y, sigma):
        mu, tau = numpyro.sample("mu", dist.Normal(0, 5)), numpyro.sample("tau", dist.HalfCauchy(5))
        with numpyro.plate("school", len(y)):
            z = numpyro.sample("theta_decentered", dist.Normal(0, 1))
            numpyro.sample("y", dist.Normal(mu + tau * z, sigma), obs=y)

    def regression(x, y):
        a = numpyro.sample("a", dist.Normal(0, 10))
        b = numpyro.sample("b", dist.Normal(jnp.zeros(3), 1).to_event(1))
        sigma = numpyro.sample("sigma", dist.Uniform(0, 10))
        mean = a + b[0] * x[:, 0] + b[1] * x[:, 1] + b[2] * x[:, 0] * x[:, 1]
        numpyro.sample("y", dist.Normal(mean, sigma), obs=y)

    def process(x, y):
        length, variance = (numpyro.sample(name, dist.LogNormal(0, 1)) for name in ("length", "variance"))
        noise = numpyro.sample("noise", dist.LogNormal(-1, 1))
        covariance = variance * jnp.exp(-0.5 * ((x[:, None] - x) / length) ** 2) + noise * jnp.eye(len(x))
        numpyro.sample("y", dist.MultivariateNormal(jnp.zeros(len(x)), covariance), obs=y)

    def multinomial(counts):
        share = numpyro.sample("share", dist.Dirichlet(jnp.ones(counts.shape[1])))
        strength = numpyro.sample("strength", dist.Gamma(2.0, 0.1))
        numpyro.sample("counts", dist.DirichletMultinomial(share * strength, counts.sum(-1).astype(int)), obs=counts.astype(int))

    def correlated(y):
        scale = numpyro.sample("scale", dist.HalfCauchy(1).expand([y.shape[1]]))
        factor = numpyro.sample("factor", dist.LKJCholesky(y.shape[1], 1.0))
        numpyro.sample("y", dist.MultivariateNormal(jnp.zeros(y.shape[1]), scale_tril=scale[:, None] * factor), obs=y)

    def mixture(y):
        weights = numpyro.sample("weights", dist.Dirichlet(jnp.array([2.0, 2.0])))
        loc = numpyro.sample("loc", dist.Normal(jnp.array([-2.0, 2.0]), 1).to_event(1))
        scale = numpyro.sample("scale", dist.LogNormal(0, 0.5))
        numpyro.sample("y", dist.MixtureSameFamily(dist.Categorical(weights), dist.Normal(loc, scale)), obs=y)

    def logistic(x, y):
        b = numpyro.sample("b", dist.Normal(0, 2).expand([x.shape[1]]).to_event(1))
        numpyro.sample("y", dist.Bernoulli(logits=x @ b), obs=y)

    return dict(zip(MODELS, (schools, regression, process, multinomial, correlated, mixture, logistic), strict=True))


def work(library, name, data_file, draws, result):
    """Run one library on one model; a process of its own."""
    data = list(np.load(data_file).values())
    found, before, during, steps = {"langevin": ours, "pyro": pyro, "numpyro": numpyro}[library](name, data, draws)
    np.savez(result, _before=before, _during=during, _steps=steps, **found)


def smallest_ess(draws):
    """Return the smallest bulk ESS of all elements that vary, of arrays (chain, draw, ...)."""
    import torch

    from langevin.diagnostics import ess

    flat = torch.cat([torch.from_numpy(np.array(value)).double().reshape(*value.shape[:2], -1) for value in draws.values()], -1)
    return float(ess(flat[..., flat.std((0, 1)) > 1e-12]).min())


def row(python, library, name, draws):
    _, args = pyro_model(name)
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
    }
    with tempfile.TemporaryDirectory() as folder:
        data, result = Path(folder, "data.npz"), Path(folder, "result.npz")
        np.savez(data, *[arg.numpy() for arg in args])
        call = [python, __file__, "--work", library, name, str(data), str(draws), str(result)]
        subprocess.run(call, check=True, env=environment, stdout=subprocess.DEVNULL)
        found = dict(np.load(result))
    before, during, steps = (float(found.pop(key)) for key in ("_before", "_during", "_steps"))
    size = smallest_ess(found)
    means = {site: np.round(value.mean((0, 1)), 3).tolist() for site, value in found.items()}
    numbers = {"before": before, "during": during, "ess": size, "seconds": before + during * 1000 / size, "gradients": steps / size}
    return {"model": name, "library": library, **numbers, "means": means}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", nargs="*", default=MODELS)
    parser.add_argument("--libraries", nargs="*", default=["langevin", "pyro", "numpyro"])
    parser.add_argument("--peers", help="the Python of an environment with numpyro")
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = []
    for name in options.models:
        for library in options.libraries:
            python = options.peers if library == "numpyro" else sys.executable
            if python is None:
                continue
            rows.append(row(python, library, name, options.draws))
            last = rows[-1]
            print(
                f"{name:32} {library:10} {last['seconds']:8.1f} s to 1,000 ESS ({last['before']:.1f} before the draws); "
                f"ESS {last['ess']:.0f}, {last['gradients']:.1f} gradients per effective sample",
                flush=True,
            )
    seconds = {(each["model"], each["library"]): each["seconds"] for each in rows}
    for peer in ("pyro", "numpyro"):
        ratios = [seconds[m, peer] / seconds[m, "langevin"] for m in options.models if {(m, peer), (m, "langevin")} <= set(seconds)]
        if ratios:
            listed = ", ".join(f"{ratio:.1f}" for ratio in ratios)
            print(f"{peer} takes {median(ratios):.1f} times as long in the median ({listed})")
    if options.out:
        options.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        library, name, data_file, draws, result = sys.argv[2:]
        work(library, name, data_file, int(draws), result)
    else:
        main()
