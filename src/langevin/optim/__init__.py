"""Samplers as `torch.optim.Optimizer`s: change one line of a training loop and it draws from the posterior."""

from langevin.optim import named
from langevin.optim.addresses import SharedNoiseWarning, fix_addresses
from langevin.optim.base import LangevinOptimizer
from langevin.optim.caches import fill_caches
from langevin.optim.named import *  # noqa: F403 (it says in __all__ what it exports)
from langevin.optim.ranks import RanksDisagreeError, check_ranks
from langevin.optim.watch import MinibatchHeat

__all__ = ["LangevinOptimizer", "MinibatchHeat", "RanksDisagreeError", "SharedNoiseWarning", "check_ranks", "fill_caches"]
__all__ += ["fix_addresses"]
__all__ += named.__all__
