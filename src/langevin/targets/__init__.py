"""Energies U(theta) whose law exp(-U / temperature) is to be sampled."""

from langevin.targets import likelihoods, priors
from langevin.targets.analytic import FIVE_MODES, Gaussian, Mixture, gaussian, mixture
from langevin.targets.automatic import EnergyTarget, LikelihoodTarget, energy, likelihood
from langevin.targets.base import Batch, Evaluation, Target
from langevin.targets.last_layer import LastLayer, last_layer
from langevin.targets.model import Model
from langevin.targets.posterior import Posterior
from langevin.targets.ravine import Ravine, ravine, ravine_data

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
