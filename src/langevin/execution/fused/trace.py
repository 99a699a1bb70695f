"""Trace a formula: record it as torch's operations on a few elements, and name its values."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from langevin.compiler.record import Operation, Value, record
from langevin.execution.settings import Path, is_number, parts_of, rebuilt
from langevin.kernels import Kernel, StepInputs
from langevin.kernels.schedules import Schedule
from langevin.targets import Evaluation
from langevin.targets.gradients import energy_gradient
from langevin.targets.priors import Prior

__all__ = ["ARITHMETIC", "Program", "UntraceableError", "numbers", "structure", "trace"]

ARITHMETIC = {"add": "{} + {}", "sub": "{} - {}", "mul": "{} * {}", "div": "{} / {}", "neg": "-{}"}
_IN_PYTHON = ARITHMETIC | {"pow": "{} ** {}", "abs": "abs({})", "maximum": "max({1}, {0})"}
_FUNCTIONS = {"rsqrt", "abs", "maximum", "exp", "log", "sign", "sigmoid", "clamp"} | {
    "clamp_min",
    "clamp_max",
}


class UntraceableError(TypeError):
    """A formula uses an operation without generated code; it can still run on tensors."""


class Line(NamedTuple):
    """An operation on elements."""

    result: str
    operation: str
    operands: list[str]


class Program:
    """The operations of a formula, those on settings apart from those on elements.

    Args:
        values: the names of settings and of tensors.
        is_element: which of them are tensors.
    """

    def __init__(self, values: dict[Value, str], is_element: Callable[[Value], bool]) -> None:
        """Start without operations."""
        self.setting_lines: list[str] = []  # Python floats, once per step
        self.lines: list[Line] = []  # reals, once per element
        self.hoisted: dict[str, int] = {}  # settings in element operations, in argument order
        self.values, self._is_element = values, is_element

    def add(self, operation: Operation) -> None:
        """Append one of torch's operations."""
        name = operation.name.removeprefix("aten.").split(".")[0]
        arguments = list(operation.arguments)
        result, *others = operation.results
        if result is None or others or operation.options:
            raise UntraceableError(f"{operation.name} with options or several results")
        is_element = self._is_element(result)
        match name, *arguments:
            case "rsub", x, y:
                name, arguments = "sub", [y, x]
            case "reciprocal", x:
                name, arguments = "div", [1.0, x]
            # torch.sqrt is not correctly rounded on the CPU (MKL), torch.rsqrt is: bits must agree.
            case "pow", x, -0.5 if is_element:
                name, arguments = "rsqrt", [x]
            case "pow", _, power if is_element:
                raise UntraceableError(f"fused formulas have powers of -0.5 only, got {power}")
            case "clamp", x, low:
                name, arguments = "clamp_min", [x, low]
            case "clamp", x, None, high:
                name, arguments = "clamp_max", [x, high]
        if name not in (ARITHMETIC.keys() | _FUNCTIONS if is_element else _IN_PYTHON):
            raise UntraceableError(f"no generated code for {operation.name}")
        operands = [self._name(argument, is_element) for argument in arguments]
        if is_element:
            self.values[result] = f"x{len(self.lines)}"
            self.lines.append(Line(self.values[result], name, operands))
        else:
            self.values[result] = f"c{len(self.setting_lines)}"
            line = f"{self.values[result]} = {_IN_PYTHON[name].format(*operands)}"
            self.setting_lines.append(line)

    def _name(self, operand: Value | float, for_element: bool) -> str:
        if not isinstance(operand, Value):
            name, is_element = repr(float(operand)), False
        elif operand in self.values:
            name, is_element = self.values[operand], self._is_element(operand)
        else:
            raise UntraceableError("a tensor that is neither a setting nor a state")
        if is_element or not for_element:
            return name
        return f"s{self.hoisted.setdefault(name, len(self.hoisted))}"

    def written(self, templates: Mapping[str, str], end: str = "") -> list[str]:
        """Return an assignment for each operation on elements; `end` is added to all names."""
        return [
            f"{line.result}{end} = "
            + templates[line.operation].format(*(f"{name}{end}" for name in line.operands))
            for line in self.lines
        ]

    def scalars(self, names: Sequence[str]) -> Callable[..., list[float]]:
        """Return the function from all settings to those that enter element operations."""
        lines = [*self.setting_lines, f"return [{', '.join(self.hoisted)}]"]
        source = "\n    ".join([f"def scalars({', '.join(names)}):", *lines])
        scope: dict[str, Callable[..., list[float]]] = {}
        exec(compile(source, "<langevin.execution.fused>", "exec"), scope)  # our own text
        return scope["scalars"]


