"""NUTS of numpyro, diagonal and dense metric, on the 24 posteriors of posteriordb: gradients per effective draw.

    python benchmarks/nuts.py                     all of them; writes docs/evidence/nuts.json (half an hour on one core)
    python benchmarks/nuts.py NAME ...            these alone; the others in the record stay
    python benchmarks/nuts.py --points FILE.npz   points and log densities for tests/evidence/test_posteriordb.py, nothing else

It runs in the environment of the JAX peers, .venv-jax, which benchmarks/sample.py makes; `.venv-jax/bin/python -m pip install
numpyro==0.22.0` adds numpyro and leaves JAX as it is. The data are those of LANGEVIN_DATA, or the ones that ship with the tests.

The densities are written a second time here, in jax.numpy, from the Stan models of posteriordb and not from the library: loops over
time where the library has products by halves, populations where it has their logarithms. So they serve as its oracle too. Each is a
potential on the unconstrained space with Stan's transforms, its parameters in the order of the library's models.

A gradient is a leapfrog step (`num_steps`); the search for a first step size of each chain, a few dozen gradients, is not counted.
Settings are numpyro's defaults: target acceptance .8, trees up to depth 10, starts uniform in (-2, 2). The covariance that it
learns is shrunk towards 1e-3 (as Stan does), which is why parameters with an sd of 1e-3 (sblrc-blr) cost it more than they need; a
third metric, dense and not shrunk, stands beside the two that the defaults give.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import time
from pathlib import Path

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")

import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats
from numpyro.diagnostics import effective_sample_size
from numpyro.infer import MCMC, NUTS

jax.config.update("jax_enable_x64", True)

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "docs" / "evidence" / "nuts.json"
METRICS = {
    "diagonal": {"dense_mass": False},
    "dense": {"dense_mass": True},
    "dense, not shrunk": {"dense_mass": True, "regularize_mass_matrix": False},
}
FINE, COARSE = 400, 20  # steps a year for hares and lynxes: of the oracle, and while sampling
WARMUP, DRAWS, CHAINS = 1000, 1000, 4  # the defaults
SEEDS, MIXED = 3, 100.0  # a run with less than so many effective draws counts as failed, and the next seed is tried


# Densities: each function takes the data and returns (log density, reported quantities) of one unconstrained position.


def normal(x, mean, sd):
    return -0.5 * ((x - mean) / sd) ** 2 - jnp.log(sd)


def cauchy(x, scale):
    return -jnp.log1p((x / scale) ** 2)


def student(x, degrees, mean, scale):
    return -0.5 * (degrees + 1) * jnp.log1p(((x - mean) / scale) ** 2 / degrees)


def logit_jacobian(x):
    return -jax.nn.softplus(x) - jax.nn.softplus(-x)


def regression(response, predictors, sigma_prior=lambda sigma: 0.0):
    def make(data):
        d = {name: np.asarray(values, float) for name, values in data.items()}
        y, columns = response(d), predictors(d)

        def log_density(x):
            mean = x[0] + sum(x[1 + k] * values for k, values in enumerate(columns))
            sigma = jnp.exp(x[-1])
            return normal(y, mean, sigma).sum() + sigma_prior(sigma) + x[-1]

        return log_density, lambda x: x.at[-1].set(jnp.exp(x[-1])), 2 + len(columns)

    return make


def interaction(first, second):
    return [first, second, first * second]


def centred(values):
    return values - values.mean()


def half_cauchy(sigma):
    return cauchy(sigma, 2.5)


SIX = ("diam1", "diam2", "canopy_height", "total_height", "density")
nes = regression(
    lambda d: d["partyid7"],
    lambda d: [
        *(d["real_ideo"], d["race_adj"]),
        *(np.where(d["age_discrete"] == k, 1.0, 0.0) for k in (2, 3, 4)),
        *(d["educ1"], d["gender"], d["income"]),
    ],
)


def blr(data):
    y, matrix = np.array(data["y"], float), np.array(data["X"], float)

    def log_density(x):
        beta, sigma = x[:-1], jnp.exp(x[-1])
        return normal(beta, 0, 10).sum() + normal(sigma, 0, 10) + normal(y, matrix @ beta, sigma).sum() + x[-1]

    return log_density, lambda x: x.at[-1].set(jnp.exp(x[-1])), 6


def diamonds(data):
    """Return the density by way of the least squares fit: a gradient then costs the same for any number of rows."""
    y, matrix = np.array(data["Y"], float), np.array(data["X"], float)
    matrix = np.column_stack([matrix[:, 1:] - matrix[:, 1:].mean(0), np.ones(len(y))])
    basis, triangle = np.linalg.qr(matrix)
    best = np.linalg.solve(triangle, basis.T @ y)
    least = np.square(y - matrix @ best).sum()

    def log_density(x):
        b, intercept, sigma = x[:-2], x[-2], jnp.exp(x[-1])
        prior = normal(b, 0, 1).sum() + student(intercept, 3, 8, 10) + student(sigma, 3, 0, 10)
        squares = least + jnp.square(triangle @ (x[:-1] - best)).sum()
        return prior - 0.5 * squares / sigma**2 - len(y) * x[-1] + x[-1]

    return log_density, lambda x: x.at[-1].set(jnp.exp(x[-1])), 26


def kilpisjarvi(data):
    years, y = np.array(data["x"], float), np.array(data["y"], float)

    def log_density(x):
        sigma = jnp.exp(x[2])
        prior = normal(x[0], data["pmualpha"], data["psalpha"]) + normal(x[1], data["pmubeta"], data["psbeta"])
        return prior + normal(y, x[0] + x[1] * years, sigma).sum() + x[2]

    return log_density, lambda x: x.at[2].set(jnp.exp(x[2])), 3


def autoregression(data):
    y, order = np.array(data["y"], float), data["K"]

    def log_density(x):
        alpha, beta, sigma = x[0], x[1:-1], jnp.exp(x[-1])
        mean = alpha + sum(beta[k] * y[order - 1 - k : len(y) - 1 - k] for k in range(order))
        return normal(x[:-1], 0, 10).sum() + cauchy(sigma, 2.5) + normal(y[order:], mean, sigma).sum() + x[-1]

    return log_density, lambda x: x.at[-1].set(jnp.exp(x[-1])), 2 + order


def arma11(data):
    y = jnp.array(data["y"], float)

    def log_density(x):
        mu, phi, theta, sigma = x[0], x[1], x[2], jnp.exp(x[3])
        first = y[0] - (mu + phi * mu)

        def move(error, pair):
            before, now = pair
            error = now - (mu + phi * before + theta * error)
            return error, error

        _, errors = jax.lax.scan(move, first, (y[:-1], y[1:]))
        prior = normal(mu, 0, 10) + normal(phi, 0, 2) + normal(theta, 0, 2) + cauchy(sigma, 2.5)
        return prior + normal(first, 0, sigma) + normal(errors, 0, sigma).sum() + x[3]

    return log_density, lambda x: x.at[3].set(jnp.exp(x[3])), 4


def garch11(data):
    y, first = jnp.array(data["y"], float), data["sigma1"]

    def report(x):
        alpha1 = jax.nn.sigmoid(x[2])
        return jnp.stack([x[0], jnp.exp(x[1]), alpha1, (1 - alpha1) * jax.nn.sigmoid(x[3])])

    def log_density(x):
        mu, alpha0, alpha1, beta1 = report(x)

        def move(sigma, before):
            sigma = jnp.sqrt(alpha0 + alpha1 * (before - mu) ** 2 + beta1 * sigma**2)
            return sigma, sigma

        _, later = jax.lax.scan(move, jnp.asarray(first), y[:-1])
        jacobian = x[1] + logit_jacobian(x[2]) + logit_jacobian(x[3]) + jnp.log(1 - alpha1)
        return normal(y[0], mu, first) + normal(y[1:], mu, later).sum() + jacobian

    return log_density, report, 4


def eight_schools(data):
    y, sds = np.array(data["y"], float), np.array(data["sigma"], float)

    def report(x):
        tau = jnp.exp(x[9])
        return jnp.concatenate([x[8] + tau * x[:8], x[8:9], tau[None]])

    def log_density(x):
        theta, mu, tau = report(x)[:8], x[8], jnp.exp(x[9])
        return normal(x[:8], 0, 1).sum() + normal(y, theta, sds).sum() + normal(mu, 0, 5) + cauchy(tau, 5) + x[9]

    return log_density, report, 10


def covariance(places, rho, alpha):
    return alpha**2 * jnp.exp(-((places[:, None] - places[None, :]) ** 2) / (2 * rho**2))


def gp_priors(rho, alpha):
    return 24 * jnp.log(rho) - 4 * rho + normal(alpha, 0, 2)


def gp_regr(data):
    places, y = np.array(data["x"], float), np.array(data["y"], float)

    def log_density(x):
        rho, alpha, sigma = jnp.exp(x)
        matrix = covariance(places, rho, alpha) + sigma * jnp.eye(len(y))
        _, log_det = jnp.linalg.slogdet(matrix)
        return gp_priors(rho, alpha) + normal(sigma, 0, 1) - 0.5 * y @ jnp.linalg.solve(matrix, y) - 0.5 * log_det + x.sum()

    return log_density, jnp.exp, 3


def gp_pois_regr(data):
    places, counts = np.array(data["x"], float), np.array(data["k"], float)

    def report(x):
        rho, alpha = jnp.exp(x[:2])
        root = jnp.linalg.cholesky(covariance(places, rho, alpha) + 1e-10 * jnp.eye(len(counts)))
        return jnp.concatenate([jnp.stack([rho, alpha]), root @ x[2:]])

    def log_density(x):
        rho, alpha, *_ = values = report(x)
        f = values[2:]
        return gp_priors(rho, alpha) + normal(x[2:], 0, 1).sum() + (counts * f - jnp.exp(f)).sum() + x[:2].sum()

    return log_density, report, 13


def hmm_example(data):
    y = jnp.array(data["y"], float)

    def report(x):
        first, second = jax.nn.sigmoid(x[:2])
        return jnp.stack([first, 1 - first, second, 1 - second, jnp.exp(x[2]), jnp.exp(x[2]) + jnp.exp(x[3])])

    def log_density(x):
        values = report(x)
        logs, mu = jnp.log(values[:4].reshape(2, 2)), values[4:]

        def move(forward, now):
            forward = jax.nn.logsumexp(forward[:, None] + logs, axis=0) + normal(now, mu, 1.0)
            return forward, None

        forward, _ = jax.lax.scan(move, normal(y[0], mu, 1.0), y[1:])
        jacobian = logit_jacobian(x[:2]).sum() + x[2:].sum()
        return normal(mu[0], 3, 1) + normal(mu[1], 10, 1) + jax.nn.logsumexp(forward) + jacobian

    return log_density, report, 4


def low_dim_gauss_mix(data):
    y = np.array(data["y"], float)

    def report(x):
        mu = jnp.stack([x[0], x[0] + jnp.exp(x[1])])
        return jnp.concatenate([mu, jnp.exp(x[2:4]), jax.nn.sigmoid(x[4:])])

    def log_density(x):
        mu1, mu2, sigma1, sigma2, theta = report(x)
        rows = jnp.logaddexp(jnp.log(theta) + normal(y, mu1, sigma1), jnp.log(1 - theta) + normal(y, mu2, sigma2))
        prior = normal(mu1, 0, 2) + normal(mu2, 0, 2) + normal(sigma1, 0, 2) + normal(sigma2, 0, 2)
        shares = 4 * jnp.log(theta) + 4 * jnp.log(1 - theta)
        return prior + shares + rows.sum() + x[1:4].sum() + logit_jacobian(x[4])

    return log_density, report, 5


def lotka_volterra(data, steps=COARSE):
    y = jnp.array([data["y_init"], *data["y"]], float)

    def populations(theta, start):
        alpha, beta, gamma, delta = theta
        length = 1.0 / steps

        def slope(z):
            return jnp.stack([(alpha - beta * z[1]) * z[0], (-gamma + delta * z[0]) * z[1]])

        def move(z, _):
            a = slope(z)
            b = slope(z + length / 2 * a)
            c = slope(z + length / 2 * b)
            return z + length / 6 * (a + 2 * b + 2 * c + slope(z + length * c)), None

        def year(z, _):
            z, _ = jax.lax.scan(move, z, None, length=steps)
            return z, z

        return jax.lax.scan(year, start, None, length=len(y) - 1)[1]

    def log_density(x):
        theta, start, sigma = jnp.exp(x[:4]), jnp.exp(x[4:6]), jnp.exp(x[6:])
        z = jnp.concatenate([start[None], populations(theta, start)])
        prior = normal(theta, jnp.array([1, 0.05, 1, 0.05]), jnp.array([0.5, 0.05, 0.5, 0.05])).sum()
        prior += (normal(x[6:], -1, 1) - x[6:]).sum() + (normal(x[4:6], jnp.log(10), 1) - x[4:6]).sum()
        return prior + normal(jnp.log(y), jnp.log(z), sigma).sum() + x.sum()

    return log_density, jnp.exp, 8


DENSITIES = {
    "arK-arK": autoregression,
    "arma-arma11": arma11,
    "diamonds-diamonds": diamonds,
    "earnings-earn_height": regression(lambda d: d["earn"], lambda d: [d["height"]]),
    "earnings-log10earn_height": regression(lambda d: np.log10(d["earn"]), lambda d: [d["height"]]),
    "earnings-logearn_interaction": regression(lambda d: np.log(d["earn"]), lambda d: interaction(d["height"], d["male"])),
    "eight_schools-eight_schools_noncentered": eight_schools,
    "garch-garch11": garch11,
    "gp_pois_regr-gp_pois_regr": gp_pois_regr,
    "gp_pois_regr-gp_regr": gp_regr,
    "hmm_example-hmm_example": hmm_example,
    "hudson_lynx_hare-lotka_volterra": lotka_volterra,
    "kidiq-kidscore_momhs": regression(lambda d: d["kid_score"], lambda d: [d["mom_hs"]], half_cauchy),
    "kidiq-kidscore_momiq": regression(lambda d: d["kid_score"], lambda d: [d["mom_iq"]], half_cauchy),
    "kidiq_with_mom_work-kidscore_interaction_c": regression(
        lambda d: d["kid_score"], lambda d: interaction(centred(d["mom_hs"]), centred(d["mom_iq"]))
    ),
    "kilpisjarvi_mod-kilpisjarvi": kilpisjarvi,
    "low_dim_gauss_mix-low_dim_gauss_mix": low_dim_gauss_mix,
    "mesquite-logmesquite": regression(lambda d: np.log(d["weight"]), lambda d: [*(np.log(d[name]) for name in SIX), d["group"]]),
    "mesquite-logmesquite_logva": regression(
        lambda d: np.log(d["weight"]),
        lambda d: [np.log(d["diam1"] * d["diam2"] * d["canopy_height"]), np.log(d["diam1"] * d["diam2"]), d["group"]],
    ),
    "mesquite-mesquite": regression(lambda d: d["weight"], lambda d: [*(d[name] for name in SIX), d["group"]]),
    "nes1972-nes": nes,
    "nes1988-nes": nes,
    "nes2000-nes": nes,
    "sblrc-blr": blr,
}


def read(name):
    """Return what is known of a posterior: its data and the moments of its reference draws."""
    given = os.environ.get("LANGEVIN_DATA")
    folder = Path(given) / "posteriordb" if given else ROOT / "tests" / "evidence" / "posteriordb"
    return json.loads((folder / f"{name}.json").read_text())


def bulk_ess(draws):
    """Return the bulk effective sample size of draws (chains, draws, quantities): of rank-normalised halves of the chains.

    As in Vehtari, Gelman, Simpson, Carpenter and Bürkner (2021), the definition that arviz has.
    """
    chains, count, quantities = draws.shape
    halves = draws[:, : count // 2 * 2].reshape(2 * chains, count // 2, quantities)
    ranks = scipy.stats.rankdata(halves.reshape(-1, quantities), axis=0).reshape(halves.shape)
    normals = scipy.stats.norm.ppf((ranks - 0.375) / (halves.shape[0] * halves.shape[1] + 0.25))
    return effective_sample_size(normals)


def run(name, metric, seed):
    """Return the numbers of one run."""
    reference = read(name)
    log_density, report, dim = DENSITIES[name](reference["data"])
    kernel = NUTS(potential_fn=lambda x: -log_density(x), **METRICS[metric])
    mcmc = MCMC(kernel, num_warmup=WARMUP, num_samples=DRAWS, num_chains=CHAINS, chain_method="vectorized", progress_bar=False)
    start = jax.random.uniform(jax.random.key(seed + 1), (CHAINS, dim), minval=-2.0, maxval=2.0)
    begun = time.perf_counter()
    mcmc.warmup(jax.random.PRNGKey(seed), init_params=start, extra_fields=("num_steps",), collect_warmup=True)
    warmup_gradients = np.asarray(mcmc.get_extra_fields(group_by_chain=True)["num_steps"])
    mcmc.run(mcmc.post_warmup_state.rng_key, extra_fields=("num_steps", "diverging"))
    seconds = time.perf_counter() - begun
    extra = {field: np.asarray(values) for field, values in mcmc.get_extra_fields(group_by_chain=True).items()}
    positions = np.asarray(mcmc.get_samples(group_by_chain=True))
    values = np.asarray(jax.vmap(jax.vmap(report))(jnp.asarray(positions)))
    ess = bulk_ess(values)
    mean, sd = values.mean((0, 1)), values.reshape(-1, values.shape[-1]).std(0, ddof=1)
    error = np.sqrt(sd**2 / ess + np.square(reference["mcse_mean"]))
    gradients = int(extra["num_steps"].sum())
    return {
        "seed": seed,
        "warmup_gradients_per_chain": float(warmup_gradients.sum(1).mean()),
        "gradients": gradients,
        "ess_bulk_min": float(ess.min()),
        "gradients_per_effective_draw": gradients / float(ess.min()),
        "divergences": int(extra["diverging"].sum()),
        "z_of_mean_max": float(np.abs((mean - reference["mean"]) / error).max()),
        "sd_ratio": [float((sd / reference["sd"]).min()), float((sd / reference["sd"]).max())],
        "mean": mean.tolist(),
        "sd": sd.tolist(),
        "seconds_on_a_busy_machine": round(seconds, 1),
    }


def run_until_mixed(name, metric, seed):
    """Return the first run whose chains agree, or the last; the seeds of those that do not are recorded with it."""
    failed = []
    for trial in range(seed, seed + SEEDS):
        result = run(name, metric, trial)
        if result["ess_bulk_min"] >= MIXED:
            break
        failed.append(trial)
    return {**result, "seeds_that_did_not_mix": failed}


def run_all(names, metrics, seed):
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {"posteriors": {}}
    record["about"] = (
        "numpyro NUTS on posteriordb, made by benchmarks/nuts.py; gradients are leapfrog steps, of all chains while sampling"
    )
    record["ess"] = "bulk (rank-normalised, split chains), the smallest over the reported quantities"
    record["settings"] = {"warmup": WARMUP, "draws": DRAWS, "chains": CHAINS, "others": "numpyro's defaults"}
    packages = ("numpyro", "jax", "jaxlib", "numpy", "scipy")
    record["versions"] = {"python": platform.python_version()} | {name: importlib.metadata.version(name) for name in packages}
    for name in names:
        entry = record["posteriors"].setdefault(name, {})
        for metric in metrics:
            entry[metric] = run_until_mixed(name, metric, seed)
            shown = {key: value for key, value in entry[metric].items() if key not in ("mean", "sd")}
            print(name, metric, shown, flush=True)
        record["posteriors"] = dict(sorted(record["posteriors"].items()))
        record["made"] = datetime.date.today().isoformat()
        RECORD.write_text(json.dumps(record, indent=1) + "\n")


def find_mode(energy, dim, steps=200):
    """Return the mode and a root of the covariance there, by Newton's method with absolute curvatures, halved as needed."""
    value, gradient, hessian = jax.jit(energy), jax.jit(jax.grad(energy)), jax.jit(jax.hessian(energy))
    place = np.zeros(dim)
    for _ in range(steps):
        curvatures, axes = np.linalg.eigh(hessian(place))
        move = -axes @ ((axes.T @ gradient(place)) / np.maximum(np.abs(curvatures), 1e-8))
        length = next((2.0**-k for k in range(40) if value(place + 2.0**-k * move) < value(place)), None)
        if length is None:
            break
        place = place + length * move
    curvatures, axes = np.linalg.eigh(hessian(place))
    return place, axes / np.sqrt(np.abs(curvatures))


