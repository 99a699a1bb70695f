"""ASGLD, Adam SGLD: Algorithm 2 of the paper.

In a step with gradient ``g_t`` of the energy U and standard normal ``η_t``, elementwise,

    ``θ_{t+1} = θ_t - ε (g_t + a m_t / sqrt(V_t + λ)) + sqrt(2 ε τ) η_t``
    ``m_{t+1} = β₁ m_t + (1 - β₁) g_t``,      ``m_0 = 0``
    ``V_{t+1} = β₂ V_t + (1 - β₂) g_t**2``,   ``V_0 = 0``

The bias contains the gradients before step t only. `Adam` has the lines about m and V; the line for
θ is the same for all adaptive biases (`Langevin.update`). As a plain loop:

    >>> import torch, langevin as lv
    >>> def algorithm_2(θ, gradient, η, ε, a, β1, β2, λ, τ=1.0):
    ...     m, V = torch.zeros_like(θ), torch.zeros_like(θ)
    ...     for η_t in η:
    ...         g = gradient(θ)
    ...         θ = θ - ε * (g + a * m / (V + λ) ** 0.5) + (2 * ε * τ) ** 0.5 * η_t
    ...         m = β1 * m + (1 - β1) * g
    ...         V = β2 * V + (1 - β2) * g**2
    ...     return θ
    >>> target, kernel = lv.targets.gaussian([[1.0]]), lv.asgld(0.1, betas=(0.5, 0.9), eps_root=0.1)
    >>> η, state = torch.tensor([[[1.0]], [[-2.0]], [[0.5]]]), kernel.init(torch.ones(1, 1))
    >>> for η_t in η:
    ...     state = kernel.step(state, target.evaluate(state.position), η_t[None])
    >>> gradient = lambda θ: target.evaluate(θ).gradient
    >>> θ = algorithm_2(torch.ones(1, 1), gradient, η, 0.1, 1.0, 0.5, 0.9, 0.1)
    >>> torch.allclose(state.position, θ)
    True
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from typing_extensions import override

from langevin.checks import check_field, needs
from langevin.kernels.compose import BiasFactor, NoiseSetting, StepSize, either_form
from langevin.kernels.invariant import Invariant
from langevin.kernels.langevin import Langevin
from langevin.kernels.parts import Number, ScaledAverage, Tensors, check_betas

__all__ = ["asgld", "asgld_full"]


class ASGLDState(NamedTuple):
    """State of `Adam`."""

    average: Tensor  # m_t
    square_average: Tensor  # V_t


@dataclass(frozen=True)
class Adam(ScaledAverage):
    """``A_t = m_t / sqrt(V_t + λ)``, both averages of the gradients before step t (Algorithm 2).

    ``m_{t+1} = β₁ m_t + (1 - β₁) g_t`` and ``V_{t+1} = β₂ V_t + (1 - β₂) g_t**2`` with m_0 = V_0 =
    0.

    Args:
        bias_factor: a.
        betas: (β₁, β₂) with β₁**2 < β₂, the condition of Theorem 3.2.
        eps_root: λ, inside the root.

    Differs from `torch.optim.Adam`: no bias correction, λ inside the root, and the current gradient
    enters the averages only after they were used.

    Example:
        >>> Adam(bias_factor=1.0).state_names
        ('average', 'square_average')
    """

    State: ClassVar[type[Any]] = ASGLDState

    bias_factor: float = 1.0
    betas: tuple[float, float] = (0.9, 0.999)
    eps_root: float = 1e-5

    def __post_init__(self) -> None:
        check_field(self, "Adam", "bias_factor", ">= 0", lambda v: v >= 0)
        check_field(self, "Adam", "eps_root", "> 0", lambda v: v > 0)
        check_betas("Adam", self.betas)
        if self.betas[0] ** 2 >= self.betas[1]:
            raise needs("Adam", "betas", "beta_1**2 < beta_2 (Theorem 3.2)", self.betas)

    @property
    @override
    def smoothing(self) -> float:
        return self.betas[0]

    @override
    def bias(self, state: Tensors) -> Tensor:
        average, *scale_state = state
        return self.bias_factor * self.scale(tuple(scale_state), average)

    @override
    def update(self, state: Tensors, gradient: Tensor) -> Tensors:
        (average, *scale_state), beta = state, self.betas[0]
        average = beta * average + (1 - beta) * gradient
        return self.State(average, *self.scale_update(tuple(scale_state), gradient))

    @override
    def scale_update(self, state: Tensors, gradient: Tensor, started: Number = 1.0) -> Tensors:
        (square_average,) = state
        beta = self.betas[1] * started
        return (beta * square_average + (1 - beta) * (gradient * gradient),)

    @override
    def scale(self, state: Tensors, vector: Tensor) -> Tensor:
        (square_average,) = state
        return vector * (square_average + self.eps_root) ** -0.5

    @override
    def root(self, state: Tensors, vector: Tensor) -> Tensor:
        (square_average,) = state
        scale = (square_average + self.eps_root) ** -0.5
        return vector * (scale * scale**-0.5)

    @override
    def scale_sde(self) -> tuple[str, ...]:
        return (
            f"m / sqrt(V + {self.eps_root:g})",
            f"dV = ((1 - {self.betas[1]:g}) / ε) ((grad U)^2 - V) dt",
        )


@dataclass(frozen=True)
class AdamFull(Adam):
    """``A_t = (V_t + λ I)^(-1/2) m_t`` with the matrix V of equation (2).

    ``V_{t+1} = β₂ V_t + (1 - β₂) g_t g_t^T``

    The root comes from the eigenvalues of V, which are clamped at zero: rounding makes those of a V
    of few gradients negative. A step costs O(dim^3) per chain, a few hundred dimensions are the
    limit.

    Differs from equation (2): it prints U for grad U in V, and has no λ, without which V is
    singular for the first dim steps.

    Example:
        >>> AdamFull().start(torch.zeros(4, 3))[1].shape
        torch.Size([4, 3, 3])
    """

    is_elementwise: ClassVar[bool] = False

    @override
    def start(self, position: Tensor) -> Tensors:
        square = position.new_zeros((*position.shape, position.shape[-1]))
        return ASGLDState(torch.zeros_like(position), square)

    @override
    def scale_update(self, state: Tensors, gradient: Tensor, started: Number = 1.0) -> Tensors:
        (square_average,) = state
        beta = self.betas[1] * started
        return (
            beta * square_average + (1 - beta) * (gradient[..., :, None] * gradient[..., None, :]),
        )

    @override
    def scale(self, state: Tensors, vector: Tensor) -> Tensor:
        return self._power(state, vector, -0.5)

    @override
    def root(self, state: Tensors, vector: Tensor) -> Tensor:
        return self._power(state, vector, -0.25)

    @override
    def damped(
        self,
        state: Tensors,
        vector: Tensor,
        whole: Number,
        plain: Number,
        scaled: Number,
        excess: Tensor,
    ) -> Tensor:
        values, vectors = self._eigen(state, -0.5)
        eye = torch.eye(vector.shape[-1], dtype=vector.dtype, device=vector.device)
        scale = vectors @ (values[..., None] * vectors.mT)
        return torch.linalg.solve(
            whole * eye + (plain * eye + scaled * scale) * excess[..., None, :], vector[..., None]
        )[..., 0]

    def _power(self, state: Tensors, vector: Tensor, power: float) -> Tensor:
        """Return ``(V + λ I)^power vector``."""
        values, vectors = self._eigen(state, power)
        turned = (vectors.mT @ vector[..., None])[..., 0]
        return (vectors @ (values * turned)[..., None])[..., 0]

    def _eigen(self, state: Tensors, power: float) -> tuple[Tensor, Tensor]:
        """Return eigenvalues and eigenvectors of ``(V + λ I)^power``."""
        (square_average,) = state
        # A chain that went non-finite must not take the others with it: LAPACK fails on NaN for the
        # whole batch.
        finite = torch.isfinite(square_average).all(-1).all(-1)[..., None, None]
        values, vectors = torch.linalg.eigh(torch.where(finite, square_average, 0.0))
        return (values.clamp(min=0) + self.eps_root) ** power, vectors

    @override
    def scale_sde(self) -> tuple[str, ...]:
        equation = f"dV = ((1 - {self.betas[1]:g}) / ε) (grad U grad U^T - V) dt"
        return f"(V + {self.eps_root:g} I)^(-1/2) m", equation


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
    """Build Adam SGLD, as published (Algorithm 2) or with the posterior invariant.

    ``θ' = θ - ε (g + a m / sqrt(V + λ)) + sqrt(2 ε τ) η``, then ``m' = β₁ m + (1 - β₁) g`` and
    ``V' = β₂ V + (1 - β₂) g**2``

    Args:
        step_size: ε on U; a number or a schedule.
        bias_factor: a; a number, a schedule along which it is annealed, or "auto" when invariant:
            found with the step size.
        betas: (β₁, β₂), with β₁**2 < β₂ (Theorem 3.2).
        eps_root: λ, inside the root.
        invariant: give the momentum the noise that makes exp(-U / τ) invariant once V is frozen
            (`kernels.Invariant`).
        adapt_steps: steps after which V is frozen, when invariant; None takes the warm-up of
            `sample`.
        noise: as in `msgld`; a known one has a diagonal Σ.
        temperature: τ.

    Differs from: Theorem 3.2. The published form is colder than the target, see `describe()`; the
    invariant form is not.

    Example:
        >>> asgld(step_size=0.01).state_names
        ('average', 'square_average')
        >>> asgld(step_size=0.01, invariant=True).state_names
        ('velocity', 'passing_velocity', 'square_average')
    """
    drift = partial(Adam, betas=betas, eps_root=eps_root)
    return either_form(
        "asgld", step_size, temperature, bias_factor, drift, invariant, adapt_steps, noise
    )


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
    """Build Adam SGLD with the matrix V of equation (2), for up to a few hundred dimensions.

    ``θ' = θ - ε (g + a (V + λ I)^(-1/2) m) + sqrt(2 ε τ) η``, then ``m' = β₁ m + (1 - β₁) g`` and
    ``V' = β₂ V + (1 - β₂) g g^T`` (Algorithm 2 before its approximation)

    Args:
        step_size: ε on U; a number or a schedule.
        bias_factor: a; a number, a schedule along which it is annealed, or "auto" when invariant:
            found with the step size.
        betas: (β₁, β₂), with β₁**2 < β₂.
        eps_root: λ, added to the eigenvalues of V.
        invariant: as in `asgld`.
        adapt_steps: as in `asgld`.
        noise: as in `msgld`; a known one has a diagonal Σ.
        temperature: τ.

    Differs from: `asgld` in cost, O(dim^3) a step.

    Example:
        >>> asgld_full(step_size=0.01).traits.elementwise
        False
    """
    drift = partial(AdamFull, betas=betas, eps_root=eps_root)
    return either_form(
        "asgld_full", step_size, temperature, bias_factor, drift, invariant, adapt_steps, noise
    )
