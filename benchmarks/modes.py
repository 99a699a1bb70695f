"""The 25 modes of Zhang et al. (2020): which samplers find all of them, with the right weights and the right spread.

    python benchmarks/modes.py | tee docs/benchmarks/modes.txt

Gaussians of variance 0.03 at {-4, -2, 0, 2, 4}^2; all chains start in the middle. Each row has the same number of gradients:
32 chains (8 groups of 4 temperatures for replica exchange), 40,000 steps. Columns: modes that a chain visits (mean, and fewest);
root mean square and largest of the relative errors of the 25 weights, all chains pooled, and what chance makes of the former (from
the spread of chains); variance around the nearest mode, over the true one; seconds.
"""

from __future__ import annotations

import platform
import time
import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

import langevin as lv
from langevin.diagnostics import cooled
from langevin.targets import Batch, Evaluation, Mixture, Target

SEED, CHAINS, STEPS, VARIANCE = 0, 32, 40_000, 0.03
ENERGY_NOISE, GRADIENT_NOISE, ROWS = 2.0, 1.0, 4096
AXIS = torch.tensor([-4.0, -2.0, 0.0, 2.0, 4.0], dtype=torch.float64)
MEANS = torch.cartesian_prod(AXIS, AXIS)
UNEQUAL = 1 + 4 * (torch.arange(25) % 3 == 0).double()


@dataclass(frozen=True)
class Noisy(Target):
    """The mixture with errors that a row brings: standard normals, times `ENERGY_NOISE` and `GRADIENT_NOISE`."""

    mixture: Mixture
    needs_data = True
    has_closed_form = True

    def evaluate(self, position: Tensor, batch: Batch | None = None) -> Evaluation:
        """Return the mixture's energy, and what the rows add to it."""
        assert batch is not None
        energy, gradient = self.mixture.evaluate(position)
        level, tilt = (column.mean(1 if batch.per_chain else 0) for column in batch.columns)
        error = ENERGY_NOISE * level + GRADIENT_NOISE * (tilt * position).sum(-1)
        return Evaluation(energy + error, gradient + GRADIENT_NOISE * tilt.expand_as(gradient))


def rows() -> tuple[Tensor, Tensor]:
    """Return the data: columns of mean zero and variance one."""
    made = lv.random.normal(SEED, 1, 0, 3 * ROWS, dtype=torch.float64).reshape(ROWS, 3)
    made = (made - made.mean(0)) / made.std(0)
    return made[:, 0], made[:, 1:]


def report(name: str, draws: Tensor, mixture: Mixture, seconds: float, weights: Tensor | None = None) -> None:
    """Print a row; draws are (chain, draw, 2)."""
    weights = torch.ones_like(draws[..., 0]) if weights is None else weights
    modes = mixture.nearest_mode(draws)
    counts = torch.zeros(len(draws), 25, dtype=torch.float64).scatter_add_(1, modes, weights)
    share = counts.sum(0) / counts.sum()
    errors = share / mixture.weights - 1
    deviations = (counts - share * counts.sum(1, keepdim=True)) * len(counts) / counts.sum()
    chance = (deviations.std(0) / len(counts) ** 0.5 / mixture.weights).square().mean().sqrt()
    seen = torch.zeros(len(draws), 25).scatter_add_(1, modes, torch.ones_like(modes, dtype=torch.float32)).gt(0).sum(1)
    squares = (draws - MEANS[modes]).square().sum(-1) / 2 / VARIANCE
    spread = float((weights * squares).sum() / weights.sum())
    found = f"{float(seen.double().mean()):5.1f} {int(seen.min()):4d}"
    print(f"{name:42s} {found}  {float(errors.square().mean().sqrt()):6.3f} {float(errors.abs().max()):7.3f} {float(chance):7.3f}  "
          f"{spread:8.3f} {seconds:6.0f}", flush=True)  # fmt: skip