def write_points(path, names, seed):
    """Write places where chains go, and three times as far, with their log densities."""
    arrays, rng = {}, np.random.default_rng(seed)
    for name in names:
        make, data = DENSITIES[name], read(name)["data"]
        log_density, report, dim = make(data, FINE) if make is lotka_volterra else make(data)
        mode, root = find_mode(lambda x, density=log_density: -density(x), dim)
        points = mode + rng.standard_normal((8, dim)) * np.array([[1.0]] * 5 + [[3.0]] * 3) @ root.T
        arrays[f"{name}/points"] = points
        arrays[f"{name}/log_density"] = np.asarray(jax.vmap(log_density)(jnp.asarray(points)))
        arrays[f"{name}/reported"] = np.asarray(jax.vmap(report)(jnp.asarray(points)))
        print(name, arrays[f"{name}/log_density"], flush=True)
    np.savez_compressed(path, **arrays)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="posteriors; all if none is named")
    parser.add_argument("--points", type=Path, help="write the oracle's points here instead of running NUTS")
    parser.add_argument("--metric", choices=METRICS, action="append", help="metrics; all if none is named")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    names = given.names or list(DENSITIES)
    if given.points:
        write_points(given.points, names, given.seed)
    else:
        run_all(names, given.metric or list(METRICS), given.seed)


if __name__ == "__main__":
    main()
