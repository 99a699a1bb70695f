"""Does a sum of momenta beat its parts? Invariant forms with one, two and three averages, each with the same search.

    python benchmarks/sums.py --tables 1 2 3 4; python benchmarks/sums.py --tables 5    # docs/benchmarks/sums.txt

A sampler here is a size S = 2 ε + sum h_i^2, the shares of S that its lasting velocities have, and their β_i (docs/theory.md,
section 8); the rest of S is the velocity made anew at every step. On a Gaussian all that counts is the set of curvatures, in the
metric of the preconditioner if there is one: tables 1 to 3 are exact (no sampling), for S times the largest curvature = 1. Steps
per independent draw are the larger of those for θ and for θ^2, in the worst direction. Tables 4 and 5 are sampled: settings are
chosen by random search, the same number for one average and for two, and the chosen ones run again with fresh seeds (and data).
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import scipy
import torch
from scipy.linalg import hadamard
from scipy.optimize import minimize

import langevin as lv
from langevin.targets import Evaluation

STARTS, EVALUATIONS = 8, 2400  # of each search on Gaussians
LONGEST = 1000.0  # memory 1 / (1 - β) in steps, in all searches
SEED, SETTINGS = 0, 60  # of each search by sampling


# ---- exact, on Gaussians


def steps_per_draw(curvature, shares, betas, size=1.0):
    """Return the integrated autocorrelation times of theta and of theta^2 along a direction, exactly."""
    moves = (size * np.append(shares, 1 - np.sum(shares))) ** 0.5
    kept, n = np.append(betas, 0.0), len(moves) + 1
    kick, move = np.eye(n), np.eye(n)
    kick[1:, 0], move[0, 1:] = -moves * curvature, moves / 2
    transition = (move * np.append(1.0, kept)) @ move @ kick  # A O A B, where the gradient is taken
    covariance = np.eye(n)
    covariance[0, 0], covariance[0, 1:], covariance[1:, 0] = 1 / curvature, moves / 2, moves / 2
    plain = np.linalg.solve(np.eye(n) - transition, covariance[:, 0])[0] * curvature
    row = covariance[:, 0] * curvature
    squares = np.linalg.solve(np.eye(n * n) - np.kron(transition, transition), np.kron(row, row))[0]
    return 2 * plain - 1, 2 * squares - 1


def worst(curvatures, shares, betas, weight=lambda k: 1.0):
    return max(max(steps_per_draw(k, shares, betas)) * weight(k) for k in curvatures)


def searched(curvatures, count, weight=lambda k: 1.0):
    """Return the least worst direction, the shares and the betas: the same number of evaluations whatever the count."""

    def settings(x):
        weights = np.exp(x[count:])
        return weights / (1 + weights.sum()), 1 / (1 + np.exp(-x[:count]))

    def loss(x):
        # No longer memory than a run has steps for: a share of 1e-5 with a memory of 1e5 steps looks well in the limit only.
        is_allowed = np.abs(x).max() < 18 and x[:count].max() < np.log(LONGEST - 1)
        return np.log(worst(curvatures, *settings(x), weight)) if is_allowed else 50.0

    random, found = np.random.default_rng(SEED), (np.inf, None)
    for _ in range(STARTS):
        start = np.concatenate([random.uniform(0, 6, count), random.uniform(-2, 4, count)])
        result = minimize(loss, start, method="Nelder-Mead", options={"maxfev": EVALUATIONS // STARTS})
        found = min(found, (result.fun, result.x), key=lambda entry: entry[0])
    return np.exp(found[0]), *settings(found[1])


def in_words(shares, betas):
    order = np.argsort(betas)
    return ", ".join(f"{shares[i]:.1%} at beta {betas[i]:.4f}" for i in order if shares[i] > 0.0005)


def known():
    print("\n1. Curvatures known: 9 of them, log-spaced; least steps per independent draw in the worst direction")
    print(f"{'condition':>10}{'averages':>10}{'steps':>9}   settings")
    for condition in (10, 100, 1000, 10_000):
        curvatures = np.geomspace(1, 1 / condition, 9)
        for count in (1, 2):
            found, shares, betas = searched(curvatures, count)
            print(f"{condition:10d}{count:10d}{found:9.2f}   {in_words(shares, betas)}")


def unknown():
    print(
        "\n2. The softest curvature k not known, anywhere in the range: steps over those of the best settings for k, 2 / sqrt(k S)"
    )
    print(f"{'range':>10}{'averages':>10}{'worst k':>9}   settings")
    for condition in (10, 100, 1000, 10_000):
        curvatures = np.geomspace(1, 1 / condition, 17)
        for count in (1, 2, 3):
            found, shares, betas = searched(curvatures, count, weight=lambda k: k**0.5 / 2)
            print(f"{condition:10d}{count:10d}{found:9.2f}   {in_words(shares, betas)}")


def preconditioned():
    print("\n3. With the preconditioner that RMS learns, P = E[g^2]^(-1/2), condition 10,000: least steps per independent draw")
    print(f"{'axes':>10}{'averages':>10}{'without P':>11}{'with P':>9}")
    curvatures, basis = np.geomspace(1, 1e-4, 8), hadamard(8) / 8**0.5
    for name, curvature in (("aligned", np.diag(curvatures)), ("rotated", basis * curvatures @ basis.T)):
        root = np.diag(curvature) ** -0.25
        inside = np.linalg.eigvalsh(root[:, None] * curvature * root)
        for count in (1, 2):
            without, with_metric = (searched(values / values.max(), count)[0] for values in (curvatures, inside))
            print(f"{name:>10}{count:10d}{without:11.2f}{with_metric:9.2f}")


# ---- sampled


class Settings:
    """Sizes, shares and betas, one row for each setting; `spread` repeats them for so many chains each."""

    def __init__(self, size, shares, betas):  # noqa: D107
        self.size, self.shares, self.betas = size, shares, betas

    @classmethod
    def random(cls, count, averages, least, largest):
        """Draw settings; the first columns are the same whatever the number of averages."""
        uniform = np.random.default_rng(SEED + 1).random((count, 3 + 2 * (averages - 1)))
        size = least * (largest / least) ** uniform[:, 0]
        lasting = 1 - 0.003 ** uniform[:, 1]  # log-uniform share of the passing velocity
        memory = 3 * (LONGEST / 3) ** uniform[:, 2 : 2 + 1 + 2 * (averages - 1) : 2]
        if averages == 1:
            return cls(size, lasting[:, None], 1 - 1 / memory)
        split = uniform[:, 3:4]
        return cls(size, lasting[:, None] * np.concatenate([split, 1 - split], 1), 1 - 1 / memory)

    def __getitem__(self, index):
        return Settings(self.size[index], self.shares[index], self.betas[index])

    def tensors(self, chains, dtype):
        """Return what each velocity moves by and what is kept of it, (averages + 1, settings * chains, 1) each."""
        moves = (self.size[:, None] * np.concatenate([self.shares, 1 - self.shares.sum(1, keepdims=True)], 1)) ** 0.5
        kept = np.concatenate([self.betas, np.zeros((len(self.betas), 1))], 1)
        return (torch.tensor(values, dtype=dtype).repeat_interleave(chains, 0).T[..., None] for values in (moves, kept))

    def kernel(self):
        """Return the library's sampler of the first row."""
        eps = self.size[0] * (1 - self.shares[0].sum()) / 2
        factors = self.size[0] * self.shares[0] * (1 + self.betas[0]) / (2 * eps * (1 - self.betas[0]))
        parts = tuple(lv.drifts.Momentum(float(a), float(b)) for a, b in zip(factors, self.betas[0], strict=True))
        return lv.compose(float(eps), drift=lv.drifts.Total(parts), invariant=True)

    def __str__(self):
        return f"S {self.size[0]:.3g}, {in_words(self.shares[0], self.betas[0])}"


