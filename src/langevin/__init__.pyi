"""Names of `langevin` for type checkers and editors; `__init__.py` loads them on access."""

from langevin import diagnostics, distributed, execution, kernels, nn, optim, random, targets
from langevin.adaptation import contour_weights, learn_contour
from langevin.diagnostics.running import Moments
from langevin.diagnostics.trust import Trust, TrustWarning
from langevin.execution import side_by_side
from langevin.kernels import drifts, preconditioners, samplers, schedules
from langevin.kernels.samplers import *  # noqa: F403 (explicit in __all__)
from langevin.nn import sparse
from langevin.nn.bank import CorruptDrawError, SampleBank
from langevin.nn.choice import PriorChoice, choose_prior
from langevin.nn.lint import Finding, Lint, lint
from langevin.nn.llc import LLC, llc, llc_limit
from langevin.nn.predictive import (
    FunctionDiagnostics,
    Metrics,
    Prediction,
    crps,
    function_diagnostics,
    interval_score,
    log_likelihood,
    metrics,
    ood_auroc,
    predict,
)
from langevin.sampling import Background, resume, sample
from langevin.storage import ChainStatus, Samples, load_samples
from langevin.targets import Model, Posterior, gradients, last_layer, likelihoods, priors
from langevin.targets.constraints import (
    correlation_cholesky,
    interval,
    ordered,
    positive,
    real,
    simplex,
    unit,
)
from langevin.targets.pyro import from_pyro

__version__: str

__all__ = [
    "ChainStatus",
    "CorruptDrawError",
    "Finding",
    "FunctionDiagnostics",
    "LLC",
    "Lint",
    "Metrics",
    "Model",
    "Moments",
    "Posterior",
    "Prediction",
    "PriorChoice",
    "SampleBank",
    "Background",
    "Samples",
    "Trust",
    "TrustWarning",
    "choose_prior",
    "contour_weights",
    "correlation_cholesky",
    "crps",
    "diagnostics",
    "distributed",
    "drifts",
    "execution",
    "from_pyro",
    "function_diagnostics",
    "gradients",
    "interval",
    "interval_score",
    "kernels",
    "last_layer",
    "learn_contour",
    "likelihoods",
    "lint",
    "llc",
    "llc_limit",
    "load_samples",
    "log_likelihood",
    "metrics",
    "nn",
    "ood_auroc",
    "optim",
    "ordered",
    "positive",
    "preconditioners",
    "predict",
    "priors",
    "random",
    "real",
    "resume",
    "sample",
    "samplers",
    "schedules",
    "side_by_side",
    "simplex",
    "sparse",
    "targets",
    "unit",
]
__all__ += samplers.__all__
