"""The kernel contract: `init`, `update`, `traits` and the inputs of a step."""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Real
from typing import NamedTuple, Protocol, Self, runtime_checkable

import torch
from torch import Tensor

from langevin.checks import check_field, check_number, check_position, needs
from langevin.kernels.gradient_noise import GradientNoise
from langevin.kernels.parts import Identity, Number, Preconditioner, Tensors
from langevin.kernels.schedules import Schedule, as_schedule
from langevin.targets import Evaluation

__all__ = [
    "Kernel",
    "KernelState",
    "NoiseMeter",
    "StepInputs",
    "TemperatureChange",
    "Traits",
    "inputs_of",
    "reads_position",
]


class KernelState(NamedTuple):
    """Everything that the next step needs.

    Example:
        >>> import torch
        >>> import langevin as lv
        >>> lv.sghmc(step_size=0.01).init(torch.zeros(1, 2)).tensors
        SGHMCState(velocity=tensor([[0., 0.]]))
    """

    position: Tensor  # θ_t, shape (..., dim); leading axes are chains
    tensors: Tensors  # the tensors named by `kernel.state_names`: velocities, averages
    step: int  # t, the number of steps taken


class StepInputs(NamedTuple):
    """The numbers that `update` takes at a step: for all chains, or (chains, 1).

    Example:
        >>> import langevin as lv
        >>> inputs = StepInputs(step_size=0.02, temperature=1.0)
        >>> lv.sgld(step_size=0.02).noise_scale(inputs)  # sqrt(2 ε τ)
        0.2
    """

    step_size: Number  # ε
    temperature: Number = 1.0  # τ; 0 in the exploration phases of a schedule
    annealing: Number = 1.0  # factor of the bias factor
    adapting: Number = 1.0  # 1 while a scale follows the gradients, 0 once it is frozen
    started: Number = 1.0  # 0 at the first step, 1 afterwards
    correcting: Number = 1.0  # 1 where gradient noise is corrected for; 0 at temperature 0
    seen: Number = math.inf  # gradients before this one, for averages over all of them
    phase: Number = -1.0  # of kernels with phases (swaps, cycles); -1 for ordinary steps
    uniform: Number = -1.0  # (chains, 1), uniform on (0, 1), for kernels that need it; else -1


@dataclass(frozen=True)
class Traits:
    """Facts about a kernel's `update` that executors and optimizers depend on.

    Args:
        num_noises: random numbers per element and step.
        noise_kind: their distribution, a key of `langevin.random.KINDS`: "normal", or "uniform" on
            (-1, 1).
        elementwise: `update` consists of operators on one element at a time, so that C code can be
            generated from it.
        reads_position: `update` reads the position instead of only adding to it, so that it cannot
            run in other coordinates. None assumes this of formulas defined outside of langevin.
        needs_energy: `update` reads the energy, which an optimizer does not know.
        needs_full_energy: the energy must be that of all data even with minibatches.
        needs_exact_energy: minibatch energies would make the stationary distribution wrong.
        needs_uniform: each chain needs a uniform random number at every step.
        group_size: consecutive chains that interact; they run and stop together.
        temperatures: of the chains of a group, where they differ; draws are of the first.
        differs_by_chain: chains have different settings, so that inputs may be tensors.

    Example:
        >>> import langevin as lv
        >>> lv.sglrw(step_size=0.01).traits.noise_kind
        'uniform'
    """

    num_noises: int = 1
    noise_kind: str = "normal"
    elementwise: bool = True
    reads_position: bool | None = None
    needs_energy: bool = False
    needs_full_energy: bool = False
    needs_exact_energy: bool = False
    needs_uniform: bool = False
    group_size: int = 1
    temperatures: tuple[float, ...] = ()
    differs_by_chain: bool = False


