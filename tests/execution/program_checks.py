"""What the tests of compiled programs share: a table of cases runs as one program, and eagerly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from langevin.compiler.program import Program
from langevin.compiler.record import Tape, record

Function = Callable[..., Any]
TOLERANCES = {torch.float64: (4e-14, 4e-14), torch.float32: (3e-6, 3e-6)}  # relative, absolute


def tape_of(function: Function, inputs: Sequence[Tensor]) -> Tape:
    with torch.no_grad():
        return record(lambda: as_list(function(*inputs)), inputs)


def as_list(found: Any) -> list[Tensor]:
    return [found] if isinstance(found, Tensor) else list(found)


def program_for(function: Function, inputs: Sequence[Tensor]) -> Program:
    return Program(tape_of(function, inputs))


def difference(found: Tensor, wanted: Tensor, scale: float = 1.0) -> str:
    """Return how two results differ beyond rounding, or an empty text."""
    if found.shape != wanted.shape or found.dtype is not wanted.dtype:
        return f"{tuple(found.shape)} {found.dtype}, not {tuple(wanted.shape)} {wanted.dtype}"
    relative, absolute = TOLERANCES.get(wanted.dtype, (0.0, 0.0))
    if torch.allclose(found, wanted, scale * relative, scale * absolute, equal_nan=True):
        return ""
    return f"{found.flatten()[:12].tolist()}, not {wanted.flatten()[:12].tolist()}"


def check_cases(
    cases: dict[str, Function], inputs: Sequence[Tensor], others: Sequence[Tensor] | None = None, scale: float = 1.0
) -> None:
    """Compile all cases as one program, run it at other inputs than it was recorded with, and compare with torch."""
    sizes: list[int] = []

    def everything(*given: Tensor) -> list[Tensor]:
        found = [as_list(case(*given)) for case in cases.values()]
        sizes[:] = map(len, found)
        return [each for part in found for each in part]

    program = program_for(everything, inputs)
    for given in (inputs, others or inputs):
        made = program(given)
        with torch.no_grad():
            wrong, at = {}, 0
            for (name, case), size in zip(cases.items(), sizes, strict=True):
                for found, wanted in zip(made[at : at + size], as_list(case(*given)), strict=True):
                    if text := difference(found, wanted, scale):
                        wrong[name] = text
                at += size
        assert not wrong, "\n".join(f"{name}: {text}" for name, text in wrong.items())
