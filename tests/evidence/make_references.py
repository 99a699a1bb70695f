"""Make references.npz: three small data sets and the moments of their posteriors by NUTS (numpyro), a sampler that is not ours.

    python3 -m venv /tmp/nuts-venv && /tmp/nuts-venv/bin/pip install numpyro
    /tmp/nuts-venv/bin/python tests/evidence/make_references.py

Takes half a minute; the tests need only the file it writes. Data are synthetic (numpy's generator, seeds below); every model has
independent N(0, std^2) priors. Stored per model NAME: NAME_x, NAME_y, NAME_prior_std, NAME_mean, NAME_covariance, and the Monte
Carlo standard errors of NUTS, NAME_mean_error and NAME_variance_error. numpyro is imported late: pytest looks into this file too.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

WARMUP, DRAWS, CHAINS = 2_000, 20_000, 4
DEGREES, SCALE = 4.0, 0.5  # of the Student-t noise, both known


def with_intercept(x):
    return np.concatenate([np.ones((len(x), 1)), x], 1)


def logistic_data():
    """N = 500, an intercept and five columns, two of them correlated (0.6)."""
    generator = np.random.default_rng(1)
    x = generator.standard_normal((500, 5))
    x[:, 1] = 0.6 * x[:, 0] + 0.8 * x[:, 1]
    x = with_intercept(x.round(3))
    weights = np.array([-0.5, 1.0, -1.0, 0.5, 0.0, 1.5])
    return x, (generator.uniform(size=500) < 1 / (1 + np.exp(-x @ weights))).astype(float)


def poisson_data():
    """N = 300, an intercept and three columns."""
    generator = np.random.default_rng(2)
    x = with_intercept((0.5 * generator.standard_normal((300, 3))).round(3))
    return x, generator.poisson(np.exp(x @ np.array([0.5, 0.8, -0.5, 0.3]))).astype(float)


def student_data():
    """N = 200, an intercept and two columns, Student-t noise with 4 degrees of freedom and scale 0.5."""
    generator = np.random.default_rng(3)
    x = with_intercept(generator.standard_normal((200, 2)).round(3))
    return x, (x @ np.array([1.0, 2.0, -1.0]) + SCALE * generator.standard_t(DEGREES, 200)).round(4)


MODELS = {"logistic": (logistic_data, 1.0), "poisson": (poisson_data, 1.0), "student": (student_data, 2.0)}


def run(name, x, y, std, seed):
    """Return the draws of NUTS, (chain, draw, dim)."""
    import jax
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import MCMC, NUTS

    likelihood = {
        "logistic": lambda eta: dist.Bernoulli(logits=eta),
        "poisson": lambda eta: dist.Poisson(jnp.exp(eta)),
        "student": lambda eta: dist.StudentT(DEGREES, eta, SCALE),
    }[name]

    def model():
        theta = numpyro.sample("theta", dist.Normal(0, std).expand([x.shape[1]]).to_event(1))
        numpyro.sample("y", likelihood(x @ theta), obs=y)

    mcmc = MCMC(NUTS(model), num_warmup=WARMUP, num_samples=DRAWS, num_chains=CHAINS, progress_bar=False)
    mcmc.run(jax.random.PRNGKey(seed))
    return np.asarray(mcmc.get_samples(group_by_chain=True)["theta"])


def main():
    import jax
    import numpyro

    numpyro.set_host_device_count(CHAINS)
    jax.config.update("jax_enable_x64", True)
    from numpyro.diagnostics import effective_sample_size, split_gelman_rubin

    stored = {"degrees": DEGREES, "scale": SCALE}
    for seed, (name, (make, std)) in enumerate(MODELS.items()):
        x, y = make()
        start = time.perf_counter()
        draws = run(name, x, y, std, seed)
        mean = draws.mean((0, 1))
        squares = (draws - mean) ** 2
        flat = draws.reshape(-1, draws.shape[-1])
        rhat = max(split_gelman_rubin(draws).max(), split_gelman_rubin(squares).max())
        stored |= {
            f"{name}_x": x,
            f"{name}_y": y,
            f"{name}_prior_std": std,
            f"{name}_mean": mean,
            f"{name}_covariance": np.cov(flat.T),
            f"{name}_mean_error": flat.std(0) / effective_sample_size(draws) ** 0.5,
            f"{name}_variance_error": squares.reshape(flat.shape).std(0) / effective_sample_size(squares) ** 0.5,
        }
        print(f"{name}: {time.perf_counter() - start:.0f} s, {CHAINS} x {DRAWS} draws, largest split R-hat {rhat:.5f}")
        print(f"  ess {effective_sample_size(draws).min():.0f} (squares {effective_sample_size(squares).min():.0f})")
        for what in ("mean", "mean_error", "variance_error"):
            print(f"  {what} {np.array2string(stored[f'{name}_{what}'], precision=6)}")
        print(f"  sd {np.array2string(flat.std(0), precision=5)}")
        assert rhat < 1.01, f"{name} has not converged"
    path = Path(__file__).parent / "references.npz"
    np.savez_compressed(path, **stored)
    print(f"written: {path}, {path.stat().st_size / 1e3:.0f} KB; numpyro {numpyro.__version__}, jax {jax.__version__}")


if __name__ == "__main__":
    main()
