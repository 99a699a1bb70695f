"""No bias: plain Langevin dynamics."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from typing_extensions import override

from langevin.drifts.base import Drift, Memory

__all__ = ["NoDrift"]


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
    def settings(self) -> str:
        return ""

    @override
    def cooling(self) -> float:
        return 1.0
