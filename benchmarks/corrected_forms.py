"""Four corrected steps and the plain one under gradient noise, off Gaussians: the numbers behind section 6 of docs/theory.md.

    python benchmarks/corrected_forms.py | tee docs/benchmarks/corrected_forms.txt

Errors against quadrature, in percent, of E (θ - mean)^2 (for the Student-like energy, whose fourth moment is infinite, of the mean
energy), for white Gaussian noise of the gradient of heat ρ = (1 + a) ε s^2 / 2:

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
import warnings

import numpy as np
import scipy
from scipy.interpolate import make_interp_spline

SEED, CHAINS, WARMUP, STEPS = 0, 4000, 300, 1400
HEATS, SIZES = (0.0, 0.5, 5.0, 50.0), (0.05, 0.1, 0.2)
FORMS = ("plain", "subtract", "absorb", "exact", "local")


class Energy:
    """U' and U'' with the truth by quadrature on [-span, span]; `unit` is the curvature in `eps k`, `measured` what is averaged."""

    def __init__(self, energy, slope, curvature, unit, span, measured=None):  # noqa: D107
        self.slope, self.curvature, self.unit, self.span = slope, curvature, unit, span
        self.grid, values = np.linspace(-span, span, 400_001), energy(np.linspace(-span, span, 400_001))
        weights = np.exp(values.min() - values)
        weights /= weights.sum()
        mean, self.cumulative = weights @ self.grid, weights.cumsum()
        self.measured = measured or (lambda x: (x - mean) ** 2)
        self.truth = weights @ self.measured(self.grid)
        self.mean_curvature = weights @ curvature(self.grid)
        gaps = weights * (self.measured(self.grid) / self.truth - 1)
        self.bent = gaps @ (slope(self.grid) ** 2 - 2 * curvature(self.grid))
        self.raised = gaps @ np.where(weights > 0, values, 0.0)

    def draws(self, random, size):
        """Return exact draws."""
        return self.grid[np.searchsorted(self.cumulative, random.random(size)).clip(max=len(self.grid) - 1)]

    def predicted(self, form, eps, heat):
        """Return the error to first order without momentum, formula (7) of docs/theory.md."""
        curvature = {"absorb": 0.0, "exact": self.mean_curvature}.get(form)
        return 0.0 if curvature is None else eps / 4 * heat / (1 + heat) * (self.bent - 2 * curvature * self.raised)


def log_cosh(x):
    return np.logaddexp(3 * x, -3 * x) + x * x / 4


def student(x):
    return 2.5 * np.log1p(x * x / 4)


ENERGIES = {
    "log cosh 3x + x^2/4": Energy(
        log_cosh, lambda x: 3 * np.tanh(3 * x) + x / 2, lambda x: 9.5 - 9 * np.tanh(3 * x) ** 2, unit=9.5, span=4.0
    ),
    "exp(x) - x": Energy(
        lambda x: np.exp(x) - x, lambda x: np.exp(np.minimum(x, 9)) - 1, lambda x: np.exp(np.minimum(x, 9)), 1.0, 22.0
    ),
    "x^4/4 + x^2/2": Energy(lambda x: x**4 / 4 + x * x / 2, lambda x: x**3 + x, lambda x: 3 * x * x + 1, unit=1.0, span=4.0),
    "2.5 log(1 + x^2/4)": Energy(
        student, lambda x: 5 * x / (4 + x * x), lambda x: 5 * (4 - x * x) / (4 + x * x) ** 2, 1.25, 2000.0, measured=student
    ),
}


def absorbing(form, noise, size, mean_curvature, curvature):
    """Return D of the kick g + D p: the friction that balances the noise, tau = 1."""
    known = {"plain": None, "absorb": 0.0, "exact": mean_curvature, "local": np.minimum(curvature, 2 / size)}[form]
    return 0.0 if known is None else noise / (2 + size * (noise - known) / 2)


