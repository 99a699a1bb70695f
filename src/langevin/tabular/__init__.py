"""Estimators for tables, compatible with scikit-learn: the extra `langevin[sklearn]`."""

try:
    import sklearn  # noqa: F401
except ImportError as error:
    raise ImportError(
        "langevin.tabular needs scikit-learn: pip install 'langevin[sklearn]'"
    ) from error

from langevin.tabular.estimators import LangevinClassifier, LangevinRegressor
from langevin.tabular.plots import effects, plot_calibration, plot_effects

__all__ = [
    "LangevinClassifier",
    "LangevinRegressor",
    "effects",
    "plot_calibration",
    "plot_effects",
]
