"""Metrics of predictions, by torchmetrics where it has them (``pip install langevin[metrics]``)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from types import ModuleType

import torch
from torch import Tensor

from langevin.checks import check_integer, import_extra, needs
from langevin.nn.predictive.prediction import Prediction

__all__ = ["Metrics", "check_targets", "metrics", "ood_auroc", "uncertainty"]

_SCORES = ("epistemic", "total", "max_probability")


@dataclass(frozen=True)
class Metrics:
    """The result of `metrics`; None for metrics of another kind of y.

    Args:
        rows: number of rows.
        accuracy: share of correct labels, for classes.
        nll: mean over rows of ``-log`` of the average probability of y, for classes; several
            questions per row are summed, as if independent.
        brier: mean over rows of the squared distance between probabilities and y (one-hot), summed
            over classes; for zeros and ones the mean of ``(p - y)^2``.
        ece: expected calibration error, by torchmetrics: the mean of ``|accuracy - confidence|``
            over `bins` bins of equal width of the labels' confidence (of the probability of a one,
            for zeros and ones); exactly 1 has a separate bin.
        bins: of the ece.
        rmse: root mean squared error of the mean, for numbers.
        nll_mixture: mean over rows of ``-log_density``, the density of y under the mixture of all
            draws; None unless y was given to `predict`.
        nll_gaussian: the same under one Gaussian with the predicted mean and std, as in most
            published tables.
        coverage: share of y within the interval, by level.
    """

    rows: int
    accuracy: float | None = None
    nll: float | None = None
    brier: float | None = None
    ece: float | None = None
    bins: int | None = None
    rmse: float | None = None
    nll_mixture: float | None = None
    nll_gaussian: float | None = None
    coverage: dict[float, float] = field(default_factory=dict)

    def __str__(self) -> str:
        """Return a line for each number."""
        named = {
            "accuracy": None if self.accuracy is None else f"{100 * self.accuracy:.2f} %",
            "NLL": self.nll,
            "Brier": self.brier,
            f"ECE, {self.bins} bins": self.ece,
            "RMSE": self.rmse,
            "NLL, mixture": self.nll_mixture,
            "NLL, Gaussian": self.nll_gaussian,
        }
        for level, share in self.coverage.items():
            named[f"within {100 * level:g} %"] = f"{100 * share:.2f} %"
        found = {
            name: f"{value:.4f}" if isinstance(value, float) else value
            for name, value in named.items()
            if value is not None
        }
        width = max(map(len, found))
        lines = [f"  {name:<{width}}  {value}" for name, value in found.items()]
        return "\n".join([f"{self.rows} rows", *lines])


def metrics(prediction: Prediction, y: Tensor | None = None, *, bins: int = 15) -> Metrics:
    """Compare predictions with targets.

    Args:
        prediction: the result of `predict`.
        y: the targets, as the likelihood takes them; by default those given to `predict`.
        bins: of the expected calibration error.

    Returns:
        For classes accuracy, NLL, Brier score and ECE; for numbers RMSE, two kinds of NLL and the
        coverage of the intervals.

    Example:
        >>> import langevin as lv
        >>> model = torch.nn.Linear(2, 2)
        >>> found = lv.predict(None, [model], torch.eye(2), likelihood="categorical")
        >>> lv.metrics(found, found.labels).accuracy
        1.0
    """
    bins = check_integer("metrics", "bins", bins, 1)
    y = check_targets("metrics", prediction, y)
    is_known = prediction.y is not None and torch.equal(y, prediction.y.to(y.device))
    density = prediction.log_density if is_known else None
    if prediction.is_of_classes:
        return _of_classes(prediction, y, density, bins)
    return _of_numbers(prediction, y, density)


def ood_auroc(
    prediction_in: Prediction, prediction_out: Prediction, score: str = "epistemic"
) -> float:
    """Return the area under the ROC curve of a score as a detector of rows from other data.

    It is the probability that a row of `prediction_out` has the larger score, ties counted half, by
    torchmetrics.

    Args:
        prediction_in: of data of the kind that the model was fitted to.
        prediction_out: of other data, which should have larger scores.
        score: "epistemic", "total", or "max_probability" (one minus the largest probability;
            classes only).

    Example:
        >>> import langevin as lv
        >>> ensemble = [torch.nn.Linear(2, 1) for _ in range(5)]
        >>> gaussian = lv.likelihoods.gaussian(std=0.1)
        >>> near = lv.predict(None, ensemble, torch.eye(2), likelihood=gaussian)
        >>> far = lv.predict(None, ensemble, 1e3 * torch.eye(2), likelihood=gaussian)
        >>> lv.ood_auroc(near, far)
        1.0
    """
    scores = [uncertainty("ood_auroc", part, score) for part in (prediction_in, prediction_out)]
    # torchmetrics takes a sigmoid of values outside [0, 1], and loses digits
    _, ranks = torch.cat(scores).unique(return_inverse=True)
    is_out = torch.cat([torch.full((len(part),), k) for k, part in enumerate(scores)])
    by = _torchmetrics("ood_auroc")
    return float(by.binary_auroc(ranks.double() / max(int(ranks.max()), 1), is_out))


def check_targets(who: str, prediction: Prediction, y: Tensor | None) -> Tensor:
    """Return the targets, by default those given to `predict`, or fail if they do not fit."""
    _check_prediction(who, prediction)
    y = prediction.y if y is None else y
    if not isinstance(y, Tensor):
        raise needs(who, "y", "a tensor of targets", y, TypeError)
    shape = tuple(prediction.mean.shape)
    if prediction.is_of_classes:
        prediction.likelihood.check(prediction.mean, y)  # outputs have the shape of the mean
    elif y.shape != shape:
        raise needs(who, "y", f"the shape of the mean, {shape}", tuple(y.shape))
    elif not torch.isfinite(y).all():
        raise needs(who, "y", "finite targets", y[~torch.isfinite(y)][0].item())
    return y.to(prediction.mean.device)


def _check_prediction(who: str, prediction: object) -> None:
    if not isinstance(prediction, Prediction):
        raise needs(who, "prediction", "a Prediction, made by predict", prediction, TypeError)


def _of_classes(
    prediction: Prediction, y: Tensor, log_density: Tensor | None, bins: int
) -> Metrics:
    by = _torchmetrics("metrics")
    # torchmetrics would take values above 1 for logits
    p = prediction.probabilities.double().clamp(0.0, 1.0)
    if y.shape == p.shape:  # zeros and ones
        own = torch.where(y.bool(), p, 1 - p).log().reshape(len(p), -1).sum(-1)
        brier = (p - y).square().reshape(len(p), -1).mean(-1)
        accuracy = by.binary_accuracy(prediction.labels.flatten(), y.long().flatten())
        ece = by.binary_calibration_error(p.flatten(), y.long().flatten(), n_bins=bins)
    else:
        own = p.gather(1, y[:, None])[:, 0].log()
        brier = (p - torch.nn.functional.one_hot(y, p.shape[1])).square().sum(-1)
        accuracy = by.multiclass_accuracy(prediction.labels, y, p.shape[1], average="micro")
        ece = by.multiclass_calibration_error(p, y, p.shape[1], n_bins=bins)
    # The same number, without underflow. (Several questions of a row are not independent in the
    # mixture.)
    if log_density is not None and (y.shape != p.shape or p.numel() <= len(p)):
        own = log_density.double()
    nll = -float(own.mean())
    return Metrics(len(p), float(accuracy), nll, float(brier.mean()), float(ece), bins)


def _of_numbers(prediction: Prediction, y: Tensor, log_density: Tensor | None) -> Metrics:
    y, mean, variance = y.double(), prediction.mean.double(), prediction.variance
    square = (y - mean).square()
    gaussian = None
    if variance is not None:
        terms = 0.5 * (square / variance.double() + variance.double().log() + math.log(2 * math.pi))
        gaussian = float(terms.reshape(len(y), -1).sum(-1).mean())
    coverage = {
        level: float(((low <= y) & (y <= high)).double().mean())
        for level, low, high in prediction.intervals
    }
    mixture = None if log_density is None else -float(log_density.double().mean())
    rmse = float(square.mean().sqrt())
    return Metrics(len(y), rmse=rmse, nll_mixture=mixture, nll_gaussian=gaussian, coverage=coverage)


def uncertainty(who: str, prediction: Prediction, score: str) -> Tensor:
    """Return a score of each row, larger where the prediction is less certain, (n,)."""
    _check_prediction(who, prediction)
    if not isinstance(score, str) or score not in _SCORES:
        raise needs(who, "score", f"one of {list(_SCORES)}", score)
    if score == "max_probability":
        p = prediction.probabilities
        is_binary = prediction.labels.shape == p.shape
        found = 1 - (torch.maximum(p, 1 - p) if is_binary else p.amax(-1))
    else:
        part = prediction.epistemic if score == "epistemic" else prediction.total
        if part is None:
            condition = '"epistemic" for a likelihood without a noise model'
            raise needs(who, "score", condition, score)
        found = part
    if torch.isnan(found).any():
        raise needs(who, "prediction", "scores that are numbers", "NaN")
    return found.double().cpu().reshape(len(found), -1).sum(-1)


def _torchmetrics(who: str) -> ModuleType:
    return import_extra(f"{who}()", "torchmetrics.functional.classification", "metrics")
