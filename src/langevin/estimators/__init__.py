"""Estimators in the manner of scikit-learn, for tables: the extra `langevin[sklearn]`."""

try:
    import sklearn  # noqa: F401
except ImportError as error:
    raise ImportError("langevin.estimators needs scikit-learn: pip install 'langevin[sklearn]'") from error

from langevin.estimators.classifier import LangevinClassifier
from langevin.estimators.regressor import LangevinRegressor

__all__ = ["LangevinClassifier", "LangevinRegressor"]
