"""What a drift is: a bias read before it is updated; and the family ``a G m`` of scaled averages."""

from __future__ import annotations

from abc import abstractmethod
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

__all__ = ["Drift", "Memory", "Number", "ScaledAverage"]

Memory = tuple[Tensor, ...]
"""The tensors a part remembers between steps; all start at zero."""

Number = float | Tensor
"""A number for all chains, or a tensor (chains, 1) with one for each."""


@runtime_checkable
class Drift(Protocol):
    """The adaptive bias of ``theta' = theta - eps (grad U + a A_t) + sqrt(2 eps tau) eta`` (equation 1).

    Implementations are frozen dataclasses whose fields are the settings. `bias` and `update` use operators only
    (``+ - * /``, ``** -0.5`` for roots, ``.abs()``, ``.maximum()``), so that the same two functions run on tensors, inside a
    compiled scan and, traced once, as a fused CPU kernel. Roots are written ``x ** -0.5`` because torch rounds that as IEEE asks on
    the CPU, and not ``x ** 0.5``, so that all engines give the same bits. The kernel reads `bias` first and then calls `update`:
    the paper's m_t and V_t exclude the gradient of step t.
    """

    @property
    def memory(self) -> tuple[str, ...]:
        """Names of the remembered tensors."""
        ...

    @property
    def is_elementwise(self) -> bool:
        """Whether each element goes its own way, as the fused engine needs."""
        return True

    def start(self, position: Tensor) -> Memory:
        """Return the memory before the first step."""
        return tuple(torch.zeros_like(position) for _ in self.memory)

    def bias(self, memory: Memory) -> Tensor | None:
        """Return ``a A_t``, or None for no bias at all."""
        ...

    def update(self, memory: Memory, gradient: Tensor) -> Memory:
        """Return the memory after this step's gradient."""
        ...

    def sde(self) -> tuple[str, ...]:
        """Return the bias in the drift of theta, then the equations of the memory, as text."""
        ...

    def settings(self) -> str:
        """Return the settings as text."""
        ...

    def cooling(self) -> float | None:
        """Return c when the published form has the law at temperature tau / c for small steps; None when no single c exists."""
        ...


class ScaledAverage(Drift):
    """``a A_t = a G(V_t) m_t`` with ``m_{t+1} = beta m_t + (1 - beta) g_t``: momentum, Adam, AdaMax.

    G is symmetric and positive, and V whatever it is made from. The invariant kernel replaces m by a velocity and asks for
    ``G^(1/2)`` instead; so both forms of a sampler have their scale from the same place.
    """

    bias_factor: float

    @property
    @abstractmethod
    def smoothing(self) -> float:
        """The beta of m."""

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

    @property
    def memory(self) -> tuple[str, ...]:
        """Names of the remembered tensors."""
        return ("average", *self.scale_memory)

    def bias(self, memory: Memory) -> Tensor:
        """Return ``a G(V_t) m_t``."""
        average, *scale_memory = memory
        return self.bias_factor * self.scale(tuple(scale_memory), average)

    def update(self, memory: Memory, gradient: Tensor) -> Memory:
        """Return m and V after this step's gradient."""
        average, *scale_memory = memory
        beta = self.smoothing
        return (beta * average + (1 - beta) * gradient, *self.scale_update(tuple(scale_memory), gradient))

    def cooling(self) -> float | None:
        """Return 1 + a where G is the identity: m follows grad U, the drift is (1 + a) grad U against noise of temperature tau."""
        if self.bias_factor == 0:
            return 1.0
        # 1 + a G differs by direction and depends on the size of the gradients.
        return None if self.scale_memory else 1 + self.bias_factor
