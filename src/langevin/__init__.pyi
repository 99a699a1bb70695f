"""What type checkers and editors read of `langevin`: `__init__.py` loads the same names when they are asked for."""

from langevin import (
    choice,
    diagnostics,
    drifts,
    engines,
    evidence,
    gradients,
    kernels,
    noise,
    optim,
    preconditioners,
    predictive,
    samplers,
    scale,
    schedules,
    sparse,
    targets,
    trust,
)
from langevin.chains import resume, sample
from langevin.choice import PriorChoice, choose_prior
from langevin.constraints import correlation_cholesky, interval, ordered, positive, real, simplex, unit
from langevin.engines import side_by_side
from langevin.lint import Finding, Lint, lint
from langevin.llc import LLC, llc, llc_limit
from langevin.moments import Moments
from langevin.predictive import (
    FunctionDiagnostics,
    Metrics,
    Prediction,
    function_diagnostics,
    log_likelihood,
    metrics,
    ood_auroc,
    predict,
)
from langevin.samplers import *  # noqa: F403 (the families say in __all__ what they export)
from langevin.store import ChainStatus, Samples, load_samples
from langevin.store.bank import CorruptDrawError, SampleBank
from langevin.targets import Model, Posterior, last_layer, likelihoods, priors
from langevin.trust import Trust, TrustWarning
from langevin.tuning import contour_weights, learn_contour

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
    "Samples",
    "Trust",
    "TrustWarning",
    "choice",
    "choose_prior",
    "contour_weights",
    "correlation_cholesky",
    "diagnostics",
    "drifts",
    "engines",
    "evidence",
    "function_diagnostics",
    "gradients",
    "interval",
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
    "noise",
    "ood_auroc",
    "optim",
    "ordered",
    "positive",
    "preconditioners",
    "predict",
    "predictive",
    "priors",
    "real",
    "resume",
    "sample",
    "samplers",
    "scale",
    "schedules",
    "side_by_side",
    "simplex",
    "sparse",
    "targets",
    "trust",
    "unit",
]
__all__ += samplers.__all__