@dataclass(frozen=True)
class Kernel(ABC):
    """One transition of a sampler of ``exp(-U / temperature)``.

    A kernel never sees the target: `update` takes an evaluation (energy and gradient of U) and
    standard normal noise. Settings are the fields of a frozen dataclass.

    Args:
        name: the sampler's name, for messages.
        step_size: ε on the scale of U, a schedule; `langevin.kernels.schedules.AUTO` leaves it to
            `sample`.
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
        """Check the settings; convert numbers and functions to schedules."""
        object.__setattr__(self, "step_size", as_schedule(self.name, "step_size", self.step_size))
        check_field(self, self.name, "temperature", ">= 0", lambda v: v >= 0)

    @property
    @abstractmethod
    def state_names(self) -> tuple[str, ...]:
        """Names of the tensors kept between steps, besides the position."""

    @cached_property
    def traits(self) -> Traits:
        """Facts about `update` for executors; a class attribute where they are constant."""
        return Traits()

    @abstractmethod
    def update(
        self,
        position: Tensor,
        evaluation: Evaluation,
        noise: Tensor,
        state: Tensors,
        inputs: StepInputs,
    ) -> tuple[Tensor, Tensors]:
        """Return the new position and state tensors; `noise` is (num_noises, *position.shape)."""

    def start(self, position: Tensor) -> Tensors:
        """Return the state tensors before the first step."""
        return tuple(torch.zeros_like(position) for _ in self.state_names)

    def init(self, position: Tensor) -> KernelState:
        """Return the state of chains that start at `position`, (..., dim)."""
        check_position(self.name, "position", position)
        return KernelState(position, self.start(position), 0)

    def step(
        self,
        state: KernelState,
        evaluation: Evaluation,
        noise: Tensor,
        inputs: StepInputs | None = None,
    ) -> KernelState:
        """Take one step.

        Args:
            state: of the chains.
            evaluation: energy and gradient of U (or estimates of them) at `state.position`.
            noise: of the trait `noise_kind`, (num_noises, *position.shape).
            inputs: of the step; by default `self.inputs(state.step)`.
        """
        shape = state.position.shape
        if evaluation.gradient.shape != shape:
            found = tuple(evaluation.gradient.shape)
            raise needs(
                self.name, "evaluation", f"a gradient of the position's shape {tuple(shape)}", found
            )
        wanted = (self.traits.num_noises, *shape)
        if noise.shape != wanted:
            raise needs(self.name, "noise", f"shape {wanted}", tuple(noise.shape))
        inputs = self.inputs(state.step) if inputs is None else inputs
        position, tensors = self.update(state.position, evaluation, noise, state.tensors, inputs)
        return KernelState(position, tensors, state.step + 1)

    def inputs(
        self, step: int, *, seen: int | None = None, step_size: float | None = None
    ) -> StepInputs:
        """Return the inputs of a step; subclasses add theirs in `refined`.

        Args:
            step: 0, 1, 2, ...
            seen: number of gradients so far, where it is not `step`: a parameter may receive its
                first gradient late.
            step_size: instead of the schedule's; an optimizer has a learning rate.
        """
        temperature = self.temperature
        if step_size is None:
            step_size = self._value("step_size", step)
            temperature = 0.0 if self.explores(step) else temperature
            if step_size == 0:
                raise needs(self.name, "step_size", f"> 0 at every step (step {step})", step_size)
        since = step if seen is None else seen
        started, correcting = float(since > 0), float(temperature > 0)
        inputs = StepInputs(step_size, temperature, started=started, correcting=correcting)
        return self.refined(inputs, step, since)

    def refined(self, inputs: StepInputs, step: int, seen: int) -> StepInputs:
        """Return the inputs with those that only this kernel has, after `seen` gradients."""
        return inputs

    @cached_property
    def is_steady(self) -> bool:
        """Whether inputs change only where a first step or an adaptation ends.

        True for constant schedules and the `inputs` and `explores` of this library; samplers whose
        steps have phases set it to False.
        """
        constant = all(
            value.is_constant for value in vars(self).values() if isinstance(value, Schedule)
        )
        is_known = all(
            method.__module__.startswith("langevin.")
            for method in (type(self).inputs, type(self).refined, type(self).explores)
        )
        return constant and is_known and not self.traits.differs_by_chain

    def explores(self, step: int) -> bool:
        """Return whether a step is exploration: temperature 0, and no draws are kept."""
        return self.step_size.explores(step)

    def _value(self, setting: str, step: int) -> float:
        """Return the value at a step of the schedule in a field, which may be any function."""
        schedule = getattr(self, setting)
        try:
            value = schedule(step)
        except TypeError as error:
            raise needs(
                self.name,
                setting,
                f"a function of the step (step {step}: {error})",
                schedule,
                TypeError,
            ) from error
        if isinstance(value, Real):  # NumPy's numbers too
            value = float(value)
        return check_number(
            self.name, setting, value, f">= 0 at every step (step {step})", lambda v: v >= 0
        )

    def for_run(self, warmup: int, position: Tensor) -> Kernel:
        """Return the kernel for a run from `position`; what adapts is frozen after `warmup`."""
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
        """The gradient noise that the step corrects for; None without a correction."""
        return None

    def with_gradient_noise(self, noise: GradientNoise | None) -> Self:
        """Return the same sampler with a gradient noise that was left open; None for none."""
        return self

    @property
    def constants(self) -> dict[str, Tensor]:
        """Tensors among the settings, estimated before a run and stored with it."""
        return {}

    def without_metric(self) -> tuple[Kernel, Preconditioner]:
        """Return the kernel with the identity as its metric, and the metric."""
        return self, Identity()

    def noise_scale(self, inputs: StepInputs) -> Number:
        """Return the standard deviation of one step's noise, where the metric is one."""
        return (2 * inputs.step_size * inputs.temperature) ** 0.5

    def total_response(self, state: Tensors, inputs: StepInputs) -> Number | None:
        """Return how far a gradient of one moves θ over all later steps; None where unknown.

        White noise of variance s^2 in the gradient moves a direction of small curvature k by R s a
        step, against a drift of R k: with R the total response it adds ``R s^2 / (2 k)`` to the
        variance, an excess temperature of ``R s^2 / 2``.
        """
        return None

    @property
    def target_temperature(self) -> float | None:
        """Temperature τ of the target, ``exp(-U / τ)``; None where chains have different ones."""
        return self.temperature

    @property
    def effective_temperature(self) -> float | None:
        """Temperature for small steps and exact gradients; None where no single one exists."""
        return self.temperature

    @property
    @abstractmethod
    def description(self) -> str:
        """The SDE, the target and the stationary distribution, as text."""

    def describe(self) -> None:
        """Print the SDE, the target and the effective temperature."""
        print(self.description)

    def described(
        self,
        sde: str,
        *equations: str,
        settings: str = "",
        noise: str = "",
        law: Sequence[str],
    ) -> str:
        """Return the text of `description`, with the lines that all kernels have.

        Args:
            sde: of the position.
            equations: the other ones, and what their letters mean.
            settings: besides the step size.
            noise: the gradient noise that is corrected for.
            law: lines on the stationary distribution.
        """
        of_step = f"step size ε = {self.step_size}" + (f"; {settings}" if settings else "")
        target = f"target: exp(-U / {self.temperature:g})"
        corrected = [f"gradient noise, white, corrected: {noise}"] if noise else []
        lines = *equations, of_step, target, *corrected, "law: " + "\n    ".join(law)
        return "\n  ".join([f"{self.name}: {sde}", *lines])


