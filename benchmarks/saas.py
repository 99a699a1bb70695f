"""A SAAS Gaussian process: fit time and test log-likelihood, beside BoTorch, numpyro and Pyro's NUTS.

    python benchmarks/saas.py                                     ours and Pyro's NUTS, d = 20 and 100, n = 50 and 200
    python benchmarks/saas.py --peers /path/to/python             BoTorch and numpyro, too, in the environment of that Python
    python benchmarks/saas.py --n 20 --d 4 --draws 100            a trial
    python benchmarks/saas.py --out record.json                   the numbers as JSON, too

Model, data and predictions are those of examples/saas_gp.py: three of the d dimensions matter; 200 more rows are the test
set. Each fit is a fresh process with one thread, and its time starts after its imports. The log-likelihood per test row is
that of the mixture over 128 evenly spaced draws (16 for BoTorch, which keeps one in 16 of 256). BoTorch and Pyro's NUTS have
BoTorch's settings: one chain, 512 warm-up steps, 256 draws, trees up to depth 6. (BoTorch 0.18 runs numpyro's NUTS with a
dense metric; earlier ones ran Pyro's.) numpyro has its own defaults, 1,000 warm-up steps and as many draws; ours are 8
chains. ESS is the smallest bulk ESS of the mean and of the logarithms of the other parameters, before thinning.
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

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
# benchmarks/pyro.py is not Pyro.
sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != ROOT / "benchmarks"]
TEST_ROWS = 200


def example():
    sys.path.insert(0, str(ROOT / "examples"))
    import saas_gp

    return saas_gp


def ours(x, y, draws):
    import torch

    import langevin as lv

    start = time.perf_counter()
    model = example().saas(torch.from_numpy(x), torch.from_numpy(y))
    samples = lv.sample(model, num_draws=draws, progress=False)
    seconds = time.perf_counter() - start
    return {name: samples[name].numpy() for name in model.space.names}, seconds


def pyro(x, y, draws):
    import pyro
    import torch
    from pyro.infer import MCMC, NUTS

    sys.path.insert(0, str(ROOT / "tests" / "pyro"))
    from pyro_models import saas

    torch.set_default_dtype(torch.float64)
    pyro.set_rng_seed(0)
    start = time.perf_counter()
    kernel = NUTS(saas, jit_compile=True, ignore_jit_warnings=True, max_tree_depth=6)
    run = MCMC(kernel, min(draws, 256), min(2 * draws, 512), disable_progbar=True)
    run.run(torch.from_numpy(x), torch.from_numpy(y))
    return {name: value.numpy()[None] for name, value in run.get_samples().items()}, time.perf_counter() - start


def numpyro(x, y, draws):
    import jax
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import MCMC, NUTS

    jax.config.update("jax_enable_x64", True)

    def model(x, y):
        outputscale = numpyro.sample("outputscale", dist.Gamma(2.0, 0.15))
        mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
        noise = numpyro.sample("noise", dist.Gamma(0.9, 10.0)) + 1e-4
        tausq = numpyro.sample("tausq", dist.HalfCauchy(0.1))
        inverse = numpyro.sample("inv_length_sq", dist.HalfCauchy(jnp.ones(x.shape[1])).to_event(1))
        scaled = x * jnp.sqrt(tausq * inverse)
        distance = jnp.sqrt(5 * jnp.maximum(((scaled[:, None] - scaled) ** 2).sum(-1), 1e-30))
        covariance = outputscale * (1 + distance + distance**2 / 3) * jnp.exp(-distance) + noise * jnp.eye(len(x))
        numpyro.sample("y", dist.MultivariateNormal(mean, covariance), obs=y)

    start = time.perf_counter()
    run = MCMC(NUTS(model), num_warmup=draws, num_samples=draws, progress_bar=False)
    run.run(jax.random.PRNGKey(0), x, y)
    found = {name: np.asarray(value)[None] for name, value in run.get_samples().items()}
    return found, time.perf_counter() - start


def botorch(x, y, draws):
    import torch
    from botorch.fit import fit_fully_bayesian_model_nuts
    from botorch.models.fully_bayesian import SaasFullyBayesianSingleTaskGP

    start = time.perf_counter()
    model = SaasFullyBayesianSingleTaskGP(torch.from_numpy(x), torch.from_numpy(y)[:, None], outcome_transform=None)
    few = min(draws, 256)
    fit_fully_bayesian_model_nuts(model, warmup_steps=2 * few, num_samples=few, disable_progbar=True)
    seconds = time.perf_counter() - start
    kernel, noise = model.covar_module, model.likelihood.noise
    found = {
        "outputscale": kernel.outputscale,
        "mean": model.mean_module.constant.flatten(),
        "noise": noise.flatten() - 1e-4,
        "tausq": torch.ones(len(noise)),
        "inv_length_sq": kernel.base_kernel.lengthscale[:, 0] ** -2,
    }
    return {name: value.detach().double().numpy()[None] for name, value in found.items()}, seconds


LIBRARIES = {"langevin": ours, "pyro": pyro, "numpyro": numpyro, "botorch": botorch}


def fit(python, library, x, y, draws):
    """Run one library in a process of its own; return draws and seconds."""
    flags = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "XLA_FLAGS": flags}
    with tempfile.TemporaryDirectory() as folder:
        data, result = Path(folder, "data.npz"), Path(folder, "result.npz")
        np.savez(data, x=x, y=y)
        call = [python, __file__, "--work", library, str(data), str(draws), str(result)]
        subprocess.run(call, check=True, env=environment, stdout=subprocess.DEVNULL)
        found = dict(np.load(result))
    return found, float(found.pop("_seconds"))


def judge(library, found, x, y, new_x, new_y):
    """Return test log-likelihood, RMSE and the smallest ESS of draws (chain, draw, ...)."""
    import torch

    from langevin.diagnostics import ess

    gp = example()
    draws = {name: torch.from_numpy(np.array(value)) for name, value in found.items()}
    count = draws["mean"].numel()
    rows = torch.linspace(0, count - 1, min(128, count)).long()
    mean, sd = gp.predict({name: value.flatten(0, 1)[rows] for name, value in draws.items()}, x, y, new_x)
    rmse = float((mean.mean(0) - new_y).square().mean().sqrt())
    size = None  # of BoTorch's thinned draws
    if library != "botorch":
        logs = [value if name == "mean" else value.log() for name, value in draws.items()]
        size = float(ess(torch.cat([value.reshape(*value.shape[:2], -1) for value in logs], -1)).min())
    return {"test_log_likelihood": gp.test_log_likelihood(mean, sd, new_y), "rmse": rmse, "ess": size}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--n", type=int, nargs="*", default=[50, 200])
    parser.add_argument("--d", type=int, nargs="*", default=[20, 100])
    parser.add_argument("--libraries", nargs="*", choices=LIBRARIES, default=list(LIBRARIES))
    parser.add_argument("--peers", help="the Python of an environment with numpyro and botorch")
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = []
    for d in options.d:
        for n in options.n:
            x, y = example().data(n + TEST_ROWS, d)
            train, new = slice(0, n), slice(n, None)
            for library in options.libraries:
                python = options.peers if library in ("numpyro", "botorch") else sys.executable
                if python is None:
                    continue
                found, seconds = fit(python, library, x[train].numpy(), y[train].numpy(), options.draws)
                numbers = judge(library, found, x[train], y[train], x[new], y[new])
                rows.append({"n": n, "d": d, "library": library, "seconds": seconds, **numbers})
                size = "-" if numbers["ess"] is None else f"{numbers['ess']:.0f}"
                print(
                    f"n {n:4} d {d:4} {library:9} fit {seconds:8.1f} s, test log-likelihood {numbers['test_log_likelihood']:.3f}, "
                    f"RMSE {numbers['rmse']:.3f}, ESS {size}",
                    flush=True,
                )
    if options.out:
        options.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        library, data, draws, result = sys.argv[2:]
        given = np.load(data)
        found, seconds = LIBRARIES[library](given["x"], given["y"], int(draws))
        np.savez(result, _seconds=seconds, **found)
    else:
        main()
