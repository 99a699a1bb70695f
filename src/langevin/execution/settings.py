"""Settings of kernels: as inputs of generated code, and several of them side by side in one run."""

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

__all__ = [
    "SideBySide",
    "is_number",
    "parts_of",
    "rebuilt",
    "settings_of",
    "side_by_side",
    "structure_of",
    "with_settings",
]

Path = tuple[str | int, ...]  # of a setting: fields and indices


def is_number(value: object) -> bool:
    """Return whether a setting is a number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def parts_of(value: object) -> dict[str | int, Any] | None:
    """Return the fields of a kernel or of a part of one; None for a single setting.

    Schedules are single settings: formulas read their values from the inputs of a step.
    """
    if isinstance(value, tuple):
        return dict(enumerate(value))
    if is_dataclass(value) and not isinstance(value, (type, Schedule)):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    return None


def rebuilt(
    values: Sequence[Any], replace: Callable[[Path, Sequence[Any]], Any], path: Path = ()
) -> Any:
    """Return a copy of the first of `values`, which are kernels, with other settings.

    Args:
        values: kernels, or parts of them, of one structure.
        replace: takes the path of a setting and its value in each of `values`; returns the new
            one. Also takes parts of different types.
        path: of these values.
    """
    first = values[0]
    each = [parts_of(value) if type(value) is type(first) else None for value in values]
    if each[0] is None or any(parts is None or parts.keys() != each[0].keys() for parts in each):
        return replace(path, values)
    made = {
        name: rebuilt([parts[name] for parts in each if parts], replace, (*path, name))
        for name in each[0]
    }
    if isinstance(first, tuple):
        return tuple(made.values())
    twin = object.__new__(type(first))
    for name, value in made.items():
        object.__setattr__(twin, str(name), value)
    return twin


def settings_of(kernel: Kernel) -> list[Tensor]:
    """Return a kernel's numbers, as float64 tensors without axes, and its tensors, in fixed order.

    Schedules are left out: their values are inputs of a step.
    """
    found: list[Tensor] = []

    def note(_: Path, values: Sequence[Any]) -> None:
        if isinstance(values[0], (float, Tensor)):
            found.append(torch.as_tensor(values[0], dtype=getattr(values[0], "dtype", _F64)))

    rebuilt([kernel], note)
    return found


_F64 = torch.float64


def with_settings(kernel: Kernel, settings: list[Tensor]) -> Kernel:
    """Return a kernel with these numbers and tensors, in the order of `settings_of`."""
    left = iter(settings)

    def replace(_: Path, values: Sequence[Any]) -> Any:
        return next(left) if isinstance(values[0], (float, Tensor)) else values[0]

    made: Kernel = rebuilt([kernel], replace)
    return made


def structure_of(value: Any) -> object:
    """Return the types, shapes and other values that two kernels must share to share code."""
    if isinstance(value, Tensor):
        return value.shape, value.dtype
    if isinstance(value, (float, Schedule)):
        return type(value)
    parts = parts_of(value)
    return value if parts is None else (type(value), *map(structure_of, parts.values()))


@dataclass(frozen=True)
class SideBySide(Kernel):
    """Kernels that differ only in numbers and schedules; built by `side_by_side`.

    Their `update` runs on tensors (chains, 1) in place of numbers.
    """

    kernels: tuple[Kernel, ...] = ()
    chains_each: int = 1
    dtype: torch.dtype = torch.float64
    device: torch.device = torch.device("cpu")

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self._twin  # fails now if the kernels do not fit, and is made before a recording begins

    @cached_property
    def _twin(self) -> Kernel:
        made: Kernel = rebuilt(self.kernels, self._merged, ("kernels",))
        return made

    def _merged(self, path: Path, values: Sequence[Any]) -> Any:
        """Return one setting of all kernels: a tensor where numbers differ."""
        first = values[0]
        if all(isinstance(value, Schedule) or value is first for value in values):
            return first  # of schedules only the values matter, which are inputs
        if all(map(is_number, values)):
            return self._by_chain(values)
        are_alike = all(type(value) is type(first) for value in values)
        if are_alike and isinstance(first, Tensor):
            if all(torch.equal(value, first) for value in values):
                return first
            values = [tuple(value.shape) for value in values]
        elif are_alike and all(value == first for value in values):
            return first
        kind = "tensor" if isinstance(first, Tensor) else "value"
        what = f"the same {kind}" if are_alike else "values of one type"
        error = ValueError if are_alike else TypeError
        name = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
        raise needs("side_by_side", name[1:], f"{what} in all kernels", list(values), error)

    def _by_chain(self, values: Sequence[float]) -> Tensor:
        each = torch.tensor(values, dtype=self.dtype, device=self.device)
        return each.repeat_interleave(self.chains_each)[:, None]

    @property
    @override
    def state_names(self) -> tuple[str, ...]:
        return self.kernels[0].state_names

    @cached_property
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

    @override
    def update(
        self,
        position: Tensor,
        evaluation: Evaluation,
        noise: Tensor,
        state: Tensors,
        inputs: StepInputs,
    ) -> tuple[Tensor, Tensors]:
        return self._twin.update(position, evaluation, noise, state, inputs)

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
    return SideBySide(first.name, first.step_size, first.temperature, kernels, chains_each)
