"""How good predictions are, by torchmetrics where it has the number (``pip install langevin[metrics]``)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from langevin.checks import check_integer, needs
from langevin.predictive.prediction import Prediction

__all__ = ["Metrics", "check_targets", "metrics", "ood_auroc", "uncertainty"]

_SCORES = ("epistemic", "total", "max_probability")


@dataclass(frozen=True)
class Metrics:
    """What `metrics` found; None where it says nothing of this kind of y.

    Args:
        rows: how many.
        accuracy: share of the labels that are right, of classes.
        nll: mean over rows of ``-log`` of the average probability of y, of classes; several questions of a row are summed, each by
            itself.
        brier: mean over rows of the squared distance between probabilities and y (zeros and a one), summed over classes; for zeros
            and ones the mean of ``(p - y)^2``.
        ece: expected calibration error, by torchmetrics: the mean of ``|accuracy - confidence|`` over `bins` bins of equal width of
            the labels' confidence (of the probability of a one, for zeros and ones); exactly 1 has a bin of its own.
        bins: of the ece.
        rmse: root of the mean squared error of the mean, of numbers.
        nll_mixture: mean over rows of ``-log_density``, the density of y under the mixture of all draws' laws; None unless y was
            given to `predict`.
        nll_gaussian: the same under one Gaussian with the predicted mean and std, as most tables of others have it.
        coverage: the share of y within the interval, by its level.
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
            **{f"within {100 * level:g} %": f"{100 * share:.2f} %" for level, share in self.coverage.items()},
        }
        found = {name: value for name, value in named.items() if value is not None}
        width = max(map(len, found))
        lines = [f"  {name:<{width}}  {value if isinstance(value, str) else f'{value:.4f}'}" for name, value in found.items()]
        return "\n".join([f"{self.rows} rows", *lines])


def metrics(prediction: Prediction, y: Tensor | None = None, *, bins: int = 15) -> Metrics:
    """Compare predictions with what came.

    Args:
        prediction: made by `predict`.
        y: the targets, as the likelihood takes them; those given to `predict` by default.
        bins: of the expected calibration error.

    Returns:
        For classes accuracy, NLL, Brier score and ECE; for numbers RMSE, two kinds of NLL and the coverage of the intervals.

    Example:
        >>> import langevin as lv
        >>> model = torch.nn.Linear(2, 2)
        >>> found = lv.predict(None, [model], torch.eye(2), likelihood="categorical")
        >>> lv.metrics(found, found.labels).accuracy
        1.0
    """
    bins = check_integer("metrics", "bins", bins, 1)
    y = check_targets("metrics", prediction, y)
    given = prediction.y is not None and torch.equal(y, prediction.y.to(y.device))
    density = prediction.log_density if given else None
    return _of_classes(prediction, y, density, bins) if prediction.is_of_classes else _of_numbers(prediction, y, density)


def ood_auroc(prediction_in: Prediction, prediction_out: Prediction, score: str = "epistemic") -> float:
    """Return how well a score tells rows of another kind from those of the kind that the model was fitted to, by torchmetrics.

    It is the area under the ROC curve: the probability that a row of `prediction_out` has the larger score, ties counted half.

    Args:
        prediction_in: of data of the same kind.
        prediction_out: of other data, which should score higher.
        score: "epistemic", "total", or "max_probability" (one minus the largest probability; of classes only).

    Example:
        >>> import langevin as lv
        >>> ensemble = [torch.nn.Linear(2, 1) for _ in range(5)]
        >>> likelihood = lv.likelihoods.gaussian(std=0.1)
        >>> near, far = (lv.predict(None, ensemble, size * torch.eye(2), likelihood=likelihood) for size in (1, 1e3))
        >>> lv.ood_auroc(near, far)
        1.0
    """
    scores = [uncertainty("ood_auroc", prediction, score) for prediction in (prediction_in, prediction_out)]
    _, ranks = torch.cat(scores).unique(
        return_inverse=True
    )  # torchmetrics takes a sigmoid of what is not in [0, 1], and loses digits
    is_out = torch.cat([torch.full((len(part),), k) for k, part in enumerate(scores)])
    return float(_torchmetrics("ood_auroc").binary_auroc(ranks.double() / max(int(ranks.max()), 1), is_out))


