"""What a user wants to know before choosing a sampler: asked of the kernels, never written down a second time."""

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
from langevin.kernels import Kernel

__all__ = ["Facts", "Samplers"]

FORMS = ("invariant", "elementwise")
"""Settings, False by default, that make another sampler of the same name."""


def _identity(theta: Tensor) -> Tensor:
    return torch.eye(len(theta), dtype=theta.dtype)


PARTS: dict[str, Any] = {"metric": _identity}
"""What stands for an argument that a sampler cannot do without, while it is asked."""


@dataclass(frozen=True)
class Facts:
    """What the kernel of a sampler says of itself, at temperature 1."""

    name: str  # of the sampler, and its form: "msgld, invariant"
    kernel: Kernel
    parts: tuple[str, ...] = ()  # arguments that it needs besides the step size

    @property
    def law(self) -> str:
        """What it samples, as `describe` says."""
        return " ".join(self.kernel.description.partition("  law: ")[2].split())

    @property
    def short_law(self) -> str:
        """The law up to its first comma."""
        return re.split(r",|:| for ", self.law)[0]

    @property
    def error(self) -> str:
        """The order of the law's error in the step size ε, or the time step h, as `describe` says; "" where it says none."""
        found = re.search(r"O\([^)]*\)", self.law)
        return found[0] if found else "none" if "whatever the step" in self.law else ""

    @property
    def memory(self) -> str:
        """Numbers that are remembered for each parameter, where θ has d of them."""
        small, large = (self.kernel.start(torch.zeros(self.kernel.group_size, dim)) for dim in (64, 128))
        powers = [round(math.log2(b.numel() / a.numel())) for a, b in zip(small, large, strict=True)]  # of d, in each tensor
        said = [form.format(powers.count(power)) for power, form in ((1, "{}"), (2, "{} d"), (0, "{}/d")) if power in powers]
        return " + ".join(said) or "0"

    @property
    def cost(self) -> str:
        """What a step takes besides the arithmetic of its formula."""
        noises, kind = self.kernel.num_noises, self.kernel.noise_kind
        drawn = f"1 gradient, {noises} {kind}" + ("" if noises == 1 else "s")
        return drawn if self.is_elementwise else f"{drawn}, whole vectors"

    @property
    def is_elementwise(self) -> bool:
        """Whether each element is moved apart from the others."""
        return self.kernel.is_elementwise

    @property
    def needs(self) -> str:
        """What it needs besides a gradient and a step size."""
        kernel = self.kernel
        found = [f"a {part}" for part in self.parts]
        if kernel.needs_energy:
            found.append("energies")
        if kernel.group_size > 1:
            found.append(f"groups of {kernel.group_size} chains")
        return ", ".join(found)

    @property
    def is_optimizer(self) -> bool:
        """Whether it can be a `torch.optim` optimizer: elementwise, from gradients alone, one chain."""
        return self.is_elementwise and not self.kernel.needs_energy and self.kernel.group_size == 1

    @property
    def runs_in_any_scale(self) -> bool:
        """Whether ``sample(scale=...)`` serves it: its formula does not look at the position, and no chains meet."""
        return not self.kernel.sees_position and self.kernel.group_size == 1


class Samplers(dict[str, Callable[..., Kernel]]):
    """The functions that build samplers, by name; printed, it is a table of what each of them is.

    Example:
        >>> from langevin.samplers import sgld
        >>> Samplers({"sgld": sgld})  # doctest: +NORMALIZE_WHITESPACE
        sampler  law         error  memory per parameter  cost of a step      needs  optimizer  any scale
        sgld     the target  O(ε)   0                     1 gradient, 1 normal       yes        yes
    """

    def facts(self) -> list[Facts]:
        """Return what each sampler says of itself, form by form."""
        return [facts for name, builder in self.items() for facts in _facts(name, builder)]

    def __repr__(self) -> str:
        """Print the table."""
        rows = [_HEADER, *map(_row, self.facts())]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        return "\n".join(lines)


_HEADER = ("sampler", "law", "error", "memory per parameter", "cost of a step", "needs", "optimizer", "any scale")


def _row(facts: Facts) -> tuple[str, ...]:
    can = tuple("yes" if claim else "no" for claim in (facts.is_optimizer, facts.runs_in_any_scale))
    return facts.name, facts.short_law, facts.error, facts.memory, facts.cost, facts.needs, *can


def _facts(name: str, builder: Callable[..., Kernel]) -> Iterator[Facts]:
    """Build a sampler in its forms, and yield what each says of itself."""
    parameters = inspect.signature(builder).parameters
    open_ones = [key for key, one in parameters.items() if one.default is inspect.Parameter.empty and key != "step_size"]
    if missing := [key for key in open_ones if key not in PARTS]:
        raise needs("SAMPLERS", name, "a stand-in in langevin.samplers.facts.PARTS for each argument without a default", missing)
    parts = {key: PARTS[key] for key in open_ones}
    yield Facts(name, builder(step_size=0.01, **parts), tuple(parts))
    for form in FORMS:
        if form in parameters:
            yield Facts(f"{name}, {form}", builder(step_size=0.01, **parts, **{form: True}), tuple(parts))
