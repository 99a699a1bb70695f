"""Samplers as `torch.optim.Optimizer`s: change one line of a training loop and it draws from the posterior."""

from langevin.optim.base import LangevinOptimizer
from langevin.optim.named import ASGLD, MSGLD, PSGLD, SGHMC, SGLD

__all__ = ["ASGLD", "LangevinOptimizer", "MSGLD", "PSGLD", "SGHMC", "SGLD"]
