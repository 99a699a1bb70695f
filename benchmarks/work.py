"""What the work over a step says of the error of the law, off Gaussians: the numbers behind `langevin.adaptation.work`.

    python benchmarks/work.py | tee docs/benchmarks/work.txt

For each energy in one dimension, in its own scale, and each size 2 ε + h^2 of the step of the invariant MSGLD (the limit on a
Gaussian is 4): the relative error of the variance against quadrature with its standard error over chains, that of the
configurational temperature, and E[min(R^2, 1)] of the trapezoid residual R. `sample` asks for 0.01.
"""

from __future__ import annotations

import time

import torch

import langevin as lv
from langevin.adaptation import sampler_at
from langevin.adaptation.work import begun, mean_work
from langevin.execution import run_blocks
from langevin.kernels import Scaled
from langevin.random import Purpose, normal, stream
from langevin.targets.gradients import full
from langevin.targets.metric import Diagonal

CHAINS, WARMUP, STEPS, SEED = 4000, 250, 1500, 0
SIZES = (2.0, 1.0, 0.5, 0.25, 0.1)
ENERGIES = {
    "exp(x) - x": lambda x: x.exp() - x,
    "exp(x) - x / 2": lambda x: x.exp() - x / 2,
    "exp(x) - 5 x": lambda x: x.exp() - 5 * x,
    "log cosh 3x + x^2 / 4": lambda x: torch.nn.functional.softplus(6 * x) - 3 * x + x * x / 4,
    "sqrt(x^2 + .01)": lambda x: (x * x + 0.01) ** 0.5,
    "Student's t, 5": lambda x: 3 * torch.log1p(x * x / 5),
    "logistic": lambda x: 2 * torch.nn.functional.softplus(x) - x,
    "x^4 / 4": lambda x: x**4 / 4,
}


def main():
    torch.set_num_threads(1)
    print(f"{CHAINS} chains, {STEPS} steps after {WARMUP}, seed {SEED}, torch {torch.__version__}; errors in percent")
    print(f"{'energy':24s}{'size':>6s}{'variance':>27s}{'temperature':>13s}{'work':>10s}")
    begin = time.perf_counter()
    for name, energy in ENERGIES.items():
        mean, variance, squares, starts = truth(energy)
        target = lv.targets.energy(lambda theta, energy=energy: energy(theta).sum())
        scale = Diagonal(torch.tensor([(variance / squares) ** 0.25], dtype=torch.float64))
        for size in SIZES:
            print(f"{name:24s}{size:6.2f}{row(target, Scaled.of(sampler_at(size), scale), starts, mean, variance)}", flush=True)
    print(f"{time.perf_counter() - begin:.0f} seconds")


def truth(energy):
    """Return mean, variance and mean squared gradient by quadrature, and exact draws."""
    grid = torch.linspace(-60, 60, 1_200_001, dtype=torch.float64).requires_grad_()
    values = energy(grid)
    (slopes,) = torch.autograd.grad(values.sum(), grid)
    grid, slopes = grid.detach(), slopes.nan_to_num(0.0, 0.0, 0.0)
    weights = (-values.detach().nan_to_num(torch.inf)).exp()
    weights = weights / weights.sum()
    mean = float((weights * grid).sum())
    uniform = torch.special.ndtr(normal(SEED, stream(Purpose.DATA), 0, CHAINS, dtype=torch.float64))
    starts = grid[torch.searchsorted(weights.cumsum(0), uniform).clamp(max=len(grid) - 1)]
    slopes = torch.where(weights > 0, slopes, 0.0)
    return mean, float((weights * (grid - mean) ** 2).sum()), float((weights * slopes**2).sum()), starts[:, None]


def row(target, kernel, starts, mean, variance):
    traces = run_blocks(kernel, full(target), starts, seed=SEED, chains=range(CHAINS), num_steps=WARMUP + STEPS)
    spreads, temperatures, work = [], [], []
    for trace in list(traces)[1:]:
        gaps = begun(trace)[..., 0] - mean
        spreads.append((gaps**2).mean(0) / variance)
        temperatures.append(float((gaps * trace.gradients[..., 0]).mean()))
        work.append(mean_work([trace], 1.0))
    dead = int((~torch.isfinite(trace.state.position)).sum())
    if dead:
        return f"{dead:10d} chains died"
    spread = torch.stack(spreads).mean(0) - 1
    error, chance = 100 * float(spread.mean()), 100 * float(spread.std()) / CHAINS**0.5
    return f"{error:+16.1f} ± {chance:8.1f}{100 * (sum(temperatures) / len(temperatures) - 1):+12.1f}{sum(work) / len(work):11.2g}"


if __name__ == "__main__":
    main()
