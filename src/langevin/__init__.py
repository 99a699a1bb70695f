"""Stochastic gradient MCMC with adaptive drifts, for PyTorch."""

from langevin import drifts, gradients, kernels, noise, optim, preconditioners, schedules, targets
from langevin.bank import CorruptDrawError, SampleBank
from langevin.sample import sample
from langevin.samplers import RECIPES, asgld, langevin, msgld, psgld, recipe, sghmc, sgld, sgrld
from langevin.store import ChainStatus, Samples
from langevin.targets import priors

__version__ = "0.1.0"

__all__ = [
    "ChainStatus",
    "CorruptDrawError",
    "RECIPES",
    "SampleBank",
    "Samples",
    "asgld",
    "drifts",
    "gradients",
    "kernels",
    "langevin",
    "msgld",
    "noise",
    "optim",
    "preconditioners",
    "priors",
    "psgld",
    "recipe",
    "sample",
    "schedules",
    "sghmc",
    "sgld",
    "sgrld",
    "targets",
]