def step(position, velocities, gradient, noise, moves, kept):
    """Take one step of `kernels.Invariant`, with settings of each chain; velocities (averages + 1, chains, dim)."""
    velocities = velocities - moves * gradient
    position = position + 0.5 * (moves * velocities).sum(0)
    velocities = kept * velocities + (1 - kept * kept) ** 0.5 * noise
    return position + 0.5 * (moves * velocities).sum(0), velocities


def check_step():
    """Compare the step above with the library's; its normals are (passing, lasting...)."""
    settings, position = Settings.random(1, 2, 0.1, 0.2), torch.ones(1, 2, dtype=torch.float64)
    moves, kept = settings.tensors(1, torch.float64)
    kernel, velocities = settings.kernel(), torch.zeros(3, 1, 2, dtype=torch.float64)
    state = kernel.init(position)
    for index in range(20):
        noise = lv.random.normal(0, range(3), index, 2, dtype=torch.float64)[:, None]
        state = kernel.step(state, Evaluation(torch.tensor(torch.nan), state.position.sin()), noise[[2, 0, 1]])
        position, velocities = step(position, velocities, position.sin(), noise, moves, kept)
    torch.testing.assert_close(position, state.position, rtol=1e-10, atol=1e-10)


def explore(settings, chains, steps, seed):
    """Return the steps per independent draw of the five modes' mixture and the error of its spread, for each setting.

    Chains start at exact draws; the variance over chains of the average along a chain says how many draws are independent.
    """
    target, generator = lv.targets.mixture(), torch.Generator().manual_seed(seed)
    total = len(settings.size) * chains
    component = torch.randint(5, (total,), generator=generator)
    position = target.means[component].float() + target.std * torch.randn(total, 2, generator=generator)
    moves, kept = settings.tensors(chains, torch.float32)
    velocities = torch.randn(len(moves), total, 2, generator=generator)
    mean, square = torch.zeros(total, 2), torch.zeros(total)
    centre, covariance = target.mean.float(), target.covariance
    for _ in range(steps):
        gradient, noise = target.evaluate(position).gradient, torch.randn(velocities.shape, generator=generator)
        position, velocities = step(position, velocities, gradient, noise, moves, kept)
        mean += (position - centre) / steps
        square += (position - centre).square().sum(-1) / steps
    mean, square = mean.reshape(-1, chains, 2).double(), square.reshape(-1, chains).double()
    draws = steps * (mean**2).mean(1).sum(-1) / covariance.trace()
    return (
        draws.numpy(),
        (square.mean(1) / covariance.trace() - 1).numpy(),
        (square.std(1) / chains**0.5 / covariance.trace()).numpy(),
    )


