"""No bias: plain Langevin dynamics."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from langevin.drifts.base import Drift, Memory

__all__ = ["NoDrift"]


@dataclass(frozen=True)
class NoDrift(Drift):
    """The drift of SGLD: nothing is added to the gradient and nothing is remembered."""

    @property
    def memory(self) -> tuple[str, ...]:  # noqa: D102 - the contract is in drifts/base.py
        return ()

    def bias(self, memory: Memory) -> None:  # noqa: D102
        return None

    def update(self, memory: Memory, gradient: Tensor) -> Memory:  # noqa: D102
        return ()

    def sde(self) -> tuple[str, ...]:  # noqa: D102
        return ("",)

    def settings(self) -> str:  # noqa: D102
        return ""

    def cooling(self) -> float:  # noqa: D102
        return 1.0
