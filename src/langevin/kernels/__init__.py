"""Transitions: one step from a gradient and noise, the target unseen."""

from langevin.kernels.base import Clock, Kernel, KernelState, StepInfo
from langevin.kernels.complete import CompleteRecipe
from langevin.kernels.hamiltonian import Hamiltonian
from langevin.kernels.invariant import Invariant
from langevin.kernels.langevin import Langevin

__all__ = ["Clock", "Hamiltonian", "Invariant", "Kernel", "KernelState", "Langevin", "CompleteRecipe", "StepInfo"]
