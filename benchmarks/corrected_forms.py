"""Four corrected steps and the plain one under gradient noise, off Gaussians: the numbers behind section 6 of docs/theory.md.

    python benchmarks/corrected_forms.py | tee docs/benchmarks/corrected_forms.txt

Errors of the variance against quadrature, in percent, for white Gaussian noise of the gradient of heat ρ = (1 + a) ε s^2 / 2:

- plain: BAOAB with two velocities, the invariant form of the library;
- subtract: A (B O B) A, the noise subtracted from what is injected, friction where that does not suffice (the order of NOGIN);
- absorb: BAOAB whose kick has the friction that balances the noise, D = s^2 / (2 + S s^2 / 2);
- exact: the same with the mean curvature K, D = s^2 / (2 + S (s^2 - K) / 2): the step that the library keeps;
- local: the same with the curvature at θ in place of K (at most 2 / S), which costs a second derivative per step.

First without momentum (a = 0), where θ is a Markov chain in one dimension and its law is solved for, no sampling; then sampled with
a = 10, β = .9; then with a = 100, β = .99 at a small step, where as many draws are had; then what each form survives.
"""

from __future__ import annotations

import time

import numpy as np
import scipy
from scipy.interpolate import make_interp_spline

SEED, CHAINS, WARMUP, STEPS = 0, 4000, 400, 2000
HEATS = (0.0, 0.5, 5.0, 50.0)
FORMS = ("plain", "subtract", "absorb", "exact", "local")


class Energy:
    """U' and U'' with the truth by quadrature on [low, high]; `unit` is the curvature in `eps k`."""

    def __init__(self, energy, slope, curvature, unit, low, high):
        self.slope, self.curvature, self.unit, self.low, self.high = slope, curvature, unit, low, high
        grid = np.linspace(low, high, 400_001)
        weights = np.exp(energy(grid).min() - energy(grid))
        weights /= weights.sum()
        self.mean = weights @ grid
        self.variance = weights @ (grid - self.mean) ** 2
        self.mean_curvature = weights @ curvature(grid)
        self.grid, self.cumulative = grid, weights.cumsum()

    def draws(self, random, size):
        return self.grid[np.searchsorted(self.cumulative, random.random(size)).clip(max=len(self.grid) - 1)]


ENERGIES = {
    "log cosh 3x + x^2/4": Energy(
        lambda x: np.logaddexp(3 * x, -3 * x) + x * x / 4,
        lambda x: 3 * np.tanh(3 * x) + x / 2,
        lambda x: 9 / np.cosh(np.clip(3 * x, -99, 99)) ** 2 + 0.5,
        9.5,
        -8.0,
        8.0,
    ),
    "exp(x) - x": Energy(
        lambda x: np.exp(x) - x,
        lambda x: np.exp(np.minimum(x, 30)) - 1,
        lambda x: np.exp(np.minimum(x, 30)),
        1.0,
        -26.0,
        5.0,
    ),
    "2.5 log(1 + x^2/4)": Energy(
        lambda x: 2.5 * np.log1p(x * x / 4),
        lambda x: 5 * x / (4 + x * x),
        lambda x: 5 * (4 - x * x) / (4 + x * x) ** 2,
        1.25,
        -2000.0,
        2000.0,
    ),
    "x^4/4 + x^2/2": Energy(
        lambda x: x**4 / 4 + x * x / 2, lambda x: x**3 + x, lambda x: 3 * x * x + 1, 1.0, -5.0, 5.0
    ),
}


def absorbing(form, noise, size, mean_curvature, curvature):
    """Return D of the kick g + D p: the friction that balances the noise, tau = 1."""
    known = {"plain": None, "absorb": 0.0, "exact": mean_curvature, "local": np.minimum(curvature, 2 / size)}[form]
    return 0.0 if known is None else noise / (2 + size * (noise - known) / 2)


