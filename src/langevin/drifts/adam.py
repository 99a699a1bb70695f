"""The Adam biases of ASGLD: the average of past gradients over the root of their average square.

`Adam` has the diagonal V of Algorithm 2, `AdamFull` the matrix V of equation (2), `AdaMax` the largest recent gradient
(Kingma and Ba 2015, section 7.1; section 3.3 of the paper).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from langevin.checks import check_field, check_number, needs
from langevin.drifts.base import Memory, Number
from langevin.drifts.momentum import ScaledAverage

__all__ = ["AdaMax", "Adam", "AdamFull"]


def _check_betas(who: str, betas: object) -> None:
    """Fail when these are not two smoothing factors."""
    if not isinstance(betas, tuple) or len(betas) != 2:
        raise needs(who, "betas", "a tuple (beta_1, beta_2)", betas, TypeError)
    for name, value in zip(("betas[0]", "betas[1]"), betas, strict=True):
        check_number(who, name, value, "0 <= beta < 1", lambda v: 0 <= v < 1)


@dataclass(frozen=True)
class _AdamLike(ScaledAverage):
    """What the biases with a pair of smoothing factors share."""

    bias_factor: float = 1.0
    betas: tuple[float, float] = (0.9, 0.999)

    @property
    @override
    def smoothing(self) -> float:
        return self.betas[0]


@dataclass(frozen=True)
class Adam(_AdamLike):
    """``A_t = m_t / sqrt(V_t + λ)``, both averages of the gradients before step t (Algorithm 2).

    ``m_{t+1} = β₁ m_t + (1 - β₁) g_t`` and ``V_{t+1} = β₂ V_t + (1 - β₂) g_t**2`` with m_0 = V_0 = 0.

    Args:
        bias_factor: a.
        betas: (β₁, β₂) with β₁**2 < β₂, the condition of Theorem 3.2.
        eps_root: λ, inside the root.

    Differs from `torch.optim.Adam`: no bias correction, λ inside the root, and the current gradient enters the
    averages only after they were used.

    Example:
        >>> Adam(bias_factor=1.0).memory
        ('average', 'square_average')
    """

    scale_memory: ClassVar[tuple[str, ...]] = ("square_average",)

    eps_root: float = 1e-5

    def __post_init__(self) -> None:
        check_field(self, "Adam", "bias_factor", ">= 0", lambda v: v >= 0)
        check_field(self, "Adam", "eps_root", "> 0", lambda v: v > 0)
        _check_betas("Adam", self.betas)
        if self.betas[0] ** 2 >= self.betas[1]:
            raise needs("Adam", "betas", "beta_1**2 < beta_2 (Theorem 3.2)", self.betas)

    @override
    def scale_update(self, memory: Memory, gradient: Tensor, started: Number = 1.0) -> Memory:
        (square_average,) = memory
        beta = self.betas[1] * started
        return (beta * square_average + (1 - beta) * (gradient * gradient),)

    @override
    def scale(self, memory: Memory, vector: Tensor) -> Tensor:
        (square_average,) = memory
        return vector * (square_average + self.eps_root) ** -0.5

    @override
    def root(self, memory: Memory, vector: Tensor) -> Tensor:
        (square_average,) = memory
        scale = (square_average + self.eps_root) ** -0.5
        return vector * (scale * scale**-0.5)

    @override
    def scale_sde(self) -> tuple[str, ...]:
        return f"m / sqrt(V + {self.eps_root:g})", f"dV = ((1 - {self.betas[1]:g}) / ε) ((grad U)^2 - V) dt"


@dataclass(frozen=True)
class AdamFull(Adam):
    """``A_t = (V_t + λ I)^(-1/2) m_t`` with the matrix ``V_{t+1} = β₂ V_t + (1 - β₂) g_t g_t^T`` (equation 2).

    The root comes from the eigenvalues of V, which are clamped at zero: rounding makes those of a V of few gradients negative.
    A step costs O(dim^3) per chain, a few hundred dimensions are the limit.

    Differs from equation (2): it prints U for grad U in V, and has no λ, without which V is singular for the first dim steps.

    Example:
        >>> AdamFull().start(torch.zeros(4, 3))[1].shape
        torch.Size([4, 3, 3])
    """

    is_elementwise: ClassVar[bool] = False

    @override
    def start(self, position: Tensor) -> Memory:
        return torch.zeros_like(position), position.new_zeros((*position.shape, position.shape[-1]))

    @override
    def scale_update(self, memory: Memory, gradient: Tensor, started: Number = 1.0) -> Memory:
        (square_average,) = memory
        beta = self.betas[1] * started
        return (beta * square_average + (1 - beta) * (gradient[..., :, None] * gradient[..., None, :]),)

    @override
    def scale(self, memory: Memory, vector: Tensor) -> Tensor:
        return self._power(memory, vector, -0.5)

    @override
    def root(self, memory: Memory, vector: Tensor) -> Tensor:
        return self._power(memory, vector, -0.25)

    @override
    def damped(self, memory: Memory, vector: Tensor, whole: Number, plain: Number, scaled: Number, excess: Tensor) -> Tensor:
        values, vectors = self._eigen(memory, -0.5)
        eye = torch.eye(vector.shape[-1], dtype=vector.dtype, device=vector.device)
        scale = vectors @ (values[..., None] * vectors.mT)
        return torch.linalg.solve(whole * eye + (plain * eye + scaled * scale) * excess[..., None, :], vector[..., None])[..., 0]

    def _power(self, memory: Memory, vector: Tensor, power: float) -> Tensor:
        """Return ``(V + λ I)^power vector``."""
        values, vectors = self._eigen(memory, power)
        turned = (vectors.mT @ vector[..., None])[..., 0]
        return (vectors @ (values * turned)[..., None])[..., 0]

    def _eigen(self, memory: Memory, power: float) -> tuple[Tensor, Tensor]:
        """Return eigenvalues and eigenvectors of ``(V + λ I)^power``."""
        (square_average,) = memory
        # A chain that went non-finite must not take the others with it: LAPACK fails on NaN for the whole batch.
        finite = torch.isfinite(square_average).all(-1).all(-1)[..., None, None]
        values, vectors = torch.linalg.eigh(torch.where(finite, square_average, 0.0))
        return (values.clamp(min=0) + self.eps_root) ** power, vectors

    @override
    def scale_sde(self) -> tuple[str, ...]:
        equation = f"dV = ((1 - {self.betas[1]:g}) / ε) (grad U grad U^T - V) dt"
        return f"(V + {self.eps_root:g} I)^(-1/2) m", equation


@dataclass(frozen=True)
class AdaMax(_AdamLike):
    """``A_t = m_t / (u_t + λ)`` with ``u_{t+1} = max(β₂ u_t, |g_t|)``, u_0 = 0 (section 3.3; Kingma and Ba 2015).

    Args:
        bias_factor: a.
        betas: (β₁, β₂) with β₁ < β₂, so that the bias is bounded by a.
        eps: λ.

    Differs from `torch.optim.Adamax`: no bias correction, and the current gradient enters only after m and u were used.

    Example:
        >>> AdaMax().memory
        ('average', 'largest')
    """

    scale_memory: ClassVar[tuple[str, ...]] = ("largest",)

    eps: float = 1e-8

    def __post_init__(self) -> None:
        check_field(self, "AdaMax", "bias_factor", ">= 0", lambda v: v >= 0)
        check_field(self, "AdaMax", "eps", "> 0", lambda v: v > 0)
        _check_betas("AdaMax", self.betas)
        if self.betas[0] >= self.betas[1]:
            raise needs("AdaMax", "betas", "beta_1 < beta_2", self.betas)

    @override
    def scale_update(self, memory: Memory, gradient: Tensor, started: Number = 1.0) -> Memory:
        (largest,) = memory
        return ((self.betas[1] * largest).maximum(gradient.abs()),)

    @override
    def scale(self, memory: Memory, vector: Tensor) -> Tensor:
        (largest,) = memory
        return vector / (largest + self.eps)

    @override
    def root(self, memory: Memory, vector: Tensor) -> Tensor:
        (largest,) = memory
        return vector * (largest + self.eps) ** -0.5

    @override
    def scale_sde(self) -> tuple[str, ...]:
        return f"m / (u + {self.eps:g})", f"u = the largest |grad U|, forgotten at the rate (1 - {self.betas[1]:g}) / ε"
