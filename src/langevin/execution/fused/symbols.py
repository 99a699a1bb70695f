"""Trace a formula: symbols stand for tensors and settings, and record each operation."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from typing import Any, NamedTuple, NoReturn, cast

from langevin.execution.settings import Path, is_number, parts_of, rebuilt
from langevin.kernels import Kernel, StepInputs
from langevin.kernels.schedules import Schedule
from langevin.targets import Evaluation
from langevin.targets.gradients import energy_gradient
from langevin.targets.priors import Prior

__all__ = ["ARITHMETIC", "Program", "Symbol", "UntraceableError", "numbers", "structure", "trace"]


class UntraceableError(TypeError):
    """A formula uses an operation without a symbol; it can still run on tensors."""


ARITHMETIC = {"add": "{} + {}", "sub": "{} - {}", "mul": "{} * {}", "div": "{} / {}", "neg": "-{}"}
_IN_PYTHON = ARITHMETIC | {"pow": "{} ** {}", "abs": "abs({})", "maximum": "max({1}, {0})"}


class Operation(NamedTuple):
    """An operation on elements."""

    result: str
    name: str
    operands: list[str]


class Program:
    """The operations of a traced formula."""

    def __init__(self) -> None:
        """Start without operations."""
        self.setting_lines: list[str] = []  # Python floats, once per step
        self.operations: list[Operation] = []  # reals, once per element
        self.hoisted: dict[str, int] = {}  # settings in element operations, in argument order

    def operate(self, name: str, *operands: Symbol | float) -> Symbol:
        """Append an operation and return its result."""
        is_element = any(isinstance(operand, Symbol) and operand.is_element for operand in operands)
        names = [self._name(operand, is_element) for operand in operands]
        if is_element:
            result = f"x{len(self.operations)}"
            self.operations.append(Operation(result, name, names))
        elif name in _IN_PYTHON:
            result = f"c{len(self.setting_lines)}"
            self.setting_lines.append(f"{result} = {_IN_PYTHON[name].format(*names)}")
        else:
            raise UntraceableError(f"{name} of a setting")
        return Symbol(self, result, is_element)

    def _name(self, operand: Symbol | float, for_element: bool) -> str:
        if isinstance(operand, Symbol) and (operand.is_element or not for_element):
            return operand.name
        if not isinstance(operand, (Symbol, int, float)):
            raise UntraceableError(f"an operation between an element and {type(operand).__name__}")
        name = operand.name if isinstance(operand, Symbol) else repr(float(operand))
        return f"s{self.hoisted.setdefault(name, len(self.hoisted))}" if for_element else name

    def lines(self, templates: Mapping[str, str], end: str = "") -> list[str]:
        """Return an assignment for each operation on elements; `end` is added to all names."""
        return [
            f"{operation.result}{end} = "
            + templates[operation.name].format(*(f"{name}{end}" for name in operation.operands))
            for operation in self.operations
        ]

    def scalars(self, names: Sequence[str]) -> Callable[..., list[float]]:
        """Return the function from all settings to those that enter element operations."""
        lines = [*self.setting_lines, f"return [{', '.join(self.hoisted)}]"]
        source = "\n    ".join([f"def scalars({', '.join(names)}):", *lines])
        scope: dict[str, Callable[..., list[float]]] = {}
        exec(compile(source, "<langevin.execution.fused>", "exec"), scope)  # our own text
        return scope["scalars"]


@dataclass(frozen=True, eq=False)
class Symbol:
    """A tensor or a setting of a formula that is traced."""

    program: Program
    name: str
    is_element: bool

    def __add__(self, other: Symbol | float) -> Symbol:
        return self.program.operate("add", self, other)

    def __radd__(self, other: Symbol | float) -> Symbol:
        return self.program.operate("add", other, self)

    def __sub__(self, other: Symbol | float) -> Symbol:
        return self.program.operate("sub", self, other)

    def __rsub__(self, other: Symbol | float) -> Symbol:
        return self.program.operate("sub", other, self)

    def __mul__(self, other: Symbol | float) -> Symbol:
        return self.program.operate("mul", self, other)

    def __rmul__(self, other: Symbol | float) -> Symbol:
        return self.program.operate("mul", other, self)

    def __truediv__(self, other: Symbol | float) -> Symbol:
        return self.program.operate("div", self, other)

    def __rtruediv__(self, other: Symbol | float) -> Symbol:
        return self.program.operate("div", other, self)

    def __neg__(self) -> Symbol:
        return self.program.operate("neg", self)

    def __pow__(self, power: float) -> Symbol:
        if not self.is_element:
            return self.program.operate("pow", self, power)
        # torch.sqrt is not correctly rounded on the CPU (MKL), torch.rsqrt is: bits must agree.
        if power != -0.5:
            raise UntraceableError(f"fused formulas have powers of -0.5 only, got {power}")
        return self.program.operate("rsqrt", self)

    def abs(self) -> Symbol:
        """Return the absolute value, as `Tensor.abs` does."""
        return self.program.operate("abs", self)

    def maximum(self, other: Symbol | float) -> Symbol:
        """Return the larger of two, as `Tensor.maximum` does: NaN if either is NaN."""
        return self.program.operate("maximum", self, other)

    def exp(self) -> Symbol:
        """Return e to this power, as `Tensor.exp` does."""
        return self.program.operate("exp", self)

    def sigmoid(self) -> Symbol:
        """Return ``1 / (1 + exp(-x))``, as `Tensor.sigmoid` does; 0 if exp overflows."""
        return 1 / (1 + (-self).exp())

    def log(self) -> Symbol:
        """Return the natural logarithm, as `Tensor.log` does."""
        return self.program.operate("log", self)

    def sign(self) -> Symbol:
        """Return -1, 0 or 1, as `Tensor.sign` does."""
        return self.program.operate("sign", self)

    def clamp(self, *, min: float | None = None, max: float | None = None) -> Symbol:
        """Clamp to bounds, as `Tensor.clamp` does: NaN stays NaN."""
        low = self if min is None else self.program.operate("clamp_min", self, min)
        return low if max is None else self.program.operate("clamp_max", low, max)

    def _has_no_value(self, *_: object) -> NoReturn:
        raise UntraceableError(
            "the formula depends on the value of an element: a comparison, an if, or float()"
        )

    __bool__ = __float__ = __int__ = __index__ = __len__ = __lt__ = __le__ = __gt__ = __ge__ = (
        __eq__
    ) = __ne__ = _has_no_value
    __hash__ = object.__hash__


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
    program, names = Program(), [*StepInputs._fields, "num_data"]
    *now, num_data = (Symbol(program, name, is_element=False) for name in names)
    inputs = StepInputs(*cast(list[Any], now))

    def symbol(path: Path, values: Sequence[Any]) -> Any:
        if not is_number(values[0]):
            return values[0]
        names.append("_".join(map(str, path)))
        return Symbol(program, names[-1], is_element=False)

    twin, twin_prior = rebuilt([kernel], symbol, ("kernel",)), rebuilt([prior], symbol, ("prior",))
    position, gradient, *state = (
        Symbol(program, name, is_element=True)
        for name in ("position", "gradient", *kernel.state_names)
    )
    noises = [
        Symbol(program, f"noise{k}", is_element=True) for k in range(kernel.traits.num_noises)
    ]
    try:
        gradient = energy_gradient(gradient, position, num_data, twin_prior)
        # Formulas that use the energy are not elementwise, so there is no symbol for it.
        moved, new_state = twin.update(
            position, Evaluation(cast(Any, None), gradient), noises, tuple(state), inputs
        )
        results = [moved, *new_state]
    except UntraceableError:
        raise
    except Exception as error:  # whatever a user's formula may do with a symbol
        raise UntraceableError(str(error) or type(error).__name__) from error
    if len(results) != 1 + len(state) or not all(
        isinstance(result, Symbol) and result.is_element for result in results
    ):
        raise UntraceableError("the formula returns something that is not a result of its elements")
    return program, names, [result.name for result in results]
