"""`langevin-paper check invariance`: Gandy and Scott's exact tests of invariance (arXiv 2001.06465; mcunit for R)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from tqdm.auto import tqdm

from langevin.checks import check_function, check_integer, check_number
from langevin.kernels import Kernel
from langevin.kernels.samplers import sgld
from langevin_paper.check.linear import GAUSSIANS, Inertial, Linear, adaptive, linear_samplers, published
from langevin_paper.check.ranks import rank_p_values
from langevin_paper.check.recursions import Matrix
from langevin_paper.check.report import Report, Row
from langevin_paper.check.start import advance, draw, joined, state_of
from langevin_paper.check.twins import hot, turned_round

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Decision", "check_invariance", "law_p_values", "sequential_test"]

PValues = Callable[[int, int], NDArray[np.float64]]
"""p-values of tests on fresh chains: a function of how many chains, and of the number of the first."""


class Decision(NamedTuple):
    """How a sequential test ended."""

    accepted: bool
    attempts: int
    p_value: float  # the smallest of the last attempt, times the number of p-values


def sequential_test(
    p_values: PValues, *, level: float = 1e-5, start: int = 1000, factor: int = 4, attempts: int = 7, first: int = 0
) -> Decision:
    """Test with a probability of at most `level` of refusing what is right, in most cases on `start` chains only.

    Gandy and Scott's sequential method. With k attempts, ``β = level / k`` and ``γ = β^(1/k)``: refuse when the smallest p-value
    times their number is at most β; accept when it is above ``γ + β``; else try again on fresh chains, `factor` times as many, with
    ``β / γ`` for β. What is right goes on with probability γ at most, so each attempt adds level / k at most to
    that of refusing it.

    Args:
        p_values: called with how many chains, and with the number of the first of them; returns p-values of valid tests.
        level: bound on the probability of a false refusal.
        start: chains of the first attempt.
        factor: how many times more there are in the others.
        attempts: k, at most so many.
        first: number of the first chain.

    Example:
        >>> sequential_test(lambda count, first: np.array([0.4]))
        Decision(accepted=True, attempts=1, p_value=0.4)
        >>> sequential_test(lambda count, first: np.array([0.4, 1e-9])).accepted
        False
    """
    check_function("sequential_test", "p_values", p_values, "a function of (number of chains, first chain)", 2)
    check_number("sequential_test", "level", level, "0 < level < 1", lambda v: 0 < v < 1)
    for name, value in (("start", start), ("factor", factor), ("attempts", attempts)):
        check_integer("sequential_test", name, value, 1)
    bound = level / attempts
    passes = bound ** (1 / attempts)
    smallest, count = 1.0, start
    for attempt in range(1, attempts + 1):
        found = p_values(count, first)
        first += count
        smallest = min(1.0, float(np.nan_to_num(found, nan=0.0).min() * found.size))
        if smallest <= bound:
            return Decision(False, attempt, smallest)
        if smallest > passes + bound:
            return Decision(True, attempt, smallest)
        bound, count = bound / passes, start * factor
    return Decision(True, attempts, smallest)


def law_p_values(
    case: Linear, kernel: Kernel, covariance: Matrix, num_steps: int, seed: int, count: int, first: int
) -> NDArray[np.float64]:
    """Start z = (theta, memory) with its law N(0, covariance), take steps, and test that the law is still the same.

    In coordinates in which the law is N(0, I) each element is tested by Kolmogorov and Smirnov's test. The sums of squares of all
    elements, of each, and of each normed sum of two are tested on both sides against their chi-square laws: so no second moment
    goes unseen, and every test is exact.
    """
    from scipy.stats import chi2, kstest  # type: ignore[import-untyped] # a second to import

    chains = range(first, first + count)
    state = state_of(draw(covariance, seed, chains), case.dim, case.frozen)
    end = advance(kernel, case.gradient_fn(seed, chains), state, num_steps, seed=seed, chains=chains)
    root = torch.linalg.cholesky(torch.as_tensor(covariance))
    white = torch.linalg.solve_triangular(root, joined(end, case.frozen).mT, upper=False).numpy()
    if not np.isfinite(white).all():
        return np.zeros(1)
    moments = white @ white.T
    squares = np.diag(moments)
    pairs = (0.5 * (squares[:, None] + squares) + moments)[np.triu_indices(len(white), 1)]
    sums, degrees = np.array([squares.sum(), *squares, *pairs]), np.array([white.size, *[count] * (len(squares) + len(pairs))])
    tails = 2 * np.minimum(chi2.sf(sums, degrees), chi2.cdf(sums, degrees))
    return np.array([*(kstest(row, "norm").pvalue for row in white), *tails])


def check_invariance(*, seed: int = 0, quick: bool = False, level: float = 1e-5, progress: bool | None = None) -> Report:
    """Test exactly that kernels leave the laws alone that they should.

    On Gaussians the invariant forms have the target as the law of theta at any stable step, jointly with their velocities as
    `recursions.velocity_law` says; SGLD, SGHMC and published MSGLD have the laws of their recursions. Chains start with that law,
    so it is theirs after any number of steps. On a linear regression the truth has a uniform rank among the steps of a chain that
    goes through it (`langevin_paper.check.ranks`).

    Args:
        seed: of everything random.
        quick: fewer Gaussians.
        level: bound on the probability that any sampler is refused by chance; each has its share.
        progress: show a bar; None shows one on a terminal only.
    """
    tests = list(_tests(seed, quick))
    share = level / sum(not must_fail for _, must_fail, _ in tests)
    bar = tqdm(tests, desc="invariance", disable=None if progress is None else not progress)
    rows = []
    for place, (name, must_fail, p_values) in enumerate(bar):
        done = sequential_test(p_values, level=share, first=place << 20)  # no two tests share chains
        rows.append(Row(name, {"attempts": done.attempts, "smallest p": done.p_value}, done.accepted, must_fail))
    about = f"Gandy and Scott's exact tests; a right sampler is refused with probability {level:g} at most, for all together"
    return Report("invariance", about, seed, tuple(rows), picture=partial(_draw, rows=rows))


def _tests(seed: int, quick: bool) -> Iterator[tuple[str, bool, PValues]]:
    """Yield a name, whether the sampler is broken, and its test."""

    def keeps(case: Linear, covariance: Matrix, kernel: Kernel | None = None, num_steps: int = 20) -> PValues:
        return partial(law_p_values, case, kernel or case.kernel, covariance, num_steps, seed)

    correlated = GAUSSIANS["correlation .9"]
    for where, precision in {"correlation .9": correlated}.items() if quick else GAUSSIANS.items():
        for name in ("msgld", "asgld", "adamax_sgld"):
            for share in (0.3, 0.9, 0.99):
                case = adaptive(precision, name, share=share)
                yield f"{case.name}; {where}", False, keeps(case, case.law)
        for biased in linear_samplers(precision):
            if not biased.frozen and not isinstance(biased, Inertial):
                yield f"{biased.name}, its own law; {where}", False, keeps(biased, biased.recursion.stationary())
    full_matrix = adaptive(correlated, "asgld_full", share=0.9)
    yield f"{full_matrix.name}; correlation .9", False, keeps(full_matrix, full_matrix.law, num_steps=5)
    for name in ("msgld", "asgld"):
        for share in (0.3, 0.9):
            yield (
                f"{name}, invariant, {share:g} of the limit; ranks, regression",
                False,
                partial(rank_p_values, name, share, None, seed),
            )

    case = adaptive(correlated, share=0.5)
    yield "msgld, invariant, noise 10 % too large", True, keeps(case, case.law, hot(case.kernel))
    yield "msgld, invariant, velocity of the wrong sign", True, keeps(case, case.law, turned_round(case.kernel))
    yield "msgld, invariant, noise 10 % too large; ranks", True, partial(rank_p_values, "msgld", 0.5, hot, seed)
    yield "msgld, invariant, velocity of the wrong sign; ranks", True, partial(rank_p_values, "msgld", 0.5, turned_round, seed)
    cold, target = published(correlated), np.asarray(np.linalg.inv(correlated), dtype=np.float64)
    unmoved = cold.recursion.stationary()
    unmoved[:2, :2] = target  # m as it is, theta as Theorem 3.1 says
    yield "msgld, published, against the target", True, keeps(cold, unmoved, num_steps=50)
    wide = dataclasses.replace(next(linear_samplers(correlated)), kernel=sgld(0.05))
    yield "sgld, step too large, against the target", True, keeps(wide, target, num_steps=50)


def _draw(figure: Figure, rows: list[Row]) -> None:
    """Draw the p-value with which each test ended."""
    axes = figure.subplots()
    for place, row in enumerate(rows):
        p = min(1.0, max(float(row.numbers["smallest p"]), 1e-20))
        axes.plot(p, place, "x" if row.must_fail else "o", color="#D55E00" if row.must_fail else "#0072B2")
    axes.set_xscale("log")
    axes.set_yticks(range(len(rows)), [row.name for row in rows], fontsize=5)
    axes.set_xlabel("smallest p-value of the last attempt, times their number (crosses: broken on purpose)")
