"""The named recipes: a kernel put together from parts, with the paper's words for the settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from torch import Tensor

from langevin.checks import check_bool, check_function, needs
from langevin.drifts import Adadelta, Adam, AdaMax, AdamFull, Drift, Momentum, NoDrift, ScaledAverage
from langevin.kernels import CompleteRecipe, Hamiltonian, Invariant, Kernel, Langevin
from langevin.preconditioners import RMS, Fisher, Identity, Preconditioner
from langevin.schedules import Schedule, as_schedule, constant

__all__ = [
    "SAMPLERS",
    "BiasFactor",
    "StepSize",
    "adadelta_sgld",
    "adamax_sgld",
    "asgld",
    "asgld_full",
    "compose",
    "msgld",
    "psgld",
    "complete_recipe",
    "sghmc",
    "sgld",
    "sgrld",
]

StepSize = float | Callable[[int], float] | Literal["auto"]
"""A number, a schedule, or "auto": found by `sample` in a short warm-up, see `langevin.tuning`."""

BiasFactor = float | Callable[[int], float]
"""A number, or a schedule: a bias factor that is annealed to zero restores the target."""


def sgld(step_size: StepSize, *, temperature: float = 1.0) -> Langevin:
    """Stochastic gradient Langevin dynamics (Welling and Teh 2011; section 2).

    ``theta' = theta - eps g + sqrt(2 eps tau) eta``

    Args:
        step_size: epsilon, on the energy U = N * mean NLL - log prior; a number or a schedule.
        temperature: tau; the target is exp(-U / tau).

    Differs from: the original paper writes ``eps / 2`` for our ``eps``.

    Example:
        >>> sgld(step_size=0.01).describe()
        sgld: d theta = -(grad U) dt + sqrt(2 * 1) dW
          step size eps = 0.01
          target: exp(-U / 1)
          law: the target, effective temperature 1, up to O(eps) and the gradient's own noise
    """
    return Langevin("sgld", as_schedule("sgld", "step_size", step_size), temperature)


def psgld(
    step_size: StepSize,
    *,
    beta: float = 0.99,
    eps: float = 1e-5,
    num_data: float = 1.0,
    curvature: Callable[[Tensor], Tensor] | None = None,
    temperature: float = 1.0,
) -> Langevin:
    """Preconditioned SGLD (Li et al. 2016; section 2).

    ``V' = beta V + (1 - beta) (g / num_data)**2``, ``G = 1 / (eps + sqrt(V'))``,
    ``theta' = theta - step_size (G g - tau Gamma) + sqrt(2 step_size tau G) eta``

    Args:
        step_size: epsilon on U; a number or a schedule.
        beta: smoothing factor of V.
        eps: lambda, outside the root.
        num_data: N makes V an average over gradients of the mean loss, as the paper's settings need; 1 takes grad U.
        curvature: function of one position that returns the diagonal of the Hessian; turns the Gamma term on.
        temperature: tau.

    Differs from: Li et al. start V at zero, which makes the first step huge; ours starts at the first squared gradient.
    Without Gamma the law is the target only while V stands still (`preconditioners.RMS` says by how much it is off).

    Example:
        >>> psgld(step_size=0.01).memory
        ('metric_average',)
    """
    return Langevin(
        "psgld", as_schedule("psgld", "step_size", step_size), temperature, preconditioner=RMS(beta, eps, num_data, curvature)
    )


def sghmc(step_size: StepSize, *, beta: float = 0.9, temperature: float = 1.0) -> Hamiltonian:
    """Stochastic gradient Hamiltonian Monte Carlo (Chen, Fox and Guestrin 2014; section 2).

    ``v' = beta v - eps g + sqrt(2 tau eps (1 - beta)) eta``, ``theta' = theta + v'``

    Args:
        step_size: epsilon on U (the square of the time step); a number or a schedule.
        beta: share of the velocity that is kept, as in SGD with momentum.
        temperature: tau.

    Example:
        >>> sghmc(step_size=0.01).memory
        ('velocity',)
    """
    return Hamiltonian("sghmc", as_schedule("sghmc", "step_size", step_size), temperature, beta)


def sgrld(
    step_size: StepSize, *, metric: Callable[[Tensor], Tensor], correction: bool = True, temperature: float = 1.0
) -> Langevin:
    """Stochastic gradient Riemannian Langevin dynamics (Girolami and Calderhead 2011; section 2).

    ``theta' = theta - eps (F^-1 g - tau Gamma) + sqrt(2 eps tau) F^(-1/2) eta`` with ``Gamma_i = sum_j d F^-1_ij / d theta_j``

    Args:
        step_size: epsilon on U; a number or a schedule.
        metric: function of one position (dim,) that returns F (dim, dim), the Fisher information; targets offer it as `metric`.
        correction: add Gamma, by automatic differentiation.
        temperature: tau.

    Example:
        >>> import torch
        >>> sgrld(step_size=0.01, metric=lambda theta: torch.eye(2)).memory
        ()
    """
    check_function("sgrld", "metric", metric, "a function of one position (dim,)")
    return Langevin("sgrld", as_schedule("sgrld", "step_size", step_size), temperature, preconditioner=Fisher(metric, correction))


def msgld(
    step_size: StepSize, *, bias_factor: BiasFactor = 1.0, beta: float = 0.9, invariant: bool = False, temperature: float = 1.0
) -> Langevin | Invariant:
    """Momentum SGLD, exactly as published (Algorithm 1), or in the form that keeps the posterior invariant.

    ``theta' = theta - eps (g + a m) + sqrt(2 eps tau) eta``, then ``m' = beta m + (1 - beta) g``

    Args:
        step_size: epsilon on U; a number or a schedule.
        bias_factor: a; a number, or a schedule along which it is annealed.
        beta: beta_1.
        invariant: give the momentum the noise that makes exp(-U / tau) invariant (`kernels.Invariant` has its formula).
        temperature: tau.

    Differs from: what Theorem 3.1 says of it. With a constant bias factor the law for small steps has temperature
    tau / (1 + a), see `describe()`; the law tests show it against the exact solution. The invariant form has no such bias.

    Example:
        >>> msgld(step_size=0.01, bias_factor=1.0).effective_temperature
        0.5
        >>> msgld(step_size=0.01, bias_factor=1.0, invariant=True).effective_temperature
        1.0
    """
    factor, annealing = _annealed("msgld", bias_factor)
    return _adaptive("msgld", step_size, temperature, Momentum(factor, beta), annealing, invariant)


def asgld(
    step_size: StepSize,
    *,
    bias_factor: BiasFactor = 1.0,
    betas: tuple[float, float] = (0.9, 0.999),
    eps_root: float = 1e-5,
    invariant: bool = False,
    adapt_steps: int | None = None,
    temperature: float = 1.0,
) -> Langevin | Invariant:
    """Adam SGLD, exactly as published (Algorithm 2), or in the form that keeps the posterior invariant.

    ``theta' = theta - eps (g + a m / sqrt(V + lambda)) + sqrt(2 eps tau) eta``, then
    ``m' = beta_1 m + (1 - beta_1) g`` and ``V' = beta_2 V + (1 - beta_2) g**2``

    Args:
        step_size: epsilon on U; a number or a schedule.
        bias_factor: a; a number, or a schedule along which it is annealed.
        betas: (beta_1, beta_2), with beta_1**2 < beta_2 (Theorem 3.2).
        eps_root: lambda, inside the root.
        invariant: give the momentum the noise that makes exp(-U / tau) invariant once V is frozen (`kernels.Invariant`).
        adapt_steps: steps after which V is frozen, when invariant; None takes the warm-up of `sample`.
        temperature: tau.

    Differs from: what Theorem 3.2 says of it; the law is colder than the target, see `describe()`. The invariant form is not.

    Example:
        >>> asgld(step_size=0.01).memory
        ('average', 'square_average')
        >>> asgld(step_size=0.01, invariant=True).memory
        ('velocity', 'passing_velocity', 'square_average')
    """
    factor, annealing = _annealed("asgld", bias_factor)
    return _adaptive("asgld", step_size, temperature, Adam(factor, betas, eps_root), annealing, invariant, adapt_steps)


def asgld_full(
    step_size: StepSize,
    *,
    bias_factor: BiasFactor = 1.0,
    betas: tuple[float, float] = (0.9, 0.999),
    eps_root: float = 1e-5,
    invariant: bool = False,
    adapt_steps: int | None = None,
    temperature: float = 1.0,
) -> Langevin | Invariant:
    """Adam SGLD with the matrix V of equation (2), for up to a few hundred dimensions; see `drifts.AdamFull`.

    ``theta' = theta - eps (g + a (V + lambda I)^(-1/2) m) + sqrt(2 eps tau) eta``, then
    ``m' = beta_1 m + (1 - beta_1) g`` and ``V' = beta_2 V + (1 - beta_2) g g^T`` (Algorithm 2 before its approximation)

    Args:
        step_size: epsilon on U; a number or a schedule.
        bias_factor: a; a number, or a schedule along which it is annealed.
        betas: (beta_1, beta_2), with beta_1**2 < beta_2.
        eps_root: lambda, added to the eigenvalues of V.
        invariant: as in `asgld`.
        adapt_steps: as in `asgld`.
        temperature: tau.

    Differs from: `asgld` in cost, O(dim^3) a step.

    Example:
        >>> asgld_full(step_size=0.01).is_elementwise
        False
    """
    factor, annealing = _annealed("asgld_full", bias_factor)
    return _adaptive("asgld_full", step_size, temperature, AdamFull(factor, betas, eps_root), annealing, invariant, adapt_steps)


def adamax_sgld(
    step_size: StepSize,
    *,
    bias_factor: BiasFactor = 1.0,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    invariant: bool = False,
    adapt_steps: int | None = None,
    temperature: float = 1.0,
) -> Langevin | Invariant:
    """AdaMax SGLD, which section 3.3 names: the bias is scaled by the largest recent gradient.

    ``theta' = theta - step_size (g + a m / (u + eps)) + sqrt(2 step_size tau) eta``, then
    ``m' = beta_1 m + (1 - beta_1) g`` and ``u' = max(beta_2 u, |g|)``

    Args:
        step_size: epsilon on U; a number or a schedule.
        bias_factor: a; a number, or a schedule along which it is annealed.
        betas: (beta_1, beta_2), with beta_1 < beta_2.
        eps: lambda.
        invariant: as in `asgld`, with u frozen.
        adapt_steps: as in `asgld`.
        temperature: tau.

    Example:
        >>> adamax_sgld(step_size=0.01).memory
        ('average', 'largest')
    """
    factor, annealing = _annealed("adamax_sgld", bias_factor)
    return _adaptive("adamax_sgld", step_size, temperature, AdaMax(factor, betas, eps), annealing, invariant, adapt_steps)


def adadelta_sgld(
    step_size: StepSize, *, bias_factor: BiasFactor = 1.0, beta: float = 0.9, eps_root: float = 1e-6, temperature: float = 1.0
) -> Langevin:
    """Adadelta SGLD, which section 3.3 names: the bias is a gradient scaled to the size of the biases before it.

    ``theta' = theta - eps (g + a A) + sqrt(2 eps tau) eta``, then ``V' = beta V + (1 - beta) g**2``,
    ``A' = sqrt(D + lambda) / sqrt(V' + lambda) g`` and ``D' = beta D + (1 - beta) A'**2``

    Args:
        step_size: epsilon on U; a number or a schedule.
        bias_factor: a; a number, or a schedule along which it is annealed.
        beta: Zeiler's rho.
        eps_root: lambda, inside the roots.
        temperature: tau.

    Differs from: the others of the family, for it has no average of gradients and so no invariant form. Its law is colder than the
    target by direction.

    Example:
        >>> adadelta_sgld(step_size=0.01).memory
        ('bias', 'square_average', 'bias_square')
    """
    factor, annealing = _annealed("adadelta_sgld", bias_factor)
    return Langevin(
        "adadelta_sgld",
        as_schedule("adadelta_sgld", "step_size", step_size),
        temperature,
        Adadelta(factor, beta, eps_root),
        annealing=annealing,
    )


def _annealed(name: str, bias_factor: BiasFactor) -> tuple[float, Schedule]:
    """Split a bias factor into its constant part and its schedule."""
    return (1.0, as_schedule(name, "bias_factor", bias_factor)) if callable(bias_factor) else (bias_factor, constant(1.0))


def _adaptive(
    name: str,
    step_size: StepSize,
    temperature: float,
    drift: ScaledAverage,
    annealing: Schedule,
    invariant: bool,
    adapt_steps: int | None = None,
) -> Langevin | Invariant:
    """Put a bias into its published or its invariant kernel."""
    check_bool(name, "invariant", invariant)
    schedule = as_schedule(name, "step_size", step_size)
    if invariant:
        return Invariant(name, schedule, temperature, drift, annealing, adapt_steps)
    if adapt_steps is not None:
        raise needs(name, "adapt_steps", "invariant=True: the published form never stops adapting", adapt_steps)
    return Langevin(name, schedule, temperature, drift, annealing=annealing)


def compose(
    step_size: StepSize,
    *,
    drift: Drift | None = None,
    preconditioner: Preconditioner | None = None,
    annealing: Callable[[int], float] | float = 1.0,
    temperature: float = 1.0,
) -> Langevin:
    """Put any drift and any preconditioner together (section 3.3: "can be used together"); `annealing` multiplies the bias.

    Example:
        >>> from langevin.drifts import Momentum
        >>> from langevin.preconditioners import RMS
        >>> compose(step_size=0.01, drift=Momentum(), preconditioner=RMS()).memory
        ('average', 'metric_average')
    """
    return Langevin(
        "compose",
        as_schedule("compose", "step_size", step_size),
        temperature,
        NoDrift() if drift is None else drift,
        Identity() if preconditioner is None else preconditioner,
        as_schedule("compose", "annealing", annealing),
    )


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
    extra = {} if kinetic is None else {"kinetic": kinetic}
    return CompleteRecipe(
        "complete_recipe",
        as_schedule("complete_recipe", "step_size", step_size),
        temperature,
        diffusion,
        curl,
        num_auxiliary,
        **extra,
    )


SAMPLERS: dict[str, Callable[..., Kernel]] = {
    "sgld": sgld,
    "psgld": psgld,
    "sghmc": sghmc,
    "sgrld": sgrld,
    "msgld": msgld,
    "asgld": asgld,
    "asgld_full": asgld_full,
    "adamax_sgld": adamax_sgld,
    "adadelta_sgld": adadelta_sgld,
}
"""Every named sampler; the contract tests run over this table, so a new one is tested by being listed."""
