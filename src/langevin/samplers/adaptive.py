"""SGLD with an adaptive bias ``a A_t``: as published, or in the form that keeps the posterior invariant."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from langevin.checks import check_bool, needs
from langevin.drifts import Adadelta, Adam, AdaMax, AdamFull, Drift, Momentum, ScaledAverage
from langevin.gradient_noise import as_noise
from langevin.kernels import Invariant, Kernel, Langevin
from langevin.samplers.base import BiasFactor, NoiseSetting, StepSize, make
from langevin.schedules import Schedule, as_schedule, constant

__all__ = ["adadelta_sgld", "adamax_sgld", "asgld", "asgld_full", "msgld", "nasgld"]


def msgld(
    step_size: StepSize,
    *,
    bias_factor: BiasFactor = 1.0,
    beta: float = 0.9,
    invariant: bool = False,
    noise: NoiseSetting = None,
    temperature: float = 1.0,
) -> Langevin | Invariant:
    """Momentum SGLD, exactly as published (Algorithm 1), or in the form that keeps the posterior invariant.

    ``θ' = θ - ε (g + a m) + sqrt(2 ε τ) η``, then ``m' = β m + (1 - β) g``

    Args:
        step_size: ε on U; a number or a schedule.
        bias_factor: a; a number, a schedule along which it is annealed, or "auto" when invariant: found with the step size.
        beta: β, the smoothing factor of m.
        invariant: give the momentum the noise that makes exp(-U / τ) invariant (`kernels.Invariant` has its formula).
        noise: "corrected" absorbs the white noise of minibatches, when invariant: `sample` learns its covariance Σ first. One that
            is known is given as (Σ, τ K), K the mean Hessian: tensors (dim,) or (dim, dim). None leaves it to heat the law.
        temperature: τ.

    Differs from: what Theorem 3.1 says of it. With a constant bias factor the law for small steps has temperature
    τ / (1 + a), see `describe()`; the law tests show it against the exact solution. The invariant form has no such bias.

    Example:
        >>> msgld(step_size=0.01, bias_factor=1.0).effective_temperature
        0.5
        >>> msgld(step_size=0.01, bias_factor=1.0, invariant=True).effective_temperature
        1.0
    """
    return _either_form("msgld", step_size, temperature, bias_factor, partial(Momentum, beta=beta), invariant, noise=noise)


def nasgld(
    step_size: StepSize = "auto",
    *,
    bias_factor: BiasFactor = "auto",
    beta: float = 0.8,
    noise: NoiseSetting = "corrected",
    temperature: float = 1.0,
) -> Invariant:
    """Noise-absorbing SGLD: the invariant MSGLD with ``noise="corrected"``, and settings that need no tuning.

    The kick takes ``g + D p`` for the noisy gradient g: p is the velocity along it and D a friction that absorbs the noise
    (`kernels.Invariant` has its formula). Exact on Gaussians for any noise; one independent draw per epoch of minibatches.

    Args:
        step_size: ε on U; "auto" finds one with the scale and the noise.
        bias_factor: a; "auto" finds one with the step size.
        beta: β, the share of the velocity that is kept. With much noise the friction D forgets faster than any β does.
        noise: "corrected", or one that is known, as in `msgld`.
        temperature: τ.

    Differs from: NOGIN (Matthews and Weare 2018), which subtracts the noise from what is injected, has one velocity and another
    order of the step; off Gaussians its error is larger (docs/benchmarks/corrected_forms.txt).

    Example:
        >>> nasgld().memory
        ('velocity', 'passing_velocity')
    """
    factor, annealing = _annealed("nasgld", bias_factor)
    absorbed = as_noise("nasgld", noise)
    if absorbed is None:
        raise needs("nasgld", "noise", '"corrected" or a pair (variance, signal): msgld has none', noise)
    return make(Invariant, "nasgld", step_size, temperature, Momentum(factor, beta), annealing, None, absorbed)


def asgld(
    step_size: StepSize,
    *,
    bias_factor: BiasFactor = 1.0,
    betas: tuple[float, float] = (0.9, 0.999),
    eps_root: float = 1e-5,
    invariant: bool = False,
    adapt_steps: int | None = None,
    noise: NoiseSetting = None,
    temperature: float = 1.0,
) -> Langevin | Invariant:
    """Adam SGLD, exactly as published (Algorithm 2), or in the form that keeps the posterior invariant.

    ``θ' = θ - ε (g + a m / sqrt(V + λ)) + sqrt(2 ε τ) η``, then ``m' = β₁ m + (1 - β₁) g`` and ``V' = β₂ V + (1 - β₂) g**2``

    Args:
        step_size: ε on U; a number or a schedule.
        bias_factor: a; a number, a schedule along which it is annealed, or "auto" when invariant: found with the step size.
        betas: (β₁, β₂), with β₁**2 < β₂ (Theorem 3.2).
        eps_root: λ, inside the root.
        invariant: give the momentum the noise that makes exp(-U / τ) invariant once V is frozen (`kernels.Invariant`).
        adapt_steps: steps after which V is frozen, when invariant; None takes the warm-up of `sample`.
        noise: as in `msgld`; a known one has a diagonal Σ.
        temperature: τ.

    Differs from: what Theorem 3.2 says of it; the law is colder than the target, see `describe()`. The invariant form is not.

    Example:
        >>> asgld(step_size=0.01).memory
        ('average', 'square_average')
        >>> asgld(step_size=0.01, invariant=True).memory
        ('velocity', 'passing_velocity', 'square_average')
    """
    drift = partial(Adam, betas=betas, eps_root=eps_root)
    return _either_form("asgld", step_size, temperature, bias_factor, drift, invariant, adapt_steps, noise)


def asgld_full(
    step_size: StepSize,
    *,
    bias_factor: BiasFactor = 1.0,
    betas: tuple[float, float] = (0.9, 0.999),
    eps_root: float = 1e-5,
    invariant: bool = False,
    adapt_steps: int | None = None,
    noise: NoiseSetting = None,
    temperature: float = 1.0,
) -> Langevin | Invariant:
    """Adam SGLD with the matrix V of equation (2), for up to a few hundred dimensions; see `drifts.AdamFull`.

    ``θ' = θ - ε (g + a (V + λ I)^(-1/2) m) + sqrt(2 ε τ) η``, then
    ``m' = β₁ m + (1 - β₁) g`` and ``V' = β₂ V + (1 - β₂) g g^T`` (Algorithm 2 before its approximation)

    Args:
        step_size: ε on U; a number or a schedule.
        bias_factor: a; a number, a schedule along which it is annealed, or "auto" when invariant: found with the step size.
        betas: (β₁, β₂), with β₁**2 < β₂.
        eps_root: λ, added to the eigenvalues of V.
        invariant: as in `asgld`.
        adapt_steps: as in `asgld`.
        noise: as in `msgld`; a known one has a diagonal Σ.
        temperature: τ.

    Differs from: `asgld` in cost, O(dim^3) a step.

    Example:
        >>> asgld_full(step_size=0.01).is_elementwise
        False
    """
    drift = partial(AdamFull, betas=betas, eps_root=eps_root)
    return _either_form("asgld_full", step_size, temperature, bias_factor, drift, invariant, adapt_steps, noise)


def adamax_sgld(
    step_size: StepSize,
    *,
    bias_factor: BiasFactor = 1.0,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    invariant: bool = False,
    adapt_steps: int | None = None,
    noise: NoiseSetting = None,
    temperature: float = 1.0,
) -> Langevin | Invariant:
    """AdaMax SGLD, which section 3.3 names: the bias is scaled by the largest recent gradient.

    ``θ' = θ - ε (g + a m / (u + λ)) + sqrt(2 ε τ) η``, then ``m' = β₁ m + (1 - β₁) g`` and ``u' = max(β₂ u, |g|)``

    Args:
        step_size: ε on U; a number or a schedule.
        bias_factor: a; a number, a schedule along which it is annealed, or "auto" when invariant: found with the step size.
        betas: (β₁, β₂), with β₁ < β₂.
        eps: λ.
        invariant: as in `asgld`, with u frozen.
        adapt_steps: as in `asgld`.
        noise: as in `msgld`; a known one has a diagonal Σ.
        temperature: τ.

    Example:
        >>> adamax_sgld(step_size=0.01).memory
        ('average', 'largest')
    """
    drift = partial(AdaMax, betas=betas, eps=eps)
    return _either_form("adamax_sgld", step_size, temperature, bias_factor, drift, invariant, adapt_steps, noise)


def adadelta_sgld(
    step_size: StepSize, *, bias_factor: BiasFactor = 1.0, beta: float = 0.9, eps_root: float = 1e-6, temperature: float = 1.0
) -> Langevin:
    """Adadelta SGLD, which section 3.3 names: the bias is a gradient scaled to the size of the biases before it.

    ``θ' = θ - ε (g + a A) + sqrt(2 ε τ) η``, then ``V' = β V + (1 - β) g**2``,
    ``A' = sqrt(D + λ) / sqrt(V' + λ) g`` and ``D' = β D + (1 - β) A'**2``

    Args:
        step_size: ε on U; a number or a schedule.
        bias_factor: a; a number, a schedule along which it is annealed, or "auto" when invariant: found with the step size.
        beta: β, Zeiler's ρ.
        eps_root: λ, inside the roots.
        temperature: τ.

    Differs from: the rest of the family. There is no average of gradients, so there is no invariant form. The law is colder than
    the target, by direction.

    Example:
        >>> adadelta_sgld(step_size=0.01).memory
        ('bias', 'square_average', 'bias_square')
    """
    return _published("adadelta_sgld", step_size, temperature, bias_factor, partial(Adadelta, beta=beta, eps_root=eps_root))


def _published(
    name: str, step_size: StepSize, temperature: float, bias_factor: BiasFactor, drift: Callable[[float], Drift]
) -> Langevin:
    """Make the sampler whose bias is what `drift` makes of the bias factor."""
    factor, annealing = _annealed(name, bias_factor)
    return make(Langevin, name, step_size, temperature, drift(factor), annealing=annealing)


def _either_form(
    name: str,
    step_size: StepSize,
    temperature: float,
    bias_factor: BiasFactor,
    drift: Callable[[float], ScaledAverage],
    invariant: bool,
    adapt_steps: int | None = None,
    noise: NoiseSetting = None,
) -> Langevin | Invariant:
    """Put a bias into its published or its invariant kernel."""
    check_bool(name, "invariant", invariant)
    if isinstance(bias_factor, str) and bias_factor == "auto" and not invariant:
        raise needs(name, "bias_factor", 'a number or a schedule; "auto" needs invariant=True', bias_factor)
    if invariant:
        factor, annealing = _annealed(name, bias_factor)
        return make(Invariant, name, step_size, temperature, drift(factor), annealing, adapt_steps, as_noise(name, noise))
    if noise is not None:
        raise needs(name, "noise", "None for the published form: a correction needs invariant=True", noise)
    if adapt_steps is not None:
        raise needs(name, "adapt_steps", "invariant=True: the published form never stops adapting", adapt_steps)
    return _published(name, step_size, temperature, bias_factor, drift)


def _annealed(name: str, bias_factor: BiasFactor) -> tuple[float, Schedule]:
    """Split a bias factor into its constant part and its schedule."""
    if callable(bias_factor) or (isinstance(bias_factor, str) and bias_factor == "auto"):
        return 1.0, as_schedule(name, "bias_factor", bias_factor)
    return bias_factor, constant(1.0)


NAMED: dict[str, Callable[..., Kernel]] = {
    "msgld": msgld,
    "asgld": asgld,
    "asgld_full": asgld_full,
    "adamax_sgld": adamax_sgld,
    "adadelta_sgld": adadelta_sgld,
}