def solved(energy, eps, heat, form, points=501, nodes=31):
    """Return the relative error of the variance without momentum (a = 0): the law of θ after the kick, from its transition matrix."""
    noise, size, grid = 2 * heat / eps, 2 * eps, np.linspace(energy.low, energy.high, points)
    interpolate = make_interp_spline(grid, np.eye(points), k=5) if noise == 0 else None
    transition = np.zeros((points, points))
    normals, weights = np.polynomial.hermite_e.hermegauss(nodes)
    for normal, weight in zip(normals, weights / weights.sum(), strict=True):
        at = grid + size**0.5 * normal / 2
        friction = absorbing(form, noise, size, energy.mean_curvature, energy.curvature(at))
        share = 1 - friction * size / 2
        mean = at + (size**0.5 * (1 - size * friction) * normal - size * share * energy.slope(at)) / 2
        if interpolate is not None:
            transition += weight * interpolate(mean.clip(energy.low, energy.high))
            continue
        spread = np.broadcast_to(size * np.abs(share) * noise**0.5 / 2, mean.shape)[:, None]
        density = np.exp(-0.5 * ((grid - mean.clip(energy.low, energy.high)[:, None]) / spread) ** 2)
        transition += weight * density / density.sum(1, keepdims=True)
    equations = transition.T - np.eye(points)
    equations[-1] = 1.0
    law = np.linalg.solve(equations, np.eye(points)[-1])
    lost = law[:8].sum() + law[-8:].sum()  # mass at the ends: it ran away
    variance = law @ (grid - law @ grid) ** 2 + size / 4
    return variance / energy.variance - 1 if abs(lost) < 1e-6 and law.min() > -1e-6 else np.nan


def sampled(energy, eps, a, beta, heat, seed=SEED, steps=STEPS):
    """Run all forms with the same noise; return the relative error of the variance, its chance, and the share of dead chains."""
    random = np.random.default_rng(seed)
    stride, passing = (2 * a * eps * (1 - beta) / (1 + beta)) ** 0.5, (2 * eps) ** 0.5
    noise, size = 2 * heat / ((1 + a) * eps), stride**2 + passing**2
    damping, root = subtracted(np.array([stride, passing]), beta, noise)
    x, (v, u) = np.tile(energy.draws(random, CHAINS), (len(FORMS), 1)), np.tile(random.standard_normal((2, 1, CHAINS)), (1, len(FORMS), 1))
    others = [row for row, form in enumerate(FORMS) if form != "subtract"]
    middle = FORMS.index("subtract")
    first, second = np.zeros((2, *x.shape))
    for step in range(WARMUP + steps):
        error, fresh, again = noise**0.5 * random.standard_normal(CHAINS), random.standard_normal(CHAINS), random.standard_normal(CHAINS)
        x[middle] += (stride * v[middle] + passing * u[middle]) / 2
        gradient = energy.slope(x) + error
        for row in others:
            if FORMS[row] != "plain":
                friction = absorbing(FORMS[row], noise, size, energy.mean_curvature, energy.curvature(x[row]))
                gradient[row] += friction * (stride * v[row] + passing * u[row] - size * gradient[row] / 2)
        kick = np.where(np.arange(len(FORMS)) == middle, 0.5, 1.0)[:, None] * gradient
        v, u = v - stride * kick, u - passing * kick
        x[others] += (stride * v[others] + passing * u[others]) / 2
        refreshed = damping @ np.stack([v[middle], u[middle]]) + root @ np.stack([fresh, again])
        v, u = beta * v + (1 - beta**2) ** 0.5 * fresh, np.tile(again, (len(FORMS), 1))
        v[middle], u[middle] = refreshed[0] - stride * kick[middle], refreshed[1] - passing * kick[middle]
        x += (stride * v + passing * u) / 2
        x[np.abs(x) > 1e4] = np.nan  # dead
        if step >= WARMUP:
            first, second = first + (x - energy.mean) / steps, second + (x - energy.mean) ** 2 / steps
    shift = np.nanmean(first, 1)
    return (
        (np.nanmean(second, 1) - shift**2) / energy.variance - 1,
        np.nanstd(second, 1) / CHAINS**0.5 / energy.variance,
        np.isnan(x).mean(1),
    )


