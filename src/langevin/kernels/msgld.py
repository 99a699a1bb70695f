"""MSGLD, momentum SGLD: Algorithm 1 of the paper.

In a step with gradient ``g_t`` of the energy U and standard normal ``η_t``,

    ``θ_{t+1} = θ_t - ε (g_t + a m_t) + sqrt(2 ε τ) η_t``
    ``m_{t+1} = β m_t + (1 - β) g_t``,    ``m_0 = 0``

The bias ``a m_t`` contains the gradients before step t only. `Momentum` has the two lines about m;
the line for θ is the same for all adaptive biases (`Langevin.update`). As a plain loop:

    >>> import torch, langevin as lv
    >>> def algorithm_1(θ, gradient, η, ε, a, β, τ=1.0):
    ...     m = torch.zeros_like(θ)
    ...     for η_t in η:
    ...         g = gradient(θ)
    ...         θ = θ - ε * (g + a * m) + (2 * ε * τ) ** 0.5 * η_t
    ...         m = β * m + (1 - β) * g
    ...     return θ
    >>> target, kernel = lv.targets.gaussian([[1.0]]), lv.msgld(0.1, bias_factor=2.0, beta=0.5)
    >>> η, state = torch.tensor([[[1.0]], [[-2.0]], [[0.5]]]), kernel.init(torch.ones(1, 1))
    >>> for η_t in η:
    ...     state = kernel.step(state, target.evaluate(state.position), η_t[None])
    >>> θ = algorithm_1(torch.ones(1, 1), lambda θ: target.evaluate(θ).gradient, η, 0.1, 2.0, 0.5)
    >>> torch.equal(state.position, θ)
    True
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, NamedTuple

from torch import Tensor
from typing_extensions import override

from langevin.checks import check_field, needs
from langevin.kernels.compose import BiasFactor, NoiseSetting, StepSize, annealed, either_form, make
from langevin.kernels.gradient_noise import as_noise
from langevin.kernels.invariant import Invariant
from langevin.kernels.langevin import Langevin
from langevin.kernels.parts import ScaledAverage, Tensors

__all__ = ["msgld", "nasgld"]


class MSGLDState(NamedTuple):
    """State of `Momentum`."""

    average: Tensor  # m_t


@dataclass(frozen=True)
class Momentum(ScaledAverage):
    """``A_t = m_t`` with ``m_{t+1} = β m_t + (1 - β) g_t`` and ``m_0 = 0`` (Algorithm 1).

    Args:
        bias_factor: a.
        beta: β, the smoothing factor, in [0, 1).

    Example:
        >>> Momentum(bias_factor=10.0, beta=0.99).state_names
        ('average',)
    """

    State: ClassVar[type[MSGLDState]] = MSGLDState

    bias_factor: float = 1.0
    beta: float = 0.9

    def __post_init__(self) -> None:
        check_field(self, "Momentum", "bias_factor", ">= 0", lambda v: v >= 0)
        check_field(self, "Momentum", "beta", "0 <= beta < 1", lambda v: 0 <= v < 1)

    @override
    def bias(self, state: Tensors) -> Tensor:
        (average,) = state
        return self.bias_factor * average

    @override
    def update(self, state: Tensors, gradient: Tensor) -> Tensors:
        (average,), beta = state, self.beta
        return MSGLDState(beta * average + (1 - beta) * gradient)

    @property
    @override
    def smoothing(self) -> float:
        return self.beta

    @override
    def scale(self, state: Tensors, vector: Tensor) -> Tensor:
        return vector

    @override
    def root(self, state: Tensors, vector: Tensor) -> Tensor:
        return vector

    @override
    def scale_sde(self) -> tuple[str, ...]:
        return ("m",)


def msgld(
    step_size: StepSize,
    *,
    bias_factor: BiasFactor = 1.0,
    beta: float = 0.9,
    invariant: bool = False,
    noise: NoiseSetting = None,
    temperature: float = 1.0,
) -> Langevin | Invariant:
    """Build momentum SGLD, as published (Algorithm 1) or with the posterior invariant.

    ``θ' = θ - ε (g + a m) + sqrt(2 ε τ) η``, then ``m' = β m + (1 - β) g``

    Args:
        step_size: ε on U; a number or a schedule.
        bias_factor: a; a number, a schedule along which it is annealed, or "auto" when invariant:
            found with the step size.
        beta: β, the smoothing factor of m.
        invariant: give the momentum the noise that makes exp(-U / τ) invariant (`kernels.Invariant`
            has its formula).
        noise: "corrected" corrects for the white noise of minibatches, when invariant: `sample`
            estimates its covariance Σ first. Known noise is given as (Σ, τ K), K the mean Hessian:
            tensors (dim,) or (dim, dim). None makes no correction: noise raises the temperature.
        temperature: τ.

    Differs from: Theorem 3.1. With a constant bias factor the stationary distribution for small
    steps has temperature τ / (1 + a), see `describe()`; tests/law compare with the exact solution.
    The invariant form has no such bias.

    Example:
        >>> msgld(step_size=0.01, bias_factor=1.0).effective_temperature
        0.5
        >>> msgld(step_size=0.01, bias_factor=1.0, invariant=True).effective_temperature
        1.0
    """
    return either_form(
        "msgld",
        step_size,
        temperature,
        bias_factor,
        partial(Momentum, beta=beta),
        invariant,
        noise=noise,
    )


def nasgld(
    step_size: StepSize = "auto",
    *,
    bias_factor: BiasFactor = "auto",
    beta: float = 0.8,
    noise: NoiseSetting = "corrected",
    temperature: float = 1.0,
) -> Invariant:
    """Build noise-corrected SGLD: invariant MSGLD with settings that need no tuning.

    The kick takes ``g + D p`` for the noisy gradient g: p is the velocity along it and D a friction
    that corrects for the noise (`kernels.Invariant` has its formula). Exact on Gaussians for any
    noise; one independent draw per epoch of minibatches.

    Args:
        step_size: ε on U; "auto" finds one with the scale and the noise.
        bias_factor: a; "auto" finds one with the step size.
        beta: β, the share of the velocity that is kept. With much noise the friction D forgets
            faster than any β does.
        noise: "corrected", or one that is known, as in `msgld`.
        temperature: τ.

    Differs from: NOGIN (Matthews and Weare 2018), which subtracts the noise from what is injected,
    has one velocity and another order of the step; off Gaussians its error is larger
    (docs/benchmarks/corrected_forms.txt).

    Example:
        >>> nasgld().state_names
        ('velocity', 'passing_velocity')
    """
    factor, annealing = annealed("nasgld", bias_factor)
    gradient_noise = as_noise("nasgld", noise)
    if gradient_noise is None:
        raise needs(
            "nasgld", "noise", '"corrected" or a pair (variance, signal): msgld has none', noise
        )
    return make(
        Invariant,
        "nasgld",
        step_size,
        temperature,
        drift=Momentum(factor, beta),
        annealing=annealing,
        gradient_noise=gradient_noise,
    )
