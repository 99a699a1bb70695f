"""SGLD, stochastic gradient Langevin dynamics (Welling and Teh 2011; section 2)."""

from __future__ import annotations

from langevin.kernels.compose import StepSize, make
from langevin.kernels.langevin import Langevin

__all__ = ["sgld"]


def sgld(step_size: StepSize, *, temperature: float = 1.0) -> Langevin:
    """Stochastic gradient Langevin dynamics (Welling and Teh 2011; section 2).

    ``θ' = θ - ε g + sqrt(2 ε τ) η``

    Args:
        step_size: ε, on the energy U = N * mean NLL - log prior; a number or a schedule.
        temperature: τ; the target is exp(-U / τ).

    Differs from: the original paper writes ``ε / 2`` for our ``ε``.

    Example:
        >>> sgld(step_size=0.01).describe()
        sgld: dθ = -(grad U) dt + sqrt(2 * 1) dW
          step size ε = 0.01
          target: exp(-U / 1)
          law: the target, effective temperature 1, up to O(ε) and the gradient's own noise
    """
    return make(Langevin, "sgld", step_size, temperature)
