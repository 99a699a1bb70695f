"""Step sizes as pure functions of the step: constant, step decay (the paper's), polynomial, cyclical.

A schedule is anything that maps a step (0, 1, 2, ...) to a positive float. The ones made here also say what they are
when printed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from langevin.checks import check_integer, check_number, needs

__all__ = ["AUTO", "Schedule", "as_schedule", "constant", "cyclical", "explores", "polynomial", "step_decay"]


@dataclass(frozen=True)
class Schedule:
    """A named function of the step; two schedules with the same text are the same schedule."""

    text: str
    value: Callable[[int], float]
    explores: Callable[[int], bool] = lambda step: False
    """Whether a step belongs to an exploration phase: `sample` then adds no noise and keeps no draws."""

    def __call__(self, step: int) -> float:
        """Return the value at `step`."""
        return self.value(step)

    def __str__(self) -> str:
        """Return the formula in words."""
        return self.text

    def __eq__(self, other: object) -> bool:
        """Compare by text."""
        return isinstance(other, Schedule) and self.text == other.text

    def __hash__(self) -> int:
        """Hash the text."""
        return hash(self.text)


def constant(value: float) -> Schedule:
    """Make the schedule that is `value` at every step.

    Example:
        >>> constant(0.1)(1_000)
        0.1
    """
    value = check_number("constant", "value", value, "> 0", lambda v: v > 0)
    return Schedule(f"{value:g}", lambda step: value)


def step_decay(initial: float, *, factor: float, every: int) -> Schedule:
    """Make ``initial * factor ** (step // every)``, the paper's equation (4); there `step` counts epochs.

    Example:
        >>> step_decay(0.1, factor=0.5, every=300)(600)
        0.025
    """
    initial = check_number("step_decay", "initial", initial, "> 0", lambda v: v > 0)
    factor = check_number("step_decay", "factor", factor, "0 < factor <= 1", lambda v: 0 < v <= 1)
    every = check_integer("step_decay", "every", every, 1)
    return Schedule(f"{initial:g} * {factor:g}^floor(step/{every})", lambda step: initial * factor ** (step // every))


def polynomial(initial: float, *, power: float = 0.55, offset: float = 1.0) -> Schedule:
    """Make ``initial * (1 + step / offset) ** -power``, the decay of Welling and Teh (2011) started at `initial`.

    Example:
        >>> polynomial(0.1, power=0.5, offset=1.0)(3)
        0.05
    """
    initial = check_number("polynomial", "initial", initial, "> 0", lambda v: v > 0)
    power = check_number("polynomial", "power", power, "0 < power <= 1", lambda v: 0 < v <= 1)
    offset = check_number("polynomial", "offset", offset, "> 0", lambda v: v > 0)
    return Schedule(f"{initial:g} * (1 + step/{offset:g})^-{power:g}", lambda step: initial * (1 + step / offset) ** -power)


def cyclical(initial: float, *, cycle_length: int, floor: float = 0.0, exploration: float = 0.0) -> Schedule:
    """Make the cosine cycles of Zhang et al. (2020): large steps find modes, small ones describe them.

    ``initial * max(floor, (cos(pi * (step % cycle_length) / cycle_length) + 1) / 2)``

    Args:
        initial: the step size at the start of each cycle.
        cycle_length: steps in a cycle.
        floor: the smallest share of `initial` used, in [0, 1); with 0 the last step of a cycle is tiny, never zero.
        exploration: the first share of each cycle, in [0, 1), in which `sample` adds no noise and keeps no draws: the chain goes
            downhill to a mode (the exploration stage of Zhang et al.); the rest of the cycle samples it.

    Example:
        >>> cyclical(0.1, cycle_length=10)(15)
        0.05
        >>> [cyclical(0.1, cycle_length=4, exploration=0.5).explores(step) for step in range(6)]
        [True, True, False, False, True, True]
    """
    initial = check_number("cyclical", "initial", initial, "> 0", lambda v: v > 0)
    cycle_length = check_integer("cyclical", "cycle_length", cycle_length, 1)
    floor = check_number("cyclical", "floor", floor, "0 <= floor < 1", lambda v: 0 <= v < 1)
    exploration = check_number("cyclical", "exploration", exploration, "0 <= exploration < 1", lambda v: 0 <= v < 1)
    if exploration * cycle_length > cycle_length - 1:
        raise needs("cyclical", "exploration", f"one of {cycle_length} steps of a cycle left to sample", exploration)

    def value(step: int) -> float:
        return initial * max(floor, (math.cos(math.pi * (step % cycle_length) / cycle_length) + 1) / 2)

    text = f"{initial:g} * cosine cycle of {cycle_length} steps, floor {floor:g}"
    phases = f", the first {exploration:g} of each exploring without noise" if exploration else ""
    return Schedule(text + phases, value, lambda step: step % cycle_length < exploration * cycle_length)


def explores(schedule: Callable[[int], float], step: int) -> bool:
    """Say whether a step belongs to an exploration phase; functions that are no `Schedule` have none."""
    return isinstance(schedule, Schedule) and schedule.explores(step)


def _unset(step: int) -> float:
    raise ValueError('step_size="auto" is found by langevin.sample; a step by hand needs a number or a schedule')


AUTO = Schedule("auto", _unset)
"""Stands for a step size that `sample` finds before the run."""


def as_schedule(who: str, argument: str, value: Any) -> Callable[[int], float]:
    """Turn a positive number into a constant schedule and "auto" into `AUTO`; let a callable through."""
    if callable(value):
        return value
    if isinstance(value, str) and value == "auto":
        return AUTO
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise needs(who, argument, 'a number > 0, a schedule (a function of the step) or "auto"', value, TypeError)
    return constant(check_number(who, argument, value, "> 0", lambda v: v > 0))
