"""The sum of several drifts, each with its own factor and memory (the "complex bias term" of the paper's conclusion)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from typing_extensions import override

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
    @override
    def memory(self) -> tuple[str, ...]:
        return tuple(f"{name}_{k}" for k, drift in enumerate(self.drifts) for name in drift.memory)

    @property
    @override
    def is_elementwise(self) -> bool:
        return all(drift.is_elementwise for drift in self.drifts)

    @override
    def start(self, position: Tensor) -> Memory:
        return tuple(tensor for drift in self.drifts for tensor in drift.start(position))

    def _parts(self, memory: Memory) -> list[tuple[Drift, Memory]]:
        parts, start = [], 0
        for drift in self.drifts:
            parts.append((drift, memory[start : start + len(drift.memory)]))
            start += len(drift.memory)
        return parts

    @override
    def bias(self, memory: Memory) -> Tensor | None:
        total = None
        for drift, part in self._parts(memory):
            bias = drift.bias(part)
            total = bias if total is None else total if bias is None else total + bias
        return total

    @override
    def gain(self, memory: Memory) -> Tensor | float | None:
        gains = [drift.gain(part) for drift, part in self._parts(memory)]
        return None if any(gain is None for gain in gains) else sum(gain for gain in gains if gain is not None)

    @override
    def update(self, memory: Memory, gradient: Tensor) -> Memory:
        return tuple(tensor for drift, part in self._parts(memory) for tensor in drift.update(part, gradient))

    @override
    def sde(self) -> tuple[str, ...]:
        texts = [drift.sde() for drift in self.drifts]
        return "".join(text[0] for text in texts), *(line for text in texts for line in text[1:])

    @override
    def settings(self) -> str:
        return " + ".join(f"({drift.settings()})" for drift in self.drifts)

    @override
    def cooling(self) -> float | None:
        total = 1.0
        for drift in self.drifts:
            cooling = drift.cooling()
            if cooling is None:
                return None
            total += cooling - 1
        return total