def case(name: str, mixture: Mixture, *, is_noisy: bool) -> None:
    """Print a table."""
    print(f"\n{name}\n{'':42s} {'modes/chain':>10s}  {'weights':>6s} {'worst':>7s} {'chance':>7s}  {'variance':>8s} {'s':>6s}")
    target = Noisy(mixture) if is_noisy else mixture
    given = {"data": rows(), "batch_size": 1, "batches": "white"} if is_noisy else {}
    settings = {"num_steps": STEPS, "seed": SEED, "compile": False, "progress": False, **given}
    init = torch.zeros(CHAINS, 2, dtype=torch.float64)
    sgld, msgld = lv.sgld(0.002), lv.msgld(0.004, bias_factor=10.0, invariant=True)

    def run(kernel, **changes):
        start = time.perf_counter()
        return lv.sample(target, sampler=kernel, init=init, **{**settings, **changes}), time.perf_counter() - start

    report("sgld", *_drawn(run(sgld, thin=20), mixture))
    csgld = run(lv.sgld(lv.schedules.cyclical(0.09, cycle_length=1000, exploration=0.5)), thin=5)
    report("cyclical step size, all draws", *_drawn(csgld, mixture))
    samples, seconds = csgld
    report("cyclical step size, cooled draws", samples.draws[:, cooled(samples).keep], mixture, seconds)
    annealing = {"cycle_length": 100, "hottest": 20.0, "hot": 0.3, "cold": 0.2}
    report("cyclical_annealing of sgld", *_drawn(run(lv.cyclical_annealing(sgld, **{**annealing, "cycle_length": 400})), mixture))
    report("cyclical_annealing of invariant msgld", *_drawn(run(lv.cyclical_annealing(msgld, **annealing)), mixture))
    noise = {"energy_noise": "auto"} if is_noisy else {}
    for inner, label in ((sgld, "sgld"), (msgld, "invariant msgld")):
        kernel = lv.replica_exchange(inner, temperatures=(1.0, 3.0, 10.0, 30.0), swap_every=5, **noise)
        report(f"replica_exchange of {label}", *_drawn(run(kernel, warmup=1000, thin=5), mixture))
    if is_noisy:
        kernel = lv.replica_exchange(sgld, temperatures=(1.0, 3.0, 10.0, 30.0), swap_every=5, energy_noise=0.0)
        report("  the same of sgld, noise not corrected", *_drawn(run(kernel, warmup=1000, thin=5), mixture))
    start = time.perf_counter()
    learn = {"data": given["data"], "batch_size": 1} if is_noisy else {}
    low = float(mixture.evaluate(MEANS).energy.min())
    kernel = lv.learn_contour(sgld, target, init, energies=(low, low + 22.0), num_steps=STEPS // 4, bins=40, seed=SEED + 1, **learn)
    samples, _ = run(kernel, num_steps=STEPS - STEPS // 4, thin=20)
    seen = (ENERGY_NOISE**2 + GRADIENT_NOISE**2 * 16) ** 0.5 if is_noisy else 0.0  # |theta|^2 is about 16
    weights = lv.contour_weights(kernel, samples, energy_noise=seen)
    report("contour of sgld, weighted", samples.draws, mixture, time.perf_counter() - start, weights)


def _drawn(run, mixture):
    samples, seconds = run
    return samples.draws, mixture, seconds


def main() -> None:
    """Print all tables."""
    warnings.simplefilter("ignore", lv.TrustWarning)  # that plain chains do not mix is the point
    print(f"seed {SEED}, langevin {lv.__version__}, torch {torch.__version__}, Python {platform.python_version()}, {CHAINS} chains")
    std = VARIANCE**0.5
    case("1. Equal weights, exact energies and gradients", lv.targets.mixture(MEANS, std=std), is_noisy=False)
    case("2. Weights 5 : 1 : 1, exact", lv.targets.mixture(MEANS, std=std, weights=UNEQUAL), is_noisy=False)
    title = (
        f"3. Weights 5 : 1 : 1, noise of standard deviation {ENERGY_NOISE:g} (and theta . gradient's) in energies, "
        f"{GRADIENT_NOISE:g} in gradients"
    )
    case(title, lv.targets.mixture(MEANS, std=std, weights=UNEQUAL), is_noisy=True)


if __name__ == "__main__":
    main()
