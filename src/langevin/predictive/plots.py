"""Pictures of predictions, by Matplotlib: functions that draw into axes and hand them back. Nothing is shown or saved for you."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from langevin.checks import check_integer, check_tensor, needs
from langevin.diagnostics.panels import INK, PALETTE, decorate, make_panels
from langevin.predictive.metrics import check_targets, uncertainty
from langevin.predictive.prediction import Prediction
from langevin.trust import evenly_spaced

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Bins", "calibration_bins", "regression_band", "reliability_diagram", "risk_coverage", "risks"]

_MAX_LINE = 2000  # points in a curve
_FEW = 30  # rows
_DASHED = (0, (4, 3))


class Bins(NamedTuple):
    """Predictions by their confidence, (bins,); NaN where a bin is empty."""

    confidence: Tensor  # mean of the confidences
    accuracy: Tensor  # share of the labels that are right
    share: Tensor  # of all predictions


def calibration_bins(prediction: Prediction, y: Tensor | None = None, *, bins: int = 15) -> Bins:
    """Sort predictions into bins of equal width of their confidence, as the `ece` of `metrics` does.

    The confidence of a class is its probability; of zeros and ones it is the probability of a one, and the accuracy their share. A
    confidence of exactly 1 is in the last bin.

    Example:
        >>> import langevin as lv
        >>> found = lv.predict(None, [torch.nn.Linear(2, 2)], torch.eye(2), likelihood="categorical")
        >>> float(calibration_bins(found, found.labels, bins=5).share.sum())
        1.0
    """
    bins = check_integer("calibration_bins", "bins", bins, 1)
    y = check_targets("calibration_bins", prediction, y)
    p = prediction.probabilities.double()
    is_binary = y.shape == p.shape
    confidence, hit = (p.flatten(), y.flatten().double()) if is_binary else (p.amax(-1), (prediction.labels == y).double())
    index = (confidence * bins).long().clamp(0, bins - 1)
    zeros = confidence.new_zeros(bins)
    count = zeros.index_add(0, index, torch.ones_like(confidence))
    return Bins(zeros.index_add(0, index, confidence) / count, zeros.index_add(0, index, hit) / count, count / len(confidence))


def reliability_diagram(
    prediction: Prediction, y: Tensor | None = None, *, bins: int = 15, label: str | None = None, axes: Axes | None = None
) -> Axes:
    """Draw how often predictions of a confidence are right; on the diagonal they are as often as they say.

    Below it predictions are too sure. The size of a point goes by the share of the predictions that it stands for.

    Args:
        prediction: of classes.
        y: the targets; those given to `predict` by default.
        bins: of equal width.
        label: for a legend, where several are drawn into the same axes.
        axes: where to draw; new ones by default.

    Returns:
        The axes.

    Example:
        >>> import langevin as lv
        >>> found = lv.predict(None, [torch.nn.Linear(2, 2)], torch.eye(2), likelihood="categorical")
        >>> axes = lv.predictive.reliability_diagram(found, found.labels)
        >>> axes.get_xlabel()
        'confidence'
        >>> import matplotlib.pyplot
        >>> matplotlib.pyplot.close(axes.figure)
    """
    found = calibration_bins(prediction, y, bins=bins)
    (panel,) = make_panels("reliability_diagram", [0], None if axes is None else [axes], size=(4.4, 4.2))
    colour = _next_colour(panel)
    if not any(line.get_label() == "as sure as right" for line in panel.lines):
        panel.plot([0, 1], [0, 1], color=INK, linewidth=1.0, linestyle=_DASHED, label="as sure as right", zorder=1)
    seen = found.share > 0
    confidence, accuracy, share = (part[seen].cpu().numpy() for part in found)
    panel.plot(confidence, accuracy, color=colour, linewidth=1.2, alpha=0.8, label=label or "predictions", zorder=2)
    panel.scatter(confidence, accuracy, s=12 + 300 * share, color=colour, alpha=0.75, linewidths=0, zorder=3)
    panel.set_xlim(-0.02, 1.02)
    panel.set_ylim(-0.02, 1.02)
    panel.set_aspect("equal")
    is_binary = prediction.labels.shape == prediction.mean.shape
    decorate(panel, "probability of a one" if is_binary else "confidence", "share of ones" if is_binary else "accuracy")
    _legend(panel)
    return panel


def risks(prediction: Prediction, y: Tensor | None = None, *, score: str = "total") -> tuple[Tensor, Tensor]:
    """Return the risk of the least uncertain rows, by their share: coverage (n,) and risk (n,).

    The risk is the share of wrong labels, or for numbers the root of the mean squared error.

    Example:
        >>> import langevin as lv
        >>> found = lv.predict(None, [torch.nn.Linear(2, 2)], torch.eye(2), likelihood="categorical")
        >>> risks(found, found.labels)
        (tensor([0.5000, 1.0000], dtype=torch.float64), tensor([0., 0.], dtype=torch.float64))
    """
    y = check_targets("risks", prediction, y)
    order = uncertainty("risks", prediction, score).argsort(stable=True)
    loss = (prediction.labels != y).double() if prediction.is_of_classes else (prediction.mean.double() - y.double()).square()
    count = torch.arange(1, len(loss) + 1, dtype=torch.float64)
    risk = loss.reshape(len(loss), -1).mean(-1).cpu()[order].cumsum(0) / count
    return count / len(loss), risk if prediction.is_of_classes else risk.sqrt()


def risk_coverage(
    prediction: Prediction, y: Tensor | None = None, *, score: str = "total", label: str | None = None, axes: Axes | None = None
) -> Axes:
    """Draw the risk among the rows that are kept when the most uncertain ones are refused.

    A curve that rises to the right knows where it is wrong; the dashed line is that of rows kept at random. It starts at 30 rows.

    Args:
        prediction: of classes, whose risk is the share of wrong labels, or of numbers: the root of the mean squared error.
        y: the targets; those given to `predict` by default.
        score: what is uncertain: "total", "epistemic" or "max_probability".
        label: for a legend, where several are drawn into the same axes.
        axes: where to draw; new ones by default.

    Returns:
        The axes.

    Example:
        >>> import langevin as lv
        >>> found = lv.predict(None, [torch.nn.Linear(2, 2)], torch.eye(2), likelihood="categorical")
        >>> axes = lv.predictive.risk_coverage(found, found.labels)
        >>> axes.get_ylabel()
        'error'
        >>> import matplotlib.pyplot
        >>> matplotlib.pyplot.close(axes.figure)
    """
    coverage, risk = risks(prediction, y, score=score)
    (panel,) = make_panels("risk_coverage", [0], None if axes is None else [axes], size=(5.2, 3.4))
    colour = _next_colour(panel)
    at = evenly_spaced(len(risk), _MAX_LINE)
    at = at[at >= min(_FEW, len(risk) // 2)]  # the risk of a few rows is noise
    if not panel.lines:
        panel.plot([], [], color=INK, linewidth=1.0, linestyle=_DASHED, label="rows kept at random")
    panel.axhline(float(risk[-1]), color=colour, linewidth=1.0, linestyle=_DASHED, alpha=0.6, zorder=1)
    panel.plot(coverage[at].numpy(), risk[at].numpy(), color=colour, linewidth=1.5, label=label or "predictions", zorder=2)
    panel.set_xlim(0.0, 1.0)
    before = panel.get_ylim()[1] if len(panel.lines) > 3 else 0.0
    panel.set_ylim(0.0, max(1.15 * float(risk[at].max()), before, 1e-3))
    decorate(panel, "share of rows kept, the least uncertain first", "error" if prediction.is_of_classes else "RMSE")
    _legend(panel)
    return panel


def regression_band(x: Any, prediction: Prediction, *, data: tuple[Any, Any] | None = None, axes: Axes | None = None) -> Axes:
    """Draw mean and spread of one number against one input.

    The light band is where y lies: the widest interval that was asked for, or two standard deviations. The dark one is what the
    draws disagree on: as many standard deviations of their means as a Gaussian has within that level, or two.

    Args:
        x: the inputs, (n,) or (n, 1), in any order.
        prediction: of one number for each.
        data: points (x, y) to draw beside it.
        axes: where to draw; new ones by default.

    Returns:
        The axes.

    Example:
        >>> import langevin as lv
        >>> x = torch.linspace(-1, 1, 50)[:, None]
        >>> ensemble = [torch.nn.Linear(1, 1) for _ in range(5)]
        >>> found = lv.predict(None, ensemble, x, likelihood=lv.likelihoods.gaussian(std=0.1), interval=0.9)
        >>> axes = lv.predictive.regression_band(x, found)
        >>> len(axes.collections)
        2
        >>> import matplotlib.pyplot
        >>> matplotlib.pyplot.close(axes.figure)
    """
    place = _flat("x", x)
    if not isinstance(prediction, Prediction) or prediction.is_of_classes or prediction.mean.numel() != len(place):
        raise needs("regression_band", "prediction", f"one number for each of the {len(place)} inputs", prediction)
    order = place.argsort()
    (panel,) = make_panels("regression_band", [0], None if axes is None else [axes], size=(6.4, 3.6))

    def line(values: Tensor) -> Any:
        return values.detach().cpu().double().reshape(-1)[order].numpy()

    mean, at = line(prediction.mean), place[order].numpy()
    name, reach, low, high = _outer(prediction)
    if low is not None and high is not None:
        panel.fill_between(at, line(low), line(high), color=PALETTE[4], alpha=0.3, linewidth=0, label=f"y, {name}", zorder=1)
    spread = reach * line(prediction.epistemic.sqrt())
    panel.fill_between(
        at, mean - spread, mean + spread, color=PALETTE[0], alpha=0.35, linewidth=0, label=f"draws' means, {name}", zorder=2
    )
    panel.plot(at, mean, color=PALETTE[0], linewidth=1.5, label="mean", zorder=3)
    if data is not None:
        points = [_flat("data", part) for part in data]
        if len(points) != 2 or len(points[0]) != len(points[1]):
            raise needs("regression_band", "data", "x and y of as many points", [len(part) for part in points])
        panel.plot(points[0], points[1], "o", color=INK, markersize=3.0, alpha=0.7, markeredgewidth=0, label="data", zorder=4)
    panel.margins(x=0.01)
    decorate(panel, "x", "y")
    _legend(panel)
    return panel


def _flat(argument: str, value: Any) -> Tensor:
    value = value.reshape(-1) if isinstance(value, Tensor) and value.ndim == 2 and value.shape[1] == 1 else value
    return check_tensor("regression_band", argument, value, "n")


def _outer(prediction: Prediction) -> tuple[str, float, Tensor | None, Tensor | None]:
    """Return the name of the level, its number of standard deviations, and the ends of the band where y lies."""
    if prediction.lower is not None and prediction.upper is not None:
        widest = max(range(len(prediction.levels)), key=lambda k: prediction.levels[k])
        many = prediction.lower.ndim > prediction.mean.ndim
        ends = [end[widest] if many else end for end in (prediction.lower, prediction.upper)]
        level = prediction.levels[widest]
        return f"{100 * level:g} %", float(torch.special.ndtri(torch.tensor((1 + level) / 2))), ends[0], ends[1]
    if prediction.std is None:
        return "2 sd", 2.0, None, None
    return "2 sd", 2.0, prediction.mean - 2 * prediction.std, prediction.mean + 2 * prediction.std


def _next_colour(panel: Axes) -> str:
    """Return a colour that is not yet in use there."""
    used = {line.get_color() for line in panel.lines}
    return next((colour for colour in PALETTE if colour not in used), PALETTE[0])


def _legend(panel: Axes) -> None:
    handles, labels = panel.get_legend_handles_labels()
    panel.legend(
        handles, labels, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=len(labels), frameon=False, fontsize=8,
        handlelength=1.4, columnspacing=1.2, borderaxespad=0.2, labelcolor=INK,
    )  # fmt: skip
