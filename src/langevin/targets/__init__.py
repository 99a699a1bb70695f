"""Targets: energies U(theta) that define the distributions exp(-U / temperature)."""

from langevin.targets import likelihoods, priors
from langevin.targets.analytic import (
    FIVE_MODES,
    Gaussian,
    Mixture,
    Ravine,
    gaussian,
    mixture,
    ravine,
    ravine_data,
)
from langevin.targets.automatic import EnergyTarget, LikelihoodTarget, energy, likelihood
from langevin.targets.base import Batch, Evaluation, Target
from langevin.targets.model import Model
from langevin.targets.posterior import LastLayer, Posterior, last_layer

__all__ = [
    "Batch",
    "EnergyTarget",
    "Evaluation",
    "FIVE_MODES",
    "Gaussian",
    "LastLayer",
    "LikelihoodTarget",
    "Mixture",
    "Model",
    "Posterior",
    "Ravine",
    "Target",
    "energy",
    "gaussian",
    "last_layer",
    "likelihood",
    "likelihoods",
    "mixture",
    "priors",
    "ravine",
    "ravine_data",
]