def solved(energy, eps, heat, form, points=501, nodes=31):
    """Return the relative error of the variance without momentum (a = 0), from the transition matrix of θ between its two moves."""
    noise, size, grid = 2 * heat / eps, 2 * eps, np.linspace(-energy.span, min(energy.span, 4.0), points)
    interpolate = make_interp_spline(grid, np.eye(points), k=5) if noise == 0 else None
    transition = np.zeros((points, points))
    normals, weights = np.polynomial.hermite_e.hermegauss(nodes)
    for normal, weight in zip(normals, weights / weights.sum(), strict=True):
        at = grid + size**0.5 * normal / 2
        friction = absorbing(form, noise, size, energy.mean_curvature, energy.curvature(at))
        share = 1 - friction * size / 2
        mean = at + (size**0.5 * (1 - size * friction) * normal - size * share * energy.slope(at)) / 2
        if interpolate is not None:
            transition += weight * interpolate(mean.clip(grid[0], grid[-1]))
            continue
        spread = np.broadcast_to(size * np.abs(share) * noise**0.5 / 2, mean.shape)[:, None]
        density = np.exp(-0.5 * ((grid - mean.clip(grid[0], grid[-1])[:, None]) / spread) ** 2)
        transition += weight * density / density.sum(1, keepdims=True)
    equations = transition.T - np.eye(points)
    equations[-1] = 1.0
    law = np.linalg.solve(equations, np.eye(points)[-1])
    lost = law[:8].sum() + law[-8:].sum()  # to the ends of the grid
    settled = abs(lost) < 1e-6 and law.min() > -1e-6
    return (law @ energy.measured(grid) + size / 4) / energy.truth - 1 if settled else np.nan  # half a move later, at the gradient


def sampled(energy, eps, a, beta, heat, steps=STEPS):
    """Run all forms with the same noise; return the relative error, its standard error, and the share of dead chains."""
    random = np.random.default_rng(SEED)
    stride, passing = (2 * a * eps * (1 - beta) / (1 + beta)) ** 0.5, (2 * eps) ** 0.5
    noise, size = 2 * heat / ((1 + a) * eps), stride**2 + passing**2
    damping, root = subtracted(np.array([stride, passing]), beta, noise)
    middle, shape = FORMS.index("subtract"), (len(FORMS), CHAINS)
    baoab = np.arange(len(FORMS)) != middle
    kicks = np.where(baoab, 1.0, 0.5)[:, None]  # B O B has two halves
    x, v, u = (np.broadcast_to(row, shape).copy() for row in (energy.draws(random, CHAINS), *random.standard_normal((2, CHAINS))))
    total = np.zeros(shape)
    for step in range(WARMUP + steps):
        error, fresh, again = random.standard_normal((3, CHAINS))
        x[middle] += (stride * v[middle] + passing * u[middle]) / 2
        gradient = energy.slope(x) + noise**0.5 * error
        pull = stride * v + passing * u - size / 2 * gradient
        for row, form in enumerate(FORMS):
            if baoab[row]:
                curvature = energy.curvature(x[row]) if form == "local" else 0.0
                gradient[row] += absorbing(form, noise, size, energy.mean_curvature, curvature) * pull[row]
        gradient *= kicks
        v -= stride * gradient
        u -= passing * gradient
        x[baoab] += (stride * v[baoab] + passing * u[baoab]) / 2
        kept = damping @ (v[middle], u[middle]) + root @ (fresh, again)
        v *= beta
        v += (1 - beta**2) ** 0.5 * fresh
        u[:] = again
        v[middle], u[middle] = kept[0] - stride * gradient[middle], kept[1] - passing * gradient[middle]
        x += (stride * v + passing * u) / 2
        if step >= WARMUP:
            total += energy.measured(x)
    dead = ~(np.abs(x) < 1e4)
    ratios = np.where(dead, np.nan, total / steps / energy.truth)
    return np.nanmean(ratios, 1) - 1, np.nanstd(ratios, 1) / CHAINS**0.5, dead.mean(1)


