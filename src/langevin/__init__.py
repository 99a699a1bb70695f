"""Stochastic gradient MCMC with adaptive drifts, for PyTorch."""

from langevin import diagnostics, drifts, engines, gradients, kernels, noise, optim, preconditioners, predictive, schedules, targets
from langevin.chains import resume, sample
from langevin.engines import side_by_side
from langevin.moments import Moments
from langevin.predictive import log_likelihood, predict
from langevin.samplers import (
    SAMPLERS,
    adadelta_sgld,
    adamax_sgld,
    asgld,
    asgld_full,
    complete_recipe,
    compose,
    msgld,
    psgld,
    sghmc,
    sgld,
    sgrld,
)
from langevin.store import ChainStatus, Samples, load_samples
from langevin.store.bank import CorruptDrawError, SampleBank
from langevin.targets import Posterior, likelihoods, priors

__version__ = "0.1.0"

__all__ = [
    "ChainStatus",
    "CorruptDrawError",
    "Moments",
    "Posterior",
    "SAMPLERS",
    "SampleBank",
    "Samples",
    "adadelta_sgld",
    "adamax_sgld",
    "asgld",
    "asgld_full",
    "diagnostics",
    "drifts",
    "engines",
    "gradients",
    "kernels",
    "compose",
    "likelihoods",
    "load_samples",
    "log_likelihood",
    "msgld",
    "noise",
    "optim",
    "preconditioners",
    "predict",
    "predictive",
    "priors",
    "psgld",
    "complete_recipe",
    "resume",
    "sample",
    "schedules",
    "sghmc",
    "sgld",
    "sgrld",
    "side_by_side",
    "targets",
]
