"""AdaMax SGLD (section 3.3; Kingma and Ba 2015, section 7.1)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

from torch import Tensor
from typing_extensions import override

from langevin.checks import check_field, needs
from langevin.kernels.compose import BiasFactor, NoiseSetting, StepSize, either_form
from langevin.kernels.invariant import Invariant
from langevin.kernels.langevin import Langevin
from langevin.kernels.parts import Number, ScaledAverage, Tensors, check_betas

__all__ = ["adamax_sgld"]


class AdaMaxState(NamedTuple):
    """State of `AdaMax`."""

    average: Tensor  # m_t
    largest: Tensor  # u_t


@dataclass(frozen=True)
class AdaMax(ScaledAverage):
    """``A_t = m_t / (u_t + λ)`` with ``u_{t+1} = max(β₂ u_t, |g_t|)`` and u_0 = 0.

    Args:
        bias_factor: a.
        betas: (β₁, β₂) with β₁ < β₂, so that the bias is bounded by a.
        eps: λ.

    Differs from `torch.optim.Adamax`: no bias correction, and the current gradient enters only
    after m and u were used.

    Example:
        >>> AdaMax().state_names
        ('average', 'largest')
    """

    State: ClassVar[type[Any]] = AdaMaxState

    bias_factor: float = 1.0
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8

    def __post_init__(self) -> None:
        check_field(self, "AdaMax", "bias_factor", ">= 0", lambda v: v >= 0)
        check_field(self, "AdaMax", "eps", "> 0", lambda v: v > 0)
        check_betas("AdaMax", self.betas)
        if self.betas[0] >= self.betas[1]:
            raise needs("AdaMax", "betas", "beta_1 < beta_2", self.betas)

    @property
    @override
    def smoothing(self) -> float:
        return self.betas[0]

    @override
    def scale_update(self, state: Tensors, gradient: Tensor, started: Number = 1.0) -> Tensors:
        (largest,) = state
        return ((self.betas[1] * largest).maximum(gradient.abs()),)

    @override
    def scale(self, state: Tensors, vector: Tensor) -> Tensor:
        (largest,) = state
        return vector / (largest + self.eps)

    @override
    def root(self, state: Tensors, vector: Tensor) -> Tensor:
        (largest,) = state
        return vector * (largest + self.eps) ** -0.5

    @override
    def scale_sde(self) -> tuple[str, ...]:
        return (
            f"m / (u + {self.eps:g})",
            f"u = the largest |grad U|, forgotten at the rate (1 - {self.betas[1]:g}) / ε",
        )


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
    """Build AdaMax SGLD (section 3.3): the bias is scaled by the largest recent gradient.

    ``θ' = θ - ε (g + a m / (u + λ)) + sqrt(2 ε τ) η``, then ``m' = β₁ m + (1 - β₁) g`` and
    ``u' = max(β₂ u, |g|)``

    Args:
        step_size: ε on U; a number or a schedule.
        bias_factor: a; a number, a schedule along which it is annealed, or "auto" when invariant:
            found with the step size.
        betas: (β₁, β₂), with β₁ < β₂.
        eps: λ.
        invariant: as in `asgld`, with u frozen.
        adapt_steps: as in `asgld`.
        noise: as in `msgld`; a known one has a diagonal Σ.
        temperature: τ.

    Example:
        >>> adamax_sgld(step_size=0.01).state_names
        ('average', 'largest')
    """
    drift = partial(AdaMax, betas=betas, eps=eps)
    return either_form(
        "adamax_sgld", step_size, temperature, bias_factor, drift, invariant, adapt_steps, noise
    )
