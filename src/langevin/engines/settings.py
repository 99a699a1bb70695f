"""Many settings of one sampler at once, as chains of one run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property
from typing import Any, ClassVar, Self

import torch
from torch import Tensor
from typing_extensions import override

from langevin.checks import check_integer, needs
from langevin.drifts import Memory, Number
from langevin.gradient_noise import GradientNoise, is_open
from langevin.kernels import Kernel, StepInputs
from langevin.schedules import AUTO, Schedule
from langevin.targets import Evaluation

__all__ = ["SideBySide", "side_by_side"]


@dataclass(frozen=True)
class SideBySide(Kernel):
    """Kernels that differ in numbers and schedules only; use `side_by_side` to build one.

    The formula stands in their `update` alone. It is run by their twin, whose numbers are tensors (chains, 1), on inputs that are
    tensors likewise.
    """

    differs_by_chain: ClassVar[bool] = True

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
    def memory(self) -> tuple[str, ...]:
        return self.kernels[0].memory

    @property
    @override
    def num_noises(self) -> int:
        return self.kernels[0].num_noises

    @property
    @override
    def noise_kind(self) -> str:
        return self.kernels[0].noise_kind

    @property
    @override
    def sees_position(self) -> bool:
        return self.kernels[0].sees_position

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
    def needs_energy(self) -> bool:
        return self.kernels[0].needs_energy

    @property
    @override
    def formula(self) -> Callable[..., tuple[Tensor, Memory]]:
        return self._twin.update

    @override
    def update(
        self, position: Tensor, evaluation: Evaluation, noise: Tensor, memory: Memory, inputs: StepInputs
    ) -> tuple[Tensor, Memory]:
        return self._twin.update(position, evaluation, noise, memory, inputs)

    @override
    def inputs(self, step: int, *, seen: int | None = None, step_size: float | None = None) -> StepInputs:
        each = [kernel.inputs(step, seen=seen, step_size=step_size) for kernel in self.kernels]
        # What is the same for all stays a number.
        columns = zip(*each, strict=True)
        return StepInputs(*(column[0] if len(set(column)) == 1 else self._by_chain(column) for column in columns))

    @override
    def explores(self, step: int) -> bool:
        found = {kernel.explores(step) for kernel in self.kernels}
        if len(found) > 1:
            raise needs("side_by_side", "kernels", f"schedules that explore in the same steps (step {step})", self.step_size)
        return found.pop()

    @override
    def start(self, position: Tensor) -> Memory:
        if position.dtype != self.dtype or position.device != self.device:
            what = f"positions of {self.dtype} on {self.device}: for_run(warmup, position) takes over those of a run"
            raise needs("side_by_side", "position", what, f"{position.dtype} on {position.device}", TypeError)
        return self.kernels[0].start(position)

    @override
    def with_step_size(self, step_size: float | Schedule) -> Self:
        kernels = tuple(kernel.with_step_size(step_size) for kernel in self.kernels)
        return dataclasses.replace(self, step_size=kernels[0].step_size, kernels=kernels)

    @override
    def for_run(self, warmup: int, position: Tensor) -> Kernel:
        if len(position) != len(self.kernels) * self.chains_each:
            count = f"{len(self.kernels)} settings x {self.chains_each} chains"
            raise needs("side_by_side", "chains_each", f"as many chains as there are: {count}", len(position))
        kernels = tuple(kernel.for_run(warmup, position) for kernel in self.kernels)
        return dataclasses.replace(self, kernels=kernels, dtype=position.dtype, device=position.device)

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
        head = f"{self.name}: {len(self.kernels)} settings side by side, {self.chains_each} chains of each"
        return "\n".join([head, *(kernel.description for kernel in self.kernels)])


def side_by_side(kernels: Sequence[Kernel], chains_each: int = 1) -> SideBySide:
    """Make one kernel of several: the first `chains_each` chains have the settings of the first, and so on.

    Args:
        kernels: of one kind, elementwise, with numbers as step sizes or schedules; they may differ in numbers and schedules.
        chains_each: chains of each.

    Example:
        >>> import langevin as lv
        >>> both = side_by_side([lv.sgld(0.1), lv.sgld(0.2, temperature=0.0)])
        >>> lv.sample(both, lv.targets.gaussian([[1.0]]), torch.ones(2, 1), num_steps=2).draws[1]  # deterministic
        tensor([[0.8000],
                [0.6400]])
    """
    kernels = tuple(kernels)
    if not kernels or not all(isinstance(kernel, Kernel) for kernel in kernels):
        raise needs("side_by_side", "kernels", "at least one kernel", kernels, TypeError)
    check_integer("side_by_side", "chains_each", chains_each, 1)
    for kernel in kernels:
        if not kernel.is_elementwise or kernel.group_size > 1 or kernel.step_size == AUTO or is_open(kernel.gradient_noise):
            what = "elementwise kernels, each chain apart, with a step size, and nothing left to be learnt"
            raise needs("side_by_side", "kernels", what, f"{kernel.name}, step size {kernel.step_size}")
    made = SideBySide(kernels[0].name, kernels[0].step_size, kernels[0].temperature, kernels, chains_each)
    _ = made._twin  # fails now where they do not fit
    return made


def _twin(name: str, values: list[Any], by_chain: Callable[[Sequence[float]], Tensor]) -> Any:
    """Return a kernel, or a part of one, whose numbers are tensors; its schedules mean nothing."""
    first = values[0]
    if all(isinstance(value, Schedule) or value is first for value in values):
        return first
    if all(isinstance(value, Tensor) for value in values):
        if all(torch.equal(value, first) for value in values):
            return first
        raise needs("side_by_side", name, "the same tensor in all kernels", [tuple(value.shape) for value in values])
    if all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values):
        return by_chain(values)
    if not all(type(value) is type(first) for value in values):
        raise needs("side_by_side", name, "values of one type in all kernels", values, TypeError)
    if isinstance(first, tuple):
        return tuple(_twin(f"{name}[{k}]", list(entries), by_chain) for k, entries in enumerate(zip(*values, strict=True)))
    if is_dataclass(first) and not isinstance(first, type):
        made = object.__new__(type(first))
        for field in fields(first):
            entries = [getattr(value, field.name) for value in values]
            object.__setattr__(made, field.name, _twin(f"{name}.{field.name}", entries, by_chain))
        return made
    if any(value != first for value in values):
        raise needs("side_by_side", name, "the same value in all kernels", values)
    return first