def subtracted(e, beta, noise, limit=0.95):
    """Return the friction and the root of the noise of A (B O B) A: what cannot be subtracted is balanced."""
    own, outer = np.diag([(1 - beta) / (1 + beta), 1.0]), noise / 4 * np.outer(e, e)
    heat = np.linalg.solve(own, outer).trace()
    share = min(1.0, limit / heat) if heat else 1.0
    friction = own + (1 - share) * outer
    damping = (np.eye(2) - friction) @ np.linalg.inv(np.eye(2) + friction)
    values, vectors = np.linalg.eigh((np.eye(2) + damping) @ (own - share * outer) @ (np.eye(2) + damping))
    return damping, vectors * np.sqrt(values.clip(min=0))


def main():
    begin = time.perf_counter()
    print(f"seed {SEED}, numpy {np.__version__}, scipy {scipy.__version__}, {CHAINS} chains where sampled; errors in percent")
    print("\n1. Solved, a = 0 (no chance). Formula: the first order at eps k .05. Order: log2 of the last ratio of errors")
    print(
        f"{'energy':22s}{'form':8s}{'rho':>6s}{'formula':>10s}"
        + "".join(f"{f'eps k {k:g}':>12s}" for k in SIZES)
        + f"{'order':>8s}"
    )
    for name, energy in ENERGIES.items():
        for form in ("absorb", "exact", "local") if energy.span < 100 else ():  # heavy tails need too wide a grid
            for heat in HEATS:
                errors = [solved(energy, size / energy.unit, heat, form) for size in SIZES]
                order = np.log2(errors[-1] / errors[-2]) if min(errors[-1] / errors[-2], abs(errors[-2]) / 1e-4) > 1 else np.nan
                shown = "".join(f"{100 * error:+12.3f}" if np.isfinite(error) else f"{'no law':>12s}" for error in errors)
                formula = 100 * energy.predicted(form, SIZES[0] / energy.unit, heat)
                print(f"{name:22s}{form:8s}{heat:6g}{formula:+10.3f}{shown}{order:8.1f}", flush=True)
    small = [(0.02, 5.0), (0.02, 50.0)]
    settings = [(0.1, heat) for heat in HEATS] + [(0.3, 0.0), (0.3, 5.0)]
    for title, a, beta, pairs in (("2", 10.0, 0.9, settings), ("3", 100.0, 0.99, small)):
        print(f"\n{title}. Sampled, a = {a:g}, beta {beta}: {STEPS} steps after {WARMUP}; ± standard error, one noise for a row")
        print(f"{'energy':22s}{'eps k':>6s}{'rho':>6s}" + "".join(f"{form:>18s}" for form in FORMS))
        for name, energy in ENERGIES.items():
            for size, heat in pairs:
                results = zip(*sampled(energy, size / energy.unit, a, beta, heat), strict=True)
                print(f"{name:22s}{size:6g}{heat:6g}" + "".join(cell(*result) for result in results), flush=True)
    print(f"\n4. Largest eps k of .1, .2, .4, .8, 1.6 where no chain dies in {WARMUP + STEPS // 5} steps, a = 10, beta .9")
    print(f"{'energy':28s}{'rho':>6s}" + "".join(f"{form:>18s}" for form in FORMS))
    for name in ("exp(x) - x", "x^4/4 + x^2/2"):
        for heat in (0.0, 50.0):
            alive, ended = np.zeros(len(FORMS)), np.zeros(len(FORMS), dtype=bool)
            for size in (0.1, 0.2, 0.4, 0.8, 1.6):
                ended |= sampled(ENERGIES[name], size / ENERGIES[name].unit, 10.0, 0.9, heat, steps=STEPS // 5)[2] > 0
                alive = np.where(ended, alive, size)
            print(f"{name:28s}{heat:6g}" + "".join(f"{size:18g}" for size in alive), flush=True)
    print(f"{time.perf_counter() - begin:.0f} seconds, {time.process_time():.0f} of them this process's own")


def cell(error, chance, dead):
    if dead:
        return f"{f'{100 * dead:.4g} % died':>18s}"
    return f"{100 * error:+11.1f} ± {100 * chance:4.1f}" if error < 9 else f"{100 * error:+11.2g} ± {100 * chance:4.1g}"


if __name__ == "__main__":
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what died is counted
        main()
