"""What a drift is: a bias read before it is updated; and the family ``a G m`` of scaled averages."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor
from typing_extensions import override

__all__ = ["Drift", "Memory", "NoDrift", "Number", "ScaledAverage"]

Memory = tuple[Tensor, ...]
"""The tensors a part remembers between steps; all start at zero."""

Number = float | Tensor
"""A number for all chains, or a tensor (chains, 1) with one for each."""


@runtime_checkable
class Drift(Protocol):
    """The adaptive bias of ``θ' = θ - ε (grad U + a A_t) + sqrt(2 ε τ) η`` (equation 1).

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
        """Return the bias as it stands in the drift of θ, then the equations of the memory, as text."""
        ...

    def settings(self) -> str:
        """Return the settings as text: the fields of the dataclass."""
        return ", ".join(f"{key} {f'{value:g}' if isinstance(value, float) else value}" for key, value in vars(self).items())

    def cooling(self) -> float | None:
        """Return c when the published form has the law at temperature τ / c for small steps; None when no single c exists."""
        ...


@dataclass(frozen=True)
class NoDrift(Drift):
    """The drift of SGLD: nothing is added to the gradient and nothing is remembered."""

    @property
    @override
    def memory(self) -> tuple[str, ...]:
        return ()

    @override
    def bias(self, memory: Memory) -> None:
        return None

    @override
    def update(self, memory: Memory, gradient: Tensor) -> Memory:
        return ()

    @override
    def sde(self) -> tuple[str, ...]:
        return ("",)

    @override
    def cooling(self) -> float:
        return 1.0


class ScaledAverage(Drift):
    """``a A_t = a G(V_t) m_t`` with ``m_{t+1} = β m_t + (1 - β) g_t``: momentum, Adam, AdaMax.

    G is symmetric and positive, and V whatever it is made from. The invariant kernel replaces m by a velocity and asks for
    ``G^(1/2)`` instead; so both forms of a sampler have their scale from the same place.
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
