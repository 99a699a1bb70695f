"""The Adam bias of ASGLD (Algorithm 2): the average of past gradients over the root of their average square."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from langevin.checks import check_number, needs
from langevin.drifts.base import Memory

__all__ = ["Adam"]


@dataclass(frozen=True)
class Adam:
    """``A_t = m_t / sqrt(V_t + lambda)``, both averages of the gradients before step t (Algorithm 2).

    ``m_{t+1} = beta_1 m_t + (1 - beta_1) g_t`` and ``V_{t+1} = beta_2 V_t + (1 - beta_2) g_t**2`` with m_0 = V_0 = 0.

    Args:
        factor: the bias factor a.
        betas: (beta_1, beta_2) with beta_1**2 < beta_2, the condition of Theorem 3.2.
        eps_root: lambda, inside the root.

    Differs from `torch.optim.Adam`: no bias correction, lambda inside the root, and the current gradient enters the
    averages only after they were used.

    Example:
        >>> Adam(factor=1.0).memory
        ('average', 'square_average')
    """

    factor: float = 1.0
    betas: tuple[float, float] = (0.9, 0.999)
    eps_root: float = 1e-5

    def __post_init__(self) -> None:
        check_number("Adam", "bias_factor", self.factor, ">= 0", lambda v: v >= 0)
        check_number("Adam", "eps_root", self.eps_root, "> 0", lambda v: v > 0)
        if not isinstance(self.betas, tuple) or len(self.betas) != 2:
            raise needs("Adam", "betas", "a tuple (beta_1, beta_2)", self.betas, TypeError)
        for name, value in zip(("betas[0]", "betas[1]"), self.betas, strict=True):
            check_number("Adam", name, value, "0 <= beta < 1", lambda v: 0 <= v < 1)
        if self.betas[0] ** 2 >= self.betas[1]:
            raise needs("Adam", "betas", "beta_1**2 < beta_2 (Theorem 3.2)", self.betas)

    @property
    def memory(self) -> tuple[str, ...]:  # noqa: D102 - the contract is in drifts/base.py
        return ("average", "square_average")

    def bias(self, memory: Memory) -> Tensor:  # noqa: D102
        average, square_average = memory
        return self.factor * (average * (square_average + self.eps_root) ** -0.5)

    def update(self, memory: Memory, gradient: Tensor) -> Memory:  # noqa: D102
        average, square_average = memory
        beta_1, beta_2 = self.betas
        return (
            beta_1 * average + (1 - beta_1) * gradient,
            beta_2 * square_average + (1 - beta_2) * (gradient * gradient),
        )

    def sde(self) -> tuple[str, ...]:  # noqa: D102
        beta_1, beta_2 = self.betas
        return (
            f" + {self.factor:g} m / sqrt(V + {self.eps_root:g})",
            f"dm = ((1 - {beta_1:g}) / eps) (grad U - m) dt",
            f"dV = ((1 - {beta_2:g}) / eps) ((grad U)^2 - V) dt",
        )

    def settings(self) -> str:  # noqa: D102
        return f"bias_factor {self.factor:g}, betas {self.betas}, eps_root {self.eps_root:g}"

    def cooling(self) -> float | None:  # noqa: D102
        # 1 + a / sqrt(V + lambda) differs by direction and depends on the size of the gradients.
        return 1.0 if self.factor == 0 else None
