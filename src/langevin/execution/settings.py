"""Run several settings of one sampler at once, as chains of one run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor
from typing_extensions import override

from langevin.checks import check_integer, needs
from langevin.kernels import Kernel, StepInputs, Traits
from langevin.kernels.base import reads_position
from langevin.kernels.drifts import Number, Tensors
from langevin.kernels.gradient_noise import GradientNoise, is_open
from langevin.kernels.schedules import AUTO, Schedule
from langevin.targets import Evaluation

__all__ = ["SideBySide", "side_by_side"]


@dataclass(frozen=True)
class SideBySide(Kernel):
    """Kernels that differ only in numbers and schedules; built by `side_by_side`.

    Their `update` runs on tensors (chains, 1) in place of numbers.
    """

    kernels: tuple[Kernel, ...] = ()
    chains_each: int = 1
    dtype: torch.dtype = torch.float64
    device: torch.device = torch.device("cpu")

    @cached_property
    def _twin(self) -> Kernel:
        return _twin("kernels", list(self.kernels), self._by_chain)

    def _by_chain(self, values: Sequence[float]) -> Tensor:
        each = torch.tensor(values, dtype=self.dtype, device=self.device)
        return each.repeat_interleave(self.chains_each)[:, None]

    @property
    @override
    def state_names(self) -> tuple[str, ...]:
        return self.kernels[0].state_names

    @property
    @override
    def traits(self) -> Traits:
        first = self.kernels[0]
        return dataclasses.replace(
            first.traits, reads_position=reads_position(first), differs_by_chain=True
        )

    @property
    @override
    def gradient_noise(self) -> GradientNoise | None:
        return self.kernels[0].gradient_noise

    @property
    @override
    def constants(self) -> dict[str, Tensor]:
        return self.kernels[0].constants

    @property
    @override
    def formula(self) -> Callable[..., tuple[Tensor, Tensors]]:
        return self._twin.update

    @override
    def update(
        self,
        position: Tensor,
        evaluation: Evaluation,
        noise: Tensor,
        memory: Tensors,
        inputs: StepInputs,
    ) -> tuple[Tensor, Tensors]:
        return self._twin.update(position, evaluation, noise, memory, inputs)

    @override
    def inputs(
        self, step: int, *, seen: int | None = None, step_size: float | None = None
    ) -> StepInputs:
        each = [kernel.inputs(step, seen=seen, step_size=step_size) for kernel in self.kernels]
        # What is the same for all stays a number.
        columns = zip(*each, strict=True)
        return StepInputs(
            *(column[0] if len(set(column)) == 1 else self._by_chain(column) for column in columns)
        )

    @override
    def explores(self, step: int) -> bool:
        found = {kernel.explores(step) for kernel in self.kernels}
        if len(found) > 1:
            what = f"schedules that explore in the same steps (step {step})"
            raise needs("side_by_side", "kernels", what, self.step_size)
        return found.pop()

    @override
    def start(self, position: Tensor) -> Tensors:
        if position.dtype != self.dtype or position.device != self.device:
            what = f"positions of {self.dtype} on {self.device}, as given to for_run()"
            found = f"{position.dtype} on {position.device}"
            raise needs("side_by_side", "position", what, found, TypeError)
        return self.kernels[0].start(position)

    @override
    def with_step_size(self, step_size: float | Schedule) -> Self:
        kernels = tuple(kernel.with_step_size(step_size) for kernel in self.kernels)
        return dataclasses.replace(self, step_size=kernels[0].step_size, kernels=kernels)

    @override
    def for_run(self, warmup: int, position: Tensor) -> Kernel:
        if len(position) != len(self.kernels) * self.chains_each:
            what = f"{len(self.kernels)} settings x {self.chains_each} chains"
            raise needs("side_by_side", "chains_each", what, len(position))
        kernels = tuple(kernel.for_run(warmup, position) for kernel in self.kernels)
        return dataclasses.replace(
            self, kernels=kernels, dtype=position.dtype, device=position.device
        )

    @override
    def noise_scale(self, inputs: StepInputs) -> Number:
        return self._twin.noise_scale(inputs)

    @property
    @override
    def target_temperature(self) -> float | None:
        found = {kernel.temperature for kernel in self.kernels}
        return found.pop() if len(found) == 1 else None

    @property
    @override
    def effective_temperature(self) -> float | None:
        found = {kernel.effective_temperature for kernel in self.kernels}
        return found.pop() if len(found) == 1 else None

    @property
    @override
    def description(self) -> str:
        counts = f"{len(self.kernels)} settings side by side, {self.chains_each} chains of each"
        head = f"{self.name}: {counts}"
        return "\n".join([head, *(kernel.description for kernel in self.kernels)])


def side_by_side(kernels: Sequence[Kernel], chains_each: int = 1) -> SideBySide:
    """Combine kernels into one, which runs `chains_each` chains with the settings of each.

    Args:
        kernels: elementwise kernels of one type that differ only in numbers and schedules.
        chains_each: chains per kernel.

    Example:
        >>> import langevin as lv
        >>> both = side_by_side([lv.sgld(0.1), lv.sgld(0.2, temperature=0.0)])
        >>> target = lv.targets.gaussian([[1.0]])
        >>> samples = lv.sample(target, sampler=both, init=torch.ones(2, 1), num_steps=2)
        >>> samples.draws[1]  # deterministic
        tensor([[0.8000],
                [0.6400]])
    """
    kernels = tuple(kernels)
    if not kernels or not all(isinstance(kernel, Kernel) for kernel in kernels):
        raise needs("side_by_side", "kernels", "at least one kernel", kernels, TypeError)
    check_integer("side_by_side", "chains_each", chains_each, 1)
    for kernel in kernels:
        if (
            not kernel.traits.elementwise
            or kernel.traits.group_size > 1
            or kernel.step_size == AUTO
            or is_open(kernel.gradient_noise)
        ):
            what = "elementwise kernels of single chains, with step size and gradient noise given"
            found = f"{kernel.name}, step size {kernel.step_size}"
            raise needs("side_by_side", "kernels", what, found)
    first = kernels[0]
    made = SideBySide(first.name, first.step_size, first.temperature, kernels, chains_each)
    _ = made._twin  # fails now if the kernels do not fit
    return made


def _twin(name: str, values: list[Any], by_chain: Callable[[Sequence[float]], Tensor]) -> Any:
    """Return a kernel, or a part of one, with tensors for numbers; its schedules are not used."""
    first = values[0]
    if all(isinstance(value, Schedule) or value is first for value in values):
        return first
    if all(isinstance(value, Tensor) for value in values):
        if all(torch.equal(value, first) for value in values):
            return first
        shapes = [tuple(value.shape) for value in values]
        raise needs("side_by_side", name, "the same tensor in all kernels", shapes)
    if all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values):
        return by_chain(values)
    if not all(type(value) is type(first) for value in values):
        raise needs("side_by_side", name, "values of one type in all kernels", values, TypeError)
    if isinstance(first, tuple):
        return tuple(
            _twin(f"{name}[{k}]", list(entries), by_chain)
            for k, entries in enumerate(zip(*values, strict=True))
        )
    if is_dataclass(first) and not isinstance(first, type):
        made = object.__new__(type(first))
        for field in fields(first):
            entries = [getattr(value, field.name) for value in values]
            object.__setattr__(made, field.name, _twin(f"{name}.{field.name}", entries, by_chain))
        return made
    if any(value != first for value in values):
        raise needs("side_by_side", name, "the same value in all kernels", values)
    return first
