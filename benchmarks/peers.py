"""nutpie (low-rank metric) and blackjax's MCLMC on the posteriors of `langevin-paper check suite`: gradients per effective draw.

    python benchmarks/peers.py [NAME ...]     writes docs/evidence/peers.json; others in the record stay

It runs in an environment with langevin, langevin-paper, nutpie, jax and blackjax. Both take our compiled density, so that all
samplers see the same numbers, and gradients, not seconds, are compared. nutpie: 4 chains, 1000 draws after 1000 of warm-up, its
defaults. MCLMC: 4 chains, tuned by blackjax's `mclmc_find_L_and_step_size` with 10,000 steps each, then 10,000 steps; a step takes
two gradients; it is unadjusted. The worst parameter is that with the smallest bulk effective sample size, by the same function as
for ours; *right* is that of `langevin_paper.check.right`.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import time
from pathlib import Path

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import nutpie
import torch
from langevin_paper.check.database import Reference, read_reference, suite
from langevin_paper.check.reference import compare
from nutpie import compiled_pyfunc

from langevin.targets.gradients import compiled, full

jax.config.update("jax_enable_x64", True)
torch.set_num_threads(1)

RECORD = Path(__file__).resolve().parents[1] / "docs" / "evidence" / "peers.json"
CHAINS, DRAWS, WARMUP, STEPS = 4, 1000, 1000, 10_000
LONGEST = 600  # seconds, after which no further chain of MCLMC is started


class Density:
    """The log density and its gradient for one position, counted."""

    def __init__(self, reference: Reference) -> None:
        """Compile the density."""
        model, data = reference.posterior.model, reference.posterior.data
        self.gradient_fn, self.calls = compiled(full(model, data), 1), 0

    def __call__(self, position: np.ndarray) -> tuple[float, np.ndarray]:
        """Return both; minus infinity and zeros where they are not finite."""
        self.calls += 1
        energy, gradient = self.gradient_fn(torch.as_tensor(np.array(position))[None], 0)
        if not (torch.isfinite(energy).all() and torch.isfinite(gradient).all()):
            return -np.inf, np.zeros_like(position)
        return -float(energy), -gradient[0].numpy()


def summary(reference: Reference, positions: torch.Tensor, gradients: int, warmup: float, seconds: float) -> dict[str, object]:
    """Return what the record keeps of a run."""
    verdict = compare(reference, positions)
    return {
        "gradients_per_effective_draw": gradients / verdict.worst_ess,
        "warmup_gradients_per_chain": warmup,
        "worst_ess": verdict.worst_ess,
        "right": verdict.is_right,
        "mean_off": verdict.mean,
        "sd_off": verdict.sd,
        "seconds": seconds,
    }


def run_nutpie(reference: Reference) -> dict[str, object]:
    """Run nutpie with its low-rank metric."""
    dim = reference.posterior.model.dim
    model = compiled_pyfunc.from_pyfunc(
        dim,
        lambda: Density(reference),
        lambda *_: lambda position: {"x": position},
        [np.dtype(np.float64)],
        [(dim,)],
        ["x"],
    )
    began = time.time()
    trace = nutpie.sample(
        model, draws=DRAWS, tune=WARMUP, chains=CHAINS, cores=1, seed=0, progress_bar=False, low_rank_modified_mass_matrix=True
    )
    seconds = time.time() - began
    gradients = int(trace.sample_stats.n_steps.sum())
    warmup = int(trace.warmup_sample_stats.n_steps.sum()) / CHAINS
    row = summary(reference, torch.tensor(trace.posterior["x"].values), gradients, warmup, seconds)
    return {**row, "divergences": int(trace.sample_stats.diverging.sum())}


def run_mclmc(reference: Reference) -> dict[str, object]:
    """Run blackjax's microcanonical Langevin Monte Carlo."""
    density, dim = Density(reference), reference.posterior.model.dim

    def evaluate(position: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        value, gradient = density(np.asarray(position))
        return np.asarray(value), np.asarray(gradient)

    shapes = jax.ShapeDtypeStruct((), jnp.float64), jax.ShapeDtypeStruct((dim,), jnp.float64)

    @jax.custom_vjp
    def log_density(position):
        return jax.pure_callback(evaluate, shapes, position)[0]

    log_density.defvjp(lambda x: jax.pure_callback(evaluate, shapes, x), lambda gradient, cotangent: (cotangent * gradient,))
    began, positions, warmup = time.time(), [], 0
    for key in jax.random.split(jax.random.key(0), CHAINS):
        keys = jax.random.split(key, 4)
        start = jax.random.uniform(keys[0], (dim,), minval=-2, maxval=2)
        state = blackjax.mcmc.mclmc.init(position=start, logdensity_fn=log_density, rng_key=keys[1])

        kernel = blackjax.mcmc.mclmc.build_kernel()
        state, settings, *_ = blackjax.mclmc_find_L_and_step_size(
            mclmc_kernel=kernel, num_steps=STEPS, state=state, rng_key=keys[2], logdensity_fn=log_density
        )
        warmup = density.calls if not positions else warmup
        sampler = blackjax.mclmc(
            log_density, L=settings.L, step_size=settings.step_size, inverse_mass_matrix=settings.inverse_mass_matrix
        )
        _, path = jax.lax.scan(
            lambda state, key, step=sampler.step: (lambda new: (new, new.position))(step(key, state)[0]),
            state,
            jax.random.split(keys[3], STEPS),
        )
        positions.append(torch.tensor(np.asarray(path)))
        if time.time() - began > LONGEST:
            break
    gradients = 2 * STEPS * len(positions)
    row = summary(reference, torch.stack(positions), gradients, warmup, time.time() - began)
    return {**row, "chains": len(positions)}


SAMPLERS = {"nutpie": run_nutpie, "MCLMC": run_mclmc}


def main() -> None:
    """Run and record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--sampler", choices=SAMPLERS, action="append")
    arguments = parser.parse_args()
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {"posteriors": {}}
    packages = ("nutpie", "blackjax", "jax", "torch", "langevin")
    record["versions"] = {name: importlib.metadata.version(name) for name in packages if name != "langevin"}
    record["date"] = datetime.date.today().isoformat()
    for name in arguments.names or suite():
        reference = read_reference(name)
        for sampler in arguments.sampler or SAMPLERS:
            try:
                row = SAMPLERS[sampler](reference)
            except Exception as error:  # a peer that fails is a result, too
                row = {"error": f"{type(error).__name__}: {str(error)[:200]}"}
            record["posteriors"].setdefault(name, {})[sampler] = row
            RECORD.write_text(json.dumps(record, indent=1, default=float) + "\n")
            print(
                name,
                sampler,
                {key: value if isinstance(value, str) else round(float(value), 3) for key, value in row.items()},
                flush=True,
            )


if __name__ == "__main__":
    main()
