"""Simulation-based calibration (Talts et al. 2018, arXiv 1804.06788).

All replications run as chains of one run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from tqdm.auto import tqdm
from typing_extensions import override

from langevin.checks import check_function, check_integer, check_position, needs
from langevin.execution import run_blocks
from langevin.kernels import Kernel
from langevin.kernels.schedules import AUTO
from langevin.random import Purpose, integers, streams
from langevin.targets import Batch, Evaluation, Target
from langevin.targets.base import check_target
from langevin.targets.gradients import full

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Calibration", "sbc", "simultaneous_band", "uniformity"]

Simulate = Callable[[int, int], tuple[Tensor, Sequence[Tensor]]]


@dataclass(frozen=True)
class Calibration:
    """Ranks of true values among posterior draws: uniform if the posteriors are right.

    Args:
        names: of the quantities.
        ranks: the number of draws below the truth, (replications, quantities).
        num_draws: L; a rank is one of 0 ... L.
        lost: replications whose chain became non-finite.
    """

    names: tuple[str, ...]
    ranks: NDArray[np.int64]
    num_draws: int
    lost: int

    def histogram(self, quantity: int, num_bins: int) -> NDArray[np.int64]:
        """Count the ranks of a quantity in bins of equal width."""
        bins = self.ranks[:, quantity] * num_bins // (self.num_draws + 1)
        return np.bincount(bins, minlength=num_bins)

    @property
    def p_values(self) -> NDArray[np.float64]:
        """Chi-square p-values of uniform ranks, one for each quantity."""
        bins = self.num_bins
        return uniformity(self.ranks * bins // (self.num_draws + 1), bins)

    @property
    def num_bins(self) -> int:
        """Bins of the chi-square test: a divisor of L + 1 up to 16, with at least 20 ranks each."""
        most = max(2, min(16, len(self.ranks) // 20))
        return max(n for n in range(1, most + 1) if (self.num_draws + 1) % n == 0)

    @property
    def p_value(self) -> float:
        """The smallest p-value times their number (Bonferroni); 0 if chains were lost."""
        return 0.0 if self.lost else min(1.0, float(self.p_values.min()) * len(self.names))

    def plot(
        self, histogram: Axes, difference: Axes, quantity: int, *, confidence: float = 0.99
    ) -> None:
        """Draw a rank histogram, and the ECDF minus the uniform one with its simultaneous band."""
        from scipy.stats import binom  # type: ignore[import-untyped] # a second to import

        bins, total = self.num_bins, len(self.ranks)
        counts = self.histogram(quantity, bins)
        low, high = binom.ppf([(1 - confidence) / 2, (1 + confidence) / 2], total, 1 / bins)
        histogram.axhspan(low, high, color="#D9D9D9")
        histogram.bar(np.arange(bins), counts, width=1.0, color="#0072B2", edgecolor="white")
        histogram.set_title(self.names[quantity], fontsize=8)
        points = np.arange(1, self.num_draws + 1) / (self.num_draws + 1)
        below, above = simultaneous_band(total, self.num_draws + 1, confidence)
        counts = np.bincount(self.ranks[:, quantity], minlength=self.num_draws + 1)
        found = np.cumsum(counts)[:-1] / total
        difference.fill_between(points, below - points, above - points, color="#D9D9D9", step="mid")
        difference.plot(points, found - points, color="#0072B2", linewidth=1)
        difference.axhline(0.0, color="#333333", linewidth=0.5)


def simultaneous_band(
    count: int, values: int, confidence: float, *, simulations: int = 1000, seed: int = 0
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the simultaneous band of the ECDF of uniform ranks at a given confidence.

    At each of the points z = 1 / values, 2 / values, ... below 1 the count of ranks is binomial; γ
    is the quantile, over simulations, of the smallest two-sided tail probability along the ECDF,
    and the band has tails of γ / 2 at each point (Säilynoja, Bürkner, Vehtari 2022, section 2.2).

    Args:
        count: number of ranks.
        values: number of values that a rank can have.
        confidence: of the whole band.
        simulations: for γ.
        seed: of the simulations.

    Example:
        >>> lower, upper = simultaneous_band(100, 5, 0.95)
        >>> lower, upper
        (array([0.11, 0.29, 0.49, 0.7 ]), array([0.29, 0.51, 0.71, 0.89]))
    """
    from scipy.stats import binom  # a second to import

    points, at = np.arange(1, values) / values, streams(Purpose.DATA, range(simulations))
    drawn = integers(seed, at, 3, count, (values,))[..., 0].numpy()
    counts = np.stack([np.cumsum(np.bincount(row, minlength=values))[:-1] for row in drawn])
    tails = 2 * np.minimum(binom.cdf(counts, count, points), binom.sf(counts - 1, count, points))
    gamma = np.quantile(tails.min(1), 1 - confidence)
    below, above = (binom.ppf(tail, count, points) / count for tail in (gamma / 2, 1 - gamma / 2))
    return below, above


@dataclass(frozen=True, eq=False)
class _Replications(Target):
    """A target with a data set per chain."""

    target: Target
    columns: tuple[Tensor, ...]

    @override
    def evaluate(self, position: Tensor, batch: Batch | None = None) -> Evaluation:
        batch = Batch(self.columns, self.columns[0].shape[1], per_chain=True)
        return self.target.evaluate(position, batch)


