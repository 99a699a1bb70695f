"""The momentum bias of MSGLD (Algorithm 1): an exponential average of past gradients."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from typing_extensions import override

from langevin.checks import check_field
from langevin.drifts.base import Memory, ScaledAverage

__all__ = ["Momentum"]


@dataclass(frozen=True)
class Momentum(ScaledAverage):
    """``A_t = m_t`` with ``m_{t+1} = β m_t + (1 - β) g_t`` and ``m_0 = 0`` (Algorithm 1).

    Args:
        bias_factor: a.
        beta: β, the smoothing factor, in [0, 1).

    Example:
        >>> Momentum(bias_factor=10.0, beta=0.99).memory
        ('average',)
    """

    bias_factor: float = 1.0
    beta: float = 0.9

    def __post_init__(self) -> None:
        check_field(self, "Momentum", "bias_factor", ">= 0", lambda v: v >= 0)
        check_field(self, "Momentum", "beta", "0 <= beta < 1", lambda v: 0 <= v < 1)

    @property
    @override
    def smoothing(self) -> float:
        return self.beta

    @override
    def scale(self, memory: Memory, vector: Tensor) -> Tensor:
        return vector

    @override
    def root(self, memory: Memory, vector: Tensor) -> Tensor:
        return vector

    @override
    def scale_sde(self) -> tuple[str, ...]:
        return ("m",)