def numbers(value: Any) -> tuple[float, ...]:
    """Return the numbers among the settings of a kernel or a prior."""
    if is_number(value):
        return (float(value),)
    parts = parts_of(value) or {}
    return tuple(number for part in parts.values() for number in numbers(part))


def structure(value: object) -> Hashable:
    """Return what generated code depends on: types and constants of the parts, but no numbers.

    Only frozen dataclasses have a structure: other objects may change unnoticed.
    """
    if isinstance(value, Schedule):
        return "schedule"
    if is_number(value):
        return "number"
    if (parts := parts_of(value)) is not None:
        # `__dataclass_params__` has no stub.
        if is_dataclass(value) and not getattr(type(value), "__dataclass_params__").frozen:  # noqa: B009
            raise UntraceableError(f"{type(value).__name__} is a dataclass that is not frozen")
        return type(value), *map(structure, parts.values())
    if value is None or isinstance(value, (bool, str)) or callable(value):
        return value
    raise UntraceableError(f"{type(value).__name__} is not a frozen dataclass of numbers")


def trace(kernel: Kernel, prior: Prior | None) -> tuple[Program, list[str], list[str]]:
    """Trace one step; return program, names of settings, and names of new position and state."""
    names = [*StepInputs._fields, "num_data"]
    settings = [_number(0.5) for _ in names]

    def replace(path: Path, values: Sequence[Any]) -> Any:
        if not is_number(values[0]):
            return values[0]
        names.append("_".join(map(str, path)))
        settings.append(_number(values[0]))
        return settings[-1]

    *now, num_data = settings
    twin, twin_prior = (
        rebuilt([value], replace, (name,)) for name, value in (("kernel", kernel), ("prior", prior))
    )
    noises = [f"noise{k}" for k in range(kernel.traits.num_noises)]
    tensors = ["position", "gradient", *kernel.state_names, *noises]
    elements = [torch.full((2,), 0.5, dtype=torch.float64, device="cpu") for _ in tensors]
    position, given, *state = elements[: len(elements) - len(noises)]

    def update() -> list[Tensor]:
        gradient = energy_gradient(given, position, num_data, twin_prior)
        # Formulas that use the energy are not elementwise.
        evaluation, noise = Evaluation(cast(Any, None), gradient), elements[-len(noises) :]
        inputs = StepInputs(*cast(list[Any], now))
        moved, after = twin.update(position, evaluation, noise, tuple(state), inputs)
        return [moved, *after]

    try:
        tape = record(update, [*settings, *elements])
    except Exception as error:  # whatever a user's formula may do
        raise UntraceableError(str(error) or type(error).__name__) from error
    values = {Value("input", k): name for k, name in enumerate([*names, *tensors])}
    program = Program(values, lambda value: tape.tensors[value].ndim == 1)
    for operation in tape.operations:
        program.add(operation)
    if len(tape.results) != 1 + len(state) or not all(
        value in values and tape.tensors[value].shape == position.shape for value in tape.results
    ):
        raise UntraceableError("the formula returns something that is not a result of its elements")
    return program, names, [values[value] for value in tape.results]


def _number(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64, device="cpu")
