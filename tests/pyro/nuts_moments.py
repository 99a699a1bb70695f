"""Write nuts_moments.json: means and variances under Pyro's own NUTS, with standard errors.

    python tests/pyro/nuts_moments.py            all models below; a few minutes each on one core
    python tests/pyro/nuts_moments.py NAME ...   these alone; the others in the record stay

test_sampling.py compares the default call with them. Moments are those of the logarithm for the sites in `LOGS`. Standard errors
are sd / sqrt(ESS) of x and of (x - mean)^2.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from pathlib import Path

import pyro
import torch
from pyro.infer import MCMC, NUTS
from pyro.ops.stats import effective_sample_size
from pyro_models import MODELS

RECORD = Path(__file__).with_name("nuts_moments.json")
NAMES = ["eight schools, reparameterised", "regression", "gaussian process", "dirichlet multinomial", "lkj", "mixture"]
NAMES += ["logistic", "saas"]
LOGS = {"saas": {"outputscale", "noise", "tausq", "inv_length_sq"}}  # of heavy-tailed sites
CHAINS, DRAWS, WARMUP = 2, 1500, 400


def moments(draws):
    """Return mean, variance and their standard errors of draws (chain, draw, ...), each flat."""
    mean = draws.mean((0, 1))
    square = (draws - mean) ** 2
    found = {"mean": (draws, mean), "variance": (square, square.mean((0, 1)))}
    record = {}
    for name, (values, average) in found.items():
        error = values.std((0, 1)) / effective_sample_size(values).sqrt()
        record[name] = [float(f"{x:.6g}") for x in average.flatten()]
        record[f"{name}_error"] = [float(f"{x:.3g}") for x in error.flatten().nan_to_num()]
    return record


def main():
    torch.set_default_dtype(torch.float64)
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    for name in sys.argv[1:] or NAMES:
        model, args = MODELS[name]
        start, chains = time.perf_counter(), []
        for seed in range(CHAINS):
            pyro.set_rng_seed(seed)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                kernel = NUTS(model, jit_compile=True, ignore_jit_warnings=True)
                run = MCMC(kernel, num_samples=DRAWS, warmup_steps=WARMUP, disable_progbar=True)
                run.run(*args)
            chains.append(run.get_samples())
        draws = {site: torch.stack([chain[site] for chain in chains]) for site in chains[0]}
        draws |= {site: draws[site].log() for site in LOGS.get(name, ())}
        record[name] = {site: moments(value) for site, value in draws.items()}
        print(f"{name}: {time.perf_counter() - start:.0f} s", flush=True)
        RECORD.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
