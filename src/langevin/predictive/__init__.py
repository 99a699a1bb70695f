"""What draws say of new data, for draws of every kind: `Samples`, positions, banks, modules.

what is y?              predict: probabilities or mean and variance, in parts; intervals; the density of y
how good is that?       metrics, ood_auroc; reliability_diagram, risk_coverage, regression_band
are the draws enough?   function_diagnostics: R-hat and ESS of predictions; what is wrong is said by `predict`, too
and draw by draw?       log_likelihood
"""

from langevin.predictive.average import log_likelihood, predict
from langevin.predictive.functions import FunctionDiagnostics, function_diagnostics
from langevin.predictive.metrics import Metrics, metrics, ood_auroc
from langevin.predictive.plots import regression_band, reliability_diagram, risk_coverage
from langevin.predictive.prediction import Prediction

__all__ = [
    "FunctionDiagnostics",
    "Metrics",
    "Prediction",
    "function_diagnostics",
    "log_likelihood",
    "metrics",
    "ood_auroc",
    "predict",
    "regression_band",
    "reliability_diagram",
    "risk_coverage",
]
