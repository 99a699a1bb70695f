"""The Adadelta bias (section 3.3; Zeiler 2012): a gradient whose size is that of the biases before it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from typing_extensions import override

from langevin.checks import check_field
from langevin.drifts.base import Drift, Memory

__all__ = ["Adadelta"]


@dataclass(frozen=True)
class Adadelta(Drift):
    """``A_{t+1} = sqrt(D_t + λ) / sqrt(V_{t+1} + λ) g_t``, A_0 = D_0 = V_0 = 0.

    ``V_{t+1} = β V_t + (1 - β) g_t**2`` and ``D_{t+1} = β D_t + (1 - β) A_{t+1}**2``.

    Args:
        bias_factor: a.
        beta: β, the smoothing factor of both averages (Zeiler's ρ).
        eps_root: λ, inside the roots (Zeiler's ε); A starts at its size.

    Differs from `torch.optim.Adadelta`: the bias of step t comes from the gradients before it, as equation (1) asks. It has no
    average of gradients, so there is no invariant form.

    Example:
        >>> Adadelta().memory
        ('bias', 'square_average', 'bias_square')
    """

    memory: ClassVar[tuple[str, ...]] = ("bias", "square_average", "bias_square")

    bias_factor: float = 1.0
    beta: float = 0.9
    eps_root: float = 1e-6

    def __post_init__(self) -> None:
        check_field(self, "Adadelta", "bias_factor", ">= 0", lambda v: v >= 0)
        check_field(self, "Adadelta", "beta", "0 <= beta < 1", lambda v: 0 <= v < 1)
        check_field(self, "Adadelta", "eps_root", "> 0", lambda v: v > 0)

    @override
    def bias(self, memory: Memory) -> Tensor:
        return self.bias_factor * memory[0]

    @override
    def update(self, memory: Memory, gradient: Tensor) -> Memory:
        _, square_average, bias_square = memory
        square_average = self.beta * square_average + (1 - self.beta) * (gradient * gradient)
        bias = self._scale(square_average, bias_square) * gradient
        return bias, square_average, self.beta * bias_square + (1 - self.beta) * (bias * bias)

    def _scale(self, square_average: Tensor, bias_square: Tensor) -> Tensor:
        widened = bias_square + self.eps_root
        return widened * widened**-0.5 * (square_average + self.eps_root) ** -0.5

    @override
    def gain(self, memory: Memory) -> Tensor:
        return self.bias_factor * self._scale(*memory[1:])

    @override
    def sde(self) -> tuple[str, ...]:
        return (
            f" + {self.bias_factor:g} A",
            f"A = sqrt((D + {self.eps_root:g}) / (V + {self.eps_root:g})) grad U of the step before",
            f"dV = ((1 - {self.beta:g}) / ε) ((grad U)^2 - V) dt,  dD = ((1 - {self.beta:g}) / ε) (A^2 - D) dt",
        )

    @override
    def cooling(self) -> float | None:
        return 1.0 if self.bias_factor == 0 else None
