"""Step sizes as pure functions of the step: constant, step decay, polynomial, cyclical.

A schedule is anything that maps a step (0, 1, 2, ...) to a positive float. The ones made here are
values: they compare by their numbers, with all digits, are pickled, and written as JSON
(`to_plain`, `from_plain`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from typing_extensions import override

from langevin import serialization
from langevin.checks import check_field, check_integer, check_number, needs

__all__ = [
    "AUTO",
    "Constant",
    "Cyclical",
    "Function",
    "Polynomial",
    "Schedule",
    "StepDecay",
    "as_schedule",
    "constant",
    "cyclical",
    "from_plain",
    "polynomial",
    "step_decay",
    "to_plain",
]


class Schedule:
    """A function of the step, as a frozen dataclass with `__call__` and `__str__`.

    Example:
        >>> polynomial(0.1) == polynomial(0.1), polynomial(0.1).explores(0)
        (True, False)
    """

    is_constant: ClassVar[bool] = False  # whether every step has the same value, and none explores

    def __call__(self, step: int) -> float:
        """Return the value at `step`."""
        raise NotImplementedError

    def explores(self, step: int) -> bool:
        """Return whether a step is exploration: temperature 0, and no draws are kept."""
        return False


@dataclass(frozen=True)
class Constant(Schedule):
    """``value`` at every step; use `constant` to build one."""

    is_constant: ClassVar[bool] = True
    value: float

    def __post_init__(self) -> None:
        check_field(self, "constant", "value", "> 0", lambda v: v > 0)

    @override
    def __call__(self, step: int) -> float:
        return self.value

    def __str__(self) -> str:
        return f"{self.value:g}"


@dataclass(frozen=True)
class StepDecay(Schedule):
    """``initial * factor ** (step // every)``; use `step_decay` to build one."""

    initial: float
    factor: float
    every: int

    def __post_init__(self) -> None:
        who = "step_decay"
        check_field(self, who, "initial", "> 0", lambda v: v > 0)
        check_field(self, who, "factor", "0 < factor <= 1", lambda v: 0 < v <= 1)
        check_integer(who, "every", self.every, 1)

    @override
    def __call__(self, step: int) -> float:
        return self.initial * self.factor ** (step // self.every)

    def __str__(self) -> str:
        return f"{self.initial:g} * {self.factor:g}^floor(step/{self.every})"


@dataclass(frozen=True)
class Polynomial(Schedule):
    """``initial * (1 + step / offset) ** -power``; use `polynomial` to build one."""

    initial: float
    power: float
    offset: float

    def __post_init__(self) -> None:
        who = "polynomial"
        check_field(self, who, "initial", "> 0", lambda v: v > 0)
        check_field(self, who, "power", "0 < power <= 1", lambda v: 0 < v <= 1)
        check_field(self, who, "offset", "> 0", lambda v: v > 0)

    @override
    def __call__(self, step: int) -> float:
        return self.initial * (1 + step / self.offset) ** -self.power

    def __str__(self) -> str:
        return f"{self.initial:g} * (1 + step/{self.offset:g})^-{self.power:g}"


@dataclass(frozen=True)
class Cyclical(Schedule):
    """Cosine cycles; use `cyclical` to build one."""

    initial: float
    cycle_length: int
    floor: float
    exploration: float

    def __post_init__(self) -> None:
        who = "cyclical"
        check_field(self, who, "initial", "> 0", lambda v: v > 0)
        check_integer(who, "cycle_length", self.cycle_length, 1)
        check_field(self, who, "floor", "0 <= floor < 1", lambda v: 0 <= v < 1)
        check_field(self, who, "exploration", "0 <= exploration < 1", lambda v: 0 <= v < 1)
        if self.exploration * self.cycle_length > self.cycle_length - 1:
            raise needs(
                who,
                "exploration",
                f"one of {self.cycle_length} steps of a cycle left to sample",
                self.exploration,
            )

    @override
    def __call__(self, step: int) -> float:
        phase = math.pi * (step % self.cycle_length) / self.cycle_length
        return self.initial * max(self.floor, (math.cos(phase) + 1) / 2)

    @override
    def explores(self, step: int) -> bool:
        return step % self.cycle_length < self.exploration * self.cycle_length

    def __str__(self) -> str:
        text = f"{self.initial:g} * cosine cycle of {self.cycle_length} steps, floor {self.floor:g}"
        return text + (
            f", the first {self.exploration:g} of each exploring without noise"
            if self.exploration
            else ""
        )


@dataclass(frozen=True)
class Function(Schedule):
    """A user's function as a schedule; `as_schedule` makes one of any callable.

    Example:
        >>> Function(lambda step: 0.1 / (1 + step))(9)
        0.01
    """

    function: Callable[[int], float]

    @override
    def __call__(self, step: int) -> float:
        return self.function(step)

    def __str__(self) -> str:
        return str(self.function)


def constant(value: float) -> Constant:
    """Build the schedule that is `value` at every step.

    Example:
        >>> constant(0.1)(1_000)
        0.1
    """
    return Constant(value)


def step_decay(initial: float, *, factor: float, every: int) -> StepDecay:
    """Build ``initial * factor ** (step // every)``, equation (3); there steps are epochs.

    Example:
        >>> step_decay(0.1, factor=0.5, every=300)(600)
        0.025
    """
    return StepDecay(initial, factor, every)


def polynomial(initial: float, *, power: float = 0.55, offset: float = 1.0) -> Polynomial:
    """Build ``initial * (1 + step / offset) ** -power``, the decay of Welling and Teh (2011).

    Example:
        >>> polynomial(0.1, power=0.5, offset=1.0)(3)
        0.05
    """
    return Polynomial(initial, power, offset)


def cyclical(
    initial: float, *, cycle_length: int, floor: float = 0.0, exploration: float = 0.0
) -> Cyclical:
    """Build the cosine cycles of Zhang et al. (2020): large steps find modes, small ones sample.

    ``initial * max(floor, (cos(pi * (step % cycle_length) / cycle_length) + 1) / 2)``

    Args:
        initial: the step size at the start of each cycle.
        cycle_length: steps in a cycle.
        floor: the smallest share of `initial` used, in [0, 1); with 0 the last step of a cycle is
            tiny, never zero.
        exploration: the first share of each cycle, in [0, 1), in which `sample` adds no noise and
            keeps no draws: the chain goes downhill to a mode (the exploration stage of Zhang et
            al.); the rest of the cycle samples it.

    Example:
        >>> cyclical(0.1, cycle_length=10)(15)
        0.05
        >>> [cyclical(0.1, cycle_length=4, exploration=0.5).explores(step) for step in range(6)]
        [True, True, False, False, True, True]
    """
    return Cyclical(initial, cycle_length, floor, exploration)


@dataclass(frozen=True)
class _Auto(Schedule):
    def __call__(self, step: int) -> float:
        raise ValueError(
            'step_size="auto" is chosen by langevin.sample; stepping by hand needs a number'
        )

    def __str__(self) -> str:
        return "auto"


AUTO = _Auto()
"""Stands for a step size that `sample` finds before the run."""

_KINDS = {kind.__name__: kind for kind in (Constant, StepDecay, Polynomial, Cyclical)}


def to_plain(schedule: Schedule) -> dict[str, Any]:
    """Return a schedule as plain values, which any file format can hold.

    Example:
        >>> to_plain(step_decay(0.1, factor=0.5, every=300))
        {'kind': 'StepDecay', 'initial': 0.1, 'factor': 0.5, 'every': 300}
    """
    return serialization.to_plain(schedule)


def from_plain(values: dict[str, Any]) -> Schedule:
    """Build the schedule that `to_plain` described.

    Example:
        >>> from_plain(to_plain(constant(0.1)))
        Constant(value=0.1)
    """
    return serialization.from_plain(values, _KINDS)


def as_schedule(who: str, argument: str, value: Any) -> Schedule:
    """Convert a positive number, a function of the step or "auto" to a schedule.

    Example:
        >>> as_schedule("sgld", "step_size", 0.1)
        Constant(value=0.1)
        >>> as_schedule("sgld", "step_size", "auto")
        _Auto()
    """
    if isinstance(value, type):
        raise needs(
            who,
            argument,
            'a number > 0, a schedule (a function of the step) or "auto"',
            value,
            TypeError,
        )
    if isinstance(value, Schedule):
        return value
    if callable(value):
        return Function(value)
    if isinstance(value, str) and value == "auto":
        return AUTO
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise needs(
            who,
            argument,
            'a number > 0, a schedule (a function of the step) or "auto"',
            value,
            TypeError,
        )
    return Constant(check_number(who, argument, value, "> 0", lambda v: v > 0))
