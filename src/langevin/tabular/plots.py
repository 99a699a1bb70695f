"""Plots of fitted estimators: functions draw into axes and return them; nothing is shown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sklearn.utils import _safe_indexing

from langevin.checks import needs
from langevin.diagnostics.arrays import evenly_spaced
from langevin.diagnostics.plots import PALETTE, decorate, make_panels
from langevin.nn.predictive import reliability_diagram
from langevin.tabular.columns import Array, is_frame
from langevin.tabular.estimators import LangevinClassifier, LangevinRegressor

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["effects", "plot_calibration", "plot_effects"]

_ROWS, _VALUES = 200, 20  # rows that effects are averaged over, and values of a column
_BAND = (0.05, 0.95)  # quantiles over draws


def plot_calibration(
    model: LangevinRegressor | LangevinClassifier, X: Any, y: Any, *, axes: Axes | None = None
) -> Axes:
    """Plot how often targets are below the predicted quantiles, which should be the diagonal.

    For classes: accuracy against confidence (`reliability_diagram`).

    Args:
        model: fitted.
        X: rows that it has not seen.
        y: their targets.
        axes: to draw into; new ones by default.
    """
    if isinstance(model, LangevinClassifier):
        return reliability_diagram(model._predict(X), model._targets(np.asarray(y)), axes=axes)
    (panel,) = make_panels("plot_calibration", [0], None if axes is None else [axes], (4.0, 4.0))
    levels = np.sort(model.cdf(X, y).ravel())
    shares = (np.arange(len(levels)) + 0.5) / len(levels)
    panel.plot([0, 1], [0, 1], color="#999999", linewidth=1.0)
    panel.plot(levels, shares, color=PALETTE[0])
    decorate(panel, "predicted probability of a smaller y", "share of rows")
    return panel


def effects(
    model: LangevinRegressor | LangevinClassifier, X: Any, feature: Any
) -> tuple[Array, Array]:
    """Return how the mean prediction depends on one column (partial dependence), per draw.

    The column is set to each of some values in up to 200 rows of `X`, and predictions are averaged
    over the rows.

    Args:
        model: fitted.
        X: rows, as in `fit`.
        feature: name of a column of a data frame, or its number in an array.

    Returns:
        The values of the column, (values,), and means (draws, values): of y for a regressor, of the
        probability of the last class for a classifier.
    """
    rows = _safe_indexing(X, evenly_spaced(len(X), _ROWS).numpy())
    column = np.asarray(rows[feature].to_numpy() if is_frame(X) else rows[:, feature])
    values = np.unique(column[[value is not None and bool(value == value) for value in column]])
    values = values[evenly_spaced(len(values), _VALUES).numpy()]
    found = []
    for value in values:
        changed = rows.copy()
        if is_frame(X):
            changed[feature] = changed[feature].where(changed[feature] == value, value)
        else:
            changed[:, feature] = value
        draws = model._predict(changed, per_draw=True).draws_mean
        if isinstance(model, LangevinClassifier):
            found.append(draws[..., -1].mean(1).numpy())
        else:
            found.append(model._unscaled(draws.mean(1)))
    return values, np.stack(found, 1)


def plot_effects(
    model: LangevinRegressor | LangevinClassifier,
    X: Any,
    feature: Any,
    *,
    axes: Axes | None = None,
) -> Axes:
    """Plot `effects`: the mean over draws, and 90 percent of the draws.

    The arguments are those of `effects`.

    Args:
        model: fitted, with one target.
        X: rows.
        feature: name or number of a column.
        axes: to draw into; new ones by default.
    """
    values, means = effects(model, X, feature)
    if means.ndim > 2:
        raise needs("plot_effects", "model", "one target", means.shape[-1])
    (panel,) = make_panels("plot_effects", [0], None if axes is None else [axes])
    low, high = torch.as_tensor(means).quantile(torch.tensor(_BAND, dtype=torch.float64), 0)
    at = values if values.dtype.kind in "fiuM" else [str(value) for value in values]
    panel.fill_between(at, low.numpy(), high.numpy(), color=PALETTE[0], alpha=0.25, linewidth=0)
    panel.plot(at, means.mean(0), color=PALETTE[0], marker="o", markersize=3)
    is_class = isinstance(model, LangevinClassifier)
    decorate(panel, str(feature), f"P({model.classes_[-1]})" if is_class else "mean of y")
    return panel
