"""What is to be run and kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from langevin.schedules import explores

__all__ = ["Keep", "Plan"]

Keep = str | Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Plan:
    """What is to be run and kept.

    Args:
        num_steps: steps in all.
        warmup: first steps whose draws are thrown away.
        thin: every how many steps a position is kept.
        seed: of everything random.
        chains: numbers of the chains.
        keep: "positions", "moments" or a function of one position.
        step_size: the schedule, whose exploration phases keep nothing.
    """

    num_steps: int
    warmup: int
    thin: int
    seed: int
    chains: range
    keep: Keep
    step_size: Callable[[int], float]

    @property
    def num_draws(self) -> int:
        """How many draws a chain stores."""
        return 0 if self.keep == "moments" else len(self.chosen(range(self.num_steps)))

    @property
    def what(self) -> str:
        """What is kept, in a word: "positions", "moments" or "function"."""
        return self.keep if isinstance(self.keep, str) else "function"

    def chosen(self, steps: range) -> list[int]:
        """Return the places within a stretch of steps whose positions are kept.

        These are the steps warmup - 1 + k thin, k = 1, 2, ..., but for those of an exploration phase.
        """
        since = max(steps.start, self.warmup) - self.warmup + 1
        first = self.warmup - 1 + -(-since // self.thin) * self.thin
        return [place for place in range(first - steps.start, len(steps), self.thin) if not explores(self.step_size, steps[place])]

    def kept(self, positions: Tensor) -> Tensor:
        """Turn positions (draw, chain, dim) into what is stored, (chain, draw, ...)."""
        by_chain = positions.transpose(0, 1)
        return torch.func.vmap(torch.func.vmap(self.keep))(by_chain) if callable(self.keep) else by_chain
