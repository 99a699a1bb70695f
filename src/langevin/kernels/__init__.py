"""Samplers, one file per algorithm: `msgld` is Algorithm 1 of the paper, `asgld` Algorithm 2.

A kernel is one transition, computed from a gradient and noise; it never sees the target.
"""

from langevin.kernels.adaptive_sghmc import AdaptedHamiltonian, InvariantHamiltonian
from langevin.kernels.base import Kernel, KernelState, StepInputs, Traits
from langevin.kernels.extra.amagold import Amagold
from langevin.kernels.extra.complete_recipe import CompleteRecipe
from langevin.kernels.extra.contour import Contour
from langevin.kernels.extra.cyclical_annealing import Cycles
from langevin.kernels.extra.replica_exchange import Replica
from langevin.kernels.extra.sglrw import Lattice
from langevin.kernels.extra.sgrhmc import Riemannian
from langevin.kernels.invariant import Invariant
from langevin.kernels.langevin import Langevin
from langevin.kernels.scaled import Scaled
from langevin.kernels.sghmc import Hamiltonian
from langevin.kernels.sgnht import Thermostat

__all__ = [
    "AdaptedHamiltonian",
    "Amagold",
    "CompleteRecipe",
    "Contour",
    "Cycles",
    "Hamiltonian",
    "Invariant",
    "InvariantHamiltonian",
    "Kernel",
    "KernelState",
    "Langevin",
    "Lattice",
    "Replica",
    "Riemannian",
    "Scaled",
    "StepInputs",
    "Thermostat",
    "Traits",
]
