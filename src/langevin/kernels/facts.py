"""Facts for choosing a sampler, read from the kernels."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from langevin.checks import needs
from langevin.kernels.base import Kernel, reads_position

__all__ = ["Facts", "Samplers"]

FORMS = ("invariant", "elementwise")
"""Settings, False by default, that make another sampler of the same name."""


def _identity(theta: Tensor) -> Tensor:
    return torch.eye(len(theta), dtype=theta.dtype)


PARTS: dict[str, Any] = {"metric": _identity}
"""Stand-ins for arguments without a default, while facts are read."""


@dataclass(frozen=True)
class Facts:
    """Facts about a sampler at temperature 1."""

    name: str  # of the sampler, and its form: "msgld, invariant"
    kernel: Kernel
    parts: tuple[str, ...] = ()  # arguments that it needs besides the step size

    @property
    def law(self) -> str:
        """The stationary distribution, from `describe`."""
        return " ".join(self.kernel.description.partition("  law: ")[2].split())

    @property
    def short_law(self) -> str:
        """The stationary distribution up to the first comma."""
        return re.split(r",|:| for ", self.law)[0]

    @property
    def error(self) -> str:
        """The order of the error in ε or the time step h, from `describe`; "" if none is stated."""
        found = re.search(r"O\([^)]*\)", self.law)
        return found[0] if found else "none" if "whatever the step" in self.law else ""

    @property
    def memory(self) -> str:
        """State tensors: numbers per parameter, for d parameters."""
        small, large = (
            self.kernel.start(torch.zeros(self.kernel.traits.group_size, dim)) for dim in (64, 128)
        )
        powers = [
            round(math.log2(b.numel() / a.numel())) for a, b in zip(small, large, strict=True)
        ]  # of d, in each tensor
        terms = [
            form.format(powers.count(power))
            for power, form in ((1, "{}"), (2, "{} d"), (0, "{}/d"))
            if power in powers
        ]
        return " + ".join(terms) or "0"

    @property
    def cost(self) -> str:
        """What a step takes besides the arithmetic of its formula."""
        noises, kind = self.kernel.traits.num_noises, self.kernel.traits.noise_kind
        drawn = f"1 gradient, {noises} {kind}" + ("" if noises == 1 else "s")
        return drawn if self.is_elementwise else f"{drawn}, whole vectors"

    @property
    def is_elementwise(self) -> bool:
        """Whether each element is moved apart from the others."""
        return self.kernel.traits.elementwise

    @property
    def needs(self) -> str:
        """What it needs besides a gradient and a step size."""
        kernel = self.kernel
        found = [f"a {part}" for part in self.parts]
        if kernel.traits.needs_energy:
            found.append("energies")
        if kernel.traits.group_size > 1:
            found.append(f"groups of {kernel.traits.group_size} chains")
        return ", ".join(found)

    @property
    def is_optimizer(self) -> bool:
        """Whether it can be an optimizer: elementwise, from gradients alone, one chain."""
        traits = self.kernel.traits
        return self.is_elementwise and not traits.needs_energy and traits.group_size == 1

    @property
    def runs_in_any_scale(self) -> bool:
        """Whether ``sample(metric=...)`` serves it: no position is read, no chains interact."""
        return not reads_position(self.kernel) and self.kernel.traits.group_size == 1


class Samplers(dict[str, Callable[..., Kernel]]):
    """The functions that build samplers, by name; printed, it is a table of what each of them is.

    Example:
        >>> from langevin.kernels.sgld import sgld
        >>> for line in str(Samplers({"sgld": sgld})).splitlines():
        ...     print(line[:26].rstrip())
        sampler  law         error
        sgld     the target  O(ε)
    """

    def facts(self) -> list[Facts]:
        """Return the facts of each sampler, form by form."""
        return [facts for name, builder in self.items() for facts in _facts(name, builder)]

    def __repr__(self) -> str:
        """Print the table."""
        rows = [_HEADER, *map(_row, self.facts())]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        ]
        return "\n".join(lines)


_HEADER = (
    "sampler",
    "law",
    "error",
    "memory per parameter",
    "cost of a step",
    "needs",
    "optimizer",
    "any scale",
)


def _row(facts: Facts) -> tuple[str, ...]:
    can = tuple("yes" if claim else "no" for claim in (facts.is_optimizer, facts.runs_in_any_scale))
    return facts.name, facts.short_law, facts.error, facts.memory, facts.cost, facts.needs, *can


def _facts(name: str, builder: Callable[..., Kernel]) -> Iterator[Facts]:
    """Build a sampler in its forms, and yield the facts of each."""
    parameters = inspect.signature(builder).parameters
    open_ones = [
        key
        for key, one in parameters.items()
        if one.default is inspect.Parameter.empty and key != "step_size"
    ]
    if missing := [key for key in open_ones if key not in PARTS]:
        raise needs(
            "SAMPLERS",
            name,
            "a stand-in in langevin.kernels.facts.PARTS for each argument without a default",
            missing,
        )
    parts = {key: PARTS[key] for key in open_ones}
    yield Facts(name, builder(step_size=0.01, **parts), tuple(parts))
    for form in FORMS:
        if form in parameters:
            yield Facts(
                f"{name}, {form}", builder(step_size=0.01, **parts, **{form: True}), tuple(parts)
            )
