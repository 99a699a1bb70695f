"""The momentum bias of MSGLD (Algorithm 1), an average of past gradients; and the family ``a G m`` of scaled averages."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import override

from langevin.checks import check_field
from langevin.drifts.base import Drift, Memory, Number

__all__ = ["Momentum", "ScaledAverage"]


class ScaledAverage(Drift):
    """``a A_t = a G(V_t) m_t`` with ``m_{t+1} = β m_t + (1 - β) g_t``: momentum, Adam, AdaMax.

    G is symmetric and positive, and V whatever it is made from. The invariant kernel replaces m by a velocity and asks for
    ``G^(1/2)`` instead; so both forms of a sampler have their scale from the same place.

    Example:
        >>> from langevin.drifts import Adam, Momentum
        >>> Momentum(bias_factor=2.0, beta=0.9).smoothing, Adam().scale_memory
        (0.9, ('square_average',))
        >>> Adam().root((torch.tensor(16.0),), torch.tensor(1.0))  # V = 16: G = 1 / 4
        tensor(0.5000)
    """

    bias_factor: float

    @property
    @abstractmethod
    def smoothing(self) -> float:
        """The β of m."""

    @property
    def scale_memory(self) -> tuple[str, ...]:
        """Names of the tensors that make up V."""
        return ()

    def scale_update(self, memory: Memory, gradient: Tensor, started: Number = 1.0) -> Memory:
        """Return V after this step's gradient; with `started` 0 it holds this gradient alone."""
        return ()

    @abstractmethod
    def scale(self, memory: Memory, vector: Tensor) -> Tensor:
        """Return ``G vector``."""

    @abstractmethod
    def root(self, memory: Memory, vector: Tensor) -> Tensor:
        """Return ``G^(1/2) vector``."""

    def damped(self, memory: Memory, vector: Tensor, whole: Number, plain: Number, scaled: Number, excess: Tensor) -> Tensor:
        """Return ``(whole I + (plain I + scaled G) X)^-1 vector`` for the diagonal X of `excess`, which absorbs noise."""
        return vector / (whole + plain * excess + scaled * self.scale(memory, excess))

    @abstractmethod
    def scale_sde(self) -> tuple[str, ...]:
        """Return ``G m``, then the equations of V, as text."""

    @override
    def sde(self) -> tuple[str, ...]:
        scaled, *equations = self.scale_sde()
        return f" + {self.bias_factor:g} {scaled}", f"dm = ((1 - {self.smoothing:g}) / ε) (grad U - m) dt", *equations

    @property
    @override
    def memory(self) -> tuple[str, ...]:
        return ("average", *self.scale_memory)

    @override
    def bias(self, memory: Memory) -> Tensor:
        average, *scale_memory = memory
        return self.bias_factor * self.scale(tuple(scale_memory), average)

    @override
    def gain(self, memory: Memory) -> Tensor:
        average, *scale_memory = memory
        return self.bias((torch.ones_like(average), *scale_memory))

    @override
    def update(self, memory: Memory, gradient: Tensor) -> Memory:
        average, *scale_memory = memory
        beta = self.smoothing
        return (beta * average + (1 - beta) * gradient, *self.scale_update(tuple(scale_memory), gradient))

    @override
    def cooling(self) -> float | None:
        if self.bias_factor == 0:
            return 1.0
        # Where m follows grad U the drift is (1 + a G) grad U, against noise of temperature τ; a scale differs by direction.
        return None if self.scale_memory else 1 + self.bias_factor


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
