"""Adadelta SGLD (section 3.3; Zeiler 2012)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from typing_extensions import override

from langevin.checks import check_field
from langevin.kernels.compose import BiasFactor, StepSize, published
from langevin.kernels.langevin import Langevin
from langevin.kernels.parts import Drift, Tensors

__all__ = ["adadelta_sgld"]


class AdadeltaState(NamedTuple):
    """State of `Adadelta`."""

    bias: Tensor  # A_t
    square_average: Tensor  # V_t
    bias_square: Tensor  # D_t


@dataclass(frozen=True)
class Adadelta(Drift):
    """``A_{t+1} = sqrt(D_t + λ) / sqrt(V_{t+1} + λ) g_t``, A_0 = D_0 = V_0 = 0.

    ``V_{t+1} = β V_t + (1 - β) g_t**2`` and ``D_{t+1} = β D_t + (1 - β) A_{t+1}**2``.

    Args:
        bias_factor: a.
        beta: β, the smoothing factor of both averages (Zeiler's ρ).
        eps_root: λ, inside the roots (Zeiler's ε); A starts at its size.

    Differs from `torch.optim.Adadelta`: the bias of step t comes from the gradients before it, as
    equation (1) requires. It has no average of gradients, so there is no invariant form.

    Example:
        >>> Adadelta().state_names
        ('bias', 'square_average', 'bias_square')
    """

    state_names: ClassVar[tuple[str, ...]] = AdadeltaState._fields

    bias_factor: float = 1.0
    beta: float = 0.9
    eps_root: float = 1e-6

    def __post_init__(self) -> None:
        check_field(self, "Adadelta", "bias_factor", ">= 0", lambda v: v >= 0)
        check_field(self, "Adadelta", "beta", "0 <= beta < 1", lambda v: 0 <= v < 1)
        check_field(self, "Adadelta", "eps_root", "> 0", lambda v: v > 0)

    @override
    def start(self, position: Tensor) -> Tensors:
        return AdadeltaState(*(torch.zeros_like(position) for _ in self.state_names))

    @override
    def bias(self, state: Tensors) -> Tensor:
        return self.bias_factor * state[0]

    @override
    def update(self, state: Tensors, gradient: Tensor) -> Tensors:
        _, square_average, bias_square = state
        square_average = self.beta * square_average + (1 - self.beta) * (gradient * gradient)
        bias = self._scale(square_average, bias_square) * gradient
        bias_square = self.beta * bias_square + (1 - self.beta) * (bias * bias)
        return AdadeltaState(bias, square_average, bias_square)

    def _scale(self, square_average: Tensor, bias_square: Tensor) -> Tensor:
        widened = bias_square + self.eps_root
        return widened * widened**-0.5 * (square_average + self.eps_root) ** -0.5

    @override
    def gain(self, state: Tensors) -> Tensor:
        return self.bias_factor * self._scale(*state[1:])

    @override
    def sde(self) -> tuple[str, ...]:
        eps, rate = f"{self.eps_root:g}", f"((1 - {self.beta:g}) / ε)"
        return (
            f" + {self.bias_factor:g} A",
            f"A = sqrt((D + {eps}) / (V + {eps})) grad U of the step before",
            f"dV = {rate} ((grad U)^2 - V) dt,  dD = {rate} (A^2 - D) dt",
        )

    @override
    def cooling(self) -> float | None:
        return 1.0 if self.bias_factor == 0 else None


def adadelta_sgld(
    step_size: StepSize,
    *,
    bias_factor: BiasFactor = 1.0,
    beta: float = 0.9,
    eps_root: float = 1e-6,
    temperature: float = 1.0,
) -> Langevin:
    """Build Adadelta SGLD (section 3.3): a gradient scaled to the size of earlier biases.

    ``θ' = θ - ε (g + a A) + sqrt(2 ε τ) η``, then ``V' = β V + (1 - β) g**2``,
    ``A' = sqrt(D + λ) / sqrt(V' + λ) g`` and ``D' = β D + (1 - β) A'**2``

    Args:
        step_size: ε on U; a number or a schedule.
        bias_factor: a; a number, a schedule along which it is annealed, or "auto" when invariant:
            found with the step size.
        beta: β, Zeiler's ρ.
        eps_root: λ, inside the roots.
        temperature: τ.

    Differs from: the rest of the family. There is no average of gradients, so there is no invariant
    form. The stationary distribution is colder than the target, by direction.

    Example:
        >>> adadelta_sgld(step_size=0.01).state_names
        ('bias', 'square_average', 'bias_square')
    """
    return published(
        "adadelta_sgld",
        step_size,
        temperature,
        bias_factor,
        partial(Adadelta, beta=beta, eps_root=eps_root),
    )
