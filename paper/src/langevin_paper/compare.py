"""Ours beside published: means over seeds, standard errors, and whether chance explains a difference."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from langevin_paper.spec import Published

__all__ = ["LEVEL", "RULE", "Summary", "differs", "fisher", "interval", "summarise", "welch"]

LEVEL = 0.01
RULE = (
    "Welch's t-test on the two means, with both standard errors and the Welch–Satterthwaite degrees of freedom; ≠ where p < 0.01, "
    "≈ where chance explains the difference. Counts such as “3 of 5” are compared by Fisher's exact test at the same level. One "
    "comparison in a hundred is marked by chance. Without two standard errors, or away from the paper's scale, there is no mark."
)


@dataclass(frozen=True)
class Summary:
    """Mean over n runs and its standard error, None for a single run."""

    n: int
    mean: float
    error: float | None


def summarise(values: Sequence[float | None]) -> Summary | None:
    """Return mean and standard error of the values that are there; None when there are none.

    Example:
        >>> summarise([1.0, 3.0, None])
        Summary(n=2, mean=2.0, error=1.0)
    """
    finite = [float(value) for value in values if value is not None and math.isfinite(value)]
    n = len(finite)
    if n == 0:
        return None
    mean = math.fsum(finite) / n
    if n == 1:
        return Summary(1, mean, None)
    variance = math.fsum((value - mean) ** 2 for value in finite) / (n - 1)
    return Summary(n, mean, math.sqrt(variance / n))


def interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float] | None:
    """Return Student's interval of the mean; None for fewer than two values.

    Example:
        >>> low, high = interval([1.0, 2.0, 3.0])
        >>> f"{low:.2f} {high:.2f}"
        '-0.48 4.48'
    """
    summary = summarise(values)
    if summary is None or summary.error is None:
        return None
    from scipy.stats import t  # type: ignore[import-untyped] # ArviZ brings SciPy

    half = float(t.ppf((1 + level) / 2, summary.n - 1)) * summary.error
    return summary.mean - half, summary.mean + half


def welch(ours: Summary, published: Published) -> float | None:
    """Return the two-sided p-value of equal means; None where a standard error is missing or both are zero.

    Example:
        >>> p = welch(Summary(5, 94.732, 0.100), Published(94.910, 0.105, 5))
        >>> f"{p:.2f}"
        '0.25'
    """
    if ours.error is None or published.error is None or published.n < 2:
        return None
    squares = ours.error**2, published.error**2
    if sum(squares) == 0:
        return None
    from scipy.stats import t

    degrees = sum(squares) ** 2 / (squares[0] ** 2 / (ours.n - 1) + squares[1] ** 2 / (published.n - 1))
    return float(2 * t.sf(abs(ours.mean - published.mean) / math.sqrt(sum(squares)), degrees))


def fisher(ours: Summary, published: Published) -> float:
    """Return the two-sided p-value of equal shares, each the mean of n ones and zeros.

    Example:
        >>> f"{fisher(Summary(5, 0.0, 0.0), Published(1.0, None, 5)):.3f}"
        '0.008'
    """
    from scipy.stats import fisher_exact

    counts = [[round(side.mean * side.n), side.n - round(side.mean * side.n)] for side in (ours, published)]
    return float(fisher_exact(counts).pvalue)


def differs(ours: Summary, published: Published, *, is_count: bool = False) -> bool | None:
    """Whether the difference exceeds what chance explains; None where that cannot be told."""
    p = fisher(ours, published) if is_count else welch(ours, published)
    return None if p is None else p < LEVEL
