"""What every kernel shares: its state, `init`, `step` and `describe` around one formula, `update`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import NamedTuple

import torch
from torch import Tensor

from langevin.checks import check_field, check_number, check_position, needs
from langevin.drifts import Memory
from langevin.schedules import as_schedule

__all__ = ["Clock", "Kernel", "KernelState", "StepInfo"]


class KernelState(NamedTuple):
    """What the next step needs."""

    position: Tensor  # theta_t, shape (..., dim); leading axes are chains
    memory: Memory  # the tensors named by `kernel.memory`
    step: int  # t, the number of steps taken


class StepInfo(NamedTuple):
    """What a reader of the step may want; no copies are made."""

    step_size: float  # the epsilon used
    gradient: Tensor  # the gradient used, shape (..., dim)


class Clock(NamedTuple):
    """What a formula knows of its place in the run: numbers that the engines hand in anew at every step."""

    step_size: float  # epsilon
    started: float = 1.0  # 0 at the first step, 1 afterwards
    annealing: float = 1.0  # what the bias factor is multiplied by
    adapting: float = 1.0  # 1 while a scale that is to be frozen still follows the gradients, 0 afterwards


@dataclass(frozen=True)
class Kernel(ABC):
    """One transition of a sampler of ``exp(-U / temperature)``.

    A kernel never sees the target: it is handed the gradient of U and standard normal noise. Its settings are the fields of a
    frozen dataclass and its mathematics is one method, `update`; `step` adds the schedule and the step count.

    Args:
        name: the recipe's name, for messages.
        step_size: epsilon on the scale of U: a number, a schedule, or "auto" for one that `sample` finds.
        temperature: tau >= 0; 0 makes the sampler a deterministic optimizer.
    """

    name: str
    step_size: Callable[[int], float] | float | str
    temperature: float = 1.0

    def __post_init__(self) -> None:
        """Check the settings."""
        object.__setattr__(self, "step_size", as_schedule(self.name, "step_size", self.step_size))
        check_field(self, self.name, "temperature", ">= 0", lambda v: v >= 0)

    @property
    @abstractmethod
    def memory(self) -> tuple[str, ...]:
        """Names of the tensors remembered between steps, besides the position."""

    @property
    def num_noises(self) -> int:
        """How many standard normals a step takes per element; above 1 the noise has a leading axis of that length."""
        return 1

    @property
    def is_elementwise(self) -> bool:
        """Whether `update` is made of operators only, each element apart, so that a fused engine can be generated from it."""
        return True

    @abstractmethod
    def update(self, position: Tensor, gradient: Tensor, noise: Tensor, memory: Memory, clock: Clock) -> tuple[Tensor, Memory]:
        """Return the new position and memory: the sampler's formula."""

    def clock(self, step: int) -> Clock:
        """Return the numbers of a step."""
        step_size = self._value("step_size", step)
        if step_size == 0:
            raise needs(self.name, "step_size", f"> 0 at every step (step {step})", step_size)
        return Clock(step_size, float(step > 0))

    def _value(self, setting: str, step: int) -> float:
        """Return what the schedule in a field says of a step; a schedule may be any function of the user's."""
        schedule = getattr(self, setting)
        try:
            value = schedule(step)
        except TypeError as error:
            raise needs(self.name, setting, f"a function of the step (step {step}: {error})", schedule, TypeError) from error
        if isinstance(value, Real):  # NumPy's numbers too
            value = float(value)
        return check_number(self.name, setting, value, f">= 0 at every step (step {step})", lambda v: v >= 0)

    def start(self, position: Tensor) -> Memory:
        """Return the memory before the first step."""
        return tuple(torch.zeros_like(position) for _ in self.memory)

    def for_run(self, warmup: int) -> Kernel:
        """Return the kernel for a run with `warmup` first steps that are thrown away; a kernel that learns may need them."""
        return self

    def noise_scale(self, step_size: float) -> float:
        """Return the standard deviation that the noise gives one element in one step, where the metric is one."""
        return (2 * step_size * self.temperature) ** 0.5

    @property
    @abstractmethod
    def effective_temperature(self) -> float | None:
        """Temperature of the law for small steps and exact gradients; None where no single temperature describes it."""

    @property
    @abstractmethod
    def description(self) -> str:
        """The SDE, the target and the law, as text."""

    def describe(self) -> None:
        """Print the SDE that is simulated, the target, and the effective temperature of the sampler's law."""
        print(self.description)

    def init(self, position: Tensor) -> KernelState:
        """Start at `position`, shape (..., dim), with an empty memory."""
        check_position(self.name, "position", position)
        return KernelState(position, self.start(position), 0)

    def step(self, state: KernelState, gradient: Tensor, noise: Tensor) -> tuple[KernelState, StepInfo]:
        """Take one step.

        Args:
            state: where the chains are.
            gradient: (an estimate of) the gradient of U at `state.position`, of its shape.
            noise: standard normals, of the shape of the position; with `num_noises` > 1, that many of them stacked.

        Returns:
            The next state, and what a reader may want to know of the step.
        """
        shape = state.position.shape
        noise_shape = shape if self.num_noises == 1 else (self.num_noises, *shape)
        if gradient.shape != shape:
            raise needs(self.name, "gradient", f"the shape of the position {tuple(shape)}", tuple(gradient.shape))
        if noise.shape != noise_shape:
            raise needs(self.name, "noise", f"shape {tuple(noise_shape)}", tuple(noise.shape))
        clock = self.clock(state.step)
        position, memory = self.update(state.position, gradient, noise, state.memory, clock)
        return KernelState(position, memory, state.step + 1), StepInfo(clock.step_size, gradient)
