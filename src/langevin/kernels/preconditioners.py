"""Preconditioners ``G``: identity, the diagonals of pSGLD and adaptive SGHMC, Fisher.

A preconditioned Langevin step is ``θ' = θ - ε (G force - τ Γ) + sqrt(2 ε τ) G^(1/2) η`` with
``Γ_i = sum_j d G_ij / d θ_j``. Any of these can be combined with any drift.
"""

from langevin.kernels.adaptive_sghmc import Windowed
from langevin.kernels.parts import Identity, Preconditioner
from langevin.kernels.psgld import RMS
from langevin.kernels.sgrld import Fisher

__all__ = ["RMS", "Fisher", "Identity", "Preconditioner", "Windowed"]
