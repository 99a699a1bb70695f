"""`langevin-paper check law`: exact laws against runs, on Gaussians by equations and off them by quadrature."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from tqdm.auto import tqdm
from typing_extensions import override

from langevin.adaptation.stationary import stationary_error
from langevin.kernels import Kernel
from langevin.kernels.samplers import SAMPLERS, msgld, sghmc, sgld
from langevin.random import Purpose, normal, streams
from langevin.targets import Batch, Evaluation, Target
from langevin.targets.gradients import full
from langevin_paper.check.linear import GAUSSIANS, UNKNOWN, Linear, adaptive, corrected, linear_samplers, published
from langevin_paper.check.recursions import Matrix
from langevin_paper.check.report import Report, Row
from langevin_paper.check.start import advance, state_of
from langevin_paper.check.twins import hot, turned_round

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["check_law", "gaussian_scores", "smooth_scores"]

LEFT = 1e-5  # share of the start that a run may still remember of its variance
AGREE = 1e-7  # relative difference allowed between two exact laws


class Scores(NamedTuple):
    """Deviations of a run from an exact law, in standard errors, and what describes the run."""

    z: Matrix
    steps: int
    error: float  # of the variance, relative, where it is largest


def uncorrected(kernel: Any) -> Kernel:
    """Return a sampler without its correction for gradient noise."""
    return dataclasses.replace(kernel, gradient_noise=None)


def check_law(*, seed: int = 0, quick: bool = False, level: float = 1e-4, progress: bool | None = None) -> Report:
    """Compare exact laws with runs.

    On Gaussians the equations of each sampler are a linear recursion, whose stationary covariance solves a Lyapunov equation
    (`langevin_paper.check.recursions`). Chains start at zero and run until they have forgotten it; means and covariances over the
    chains are normal around the exact ones, with known standard errors. Off Gaussians small steps have the target as their law,
    whose moments come from quadrature. The law that `tuning` reads off the code must be that of the equations.

    Args:
        seed: of everything random.
        quick: a quarter of the chains.
        level: probability that any sampler is refused by chance, by Bonferroni's bound.
        progress: show a bar; None shows one on a terminal only.
    """
    from scipy.stats import norm  # type: ignore[import-untyped] # a second to import

    num_chains = 5_000 if quick else 20_000
    runs = list(_runs(num_chains, seed))
    bar = tqdm(runs, desc="law", disable=None if progress is None else not progress)
    found = [(name, must_fail, run()) for name, must_fail, run in bar]
    limit = float(norm.isf(level / 2 / sum(scores.z.size for _, _, scores in found)))
    rows = [_row(name, must_fail, scores, limit) for name, must_fail, scores in found]
    scores = {name: scores.z for name, must_fail, scores in found if not must_fail}
    left = [name for name in SAMPLERS if not any(row.name.startswith((f"{name};", f"{name},")) for row in rows)]
    notes = tuple(f"left out: {name}, {UNKNOWN.get(name, 'of which no exact law is written down here')}" for name in left)
    about = f"exact laws against runs of {num_chains} chains; refused where |z| > {limit:.3g} (level {level:g} for all samplers)"
    return Report("law", about, seed, (*rows, *_formulas()), notes, lambda figure: _draw(figure, scores, limit))


def _row(name: str, must_fail: bool, scores: Scores, limit: float) -> Row:
    largest = float(np.abs(scores.z).max())
    numbers = {"steps": scores.steps, "tests": scores.z.size, "max |z|": largest, "error of variance": scores.error}
    return Row(name, numbers, bool(largest <= limit), must_fail)  # what is not a number is refused


def _runs(num_chains: int, seed: int) -> Iterator[tuple[str, bool, Callable[[], Scores]]]:
    """Yield a name, whether the sampler is broken, and the run."""

    def linear(case: Linear, kernel: Kernel | None = None, count: int = num_chains) -> Callable[[], Scores]:
        return partial(gaussian_scores, case, kernel or case.kernel, seed, range(count))

    for where, precision in GAUSSIANS.items():
        for case in linear_samplers(precision):
            yield f"{case.name}; {where}", False, linear(case)
    correlated = GAUSSIANS["correlation .9"]
    full_matrix = adaptive(correlated, "asgld_full", share=0.5)
    yield f"{full_matrix.name}; correlation .9", False, linear(full_matrix, count=num_chains // 4)  # eigenvalues at each step
    for where, target in SMOOTH.items():
        for name, (kernel, steps) in _small_steps().items():
            yield f"{name}; {where}", False, partial(smooth_scores, kernel, target, steps, seed, num_chains)

    inertial, cold = adaptive(correlated, share=0.5), published(correlated)
    plain = next(linear_samplers(correlated))
    yield "sgld, noise 10 % too large", True, linear(plain, hot(plain.kernel))
    yield "sgld, step 1.5 times too large", True, linear(plain, plain.kernel.with_step_size(1.5 * plain.kernel.step_size(0)))
    yield "msgld, invariant, noise 10 % too large", True, linear(inertial, hot(inertial.kernel))
    yield "msgld, invariant, velocity of the wrong sign", True, linear(inertial, turned_round(inertial.kernel))
    yield "msgld, published, momentum of the wrong sign", True, linear(cold, turned_round(cold.kernel))
    absorbing = corrected(correlated)
    yield "msgld, corrected, without its correction", True, linear(absorbing, uncorrected(absorbing.kernel))
    claimed = dataclasses.replace(cold, recursion=inertial.recursion)  # the target, as Theorem 3.1 says
    yield "msgld, published, against the target", True, linear(claimed)
    yield "msgld, published; exp(x) - x", True, partial(smooth_scores, msgld(0.01), SMOOTH["exp(x) - x"], 200, seed, num_chains)


def gaussian_scores(case: Linear, kernel: Kernel, seed: int, chains: range) -> Scores:
    """Run chains of a kernel from zero and compare means and covariances of theta with the law of the case.

    Along the axes of the exact covariance, in units of its standard deviations, n chains have means of standard error ``n^(-1/2)``,
    second moments of ``(2 / n)^(1/2)`` and mixed ones of ``n^(-1/2)``: so no direction hides behind a wider one.
    """
    exact, steps = case.recursion.stationary()[: case.dim, : case.dim], case.recursion.steps_to_forget(LEFT)
    order = 1 + len(case.kernel.state_names) - len(case.frozen)
    zero = torch.zeros(len(chains), order * case.dim, dtype=torch.float64)
    end = advance(kernel, case.gradient_fn(seed, chains), state_of(zero, case.dim, case.frozen), steps, seed=seed, chains=chains)
    widths, axes = np.linalg.eigh(exact)
    y = end.position.numpy() @ axes / np.sqrt(widths)
    excess = y.T @ y / len(y) - np.eye(case.dim)
    errors = np.sqrt((1 + np.eye(case.dim)) / len(y))
    z = np.concatenate([y.mean(0) * len(y) ** 0.5, (excess / errors)[np.triu_indices(case.dim)]])
    return Scores(z, steps, float(max(np.diag(excess), key=abs)))


@dataclass(frozen=True)
class Smooth(Target):
    """An energy in one dimension whose law is known by quadrature."""

    function: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor], Tensor]
    low: float  # where the density begins and ends, for the quadrature
    high: float

    has_closed_form = True

    @override
    def evaluate(self, position: Tensor, batch: Batch | None = None) -> Evaluation:
        return Evaluation(self.function(position)[:, 0], self.slope(position))


SMOOTH = {
    "exp(x) - x": Smooth(lambda x: x.exp() - x, lambda x: x.exp() - 1, -30.0, 4.5),
    "log cosh 3x + x²/4": Smooth(
        lambda x: torch.logaddexp(3 * x, -3 * x) + x * x / 4, lambda x: 3 * torch.tanh(3 * x) + x / 2, -15.0, 15.0
    ),
}


def _small_steps() -> dict[str, tuple[Kernel, int]]:
    """Samplers whose law for small steps is the target; steps so small that chance hides the rest of the error, and how many.

    In the time of so many steps the slowest of the targets' relaxations, of rate about 1, has mostly passed; a velocity starts at
    zero and has a few of its own lives.
    """
    return {
        "sgld, small steps": (sgld(5e-4), 3_000),
        "sghmc, small steps": (sghmc(1e-4, beta=0.99), 800),
        "msgld, invariant, small steps": (msgld(0.01, bias_factor=1.0, invariant=True), 200),
    }


def smooth_scores(kernel: Kernel, target: Smooth, steps: int, seed: int, num_chains: int) -> Scores:
    """Start chains at exact draws, run them, and compare E x and E x^2 with quadrature."""
    from scipy.special import ndtr  # type: ignore[import-untyped]

    grid = torch.linspace(target.low, target.high, 200_001, dtype=torch.float64)[:, None]
    weights = (-target.evaluate(grid).energy).exp().numpy()
    weights /= weights.sum()
    chains, x = range(num_chains), grid[:, 0].numpy()
    uniform = ndtr(normal(seed, streams(Purpose.INIT, chains), 0, 1, dtype=torch.float64).numpy())
    start = torch.as_tensor(np.interp(uniform, np.cumsum(weights), x))
    state = state_of(torch.cat([start, *(torch.zeros_like(start) for _ in kernel.state_names)], -1), 1)
    end = advance(kernel, full(target), state, steps, seed=seed, chains=chains).position.numpy()[:, 0]
    moment = {power: float((x**power * weights).sum()) for power in (1, 2, 4)}
    spread = {power: moment[2 * power] - moment[power] ** 2 for power in (1, 2)}
    z = np.array([((end**p).mean() - moment[p]) / math.sqrt(spread[p] / num_chains) for p in (1, 2)])
    return Scores(z, steps, float(end.var() / spread[1] - 1))


def _formulas() -> list[Row]:
    """Compare the law that `langevin.adaptation` reads off the code of a kernel with its equations, along single directions."""
    errors: dict[str, list[float]] = {}
    for curvature in (0.3, 1.0, 10.0):
        for case in linear_samplers(np.array([[curvature]])):
            eps, tau = case.kernel.step_size(0), case.kernel.effective_temperature
            if case.frozen or tau is None or not case.kernel.traits.elementwise:
                continue
            read = (1 + stationary_error(case.kernel, eps, curvature=curvature, noise=case.gradient_noise**2)) * tau / curvature
            errors.setdefault(case.name, []).append(read / float(case.recursion.stationary()[0, 0]) - 1)
    rows = []
    for name, found in errors.items():
        largest = max(found, key=abs)
        numbers: dict[str, float | int | str] = {"steps": "-", "tests": len(found), "max |z|": "-", "error of variance": largest}
        rows.append(Row(f"{name}; law read off the code", numbers, abs(largest) < AGREE))
    return rows


def _draw(figure: Figure, scores: dict[str, Matrix], limit: float) -> None:
    """Draw the deviations of every accepted sampler, and the limit."""
    axes = figure.subplots()
    for place, z in enumerate(scores.values()):
        axes.plot(z, np.full(z.size, place), "o", color="#0072B2", alpha=0.5, markersize=4)
    for bound in (-limit, limit):
        axes.axvline(bound, color="#D55E00", linewidth=1)
    axes.set_yticks(range(len(scores)), list(scores), fontsize=5)
    axes.set_xlabel("deviation from the exact law, in standard errors")
