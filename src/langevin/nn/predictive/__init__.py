"""Predictions for new data from draws of every kind: `Samples`, positions, banks, modules.

`predict` averages over draws; `log_likelihood` keeps each draw. `metrics`, `ood_auroc`,
`reliability_diagram`, `risk_coverage` and `regression_band` evaluate a prediction; `crps` and
`interval_score` are for samples and intervals from anywhere.
`function_diagnostics` returns R-hat and effective sample sizes of predictions.
"""

from langevin.nn.predictive.functions import FunctionDiagnostics, function_diagnostics
from langevin.nn.predictive.metrics import Metrics, metrics, ood_auroc
from langevin.nn.predictive.plots import regression_band, reliability_diagram, risk_coverage
from langevin.nn.predictive.predict import log_likelihood, predict
from langevin.nn.predictive.prediction import Prediction
from langevin.nn.predictive.scores import crps, interval_score

__all__ = [
    "FunctionDiagnostics",
    "Metrics",
    "Prediction",
    "crps",
    "function_diagnostics",
    "interval_score",
    "log_likelihood",
    "metrics",
    "ood_auroc",
    "predict",
    "regression_band",
    "reliability_diagram",
    "risk_coverage",
]
