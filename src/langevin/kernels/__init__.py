"""Transitions: one step from a gradient and noise, the target unseen."""

from langevin.kernels.base import Kernel, KernelState, StepInfo
from langevin.kernels.hamiltonian import Hamiltonian
from langevin.kernels.invariant import InvariantMomentum
from langevin.kernels.langevin import Langevin
from langevin.kernels.recipe import Recipe

__all__ = ["Hamiltonian", "InvariantMomentum", "Kernel", "KernelState", "Langevin", "Recipe", "StepInfo"]
