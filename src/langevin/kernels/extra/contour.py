"""Contour SGLD: energies spread evenly, so that barriers vanish; weights recover the target."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor
from typing_extensions import override

from langevin.checks import check_field, check_number, needs
from langevin.kernels.base import Kernel, StepInputs, Traits
from langevin.kernels.parts import Tensors
from langevin.kernels.wrapper import Wrapper
from langevin.targets import Evaluation

__all__ = ["Contour"]

_POINTS = 32  # of the quadrature over the energy's noise


@dataclass(frozen=True)
class Contour(Wrapper):
    """Samples ``exp(-U / τ - V(U))`` by any sampler, with gradient ``g (1 + τ V'(U))``.

    `langevin.learn_contour` builds one.

    V is linear between knots, and constant outside of them. A draw counts ``exp(V(U))`` for the
    target: that is exact for any V, since V is constant. Where V is the log density of the energy
    under the target, energies are spread evenly between the knots.

    Args:
        low: energy of the first knot.
        high: of the last.
        log_density: V at the knots, which are evenly spaced.
        zeta: V is multiplied by it: 1 spreads energies evenly, 0 leaves the target as it is.
    """

    low: float = field(kw_only=True)
    high: float = field(kw_only=True)
    log_density: tuple[float, ...] = field(kw_only=True)
    zeta: float = field(kw_only=True, default=1.0)

    def __post_init__(self) -> None:
        inner = self.inner
        if (
            not isinstance(inner, Kernel)
            or inner.traits.group_size > 1
            or inner.traits.needs_energy
            or inner.temperature == 0
        ):
            raise needs(
                self.name,
                "kernel",
                "a sampler at a temperature > 0 whose chains do not interact",
                inner,
                TypeError,
            )
        super().__post_init__()
        check_field(self, self.name, "low", "a number", lambda v: True)
        check_field(self, self.name, "high", f"> low = {self.low:g}", lambda v: v > self.low)
        check_field(self, self.name, "zeta", ">= 0", lambda v: v >= 0)
        values = tuple(
            check_number(self.name, "log_density", value, "numbers") for value in self.log_density
        )
        if len(values) < 2:
            raise needs(self.name, "log_density", "two knots or more", self.log_density)
        object.__setattr__(self, "log_density", values)

    @cached_property
    @override
    def traits(self) -> Traits:
        return dataclasses.replace(super().traits, needs_energy=True)

    @property
    @override
    def target_temperature(self) -> float | None:
        return None  # the draws have none, before they are weighted

    @property
    @override
    def effective_temperature(self) -> float | None:
        return None

    def _place(self, energy: Tensor) -> tuple[Tensor, Tensor, Tensor, float]:
        """Return V at the knots, the knot below each energy, the fraction to the next, the gap."""
        knots = self.zeta * energy.new_tensor(self.log_density)
        gap = (self.high - self.low) / (len(self.log_density) - 1)
        way = ((energy - self.low) / gap).clamp(0, len(self.log_density) - 1)
        below = way.floor().clamp(max=len(self.log_density) - 2)
        return knots, below.long(), way - below, gap

    @override
    def update(
        self,
        position: Tensor,
        evaluation: Evaluation,
        noise: Tensor,
        state: Tensors,
        inputs: StepInputs,
    ) -> tuple[Tensor, Tensors]:
        knots, below, _, gap = self._place(evaluation.energy)
        slope = torch.where(
            (evaluation.energy > self.low) & (evaluation.energy < self.high),
            (knots[below + 1] - knots[below]) / gap,
            0.0,
        )
        gradient = (1 + inputs.temperature * slope[:, None]) * evaluation.gradient
        return self.inner.update(
            position, evaluation._replace(gradient=gradient), noise, state, inputs
        )

    def log_weights(self, energy: Tensor, *, energy_noise: float = 0.0) -> Tensor:
        """Return V at energies of any shape: a draw's log weight for the target, up to a constant.

        Args:
            energy: U of the draws, without noise.
            energy_noise: standard deviation of the energies that the chain saw: its V is then V
                averaged over that noise.
        """
        noise = check_number(self.name, "energy_noise", energy_noise, ">= 0", lambda v: v >= 0)
        points = torch.special.ndtri(
            (torch.arange(_POINTS, dtype=energy.dtype, device=energy.device) + 0.5) / _POINTS
        )
        seen = energy[..., None] + noise * (
            points / points.square().mean().sqrt() if noise else points[:1] * 0
        )
        knots, below, way, _ = self._place(seen)
        return (knots[below] * (1 - way) + knots[below + 1] * way).mean(-1)

    @property
    @override
    def description(self) -> str:
        return "\n".join(
            [
                f"{self.name}: draws of exp(-U / {self.temperature:g} - V(U)), which are the "
                "target's only "
                "with weights exp(V(U))",
                f"  (contour_weights); V is linear between {len(self.log_density)} knots, "
                f"{self.low:g} <= U <= {self.high:g}",
                f"  Each step, with g (1 + τ V'(U)) as its gradient, is {self.inner.description}",
            ]
        )
