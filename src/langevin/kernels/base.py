"""What every kernel shares: its state, the inputs of a step, and `init`, `step` and `describe` around one formula, `update`."""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import NamedTuple, Self

import torch
from torch import Tensor

from langevin.checks import check_field, check_number, check_position, needs
from langevin.drifts import Memory, Number
from langevin.gradient_noise import GradientNoise
from langevin.preconditioners import Identity, Preconditioner
from langevin.schedules import Schedule, as_schedule, constant
from langevin.targets import Evaluation

__all__ = ["Kernel", "KernelState", "StepInputs"]


class KernelState(NamedTuple):
    """What the next step needs.

    Example:
        >>> import torch
        >>> import langevin as lv
        >>> lv.sghmc(step_size=0.01).init(torch.zeros(1, 2))
        KernelState(position=tensor([[0., 0.]]), memory=(tensor([[0., 0.]]),), step=0)
    """

    position: Tensor  # θ_t, shape (..., dim); leading axes are chains
    memory: Memory  # the tensors named by `kernel.memory`
    step: int  # t, the number of steps taken


class StepInputs(NamedTuple):
    """What a formula knows of its place in the run: handed in at every step, for all chains or for each of them.

    Example:
        >>> import langevin as lv
        >>> lv.sgld(step_size=0.02).noise_scale(StepInputs(step_size=0.02, temperature=1.0))  # sqrt(2 ε τ)
        0.2
    """

    step_size: Number  # ε
    temperature: Number = 1.0  # τ; 0 in the exploration phases of a schedule
    annealing: Number = 1.0  # what the bias factor is multiplied by
    adapting: Number = 1.0  # 1 while a scale that is to be frozen still follows the gradients, 0 afterwards
    started: Number = 1.0  # 0 at the first step, 1 afterwards
    absorbing: Number = 1.0  # 1 where the gradient's noise is absorbed; 0 at temperature 0, where no noise has a place
    seen: Number = math.inf  # gradients before this one, where averages are kept of all that came
    round: Number = -1.0  # for kernels that decide something: which of their rounds this step has, from 0 on; -1 for none
    chance: Number = -1.0  # a uniform number of each chain, (chains, 1), for kernels that take one; -1 for none


def follow(learnt: Memory, before: Memory, adapting: Number) -> Memory:
    """Return what a scale remembers after a step: what it learnt while it adapts, what it knew before once it is frozen."""
    return tuple(adapting * new + (1 - adapting) * old for new, old in zip(learnt, before, strict=True))


