"""Transitions: one step from a gradient and noise, the target unseen."""

from langevin.kernels.base import Clock, Kernel, KernelState, StepInfo
from langevin.kernels.hamiltonian import Hamiltonian
from langevin.kernels.invariant import Invariant
from langevin.kernels.langevin import Langevin
from langevin.kernels.recipe import Recipe

__all__ = ["Clock", "Hamiltonian", "Invariant", "Kernel", "KernelState", "Langevin", "Recipe", "StepInfo"]