def sbc(
    simulate: Simulate,
    target: Target,
    kernel: Kernel,
    *,
    replications: int = 1000,
    num_draws: int = 63,
    thin: int = 10,
    warmup: int = 200,
    init: Tensor | None = None,
    quantities: Callable[[Tensor], Tensor] | None = None,
    names: Sequence[str] | None = None,
    seed: int = 0,
    progress: bool | None = None,
) -> Calibration:
    """Rank true parameters among draws from the posteriors of simulated data.

    If the sampler is right, and draws are far enough apart to be independent, each rank is uniform.
    The quantities are the elements of theta (or `quantities` of it) and the energy, which detects
    errors that no element shows (Modrák et al. 2022, arXiv 2211.02383).

    Args:
        simulate: a function of (replications, seed) that returns true positions (replications, dim)
            and the data's columns, (replications, rows, ...) each.
        target: a target with data, such as `langevin.targets.likelihood(...)`, with the prior of
            `simulate`.
        kernel: the sampler, with a numeric step size.
        replications: number of simulations, which run as chains.
        num_draws: L, the number of draws per posterior.
        thin: steps between draws.
        warmup: steps before the first draw.
        init: initial positions, (replications, dim); zero by default.
        quantities: a function of positions (chains, dim) that returns quantities (chains, n).
        names: of the quantities.
        seed: of all random numbers.
        progress: show a progress bar; None shows one on a terminal only.

    Example:
        >>> from langevin import priors, targets
        >>> from langevin.random import Purpose, normal, streams
        >>> from langevin.kernels.samplers import msgld
        >>> def simulate(replications, seed):
        ...     at = range(replications)
        ...     mean = normal(seed, streams(Purpose.INIT, at), 0, 1, dtype=torch.float64)
        ...     noise = normal(seed, streams(Purpose.DATA, at), 0, 5, dtype=torch.float64)
        ...     return mean, [mean + noise]
        >>> prior = priors.gaussian(std=1.0)
        >>> model = targets.likelihood(lambda theta, x: -0.5 * (x - theta) ** 2, prior=prior)
        >>> settings = {"replications": 200, "num_draws": 19, "warmup": 50}
        >>> found = sbc(simulate, model, msgld(0.1, invariant=True), **settings)
        >>> found.names, found.ranks.shape, found.p_value > 0.01
        (('theta[0]', 'energy'), (200, 2), True)
    """
    check_function("sbc", "simulate", simulate, "a function of (replications, seed)", 2)
    check_integer("sbc", "replications", replications, 40)
    check_integer("sbc", "num_draws", num_draws, 1)
    check_integer("sbc", "thin", thin, 1)
    check_integer("sbc", "warmup", warmup, 0)
    if kernel.step_size == AUTO:
        what = "a step size that is a number: posteriors with different data share no step size"
        raise needs("sbc", "kernel", what, AUTO)
    truth, given = simulate(replications, seed)
    columns = tuple(given)
    check_target("sbc", target, columns)
    if truth.ndim != 2 or any(len(part) != replications for part in (truth, *columns)):
        found = [tuple(part.shape) for part in (truth, *columns)]
        what = f"truths ({replications}, dim) and columns ({replications}, rows, ...)"
        raise needs("sbc", "simulate", what, found)
    own = _Replications(target, columns)
    start = check_position("sbc", "init", torch.zeros_like(truth) if init is None else init)
    kernel = kernel.for_run(warmup, start)
    draws: list[Tensor] = []
    blocks = run_blocks(
        kernel, full(own), start,
        seed=seed, chains=range(replications), num_steps=warmup + num_draws * thin,
    )  # fmt: skip
    is_hidden = None if progress is None else not progress
    with tqdm(total=num_draws, desc="sbc", disable=is_hidden) as bar:
        for trace in blocks:
            first = trace.before.step + 1  # steps taken at the first position of the block
            kept = [
                position
                for step, position in enumerate(trace.positions, first)
                if step > warmup and (step - warmup) % thin == 0
            ]
            draws += kept
            bar.update(len(kept))

    def ranked(position: Tensor) -> Tensor:
        values = position if quantities is None else quantities(position)
        return torch.cat([values, own.evaluate(position).energy[:, None]], -1)

    here = ranked(truth)
    ranks = torch.stack([ranked(position) < here for position in draws]).sum(0)
    count = here.shape[1] - 1
    kind = "theta" if quantities is None else "quantity"
    labels = [f"{kind}[{k}]" for k in range(count)] if names is None else list(names)
    if len(labels) != count:
        raise needs("sbc", "names", f"{count} names, one for each quantity", names)
    lost = int((~torch.isfinite(draws[-1]).all(-1)).sum())
    return Calibration((*labels, "energy"), ranks.numpy(), num_draws, lost)


def uniformity(ranks: NDArray[np.int64], num_bins: int) -> NDArray[np.float64]:
    """Return the chi-square p-value of each column for uniform numbers 0 ... num_bins - 1."""
    from scipy.stats import chisquare  # a second to import

    counts = [np.bincount(column, minlength=num_bins) for column in ranks.T]
    return np.array([chisquare(column).pvalue for column in counts])