@runtime_checkable
class TemperatureChange(Protocol):
    """A kernel whose state can follow a change of temperature, for swaps and cycles."""

    def rescale_state(
        self, state: Tensors, gradient: Tensor, ratio: Number, inputs: StepInputs
    ) -> Tensors:
        """Return the state of chains whose temperature is multiplied by ratio**2.

        Args:
            state: before.
            gradient: at the position, which the next step takes: a velocity that lags by half a
                kick is scaled without it.
            ratio: by which velocities grow: a number, or (chains, 1). Nothing changes, to the last
                bit, where it is 1.
            inputs: of the next step.
        """
        ...


@runtime_checkable
class NoiseMeter(Protocol):
    """A kernel whose state measures the gradient noise."""

    def noise_share(self, state: Tensors, inputs: StepInputs) -> Tensor | None:
        """Return the excess temperature by gradient noise over τ, per element; None if unknown."""
        ...


def inputs_of(kernel: Kernel, steps: range) -> list[StepInputs]:
    """Return the inputs of consecutive steps: one object for all of them where nothing changes."""
    first = kernel.inputs(steps[0])
    if kernel.is_steady and first == kernel.inputs(steps[-1]):
        return [first] * len(steps)
    return [first, *(kernel.inputs(step) for step in steps[1:])]


def reads_position(kernel: Kernel) -> bool:
    """Return whether `update` reads the position, which forbids other coordinates."""
    declared = kernel.traits.reads_position
    is_known = type(kernel).update.__module__.startswith("langevin.")
    return not is_known if declared is None else declared
