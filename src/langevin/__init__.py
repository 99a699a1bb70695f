"""Stochastic gradient MCMC with adaptive drifts, for PyTorch."""

from langevin import diagnostics, drifts, gradients, kernels, noise, optim, preconditioners, schedules, targets
from langevin.bank import CorruptDrawError, SampleBank
from langevin.moments import Moments
from langevin.sample import resume, sample
from langevin.samplers import (
    RECIPES,
    adadelta_sgld,
    adamax_sgld,
    asgld,
    asgld_full,
    langevin,
    msgld,
    psgld,
    recipe,
    sghmc,
    sgld,
    sgrld,
)
from langevin.store import ChainStatus, Samples
from langevin.store import open_samples as open  # noqa: F401 - not in __all__, see there
from langevin.targets import Posterior, likelihoods, priors

__version__ = "0.1.0"

# `open` is left out: a star import should not replace the builtin.
__all__ = [
    "ChainStatus",
    "CorruptDrawError",
    "Moments",
    "Posterior",
    "RECIPES",
    "SampleBank",
    "Samples",
    "adadelta_sgld",
    "adamax_sgld",
    "asgld",
    "asgld_full",
    "diagnostics",
    "drifts",
    "gradients",
    "kernels",
    "langevin",
    "likelihoods",
    "msgld",
    "noise",
    "optim",
    "preconditioners",
    "priors",
    "psgld",
    "recipe",
    "resume",
    "sample",
    "schedules",
    "sghmc",
    "sgld",
    "sgrld",
    "targets",
]