def check_targets(who: str, prediction: Any, y: Any) -> Tensor:
    """Return the targets, those given to `predict` by default, or fail when they do not fit."""
    if not isinstance(prediction, Prediction):
        raise needs(who, "prediction", "a Prediction, made by predict", prediction, TypeError)
    y = prediction.y if y is None else y
    if not isinstance(y, Tensor):
        raise needs(who, "y", "a tensor of targets", y, TypeError)
    if prediction.is_of_classes:
        prediction.likelihood.check(prediction.mean, y)  # it looks at the shape of the outputs only, which is that of the mean
    elif y.shape != prediction.mean.shape:
        raise needs(who, "y", f"the shape of the mean, {tuple(prediction.mean.shape)}", tuple(y.shape))
    elif not torch.isfinite(y).all():
        raise needs(who, "y", "finite targets", y[~torch.isfinite(y)][0].item())
    return y.to(prediction.mean.device)


def _of_classes(prediction: Prediction, y: Tensor, log_density: Tensor | None, bins: int) -> Metrics:
    by = _torchmetrics("metrics")
    p = prediction.probabilities.double().clamp(0.0, 1.0)  # torchmetrics would take anything above 1 for logits
    if y.shape == p.shape:  # zeros and ones
        hits = torch.where(y.bool(), p, 1 - p)
        own = hits.log().reshape(len(p), -1).sum(-1)
        brier = (p - y).square().reshape(len(p), -1).mean(-1)
        accuracy = by.binary_accuracy(prediction.labels.flatten(), y.long().flatten())
        ece = by.binary_calibration_error(p.flatten(), y.long().flatten(), n_bins=bins)
    else:
        own = p.gather(1, y[:, None])[:, 0].log()
        brier = (p - torch.nn.functional.one_hot(y, p.shape[1])).square().sum(-1)
        accuracy = by.multiclass_accuracy(prediction.labels, y, p.shape[1], average="micro")
        ece = by.multiclass_calibration_error(p, y, p.shape[1], n_bins=bins)
    # The same number, but for what underflows. (Several questions of a row are not independent in the mixture.)
    nll = -(own if log_density is None or (y.shape == p.shape and p.numel() > len(p)) else log_density.double()).mean()
    return Metrics(len(p), float(accuracy), float(nll), float(brier.mean()), float(ece), bins)


def _of_numbers(prediction: Prediction, y: Tensor, log_density: Tensor | None) -> Metrics:
    y, mean, variance = y.double(), prediction.mean.double(), prediction.variance
    square = (y - mean).square()
    gaussian = None
    if variance is not None:
        terms = 0.5 * (square / variance.double() + variance.double().log() + math.log(2 * math.pi))
        gaussian = float(terms.reshape(len(y), -1).sum(-1).mean())
    coverage = {}
    if prediction.lower is not None and prediction.upper is not None:
        many = len(prediction.levels) > 1 or prediction.lower.ndim > mean.ndim
        ends = zip(prediction.lower, prediction.upper, strict=True) if many else [(prediction.lower, prediction.upper)]
        inside = [float(((low <= y) & (y <= high)).double().mean()) for low, high in ends]
        coverage = dict(zip(prediction.levels, inside, strict=True))
    mixture = None if log_density is None else -float(log_density.double().mean())
    rmse = float(square.mean().sqrt())
    return Metrics(len(y), rmse=rmse, nll_mixture=mixture, nll_gaussian=gaussian, coverage=coverage)


def uncertainty(who: str, prediction: Any, score: Any) -> Tensor:
    """Return one number for each row that is larger where less is known, (n,), by the name of the score."""
    if not isinstance(prediction, Prediction):
        raise needs(who, "prediction", "a Prediction, made by predict", prediction, TypeError)
    if not isinstance(score, str) or score not in _SCORES:
        raise needs(who, "score", f"one of {list(_SCORES)}", score)
    if score == "max_probability":
        p = prediction.probabilities
        found = 1 - (torch.maximum(p, 1 - p) if prediction.labels.shape == p.shape else p.amax(-1))
    else:
        part = prediction.epistemic if score == "epistemic" else prediction.total
        if part is None:
            raise needs(who, "score", '"epistemic", where the likelihood says nothing of the noise', score)
        found = part
    if torch.isnan(found).any():
        raise needs(who, "prediction", "scores that are numbers", "NaN")
    return found.double().cpu().reshape(len(found), -1).sum(-1)


def _torchmetrics(who: str) -> ModuleType:
    try:
        import torchmetrics.functional.classification as found
    except ImportError as error:
        raise ImportError(f"{who} needs torchmetrics, which is not installed: pip install 'langevin[metrics]'") from error
    return found
