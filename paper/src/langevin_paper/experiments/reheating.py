"""A schedule that explores and cools in turns, for the search on the ravine."""

from __future__ import annotations

import math
from dataclasses import dataclass

from typing_extensions import override

from langevin.checks import check_field, check_integer, needs
from langevin.kernels.schedules import Schedule

__all__ = ["Reheating"]


@dataclass(frozen=True)
class Reheating(Schedule):
    """Cycles with a flat top: `initial` for a share `flat` of each, a half-cosine down to `floor`, and sampling there.

    ``initial * decay^cycle * (floor + (1 - floor) (1 + cos(pi u)) / 2)`` with ``u = clip((phase - flat) / fall, 0, 1)``. Steps with
    u < 1 explore: `sample` adds no noise to them and keeps no draws of them.

    Example:
        >>> schedule = Reheating(1.0, cycle_length=10, flat=0.8, fall=0.1, floor=0.01, decay=0.7)
        >>> [round(schedule(step), 3) for step in (0, 8, 9, 10)]
        [1.0, 1.0, 0.01, 0.7]
        >>> [schedule.explores(step) for step in (8, 9, 10)]
        [True, False, True]
    """

    initial: float
    cycle_length: int
    flat: float
    fall: float
    floor: float
    decay: float

    def __post_init__(self) -> None:
        check_field(self, "reheating", "initial", "> 0", lambda v: v > 0)
        check_integer("reheating", "cycle_length", self.cycle_length, 1)
        if not 0 <= self.falls_at < self.samples_at < self.cycle_length:
            condition = f"a step to fall and one to sample, with flat {self.flat} and fall {self.fall}"
            raise needs("reheating", "cycle_length", condition, self.cycle_length)

    @property
    def falls_at(self) -> int:
        """The step of a cycle at which it leaves the flat top."""
        return round(self.flat * self.cycle_length)

    @property
    def samples_at(self) -> int:
        """The step of a cycle at which it has cooled."""
        return round((self.flat + self.fall) * self.cycle_length)

    @override
    def __call__(self, step: int) -> float:
        cycle, place = divmod(step, self.cycle_length)
        u = min(max((place - self.falls_at) / (self.samples_at - self.falls_at), 0.0), 1.0)
        return self.initial * self.decay**cycle * (self.floor + (1 - self.floor) * (1 + math.cos(math.pi * u)) / 2)

    @override
    def explores(self, step: int) -> bool:
        return step % self.cycle_length < self.samples_at

    def __str__(self) -> str:
        cycles = f"flat-top cycle of {self.cycle_length} steps, floor {self.floor:g}, exploring to {self.flat + self.fall:g}"
        return f"{self.initial:g} * {self.decay:g}^cycle * {cycles}"
