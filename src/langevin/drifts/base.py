"""What a drift is: a bias read before it is updated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor
from typing_extensions import override

__all__ = ["Drift", "Memory", "NoDrift", "Number"]

Memory = tuple[Tensor, ...]
"""The tensors that a part remembers between steps."""

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

    Example:
        >>> from langevin.drifts import Momentum
        >>> isinstance(Momentum(bias_factor=2.0), Drift), Momentum(bias_factor=2.0).memory
        (True, ('average',))
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

    def gain(self, memory: Memory) -> Tensor | float | None:
        """Return the bias that a gradient of one brings about in the long run; None where that is not known."""
        return None

    def cooling(self) -> float | None:
        """Return c when the published form has the law at temperature τ / c for small steps; None when no single c exists."""
        ...


@dataclass(frozen=True)
class NoDrift(Drift):
    """The drift of SGLD: nothing is added to the gradient and nothing is remembered.

    Example:
        >>> import langevin as lv
        >>> lv.compose(step_size=0.01, drift=NoDrift()).effective_temperature  # SGLD
        1.0
    """

    memory: ClassVar[tuple[str, ...]] = ()

    @override
    def bias(self, memory: Memory) -> None:
        return None

    @override
    def update(self, memory: Memory, gradient: Tensor) -> Memory:
        return ()

    @override
    def gain(self, memory: Memory) -> float:
        return 0.0

    @override
    def sde(self) -> tuple[str, ...]:
        return ("",)

    @override
    def cooling(self) -> float:
        return 1.0
