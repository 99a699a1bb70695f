"""Samplers as `torch.optim.Optimizer`s: change one line of a training loop and it draws from the posterior."""

from langevin.optim.addresses import SharedNoiseWarning
from langevin.optim.base import LangevinOptimizer
from langevin.optim.named import ASGLD, MSGLD, PSGLD, SGHMC, SGLD, AdadeltaSGLD, AdaMaxSGLD

__all__ = ["ASGLD", "AdaMaxSGLD", "AdadeltaSGLD", "LangevinOptimizer", "MSGLD", "PSGLD", "SGHMC", "SGLD", "SharedNoiseWarning"]