def subtracted(e, beta, noise, limit=0.95):
    """Return the friction and the root of the noise of A (B O B) A: what of the gradient's noise cannot be subtracted is balanced."""
    own, outer = np.diag([(1 - beta) / (1 + beta), 1.0]), noise / 4 * np.outer(e, e)
    heat = np.linalg.solve(own, outer).trace()
    share = min(1.0, limit / heat) if heat else 1.0
    friction = own + (1 - share) * outer
    damping = (np.eye(2) - friction) @ np.linalg.inv(np.eye(2) + friction)
    values, vectors = np.linalg.eigh((np.eye(2) + damping) @ (own - share * outer) @ (np.eye(2) + damping))
    return damping, vectors * np.sqrt(values.clip(min=0))


def main():
    begin = time.perf_counter()
    print(f"seed {SEED}, numpy {np.__version__}, scipy {scipy.__version__}; errors of the variance in percent")
    print("\n1. Solved, a = 0 (no chance); order: log2 of the last ratio of errors")
    print(f"{'energy':22s}{'form':10s}{'rho':>6s}" + "".join(f"{f'eps k {size:g}':>12s}" for size in (0.05, 0.1, 0.2)) + f"{'order':>9s}")
    for name, energy in ENERGIES.items():
        if energy.high > 100:  # heavy tails need too wide a grid
            continue
        for form in ("absorb", "exact", "local"):
            for heat in HEATS:
                errors = [solved(energy, size / energy.unit, heat, form) for size in (0.05, 0.1, 0.2)]
                order = np.log2(errors[2] / errors[1]) if abs(errors[1]) > 1e-4 and errors[2] / errors[1] > 0 else np.nan
                shown = "".join(f"{100 * error:+12.2f}" if np.isfinite(error) else f"{'ran away':>12s}" for error in errors)
                print(f"{name:22s}{form:10s}{heat:6g}{shown}{order:9.1f}", flush=True)
    for title, a, beta, sizes in (("2", 10.0, 0.9, (0.1, 0.3)), ("3", 100.0, 0.99, (0.02,))):
        print(f"\n{title}. Sampled, a = {a:g}, beta {beta}: {CHAINS} chains, {STEPS} steps after {WARMUP}; ± standard error over chains")
        print(f"{'energy':22s}{'eps k':>6s}{'rho':>6s}" + "".join(f"{form:>17s}" for form in FORMS))
        for name, energy in ENERGIES.items():
            for size in sizes:
                for heat in HEATS:
                    results = zip(*sampled(energy, size / energy.unit, a, beta, heat), strict=True)
                    print(f"{name:22s}{size:6g}{heat:6g}" + "".join(cell(*result) for result in results), flush=True)
    print(f"\n4. Largest eps k of .1, .2, .4, .8, 1.6 at which none of {CHAINS} chains dies in {WARMUP + STEPS // 4} steps, a = 10, beta .9")
    print(f"{'energy':28s}{'rho':>6s}" + "".join(f"{form:>17s}" for form in FORMS))
    for name in ("exp(x) - x", "x^4/4 + x^2/2"):
        for heat in (0.0, 0.5, 50.0):
            alive = np.zeros(len(FORMS))
            ended = np.zeros(len(FORMS), dtype=bool)
            for size in (0.1, 0.2, 0.4, 0.8, 1.6):
                ended |= sampled(ENERGIES[name], size / ENERGIES[name].unit, 10.0, 0.9, heat, steps=STEPS // 4)[2] > 0
                alive = np.where(ended, alive, size)
            print(f"{name:28s}{heat:6g}" + "".join(f"{size:17g}" for size in alive), flush=True)
    print(f"{time.perf_counter() - begin:.0f} seconds")


def cell(error, chance, dead):
    return f"{f'{100 * dead:.0f} % died':>17s}" if dead else f"{100 * error:+11.1f} ±{100 * chance:4.1f}"


if __name__ == "__main__":
    with np.errstate(all="ignore"):
        main()
