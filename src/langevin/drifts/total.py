"""The sum of several drifts, each with its own factor and memory (the "complex bias term" of the paper's conclusion)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from langevin.checks import needs
from langevin.drifts.base import Drift, Memory

__all__ = ["Total"]


@dataclass(frozen=True)
class Total(Drift):
    """``a A_t = sum_k a_k A_t^(k)``.

    Example:
        >>> from langevin.drifts import Adam, Momentum
        >>> Total((Momentum(), Adam())).memory
        ('average_0', 'average_1', 'square_average_1')
    """

    drifts: tuple[Drift, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.drifts, tuple) or not self.drifts or not all(isinstance(drift, Drift) for drift in self.drifts):
            raise needs("Total", "drifts", "a non-empty tuple of drifts", self.drifts, TypeError)

    @property
    def memory(self) -> tuple[str, ...]:  # noqa: D102 - the contract is in drifts/base.py
        return tuple(f"{name}_{k}" for k, drift in enumerate(self.drifts) for name in drift.memory)

    @property
    def is_elementwise(self) -> bool:  # noqa: D102
        return all(drift.is_elementwise for drift in self.drifts)

    def start(self, position: Tensor) -> Memory:  # noqa: D102
        return tuple(tensor for drift in self.drifts for tensor in drift.start(position))

    def _parts(self, memory: Memory) -> list[tuple[Drift, Memory]]:
        parts, start = [], 0
        for drift in self.drifts:
            parts.append((drift, memory[start : start + len(drift.memory)]))
            start += len(drift.memory)
        return parts

    def bias(self, memory: Memory) -> Tensor | None:  # noqa: D102
        total = None
        for drift, part in self._parts(memory):
            bias = drift.bias(part)
            total = bias if total is None else total if bias is None else total + bias
        return total

    def update(self, memory: Memory, gradient: Tensor) -> Memory:  # noqa: D102
        return tuple(tensor for drift, part in self._parts(memory) for tensor in drift.update(part, gradient))

    def sde(self) -> tuple[str, ...]:  # noqa: D102
        texts = [drift.sde() for drift in self.drifts]
        return "".join(text[0] for text in texts), *(line for text in texts for line in text[1:])

    def settings(self) -> str:  # noqa: D102
        return " + ".join(f"({drift.settings()})" for drift in self.drifts)

    def cooling(self) -> float | None:  # noqa: D102
        total = 1.0
        for drift in self.drifts:
            cooling = drift.cooling()
            if cooling is None:
                return None
            total += cooling - 1
        return total
