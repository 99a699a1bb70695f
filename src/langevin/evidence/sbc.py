"""Simulation-based calibration (Talts et al. 2018, arXiv 1804.06788), all replications as chains of one run."""

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
from langevin.engines import run_blocks
from langevin.evidence.ranks import uniformity
from langevin.gradients import full
from langevin.kernels import Kernel
from langevin.noise import Purpose, integers, streams
from langevin.schedules import AUTO
from langevin.targets import Batch, Evaluation, Target
from langevin.targets.base import check_target

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Calibration", "sbc", "simultaneous_band"]

Simulate = Callable[[int, int], tuple[Tensor, Sequence[Tensor]]]


@dataclass(frozen=True)
class Calibration:
    """Ranks of true values among posterior draws: uniform where the posteriors are right.

    Args:
        names: of the quantities.
        ranks: how many draws are below the truth, (replications, quantities).
        num_draws: L; a rank is one of 0 ... L.
        lost: replications whose chain went non-finite.
    """

    names: tuple[str, ...]
    ranks: NDArray[np.int64]
    num_draws: int
    lost: int

    def histogram(self, quantity: int, num_bins: int) -> NDArray[np.int64]:
        """Count the ranks of a quantity in bins of equal width."""
        return np.bincount(self.ranks[:, quantity] * num_bins // (self.num_draws + 1), minlength=num_bins)

    @property
    def p_values(self) -> NDArray[np.float64]:
        """Chi-square p-values of uniform ranks, one for each quantity."""
        bins = self.num_bins
        return uniformity(self.ranks * bins // (self.num_draws + 1), bins)

    @property
    def num_bins(self) -> int:
        """Bins of the chi-square test: the largest divisor of L + 1 up to 16, with 20 ranks in each or more."""
        most = max(2, min(16, len(self.ranks) // 20))
        return max(n for n in range(1, most + 1) if (self.num_draws + 1) % n == 0)

    @property
    def p_value(self) -> float:
        """The smallest p-value times their number (Bonferroni); 0 where chains were lost."""
        return 0.0 if self.lost else min(1.0, float(self.p_values.min()) * len(self.names))

    def plot(self, histogram: Axes, difference: Axes, quantity: int, *, confidence: float = 0.99) -> None:
        """Draw a rank histogram, and the ECDF of the ranks less that of uniform ones in its simultaneous band."""
        from scipy.stats import binom  # type: ignore[import-untyped] # a second to import

        bins, total = self.num_bins, len(self.ranks)
        counts = self.histogram(quantity, bins)
        low, high = binom.ppf([(1 - confidence) / 2, (1 + confidence) / 2], total, 1 / bins)
        histogram.axhspan(low, high, color="#D9D9D9")
        histogram.bar(np.arange(bins), counts, width=1.0, color="#0072B2", edgecolor="white")
        histogram.set_title(self.names[quantity], fontsize=8)
        points = np.arange(1, self.num_draws + 1) / (self.num_draws + 1)
        below, above = simultaneous_band(total, self.num_draws + 1, confidence)
        found = np.cumsum(np.bincount(self.ranks[:, quantity], minlength=self.num_draws + 1))[:-1] / total
        difference.fill_between(points, below - points, above - points, color="#D9D9D9", step="mid")
        difference.plot(points, found - points, color="#0072B2", linewidth=1)
        difference.axhline(0.0, color="#333333", linewidth=0.5)


def simultaneous_band(
    count: int, values: int, confidence: float, *, simulations: int = 1000, seed: int = 0
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the band in which the whole ECDF of uniform ranks lies with a given confidence (Säilynoja, Bürkner, Vehtari 2022).

    At each of the places z = 1 / values, 2 / values, ... below 1 the count of ranks is binomial; γ is the quantile, over
    simulations, of the smallest two-sided tail probability along the ECDF, and the band has tails of
    γ / 2 at each place (their section 2.2).

    Args:
        count: number of ranks.
        values: how many values a rank can have.
        confidence: of the whole band.
        simulations: for γ.
        seed: of the simulations.

    Example:
        >>> lower, upper = simultaneous_band(100, 5, 0.95)
        >>> lower, upper
        (array([0.11, 0.29, 0.49, 0.7 ]), array([0.29, 0.51, 0.71, 0.89]))
    """
    from scipy.stats import binom  # a second to import

    places = np.arange(1, values) / values
    drawn = integers(seed, streams(Purpose.DATA, range(simulations)), 3, count, (values,))[..., 0].numpy()
    counts = np.stack([np.cumsum(np.bincount(row, minlength=values))[:-1] for row in drawn])
    tails = 2 * np.minimum(binom.cdf(counts, count, places), binom.sf(counts - 1, count, places))
    gamma = np.quantile(tails.min(1), 1 - confidence)
    return binom.ppf(gamma / 2, count, places) / count, binom.ppf(1 - gamma / 2, count, places) / count


@dataclass(frozen=True, eq=False)
class _Replications(Target):
    """A target with data, with other data for every chain."""

    target: Target
    columns: tuple[Tensor, ...]

    @override
    def evaluate(self, position: Tensor, batch: Batch | None = None) -> Evaluation:
        return self.target.evaluate(position, Batch(self.columns, self.columns[0].shape[1], per_chain=True))


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
    """Draw truths from the prior, data given them, posteriors by a sampler; rank each truth among its posterior's draws.

    Where the sampler is right, and draws are far enough apart to be independent, each rank is uniform. Ranked are the elements of
    theta (or `quantities` of it) and the energy, which sees errors that no element sees (Modrák et al. 2022, arXiv 2211.02383).

    Args:
        simulate: function of (replications, seed) that returns truths (replications, dim), as the target takes them, and the data's
            columns, (replications, rows, ...) each.
        target: a target with data, such as `langevin.targets.likelihood(...)`; its prior must be that of `simulate`.
        kernel: the sampler, with a step size that is given.
        replications: how many truths; they run side by side as chains.
        num_draws: L, draws kept of each posterior.
        thin: steps between them.
        warmup: steps before the first.
        init: where chains start, (replications, dim); at zero by default.
        quantities: function of positions (chains, dim) that returns what is ranked, (chains, n).
        names: of the quantities.
        seed: of everything random.
        progress: show a bar; None shows one on a terminal only.

    Example:
        >>> from langevin import priors, targets
        >>> from langevin.noise import Purpose, normal, streams
        >>> from langevin.samplers import msgld
        >>> def simulate(replications, seed):
        ...     at = range(replications)
        ...     mean = normal(seed, streams(Purpose.INIT, at), 0, 1, dtype=torch.float64)
        ...     return mean, [mean + normal(seed, streams(Purpose.DATA, at), 0, 5, dtype=torch.float64)]
        >>> model = targets.likelihood(lambda theta, x: -0.5 * (x - theta) ** 2, prior=priors.gaussian(std=1.0))
        >>> found = sbc(simulate, model, msgld(0.1, invariant=True), replications=200, num_draws=19, warmup=50)
        >>> found.names, found.ranks.shape, found.p_value > 0.01
        (('theta[0]', 'energy'), (200, 2), True)
    """
    check_function("sbc", "simulate", simulate, "a function of (replications, seed)", 2)
    check_integer("sbc", "replications", replications, 40)
    for name, value, least in (("num_draws", num_draws, 1), ("thin", thin, 1), ("warmup", warmup, 0)):
        check_integer("sbc", name, value, least)
    if kernel.step_size == AUTO:
        raise needs("sbc", "kernel", "a step size that is a number: posteriors with different data have no step in common", AUTO)
    truth, given = simulate(replications, seed)
    columns = tuple(given)
    check_target("sbc", target, columns)
    if truth.ndim != 2 or any(len(part) != replications for part in (truth, *columns)):
        found = [tuple(part.shape) for part in (truth, *columns)]
        raise needs("sbc", "simulate", f"truths ({replications}, dim) and columns ({replications}, rows, ...)", found)
    own = _Replications(target, columns)
    start = check_position("sbc", "init", torch.zeros_like(truth) if init is None else init)
    kernel = kernel.for_run(warmup, start)
    draws, stages = (
        [],
        run_blocks(kernel, full(own), start, seed=seed, chains=range(replications), num_steps=warmup + num_draws * thin),
    )
    with tqdm(total=num_draws, desc="sbc", disable=None if progress is None else not progress) as bar:
        for trace in stages:
            first = trace.before.step + 1  # the step after which the block's first position is
            kept = [
                position for step, position in enumerate(trace.positions, first) if step > warmup and (step - warmup) % thin == 0
            ]
            draws += kept
            bar.update(len(kept))

    def ranked(position: Tensor) -> Tensor:
        values = position if quantities is None else quantities(position)
        return torch.cat([values, own.evaluate(position).energy[:, None]], -1)

    here = ranked(truth)
    ranks = torch.stack([ranked(position) < here for position in draws]).sum(0)
    count = here.shape[1] - 1
    labels = [f"{'theta' if quantities is None else 'quantity'}[{k}]" for k in range(count)] if names is None else list(names)
    if len(labels) != count:
        raise needs("sbc", "names", f"{count} names, one for each quantity", names)
    lost = int((~torch.isfinite(draws[-1]).all(-1)).sum())
    return Calibration((*labels, "energy"), ranks.numpy(), num_draws, lost)
