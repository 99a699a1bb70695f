"""Plots of predictions: functions draw into axes and return them; nothing is shown or saved."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from langevin.checks import check_integer, check_tensor, needs
from langevin.diagnostics.arrays import evenly_spaced
from langevin.diagnostics.plots import INK, LEGEND, PALETTE, decorate, make_panel
from langevin.nn.predictive.metrics import check_targets, uncertainty
from langevin.nn.predictive.prediction import Prediction

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    "Bins",
    "calibration_bins",
    "regression_band",
    "reliability_diagram",
    "risk_coverage",
    "risks",
]

_MAX_LINE = 2000  # points in a curve
_FEW = 30  # rows
_REFERENCE: dict[str, Any] = {"linewidth": 1.0, "linestyle": (0, (4, 3)), "zorder": 1}


class Bins(NamedTuple):
    """Predictions by their confidence, (bins,); NaN where a bin is empty."""

    confidence: Tensor  # mean of the confidences
    accuracy: Tensor  # share of correct labels
    share: Tensor  # of all predictions


def calibration_bins(prediction: Prediction, y: Tensor | None = None, *, bins: int = 15) -> Bins:
    """Sort predictions into bins of equal width by confidence, as for the `ece` of `metrics`.

    The confidence of a class is its probability; for zeros and ones it is the probability of a one,
    and the accuracy is the share of ones. A confidence of exactly 1 is in the last bin.

    Example:
        >>> import langevin as lv
        >>> model = torch.nn.Linear(2, 2)
        >>> found = lv.predict(None, [model], torch.eye(2), likelihood="categorical")
        >>> float(calibration_bins(found, found.labels, bins=5).share.sum())
        1.0
    """
    bins = check_integer("calibration_bins", "bins", bins, 1)
    y = check_targets("calibration_bins", prediction, y)
    p = prediction.probabilities.double()
    if y.shape == p.shape:
        confidence, hit = p.flatten(), y.flatten().double()
    else:
        confidence, hit = p.amax(-1), (prediction.labels == y).double()
    index = (confidence * bins).long().clamp(0, bins - 1)
    zeros = confidence.new_zeros(bins)
    count = zeros.index_add(0, index, torch.ones_like(confidence))
    mean, accuracy = (zeros.index_add(0, index, part) / count for part in (confidence, hit))
    return Bins(mean, accuracy, count / len(confidence))


def reliability_diagram(
    prediction: Prediction,
    y: Tensor | None = None,
    *,
    bins: int = 15,
    label: str | None = None,
    axes: Axes | None = None,
) -> Axes:
    """Plot accuracy against confidence.

    Predictions below the diagonal are overconfident. The size of a point shows its share of the
    predictions.

    Args:
        prediction: of classes.
        y: the targets; by default those given to `predict`.
        bins: of equal width.
        label: for the legend.
        axes: axes to draw into; new ones by default.

    Returns:
        The axes.

    Example:
        >>> import langevin as lv
        >>> model = torch.nn.Linear(2, 2)
        >>> found = lv.predict(None, [model], torch.eye(2), likelihood="categorical")
        >>> axes = lv.nn.predictive.reliability_diagram(found, found.labels)
        >>> axes.get_xlabel()
        'confidence'
        >>> import matplotlib.pyplot
        >>> matplotlib.pyplot.close(axes.figure)
    """
    found = calibration_bins(prediction, y, bins=bins)
    panel = make_panel("reliability_diagram", axes, (4.4, 4.2))
    colour, reference = _next_colour(panel), "calibrated"
    if not any(line.get_label() == reference for line in panel.lines):
        panel.plot([0, 1], [0, 1], color=INK, label=reference, **_REFERENCE)
    seen = found.share > 0
    confidence, accuracy, share = (part[seen].cpu().numpy() for part in found)
    panel.plot(
        confidence,
        accuracy,
        label=label or "predictions",
        color=colour,
        linewidth=1.2,
        alpha=0.8,
        zorder=2,
    )
    panel.scatter(
        confidence, accuracy, s=12 + 300 * share, color=colour, linewidths=0, alpha=0.75, zorder=3
    )
    panel.set_xlim(-0.02, 1.02)
    panel.set_ylim(-0.02, 1.02)
    panel.set_aspect("equal")
    if prediction.labels.shape == prediction.mean.shape:
        decorate(panel, "probability of a one", "share of ones")
    else:
        decorate(panel, "confidence", "accuracy")
    _legend(panel)
    return panel


def risks(
    prediction: Prediction, y: Tensor | None = None, *, score: str = "total"
) -> tuple[Tensor, Tensor]:
    """Return coverage (n,) and risk (n,) of the least uncertain rows.

    The risk is the share of wrong labels, or for numbers the root mean squared error.

    Example:
        >>> import langevin as lv
        >>> model = torch.nn.Linear(2, 2)
        >>> found = lv.predict(None, [model], torch.eye(2), likelihood="categorical")
        >>> risks(found, found.labels)[1]
        tensor([0., 0.], dtype=torch.float64)
    """
    y = check_targets("risks", prediction, y)
    order = uncertainty("risks", prediction, score).argsort(stable=True)
    if prediction.is_of_classes:
        loss = (prediction.labels != y).double()
    else:
        loss = (prediction.mean.double() - y.double()).square()
    count = torch.arange(1, len(loss) + 1, dtype=torch.float64)
    risk = loss.reshape(len(loss), -1).mean(-1).cpu()[order].cumsum(0) / count
    return count / len(loss), risk if prediction.is_of_classes else risk.sqrt()


def risk_coverage(
    prediction: Prediction,
    y: Tensor | None = None,
    *,
    score: str = "total",
    label: str | None = None,
    axes: Axes | None = None,
) -> Axes:
    """Plot the risk among the rows that remain when the most uncertain ones are rejected.

    If uncertainty predicts errors, the curve rises to the right; the dashed line is the risk of
    random rows. The curve starts at 30 rows.

    Args:
        prediction: of classes, with the share of wrong labels as risk, or of numbers, with the root
            mean squared error.
        y: the targets; by default those given to `predict`.
        score: the uncertainty: "total", "epistemic" or "max_probability".
        label: for the legend.
        axes: axes to draw into; new ones by default.

    Returns:
        The axes.

    Example:
        >>> import langevin as lv
        >>> model = torch.nn.Linear(2, 2)
        >>> found = lv.predict(None, [model], torch.eye(2), likelihood="categorical")
        >>> axes = lv.nn.predictive.risk_coverage(found, found.labels)
        >>> axes.get_ylabel()
        'error'
        >>> import matplotlib.pyplot
        >>> matplotlib.pyplot.close(axes.figure)
    """
    coverage, risk = risks(prediction, y, score=score)
    panel = make_panel("risk_coverage", axes, (5.2, 3.4))
    colour = _next_colour(panel)
    at = evenly_spaced(len(risk), _MAX_LINE)
    at = at[at >= min(_FEW, len(risk) // 2)]  # the risk of a few rows is noise
    if not panel.lines:
        panel.plot([], [], color=INK, label="random rows", **_REFERENCE)
    panel.axhline(float(risk[-1]), color=colour, alpha=0.6, **_REFERENCE)
    panel.plot(
        coverage[at].numpy(),
        risk[at].numpy(),
        label=label or "predictions",
        color=colour,
        linewidth=1.5,
        zorder=2,
    )
    panel.set_xlim(0.0, 1.0)
    before = panel.get_ylim()[1] if len(panel.lines) > 3 else 0.0
    panel.set_ylim(0.0, max(1.15 * float(risk[at].max()), before, 1e-3))
    ylabel = "error" if prediction.is_of_classes else "RMSE"
    decorate(panel, "share of rows kept, the least uncertain first", ylabel)
    _legend(panel)
    return panel


def regression_band(
    x: Any, prediction: Prediction, *, data: tuple[Any, Any] | None = None, axes: Axes | None = None
) -> Axes:
    """Plot mean and spread of one number against one input.

    The light band is the predictive distribution of y: the widest requested interval, or two
    standard deviations. The dark band is the disagreement of the draws: as many standard deviations
    of their means as a Gaussian has within that level, or two.

    Args:
        x: the inputs, (n,) or (n, 1), in any order.
        prediction: of one number for each.
        data: points (x, y) to plot as well.
        axes: axes to draw into; new ones by default.

    Returns:
        The axes.

    Example:
        >>> import langevin as lv
        >>> x = torch.linspace(-1, 1, 50)[:, None]
        >>> ensemble = [torch.nn.Linear(1, 1) for _ in range(5)]
        >>> found = lv.predict(None, ensemble, x, likelihood=lv.likelihoods.gaussian(std=0.1))
        >>> axes = lv.nn.predictive.regression_band(x, found)
        >>> len(axes.collections)
        2
        >>> import matplotlib.pyplot
        >>> matplotlib.pyplot.close(axes.figure)
    """
    who, inputs = "regression_band", _flat("x", x)
    is_number = isinstance(prediction, Prediction) and not prediction.is_of_classes
    if not is_number or prediction.mean.numel() != len(inputs):
        condition = f"one number for each of the {len(inputs)} inputs"
        raise needs(who, "prediction", condition, prediction)
    order = inputs.argsort()
    panel = make_panel(who, axes, (6.4, 3.6))

    def line(values: Tensor) -> Any:
        return values.detach().cpu().double().reshape(-1)[order].numpy()

    mean, at, std = line(prediction.mean), inputs[order].numpy(), prediction.std
    name, width = "2 sd", 2.0
    ends = None if std is None else (prediction.mean - 2 * std, prediction.mean + 2 * std)
    if prediction.levels:
        level, low, high = max(prediction.intervals, key=lambda interval: interval[0])
        ends = low, high
        name = f"{100 * level:g} %"
        width = float(torch.special.ndtri(torch.tensor((1 + level) / 2)))
    if ends:
        panel.fill_between(
            at,
            *map(line, ends),
            label=f"y, {name}",
            color=PALETTE[4],
            alpha=0.3,
            linewidth=0,
            zorder=1,
        )
    spread = width * line(prediction.epistemic.sqrt())
    panel.fill_between(
        at,
        mean - spread,
        mean + spread,
        label=f"draws' means, {name}",
        color=PALETTE[0],
        alpha=0.35,
        linewidth=0,
        zorder=2,
    )
    panel.plot(at, mean, color=PALETTE[0], linewidth=1.5, label="mean", zorder=3)
    if data is not None:
        points = [_flat("data", part) for part in data]
        if len(points) != 2 or len(points[0]) != len(points[1]):
            raise needs(who, "data", "x and y of as many points", [len(part) for part in points])
        panel.plot(
            *points,
            "o",
            label="data",
            color=INK,
            markersize=3.0,
            alpha=0.7,
            markeredgewidth=0,
            zorder=4,
        )
    panel.margins(x=0.01)
    decorate(panel, "x", "y")
    _legend(panel)
    return panel


def _flat(argument: str, value: object) -> Tensor:
    if isinstance(value, Tensor) and value.ndim == 2 and value.shape[1] == 1:
        value = value.reshape(-1)
    return check_tensor("regression_band", argument, value, "n")


def _next_colour(panel: Axes) -> str:
    """Return a colour that the panel does not use yet."""
    used = {line.get_color() for line in panel.lines}
    return next((colour for colour in PALETTE if colour not in used), PALETTE[0])


def _legend(panel: Axes) -> None:
    handles, labels = panel.get_legend_handles_labels()
    spacing = {"handlelength": 1.4, "columnspacing": 1.2, "borderaxespad": 0.2}
    style: dict[str, Any] = {"ncols": len(labels), **spacing, **LEGEND}
    panel.legend(handles, labels, **style)
