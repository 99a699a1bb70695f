"""pSGLD: SGLD with the diagonal preconditioner of RMSprop (Li et al. 2016; section 2)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from typing_extensions import override

from langevin.checks import check_field, check_function
from langevin.kernels.compose import StepSize, make
from langevin.kernels.langevin import Langevin
from langevin.kernels.parts import Diagonal, Number, Tensors, over_chains

__all__ = ["psgld"]


class RMSState(NamedTuple):
    """State of `RMS`."""

    metric_average: Tensor  # V_t


@dataclass(frozen=True)
class RMS(Diagonal):
    """The diagonal of pSGLD: ``G = 1 / (λ + sqrt(V))``.

    ``V' = β V + (1 - β) (g / num_data)**2``

    V holds the current gradient when it is used, as in Li et al. (2016) and unlike the averages of
    a drift. It starts at the first squared gradient: started at zero it makes the first step huge.

    For small steps V follows the gradient, and without Γ the density is off by the factor 1/G: on
    N(0, 1) with λ = 1 the variance is 1.44 (tests/law). Γ, taken through the
    newest gradient, repairs that fully for β = 0 and in part otherwise; a constant V needs
    none.

    Args:
        beta: β, the smoothing factor of V, in [0, 1).
        eps: λ, outside the root.
        num_data: N when V is to average gradients of the mean loss, as pSGLD codes do; 1 for
            gradients of U itself.
        curvature: function of one position (dim,) that returns the diagonal of the Hessian of U;
            when given, Γ is added.
    """

    state_names: ClassVar[tuple[str, ...]] = RMSState._fields

    beta: float = 0.99
    eps: float = 1e-5
    num_data: float = 1.0
    curvature: Callable[[Tensor], Tensor] | None = None

    def __post_init__(self) -> None:
        check_field(self, "RMS", "beta", "0 <= beta < 1", lambda v: 0 <= v < 1)
        check_field(self, "RMS", "eps", "> 0", lambda v: v > 0)
        check_field(self, "RMS", "num_data", "0 < num_data <= 1e150", lambda v: 0 < v <= 1e150)
        if self.curvature is not None:
            check_function(
                "RMS", "curvature", self.curvature, "None or a function of one position (dim,)"
            )

    @property
    @override
    def is_elementwise(self) -> bool:
        return self.curvature is None

    @property
    @override
    def reads_position(self) -> bool:
        return self.curvature is not None

    @override
    def start(self, position: Tensor) -> Tensors:
        return RMSState(torch.zeros_like(position))

    @override
    def update(self, state: Tensors, gradient: Tensor, started: Number) -> Tensors:
        (average,) = state
        beta = self.beta * started
        mean_gradient = gradient / self.num_data
        return RMSState(beta * average + (1 - beta) * (mean_gradient * mean_gradient))

    @override
    def metric(self, state: Tensors, position: Tensor) -> Tensor:
        (average,) = state
        return 1 / (self.eps + 1 / average**-0.5)

    @override
    def divergence(
        self, metric: Tensor, state: Tensors, position: Tensor, gradient: Tensor
    ) -> Tensor | None:
        if self.curvature is None:
            return None
        # dG/dθ = -G^2 d sqrt(V)/dθ, and V depends on θ through the newest gradient only.
        (average,) = state
        curvature = over_chains("RMS", "curvature", self.curvature, position)
        return (
            -(1 - self.beta)
            * metric**2
            * gradient
            * curvature
            / (self.num_data**2 * (average + 1e-30) ** 0.5)
        )

    @override
    def describe(self) -> tuple[str, str]:
        scale = "grad U" if self.num_data == 1 else f"grad U / {self.num_data:g}"
        gamma = (
            "no Γ: exact only while V stands still"
            if self.curvature is None
            else "Γ of the newest gradient: exact for beta 0"
        )
        return (
            "G",
            f"G = 1 / ({self.eps:g} + sqrt(V)), "
            f"V averages ({scale})^2 with beta {self.beta:g}, {gamma}",
        )


def psgld(
    step_size: StepSize,
    *,
    beta: float = 0.99,
    eps: float = 1e-5,
    num_data: float = 1.0,
    curvature: Callable[[Tensor], Tensor] | None = None,
    adapt_steps: int | None = None,
    temperature: float = 1.0,
) -> Langevin:
    """Preconditioned SGLD (Li et al. 2016; section 2).

    ``V' = β V + (1 - β) (g / num_data)**2``, ``G = 1 / (λ + sqrt(V'))``,
    ``θ' = θ - ε (G g - τ Γ) + sqrt(2 ε τ G) η``

    Args:
        step_size: ε on U; a number or a schedule.
        beta: β, the smoothing factor of V.
        eps: λ, outside the root.
        num_data: N makes V an average over gradients of the mean loss, as the paper's settings
            need; 1 takes grad U.
        curvature: function of one position that returns the diagonal of the Hessian; turns the Γ
            term on.
        adapt_steps: steps after which V is frozen, so that the target is sampled; None never
            freezes it, as published, but for ``step_size="auto"``, which takes the warm-up of
            `sample`.
        temperature: τ.

    Differs from: Li et al. start V at zero, which makes the first step huge; ours starts at the
    first squared gradient. Without Γ the target is sampled only while V is constant
    (`preconditioners.RMS` has the error).

    Example:
        >>> psgld(step_size=0.01).state_names
        ('metric_average',)
    """
    return make(
        Langevin,
        "psgld",
        step_size,
        temperature,
        preconditioner=RMS(beta, eps, num_data, curvature),
        adapt_steps=adapt_steps,
    )
