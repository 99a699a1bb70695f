"""Stochastic gradient MCMC with adaptive drifts, for PyTorch."""

from langevin import (
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
    schedules,
    targets,
    trust,
)
from langevin.chains import resume, sample
from langevin.constraints import correlation_cholesky, interval, ordered, positive, real, simplex, unit
from langevin.engines import side_by_side
from langevin.moments import Moments
from langevin.predictive import log_likelihood, predict
from langevin.samplers import *  # noqa: F403 (the families say in __all__ what they export)
from langevin.store import ChainStatus, Samples, load_samples
from langevin.store.bank import CorruptDrawError, SampleBank
from langevin.targets import Model, Posterior, likelihoods, priors
from langevin.trust import Trust, TrustWarning

__version__ = "0.1.0"

__all__ = [
    "ChainStatus",
    "CorruptDrawError",
    "Model",
    "Moments",
    "Posterior",
    "SampleBank",
    "Samples",
    "Trust",
    "TrustWarning",
    "correlation_cholesky",
    "diagnostics",
    "drifts",
    "engines",
    "evidence",
    "gradients",
    "interval",
    "kernels",
    "likelihoods",
    "load_samples",
    "log_likelihood",
    "noise",
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
    "schedules",
    "side_by_side",
    "simplex",
    "targets",
    "trust",
    "unit",
]
__all__ += samplers.__all__