def mixture(quick):
    count, steps, chains, fresh = (20, 300, 20, 100) if quick else (300, 4000, 40, 4000)
    print(f"\n4. The mixture of five (section 4.2): {count} settings each, {chains} chains of {steps} steps; S from .01 to 1.5;")
    print(
        "   the best ten whose E |x - mean|^2 is within 5 % and two standard errors with 15 times the chains; the best: fresh seeds"
    )
    print(f"{'averages':>10}{'steps/draw':>12}{'+-':>7}{'error %':>9}{'+-':>6}   settings")
    for averages in (1, 2):
        settings = Settings.random(count, averages, 0.01, 1.5)
        for kept, more in ((10, 1), (1, 15)):
            draws, error, chance = explore(settings, more * chains, steps, seed=more)
            draws = np.where((np.abs(error) < 0.05 + 2 * chance) & np.isfinite(error), draws, np.inf)
            settings = settings[np.argsort(draws)[:kept]]
        (found,), (error,), (chance,) = explore(settings, fresh, steps, seed=2)
        spread = found / fresh**0.5  # of the mean of 2 fresh squares
        print(f"{averages:10d}{found:12.1f}{spread:7.1f}{100 * error:+9.1f}{100 * chance:6.1f}   {settings}", flush=True)


def ravine_distances(settings, data_sets, steps, seed):
    """Return how far the average of the last two thirds ends from the truth, (settings, data sets)."""
    generator, (x, y) = torch.Generator().manual_seed(seed), zip(*(lv.targets.ravine_data(seed=s) for s in data_sets), strict=True)
    x, y, sets = torch.stack(x).float(), torch.stack(y).float(), len(data_sets)
    target, count = lv.targets.ravine(), len(settings.size) * sets
    moves, kept = settings.tensors(sets, torch.float32)
    position, velocities = torch.randn(count, 2, generator=generator), torch.zeros(len(moves), count, 2)
    which, mean, first = torch.arange(sets).repeat(len(settings.size))[:, None], torch.zeros(count, 2), steps // 3
    for index in range(steps):
        rows = torch.randint(x.shape[1], (count, 100), generator=generator)
        batch = lv.targets.Batch((x[which, rows], y[which, rows]), x.shape[1], True)
        noise = torch.randn(velocities.shape, generator=generator)
        position, velocities = step(position, velocities, target.evaluate(position, batch).gradient, noise, moves, kept)
        if index >= first:
            mean += position / (steps - first)
    gap = torch.linalg.vector_norm(mean.double() - torch.tensor([20.0, 10.0]), dim=-1)
    return gap.nan_to_num(torch.inf).reshape(-1, sets).numpy()


def ravine(quick):
    steps, sets, fresh = (100, 2, 4) if quick else (30_000, 4, 60)
    print(
        f"\n5. The ravine (section 4.3), batches of 100 rows, {steps} steps from N(0, I): {SETTINGS} settings each on {sets} sets,"
    )
    print(f"   the best six on 16 more, the best of these on {fresh} fresh data sets; S from 1e-6 to 3e-4; found: nearer than .3")
    print(f"{'averages':>10}{'found':>8}{'of':>5}{'median distance':>17}   settings")
    for averages in (1, 2):
        settings = Settings.random(SETTINGS, averages, 1e-6, 3e-4)
        first = ravine_distances(settings, range(100, 100 + sets), steps, seed=3)
        best = settings[np.argsort(np.minimum(first, 20).mean(1))[:6]]
        second = ravine_distances(best, range(120, 136), steps, seed=4)
        chosen = best[np.argsort(-(second < 0.3).mean(1) + 1e-3 * np.minimum(second, 20).mean(1))[:1]]
        found = ravine_distances(chosen, range(2000, 2000 + fresh), steps, seed=5)[0]
        print(f"{averages:10d}{(found < 0.3).sum():8d}{fresh:5d}{np.median(found):17.2f}   {chosen}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="short runs by sampling, to see that all works")
    parser.add_argument("--tables", type=int, nargs="+", default=[1, 2, 3, 4, 5], help="which; the last takes most of the time")
    options = parser.parse_args()
    torch.set_num_threads(1)
    started = time.perf_counter()
    print(f"seed {SEED}, numpy {np.__version__}, scipy {scipy.__version__}, torch {torch.__version__}")
    check_step()
    tables = {1: known, 2: unknown, 3: preconditioned, 4: lambda: mixture(options.quick), 5: lambda: ravine(options.quick)}
    for number in options.tables:
        tables[number]()
    print(f"\n{time.perf_counter() - started:.0f} s, one thread of a shared machine")
