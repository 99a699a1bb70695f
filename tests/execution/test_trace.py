"""A fused formula is recorded from torch's operations; what has no generated code is refused, with the reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

import langevin as lv
from langevin.execution.fused import UntraceableError, fuse, table_of, table_row
from langevin.execution.fused.trace import numbers
from langevin.execution.generated.code import write
from langevin.kernels import Kernel
from langevin.kernels.schedules import constant


@dataclass(frozen=True)
class Formula(Kernel):
    """A step that is any function of position, gradient and settings."""

    state_names: ClassVar[tuple[str, ...]] = ()
    description: ClassVar[str] = "a formula"
    function: Callable[..., torch.Tensor] = torch.add

    def update(self, position, evaluation, noise, state, inputs):
        return self.function(position, evaluation.gradient, inputs.step_size), ()


def kernel(function):
    return Formula("formula", constant(0.3), function=function)


GOOD = {
    "arithmetic": lambda x, g, e: (2.0 * x - e * g) / (1.0 + e) - -x,
    "differences from numbers": lambda x, g, e: (1 - e) * x + (0.5 - g),
    "quotients of numbers": lambda x, g, e: 1 / (1.0 + x.abs()) + (1 / e) * g,
    "reciprocal roots": lambda x, g, e: g * (x * x + 0.1) ** -0.5,
    "roots of settings": lambda x, g, e: e**0.5 * x + (2 * e) ** -1.5 * g,
    "the larger one": lambda x, g, e: x.maximum(g) - x.maximum(e * g),
    "signs": lambda x, g, e: x.sign() + e * (g * 0.0).sign(),
    "limits": lambda x, g, e: x.clamp(-0.5, 0.7) + g.clamp(min=-0.2) + x.clamp(max=0.1),
    "limits that are settings": lambda x, g, e: x.clamp(min=e) + g.clamp(max=e),
    "limits in the wrong order": lambda x, g, e: x.clamp(0.5, -0.5),
    "exponentials": lambda x, g, e: (-x).exp() + g.sigmoid() + (1.5 + x.abs()).log(),
}
ROUNDED = {"exponentials"}


@pytest.mark.parametrize("name", GOOD)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_formula_in_c_and_on_a_gpu_is_that_on_tensors(name, dtype):
    step, n = kernel(GOOD[name]), 257
    x, g = (lv.random.normal(k, 0, 0, n, dtype=dtype) for k in (1, 2))
    x[0] = g[1] = torch.nan
    wanted = GOOD[name](x, g, 0.3)
    in_c, on_tensors = x.clone(), x.clone()
    row = table_row(in_c, g, [], 0)
    fuse(step, None, dtype)(table_of([row], dtype), num_data=1.0, inputs=step.inputs(0), seed=0, chain=0, step=0)
    code = write(step, None, dtype)
    scalars = torch.tensor(code.scalars(*step.inputs(0), 1.0, *numbers(step)), dtype=dtype)
    code.in_order(on_tensors, g, scalars, torch.zeros(9, dtype=torch.int64))
    tolerance = {"rtol": 1e-5 if dtype == torch.float32 else 1e-13, "atol": 0.0} if name in ROUNDED else {"rtol": 0, "atol": 0}
    torch.testing.assert_close(in_c, wanted, equal_nan=True, **tolerance)
    torch.testing.assert_close(on_tensors, wanted, equal_nan=True, **tolerance)


OTHER = torch.ones(2)
BAD = {
    "a root": (lambda x, g, e: (x * x) ** 0.5, "powers of -0.5 only, got 0.5"),
    "a square": (lambda x, g, e: x**2, "powers of -0.5 only, got 2"),
    "a function": (lambda x, g, e: x.tanh(), "no generated code for aten.tanh"),
    "a function of a setting": (lambda x, g, e: e.exp() * x, "no generated code for aten.exp"),
    "a mean": (lambda x, g, e: x - x.mean(), "no generated code for aten.sum"),
    "a factor": (lambda x, g, e: torch.add(x, g, alpha=2), "aten.add.Tensor with options"),
    "two results": (lambda x, g, e: x + x.max(0).values, "aten.max.dim with options or several"),
    "a view": (lambda x, g, e: x.view(2, 1).view(2) + g, "no generated code for aten.view"),
    "a change in place": (lambda x, g, e: (x + g).mul_(2.0), "no generated code for aten.mul_"),
    "a change of the position": (lambda x, g, e: x.mul_(2.0), "mutates its input"),
    "a part": (lambda x, g, e: x[:1] + g[:1], "no generated code for aten.slice"),
    "a branch": (lambda x, g, e: x if (x > 0).any() else g, "reads values"),
    "a branch on a setting": (lambda x, g, e: x if e > 0.1 else g, "reads values"),
    "NumPy": (lambda x, g, e: torch.from_numpy(x.numpy() + 1.0), "leaves torch"),
    "another tensor": (lambda x, g, e: x + OTHER, "neither a setting nor a state"),
    "no element": (lambda x, g, e: 2 * e, "not a result of its elements"),
    "an error": (lambda x, g, e: x.no_such_thing, "no_such_thing"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_has_no_generated_code_is_refused(name):
    function, words = BAD[name]
    with pytest.raises(UntraceableError, match=words):
        fuse(kernel(function), None, torch.float32)
