"""Transitions: one step from a gradient and noise, the target unseen."""

from langevin.kernels.adapted import AdaptedHamiltonian, InvariantHamiltonian
from langevin.kernels.amagold import Amagold
from langevin.kernels.base import Kernel, KernelState, StepInputs
from langevin.kernels.complete import CompleteRecipe
from langevin.kernels.contour import Contour
from langevin.kernels.cycles import Cycles
from langevin.kernels.hamiltonian import Hamiltonian
from langevin.kernels.invariant import Invariant
from langevin.kernels.langevin import Langevin
from langevin.kernels.lattice import Lattice
from langevin.kernels.replica import Replica
from langevin.kernels.riemannian import Riemannian
from langevin.kernels.scaled import Scaled
from langevin.kernels.thermostat import Thermostat

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
]
