"""Samplers as `torch.optim.Optimizer`s, for training loops."""

from langevin.optim import named
from langevin.optim.addresses import SharedNoiseWarning, fix_addresses
from langevin.optim.base import LangevinOptimizer
from langevin.optim.caches import fill_caches
from langevin.optim.minibatch_noise import MinibatchHeat
from langevin.optim.named import *  # noqa: F403 (it has an __all__)
from langevin.optim.ranks import RanksDisagreeError, check_ranks

__all__ = [
    "LangevinOptimizer",
    "MinibatchHeat",
    "RanksDisagreeError",
    "SharedNoiseWarning",
    "check_ranks",
    "fill_caches",
]
__all__ += ["fix_addresses"]
__all__ += named.__all__
