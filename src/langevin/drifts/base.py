"""What a drift is: a bias read before it is updated, both elementwise and made of operators only."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from torch import Tensor

__all__ = ["Drift", "Memory"]

Memory = tuple[Tensor, ...]
"""The tensors a part remembers between steps, each of the shape of the position; all start at zero."""


@runtime_checkable
class Drift(Protocol):
    """The adaptive bias of ``theta' = theta - eps (grad U + a A_t) + sqrt(2 eps tau) eta`` (equation 1).

    Implementations are frozen dataclasses whose fields are the settings. `bias` and `update` use operators only
    (``+ - * /``, and ``** -0.5`` for roots), so that the same two functions run on tensors, inside a compiled scan and,
    traced once, as a fused CPU kernel. Roots are written ``x ** -0.5`` because torch rounds that as IEEE asks on the CPU, and not
    ``x ** 0.5``, so that all engines give the same bits. The kernel reads `bias` first and then calls `update`: the paper's m_t and
    V_t exclude the gradient of step t.
    """

    @property
    def memory(self) -> tuple[str, ...]:
        """Names of the remembered tensors."""
        ...

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