@dataclass(frozen=True)
class Kernel(ABC):
    """One transition of a sampler of ``exp(-U / temperature)``.

    A kernel never sees the target: it is handed an evaluation (energy and gradient of U) and standard normal noise. Its settings
    are the fields of a frozen dataclass and its mathematics is one method, `update`.

    Args:
        name: the sampler's name, for messages.
        step_size: ε on the scale of U, a schedule; `langevin.schedules.AUTO` stands for one that `sample` finds.
        temperature: τ >= 0; 0 makes the sampler a deterministic optimizer.

    Example:
        >>> import langevin as lv
        >>> import torch
        >>> kernel, target = lv.sghmc(step_size=0.01, temperature=0.0), lv.targets.gaussian([[1.0]])
        >>> state = kernel.init(torch.ones(1, 1))
        >>> for _ in range(3):  # what `sample` does, with noise
        ...     state = kernel.step(state, target.evaluate(state.position), torch.zeros(1, 1, 1))
        >>> state.step, state.position
        (3, tensor([[0.9444]]))
    """

    name: str
    step_size: Schedule
    temperature: float = 1.0

    def __post_init__(self) -> None:
        """Check the settings; numbers and functions become schedules."""
        object.__setattr__(self, "step_size", as_schedule(self.name, "step_size", self.step_size))
        check_field(self, self.name, "temperature", ">= 0", lambda v: v >= 0)

    @property
    @abstractmethod
    def memory(self) -> tuple[str, ...]:
        """Names of the tensors remembered between steps, besides the position."""

    @property
    def num_noises(self) -> int:
        """How many random numbers a step takes per element."""
        return 1

    @property
    def noise_kind(self) -> str:
        """What they are, a key of `langevin.noise.KINDS`: standard normals, or "uniform" on (-1, 1)."""
        return "normal"

    @property
    def is_elementwise(self) -> bool:
        """Whether `update` is made of operators only, each element apart, so that a fused engine can be generated from it."""
        return True

    @property
    def needs_energy(self) -> bool:
        """Whether `update` looks at the energy, which an optimizer does not know."""
        return False

    @property
    def needs_full_energy(self) -> bool:
        """Whether the energy must be that of all data, where gradients are those of minibatches: `sample` then evaluates both."""
        return False

    @property
    def sees_position(self) -> bool:
        """Whether `update` looks at the position itself; if not, it only adds to it, and the sampler can run in any scale.

        Of formulas that are not this library's nothing is known, unless they say so.
        """
        return not type(self).update.__module__.startswith("langevin.")

    @property
    def constants(self) -> dict[str, Tensor]:
        """Tensors among the settings that were learnt before a run: a run's folder keeps them."""
        return {}

    @property
    def group_size(self) -> int:
        """How many consecutive chains meet in `update`: they run, and stop, together. 1 for chains that do not see each other."""
        return 1

    @property
    def takes_chances(self) -> bool:
        """Whether `update` decides something by chance: each chain then has a uniform number at every step, in the inputs."""
        return False

    @property
    def needs_exact_energy(self) -> bool:
        """Whether `update` takes the energy at its word, so that minibatches would make its law wrong."""
        return False

    @property
    def temperatures(self) -> tuple[float, ...]:
        """The temperatures of the chains of a group, where these differ: draws are of the first, which is the target's."""
        return ()

    def at_temperature(self, memory: Memory, gradient: Tensor, warmth: Number, inputs: StepInputs) -> Memory:
        """Return the memory of chains whose temperature is now warmth**2 times what it was: velocities grow by `warmth`.

        Args:
            memory: before.
            gradient: where the chains are, which the next step takes: a velocity that lags by half a kick grows but for that.
            warmth: a number, or (chains, 1); nothing changes, to the last bit, where it is 1.
            inputs: of the next step.
        """
        if self.memory:
            raise needs(self.name, "kernel", "one that says what a change of temperature makes of its memory", self.memory)
        return ()

    @abstractmethod
    def update(
        self, position: Tensor, evaluation: Evaluation, noise: Tensor, memory: Memory, inputs: StepInputs
    ) -> tuple[Tensor, Memory]:
        """Return the new position and memory: the sampler's formula. `noise` has a leading axis of length `num_noises`."""

    @property
    def differs_by_chain(self) -> bool:
        """Whether chains have different settings, so that the inputs of a step may be tensors."""
        return False

    @property
    def formula(self) -> Callable[..., tuple[Tensor, Memory]]:
        """`update` without the settings that its inputs carry, so that compiled code serves all of them."""
        return dataclasses.replace(self, step_size=constant(1.0), temperature=1.0).update

    def inputs(self, step: int, *, seen: int | None = None, step_size: float | None = None) -> StepInputs:
        """Return the inputs of a step.

        Args:
            step: 0, 1, 2, ...
            seen: how many gradients the memory has seen, where that is not `step`: a parameter may get its first gradient late.
            step_size: instead of the schedule's; an optimizer has a learning rate.
        """
        temperature = self.temperature
        if step_size is None:
            step_size = self._value("step_size", step)
            temperature = 0.0 if self.explores(step) else temperature
            if step_size == 0:
                raise needs(self.name, "step_size", f"> 0 at every step (step {step})", step_size)
        started = float((step if seen is None else seen) > 0)
        return StepInputs(step_size, temperature, started=started, absorbing=float(temperature > 0))

    def _adapting(self, adapt_steps: int | None, step: int, seen: int | None) -> float:
        """Return 1 while a scale follows the gradients: in the first steps, or for ever, and in exploration phases."""
        since = step if seen is None else seen
        return float(adapt_steps is None or since < adapt_steps or self.explores(step))

    def inputs_of(self, steps: range) -> list[StepInputs]:
        """Return the inputs of consecutive steps: one object for all of them where nothing changes."""
        first = self.inputs(steps[0])
        if self.is_steady and first == self.inputs(steps[-1]):
            return [first] * len(steps)
        return [first, *(self.inputs(step) for step in steps[1:])]

    @property
    def is_steady(self) -> bool:
        """Whether every schedule is constant, so that inputs change only where a first step or an adaptation ends.

        That holds for the `inputs` and `explores` of this library; of others nothing is known.
        """
        constant = all(value.is_constant for value in vars(self).values() if isinstance(value, Schedule))
        is_known = all(method.__module__.startswith("langevin.") for method in (type(self).inputs, type(self).explores))
        return constant and is_known and not self.differs_by_chain

    def explores(self, step: int) -> bool:
        """Say whether a step belongs to an exploration phase: its temperature is 0, and `sample` keeps no draws."""
        return self.step_size.explores(step)

    def _value(self, setting: str, step: int) -> float:
        """Return what the schedule in a field says of a step; a schedule may be any function."""
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

    def for_run(self, warmup: int, position: Tensor) -> Kernel:
        """Return the kernel for a run from `position`, whose `warmup` first steps are thrown away; one that learns needs them."""
        return self

    def with_step_size(self, step_size: float | Schedule) -> Self:
        """Return the same sampler with another step size."""
        return dataclasses.replace(self, step_size=as_schedule(self.name, "step_size", step_size))

    @property
    def has_open_bias(self) -> bool:
        """Whether the bias factor is left to `sample`."""
        return False

    def with_bias_factor(self, factor: float) -> Self:
        """Return the same sampler with a bias factor that was left open."""
        return self

    @property
    def gradient_noise(self) -> GradientNoise | None:
        """The noise of the gradient that the step absorbs; None where it counts as heat."""
        return None

    def with_gradient_noise(self, noise: GradientNoise | None) -> Self:
        """Return the same sampler with a noise that was left open; None where there is none to absorb."""
        return self

    def without_metric(self) -> tuple[Kernel, Preconditioner]:
        """Return the kernel with its metric made the identity, and the metric."""
        return self, Identity()

    def noise_scale(self, inputs: StepInputs) -> Number:
        """Return the standard deviation that the noise gives one element in one step, where the metric is one."""
        return (2 * inputs.step_size * inputs.temperature) ** 0.5

    def reach(self, memory: Memory, inputs: StepInputs) -> Number | None:
        """Return how far θ goes, in all the steps after it, for a gradient of one; None where that is not known.

        White noise of variance s^2 in the gradient moves a soft direction, of curvature k, by R s a step, against a drift of R k:
        with R the reach it adds ``R s^2 / (2 k)`` to the variance, so that it heats by ``R s^2 / 2``.
        """
        return None

    @property
    def target_temperature(self) -> float | None:
        """Temperature τ of the law that is asked for, ``exp(-U / τ)``; None where chains have different ones."""
        return self.temperature

    @property
    def effective_temperature(self) -> float | None:
        """Temperature of the law for small steps and exact gradients; None where no single temperature describes it."""
        return self.temperature

    @property
    @abstractmethod
    def description(self) -> str:
        """The SDE, the target and the law, as text."""

    def describe(self) -> None:
        """Print the SDE that is simulated, the target, and the effective temperature of the sampler's law."""
        print(self.description)

    def init(self, position: Tensor) -> KernelState:
        """Start at `position`, shape (..., dim), with the memory of `start`."""
        check_position(self.name, "position", position)
        return KernelState(position, self.start(position), 0)

    def step(self, state: KernelState, evaluation: Evaluation, noise: Tensor, inputs: StepInputs | None = None) -> KernelState:
        """Take one step.

        Args:
            state: where the chains are.
            evaluation: energy and gradient of U (or estimates of them) at `state.position`.
            noise: standard normals, or what `noise_kind` says, (num_noises, *position.shape).
            inputs: those of the step; by default `self.inputs(state.step)`.
        """
        shape = state.position.shape
        if evaluation.gradient.shape != shape:
            found = tuple(evaluation.gradient.shape)
            raise needs(self.name, "evaluation", f"a gradient of the position's shape {tuple(shape)}", found)
        if noise.shape != (self.num_noises, *shape):
            raise needs(self.name, "noise", f"shape {(self.num_noises, *shape)}", tuple(noise.shape))
        inputs = self.inputs(state.step) if inputs is None else inputs
        position, memory = self.update(state.position, evaluation, noise, state.memory, inputs)
        return KernelState(position, memory, state.step + 1)
