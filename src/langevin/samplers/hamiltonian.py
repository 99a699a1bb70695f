"""Samplers with inertia: SGHMC, the same with a thermostat or in a metric, and the general form with any auxiliary variables."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from langevin.checks import check_bool, check_function, needs
from langevin.kernels import (
    AdaptedHamiltonian,
    Amagold,
    CompleteRecipe,
    Hamiltonian,
    InvariantHamiltonian,
    Kernel,
    Riemannian,
    Thermostat,
)
from langevin.preconditioners import Fisher, Windowed
from langevin.samplers.base import StepSize, make

__all__ = ["adaptive_sghmc", "amagold", "complete_recipe", "sghmc", "sgnht", "sgrhmc"]


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


def sgnht(
    step_size: StepSize,
    *,
    beta: float = 0.9,
    thermal_mass: float = 500.0,
    elementwise: bool = False,
    temperature: float = 1.0,
) -> Thermostat:
    """Stochastic gradient Nosé-Hoover thermostat (Ding et al. 2014), for gradients whose noise is not known; not in section 2.

    ``v' = ((β - ξ) v - ε g + sqrt(2 τ ε (1 - β)) η) / (1 + ξ)``, ``θ' = θ + v'``,
    ``ξ' = ξ + ((1 + β) v'**2 / (2 ε τ) - 1) / μ``, with v'**2 averaged over the elements of θ, or of each element alone

    It is `sghmc` with a friction ξ that takes out the heat of minibatches: white noise of variance s^2 in the gradient raises the
    mean of ξ by ``ε s^2 / (4 τ)``, and the variance of θ stays. At temperature 0 the thermostat stands still.

    Args:
        step_size: ε on U, as in `sghmc`; a number or a schedule. "auto" takes the step that serves `sghmc`, heat included.
        beta: β, the share of the velocity that is kept where ξ = 0: the noise that is injected.
        thermal_mass: μ, in steps: how slowly ξ changes.
        elementwise: a thermostat for each element, for noise that differs between them; else one for each chain.
        temperature: τ.

    Differs from: Ding et al. in that friction acts on the mean of the old and the new velocity, which makes the step second order
    and its temperature that of the draws (`kernels.Thermostat` says why); in that τ is a setting; and in units of ξ and μ in which
    the step size drops out. A thermostat holds one temperature: with one for all, noise that differs between elements leaves some
    too hot and others too cold; noise that is correlated between elements leaves their correlation wrong in either form.
    Minibatches of a model that fits its data have noise in proportion to the curvature: in a scale that makes the curvature one
    (``sample(..., scale=...)``) it is the same in all directions, and one thermostat serves. The temperature that `samples.trust`
    looks at is the one that the thermostat holds, so that check is nearly blind here. Where Σ can be learnt, `nasgld` is exact.

    Example:
        >>> sgnht(step_size=0.01).memory
        ('velocity', 'friction')
    """
    return make(Thermostat, "sgnht", step_size, temperature, beta, thermal_mass, elementwise)


def adaptive_sghmc(
    step_size: StepSize,
    *,
    beta: float = 0.95,
    eps_root: float = 1e-10,
    num_data: float = 1.0,
    invariant: bool = False,
    adapt_steps: int | None = None,
    temperature: float = 1.0,
) -> InvariantHamiltonian:
    """Scale-adapted SGHMC, as published (Springenberg et al. 2016, section 4: BOHAMIANN), or in a form that is exact on Gaussians.

    ``v' = β v - ε G g + sqrt(2 τ ε (1 - β) G - (ε N)**2) η``, ``θ' = θ + v'``, with ``G = (V + λ)^(-1/2)`` and V an average of
    (g / N)**2 over a window that follows the gradients (`preconditioners.Windowed`), frozen after the first steps

    Args:
        step_size: ε on U, the square of the published one; a number or a schedule, or "auto" when invariant.
        beta: β, the share of the velocity that is kept; one less the published momentum decay of .05.
        eps_root: λ, inside the root.
        num_data: N makes V an average over gradients of the mean loss, as the optimizer does; 1 takes grad U, as published.
        invariant: keep the posterior invariant: no noise is taken out, and the step is BAOAB (`kernels.InvariantHamiltonian`).
        adapt_steps: steps after which V is frozen; None takes the warm-up of `sample`.
        temperature: τ.

    Differs from: the published form takes the second moment of the gradient for its noise, and is colder than the target wherever
    the gradient is not all noise (`kernels.AdaptedHamiltonian` says by how much); with noise of a known or learnt variance
    `msgld` with ``noise="corrected"`` is exact.

    Example:
        >>> adaptive_sghmc(step_size=1e-4).memory
        ('velocity', 'window', 'average', 'square_average')
    """
    check_bool("adaptive_sghmc", "invariant", invariant)
    if isinstance(step_size, str) and not invariant:
        raise needs("adaptive_sghmc", "step_size", 'a number or a schedule; "auto" needs invariant=True', step_size)
    kernel = InvariantHamiltonian if invariant else AdaptedHamiltonian
    return make(kernel, "adaptive_sghmc", step_size, temperature, beta, Windowed(eps_root, num_data), adapt_steps)


def amagold(step_size: StepSize, *, beta: float = 0.9, length: int = 10, temperature: float = 1.0) -> Amagold:
    """AMAGOLD: SGHMC with a Metropolis test after every trajectory (Zhang, Cooper and De Sa 2020, Algorithm 1).

    ``v' = β v - (h / 2) (1 + β) g + sqrt(τ (1 - β**2)) η``, ``θ' = θ + h v'``, ``h**2 = 2 ε / (1 + β)``, with half kicks at the
    ends of a trajectory, whose end is taken with probability ``exp((U(start) - U(end) + ρ) / τ)``, ρ the gradients' work along it

    The exact reference for small problems: its law is the target with noisy gradients and large steps. Draws are kept at the ends
    of trajectories, one in length + 1 steps (a `thin` that is not a multiple of that keeps fewer); with a batch_size rows are drawn
    with replacement, and the energy of all data is evaluated at every step. `diagnostics.acceptance_rate` says how many were taken.

    Args:
        step_size: ε on U, as in `sghmc`; a number or a schedule.
        beta: β, the share of the velocity that is kept; 1 is HMC, with noisy gradients or without.
        length: moves of a trajectory.
        temperature: τ.

    Differs from: the published order has half moves at the ends of a trajectory and full kicks within (`kernels.Amagold` says why
    both are exact); the velocity is always made anew.

    Example:
        >>> kernel = amagold(step_size=0.1, length=4)
        >>> [step for step in range(12) if not kernel.explores(step)]  # that are kept
        [4, 9]
    """
    return make(Amagold, "amagold", step_size, temperature, beta, length)


def sgrhmc(
    step_size: StepSize,
    *,
    metric: Callable[[Tensor], Tensor],
    beta: float = 0.9,
    friction: str = "metric",
    correction: bool = True,
    temperature: float = 1.0,
) -> Riemannian:
    """Stochastic gradient Riemannian Hamiltonian Monte Carlo (Ma, Chen and Fox 2015, section 4.2; named in the introduction).

    ``dθ = R v dt``, ``dv = -(R^T grad U - τ Γ + C v) dt + sqrt(2 τ C) dW``, ``R R^T = F(θ)^-1``, ``Γ_i = sum_j d R_ji / d θ_j``

    SGHMC in a metric that moves with θ: kicks and friction as in `sghmc`, ``θ' = θ + h R v'`` with R half way; `kernels.Riemannian`
    has the step. For F = I it is `sghmc`.

    Args:
        step_size: ε on U in the metric, as in `sghmc`; a number or a schedule. "auto" needs ``friction="even"``.
        metric: function of one position (dim,) that returns F (dim, dim), as in `sgrld`: the Fisher information, or Ma, Chen and
            Fox's ``F = I / (D sqrt(|U(θ) + C|))``, or any positive definite matrix that is smooth in θ.
        beta: β, the share of the velocity that is kept in a step, where the friction is that of ``F = I``.
        friction: "metric" as published, ``C = c F^-1``: weak where F is large. Heat of minibatches is then what it is in `sghmc`
            whatever F, and so is the motion where β is small. "even", ``C = c I``, is friction as strong in all directions in the
            metric's own units, what a Fisher information of many data asks for; for small β its motion is that of `sgrld`.
        correction: add Γ, by automatic differentiation; needed whenever F depends on θ.
        temperature: τ.

    Differs from: Ma, Chen and Fox take one Euler step with the symmetric root; ours is a splitting whose law is right for small ε
    at any β, not only for β near 1, and R is a Cholesky factor, which has derivatives where eigenvalues meet. Any root serves.
    They subtract the gradient's noise, where it is known, from the noise injected; ours lets it heat. A metric that is learnt and
    then frozen is a constant one: ``sample(sghmc(...), scale="diagonal")`` learns it, and costs no derivatives.

    Example:
        >>> import torch
        >>> sgrhmc(step_size=0.01, metric=lambda theta: torch.diag(1 + theta**2)).memory
        ('velocity',)
    """
    check_function("sgrhmc", "metric", metric, "a function of one position (dim,)")
    fisher = Fisher(metric, correction)
    return make(Riemannian, "sgrhmc", step_size, temperature, beta, friction=friction, metric=fisher)


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


NAMED: dict[str, Callable[..., Kernel]] = {
    "sghmc": sghmc,
    "sgnht": sgnht,
    "sgrhmc": sgrhmc,
    "adaptive_sghmc": adaptive_sghmc,
    "amagold": amagold,
}
