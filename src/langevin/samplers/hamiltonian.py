"""Samplers with inertia: SGHMC, and the general form with any auxiliary variables."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from langevin.kernels import CompleteRecipe, Hamiltonian, Kernel
from langevin.samplers.base import StepSize, make

__all__ = ["complete_recipe", "sghmc"]


def sghmc(step_size: StepSize, *, beta: float = 0.9, temperature: float = 1.0) -> Hamiltonian:
    """Stochastic gradient Hamiltonian Monte Carlo (Chen, Fox and Guestrin 2014; section 2).

    ``v' = β v - ε g + sqrt(2 τ ε (1 - β)) η``, ``θ' = θ + v'``

    Args:
        step_size: ε on U (the square of the time step); a number or a schedule.
        beta: β, the share of the velocity that is kept, as in SGD with momentum.
        temperature: τ.

    Example:
        >>> sghmc(step_size=0.01).memory
        ('velocity',)
    """
    return make(Hamiltonian, "sghmc", step_size, temperature, beta)


def complete_recipe(
    step_size: StepSize,
    *,
    diffusion: Callable[[Tensor], Tensor],
    curl: Callable[[Tensor], Tensor] | None = None,
    num_auxiliary: int = 0,
    kinetic: Callable[[Tensor], Tensor] | None = None,
    temperature: float = 1.0,
) -> CompleteRecipe:
    """Make the sampler of any diffusion D and curl Q (Ma, Chen and Fox 2015; section 2); see `kernels.CompleteRecipe`.

    Example:
        >>> import torch
        >>> complete_recipe(step_size=0.01, diffusion=lambda xi: torch.eye(2)).memory  # SGLD
        ()
    """
    kinetic = CompleteRecipe.kinetic if kinetic is None else kinetic
    return make(CompleteRecipe, "complete_recipe", step_size, temperature, diffusion, curl, num_auxiliary, kinetic)


NAMED: dict[str, Callable[..., Kernel]] = {"sghmc": sghmc}
