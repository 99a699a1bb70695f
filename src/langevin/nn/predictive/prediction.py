"""Predictions, and credible intervals as quantiles of the mixture of the draws' distributions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from langevin.checks import check_number, needs
from langevin.targets.likelihoods import Likelihood

__all__ = ["Prediction", "check_levels", "quantile"]

_NUMBERS_AT_ONCE = 2**20
_DOUBLINGS = 200  # of the bracket, before a quantile counts as infinite
_RESOLUTION = 1e-8  # of a quantile, relative to its initial bracket


@dataclass(frozen=True, repr=False, eq=False)
class Prediction:
    """The predictive distribution of the targets y of n rows; `predict` returns it.

    It is the mixture, in equal parts, of the draws' distributions of y.

    Of **classes**: `probabilities`, `labels`, and the entropy of y in nats, each (n,): `total` =
    `aleatoric` (the mean entropy of the draws) + `epistemic` (the mutual information of y and the
    draw: how much draws disagree). Several questions per row are summed, as if independent.

    Of **numbers**: `mean`, `std`, and the variance of y, each in the shape of y: `variance` =
    `aleatoric` (the mean of the draws' variances) + `epistemic` (the variance of the draws' means).

    Args:
        likelihood: of y given outputs.
        num_draws: number of draws.
        mean: of y, (n, ...); for classes, the average probabilities.
        aleatoric: see above; None if the likelihood has no noise model.
        epistemic: see above.
        levels: of the intervals.
        lower: the lower ends of the intervals, in the shape of y, or (levels, *shape of y) if
            several levels were requested.
        upper: the upper ends.
        outputs: the model's outputs for each draw, (draws, n, ...), after `transform`, with
            ``per_draw=True``.
        y: the targets, if given.
        log_density: the log of the average over draws of ``p(y_i | draw)``, (n,), if y was given.
        warnings: reasons not to trust the prediction.

    Example:
        >>> import langevin as lv
        >>> draws, x = torch.tensor([[1.0], [3.0]]), torch.tensor([[1.0], [2.0]])
        >>> model, gaussian = torch.nn.Linear(1, 1, bias=False), lv.likelihoods.gaussian(std=0.5)
        >>> lv.predict(model, draws, x, likelihood=gaussian).mean
        tensor([[2.],
                [4.]])
    """

    likelihood: Likelihood
    num_draws: int
    mean: Tensor
    aleatoric: Tensor | None
    epistemic: Tensor
    levels: tuple[float, ...] = ()
    lower: Tensor | None = None
    upper: Tensor | None = None
    outputs: Tensor | None = None
    y: Tensor | None = None
    log_density: Tensor | None = None
    warnings: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.mean)

    @property
    def is_of_classes(self) -> bool:
        """Whether y are classes, not numbers."""
        return self.likelihood.predicts == "classes"

    @property
    def probabilities(self) -> Tensor:
        """The average probabilities: (n, classes), or of ones, in the shape of y."""
        self._check("probabilities", of_classes=True)
        return self.mean

    @property
    def labels(self) -> Tensor:
        """The most probable classes, (n,), or zeros and ones in the shape of y."""
        self._check("labels", of_classes=True)
        return self.likelihood.labels(self.mean)

    @property
    def variance(self) -> Tensor | None:
        """The variance of y; None if the likelihood has no noise model."""
        self._check("variance", of_classes=False)
        return None if self.aleatoric is None else self.aleatoric + self.epistemic

    @property
    def std(self) -> Tensor | None:
        """The standard deviation of y; None if the likelihood has no noise model."""
        variance = self.variance
        return None if variance is None else variance.sqrt()

    @property
    def total(self) -> Tensor | None:
        """All uncertainty of y: the entropy of the average probabilities, or the variance."""
        return self.likelihood.entropy(self.mean) if self.is_of_classes else self.variance

    @property
    def intervals(self) -> Iterator[tuple[float, Tensor, Tensor]]:
        """Level, lower and upper ends of each interval."""
        if self.lower is None or self.upper is None:
            return iter(())
        shape = (-1, *self.mean.shape)
        return zip(self.levels, self.lower.reshape(shape), self.upper.reshape(shape), strict=True)

    @property
    def draws_mean(self) -> Tensor:
        """The expectation of y under each draw, (draws, n, ...), with ``per_draw=True``."""
        if self.outputs is None:
            condition = "predict(..., per_draw=True)"
            raise needs("Prediction", "draws_mean", condition, None, AttributeError)
        return self.likelihood.mean(self.outputs.flatten(0, 1)).unflatten(0, self.outputs.shape[:2])

    def __repr__(self) -> str:
        """Summarise the prediction and its warnings in a few lines."""
        shape = f" x {tuple(self.mean.shape[1:])}" if self.mean.ndim > 1 else ""
        what = "entropy" if self.is_of_classes else "variance"
        parts = self.total, self.aleatoric, self.epistemic
        total, aleatoric, epistemic = (
            None if part is None else f"{float(part.double().mean()):.4g}" for part in parts
        )
        summary = f"  mean epistemic {what} {epistemic}"
        if total and aleatoric:
            noise = f"total {total} = aleatoric {aleatoric}"
            summary = f"  mean {what}: {noise} + epistemic {epistemic}"
        lines = [
            f"Prediction of {len(self)} rows{shape} by {self.num_draws} draws, {self.likelihood}",
            summary,
        ]
        if self.levels:
            lines.append(
                f"  intervals of {', '.join(f'{100 * level:g} %' for level in self.levels)}"
            )
        return "\n".join([*lines, *(f"! {reason}" for reason in self.warnings)])

    def _check(self, name: str, *, of_classes: bool) -> None:
        if self.is_of_classes != of_classes:
            what = "classes" if of_classes else "numbers"
            raise AttributeError(
                f"prediction.{name} needs a likelihood of {what}, got {self.likelihood}"
            )


def check_levels(
    who: str, interval: float | Sequence[float] | None, likelihood: Likelihood
) -> tuple[float, ...]:
    """Return the levels of the requested intervals."""
    if interval is None:
        return ()
    if likelihood.predicts == "classes":
        raise needs(who, "interval", "None for classes, which have probabilities", interval)
    several = isinstance(interval, Sequence) and not isinstance(interval, str)
    levels = list(interval) if several else [interval]  # type: ignore[arg-type]
    if not levels:
        raise needs(who, "interval", "at least one level", interval)
    return tuple(
        check_number(who, "interval", level, "0 < interval < 1", lambda value: 0 < value < 1)
        for level in levels
    )


def quantile(who: str, likelihood: Likelihood, outputs: Tensor, probability: float) -> Tensor:
    """Return the smallest value with ``mean over draws of P(y <= value) >= probability``.

    Args:
        who: the caller, for errors.
        likelihood: of y given outputs, with a distribution function.
        outputs: of all draws, (draws, n, ...).
        probability: in (0, 1).

    Returns:
        Quantiles (n, ...) in float64, exact to eight digits of the width of the mixture; whole
        numbers for counts.

    Example:
        >>> from langevin.targets.likelihoods import gaussian
        >>> quantile("predict", gaussian(std=1.0), torch.tensor([[-3.0], [3.0]]), 0.75)
        tensor([3.0000], dtype=torch.float64)
    """
    rows = max(1, _NUMBERS_AT_ONCE // max(1, outputs[:, :1].numel()))
    parts = outputs.split(rows, 1)
    return torch.cat([_quantile(who, likelihood, part.double(), probability) for part in parts])


def _quantile(who: str, likelihood: Likelihood, outputs: Tensor, probability: float) -> Tensor:
    """Bracket and bisect the distribution function of the mixture."""
    flat, shape = outputs.flatten(0, 1), outputs.shape[:2]

    def reaches(value: Tensor) -> Tensor:
        """Return where the mixture's distribution function is at least `probability`."""
        below = likelihood.cdf(flat, value.expand(len(outputs), *value.shape).flatten(0, 1))
        if below is None:
            condition = "a likelihood with a distribution function (cdf)"
            raise needs(who, "interval", condition, likelihood)
        return below.unflatten(0, shape).mean(0) >= probability

    is_discrete = likelihood.is_discrete
    means, variance = likelihood.mean(flat).unflatten(0, shape), likelihood.variance(flat)
    low, high = means.amin(0), means.amax(0)
    known = torch.isfinite(low) & torch.isfinite(high)
    low, high = low.where(known, 0.0), high.where(known, 0.0)
    unit = high - low + 1.0
    if variance is not None:
        scale = variance.unflatten(0, shape).amax(0).sqrt()
        unit = high - low + scale.where(torch.isfinite(scale) & (scale > 0), 1.0)
    if is_discrete:
        low, high, unit = low.floor(), high.ceil(), unit.ceil()
    step = unit
    for _ in range(_DOUBLINGS):  # until low is below the quantile and high is not
        is_high, is_low = known & reaches(low), known & ~reaches(high)
        if not (is_high | is_low).any():
            break
        low, high = torch.where(is_high, low - step, low), torch.where(is_low, high + step, high)
        step = 2 * step
    resolution = torch.ones_like(unit) if is_discrete else _RESOLUTION * unit
    while (wide := known & (high - low > resolution)).any():
        middle = (low + high) / 2
        middle = middle.floor() if is_discrete else middle
        if not (wide & (low < middle) & (middle < high)).any():  # adjacent floats
            break
        reached = reaches(middle)
        low, high = torch.where(reached, low, middle), torch.where(reached, middle, high)
    return high.where(known, torch.nan)
