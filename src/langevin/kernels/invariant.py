"""Momentum SGLD that keeps the posterior invariant: the published drift, with the noise that its momentum lacks."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from langevin.checks import check_number
from langevin.drifts import Memory
from langevin.kernels.base import Kernel

__all__ = ["InvariantMomentum"]


@dataclass(frozen=True)
class InvariantMomentum(Kernel):
    """``m' = beta m + (1 - beta) (g + sqrt(2 tau / (a eps)) xi)``, then ``theta' = theta - eps (g + a m') + sqrt(2 eps tau) eta``.

    With ``gamma = (1 - beta) / eps`` this is the complete recipe of Ma, Chen and Fox (2015) for ``H = U + a |m|^2 / (2 gamma)``,
    ``D = diag(I, (gamma^2 / a) I)`` and ``Q = [[0, gamma I], [-gamma I, 0]]``: its drift is exactly that of Algorithm 1, and
    ``exp(-H / tau)``, whose theta-marginal is the target, is invariant because m has noise of its own. The new momentum moves the
    position (symplectic order). For small a it is SGLD, for large a SGHMC.

    Differs from Algorithm 1: the second noise, and m' in place of m.

    Args:
        bias_factor: a > 0.
        beta: smoothing factor of the momentum, in [0, 1).
    """

    bias_factor: float = 1.0
    beta: float = 0.9

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self.name, "bias_factor", self.bias_factor, "> 0 when invariant", lambda v: v > 0)
        check_number(self.name, "beta", self.beta, "0 <= beta < 1", lambda v: 0 <= v < 1)

    @property
    def memory(self) -> tuple[str, ...]:  # noqa: D102 - the contract is in kernels/base.py
        return ("average",)

    @property
    def num_noises(self) -> int:  # noqa: D102
        return 2

    def update(  # noqa: D102
        self, position: Tensor, gradient: Tensor, noise: Tensor, memory: Memory, step_size: float, started: float
    ) -> tuple[Tensor, Memory]:
        (average,) = memory
        eta, xi = noise
        scale = (1 - self.beta) * (2 * self.temperature / (self.bias_factor * step_size)) ** 0.5
        average = self.beta * average + (1 - self.beta) * gradient + scale * xi
        kick = self.noise_scale(step_size) * eta
        return position - step_size * (gradient + self.bias_factor * average) + kick, (average,)

    @property
    def effective_temperature(self) -> float:  # noqa: D102
        return self.temperature

    @property
    def description(self) -> str:  # noqa: D102
        a, tau = self.bias_factor, self.temperature
        return "\n".join(
            [
                f"{self.name}: d theta = -(grad U + {a:g} m) dt + sqrt(2 * {tau:g}) dW",
                f"  dm = gamma (grad U - m) dt + gamma sqrt(2 * {tau:g} / {a:g}) dB,  gamma = (1 - {self.beta:g}) / eps",
                f"  step size eps = {self.step_size}; bias_factor {a:g}, beta {self.beta:g}, invariant",
                f"  target: exp(-U / {tau:g})",
                f"  law: the target, effective temperature {tau:g}, up to O(eps) and the gradient's own noise (invariant form)",
            ]
        )
