"""SGRLD: SGLD preconditioned by the Fisher information (section 2)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from langevin.checks import check_bool, check_function, needs
from langevin.kernels.compose import StepSize, make
from langevin.kernels.langevin import Langevin
from langevin.kernels.parts import Preconditioner, Tensors, over_chains

__all__ = ["sgrld"]


@dataclass(frozen=True)
class Fisher(Preconditioner):
    """The matrix ``G = F(θ)^-1``, F the Fisher information or any positive definite metric.

    Args:
        information: function of one position (dim,) that returns F, shape (dim, dim). Targets offer
            it as `metric`.
        correction: add Γ, by automatic differentiation; needed whenever F depends on θ.

    Example:
        >>> metric = Fisher(lambda theta: torch.diag(1 + theta**2))
        >>> factor = metric.metric((), torch.tensor([[1.0, 2.0]]))
        >>> metric.apply(factor, torch.ones(1, 2))  # F^-1 g
        tensor([[0.5000, 0.2000]])
    """

    is_elementwise: ClassVar[bool] = False
    reads_position: ClassVar[bool] = True

    information: Callable[[Tensor], Tensor]
    correction: bool = True

    def __post_init__(self) -> None:
        check_function(
            "Fisher", "information", self.information, "a function of one position (dim,)"
        )
        check_bool("Fisher", "correction", self.correction)

    @override
    def metric(self, state: Tensors, position: Tensor) -> Tensor:
        information = over_chains("Fisher", "information", self.information, position)
        if information.shape != (*position.shape, position.shape[-1]):
            raise needs(
                "Fisher",
                "information",
                "a result of shape (dim, dim)",
                tuple(information.shape[position.ndim - 1 :]),
            )
        # A chain that went non-finite must not take the others with it, so no exception from a
        # failed factor.
        return torch.linalg.cholesky_ex(information).L

    @override
    def apply(self, metric: Tensor, force: Tensor) -> Tensor:
        return torch.cholesky_solve(force[..., None], metric)[..., 0]

    @override
    def spread(self, metric: Tensor, noise: Tensor) -> Tensor:
        return torch.linalg.solve_triangular(metric.mT, noise[..., None], upper=True)[..., 0]

    @override
    def divergence(
        self, metric: Tensor, state: Tensors, position: Tensor, gradient: Tensor
    ) -> Tensor | None:
        if not self.correction:
            return None

        def gamma(theta: Tensor) -> Tensor:
            derivative = torch.func.jacrev(lambda at: torch.linalg.inv(self.information(at)))(theta)
            return torch.einsum("ijj->i", derivative)

        return over_chains("Fisher", "information", gamma, position)

    # The root of F^-1 that `spread` applies, R = L^-T for F = L L^T, is what a velocity lives in
    # (`kernels.Riemannian`).

    def pull(self, metric: Tensor, force: Tensor) -> Tensor:
        """Return ``R^T force``."""
        return torch.linalg.solve_triangular(metric, force[..., None], upper=False)[..., 0]

    def damped(self, metric: Tensor, velocity: Tensor, drag: float) -> Tensor:
        """Return ``(I + drag R^T R)^-1 velocity``; R^T R is the inverse of L^T L."""
        squared = metric.mT @ metric
        eye = torch.eye(squared.shape[-1], dtype=squared.dtype, device=squared.device)
        factor = torch.linalg.cholesky_ex(squared + drag * eye).L
        return torch.cholesky_solve(squared @ velocity[..., None], factor)[..., 0]

    def root_divergence(self, position: Tensor) -> Tensor | None:
        """Return ``Γ_i = sum_j d R_ji / d θ_j``, or None where it is left out."""
        if not self.correction:
            return None

        def gamma(theta: Tensor) -> Tensor:
            def transposed(at: Tensor) -> Tensor:
                factor = torch.linalg.cholesky_ex(self.information(at)).L
                eye = torch.eye(len(at), dtype=factor.dtype, device=factor.device)
                return torch.linalg.solve_triangular(factor, eye, upper=False)

            return torch.einsum("ijj->i", torch.func.jacrev(transposed)(theta))

        return over_chains("Fisher", "information", gamma, position)

    @override
    def describe(self) -> tuple[str, str]:
        gamma = (
            "with Γ" if self.correction else "Γ left out: right only where the metric is constant"
        )
        return "G", f"G = F(θ)^-1, F the Fisher information, {gamma}"


def sgrld(
    step_size: StepSize,
    *,
    metric: Callable[[Tensor], Tensor],
    correction: bool = True,
    temperature: float = 1.0,
) -> Langevin:
    """Stochastic gradient Riemannian Langevin dynamics (Girolami and Calderhead 2011; section 2).

    ``θ' = θ - ε (F^-1 g - τ Γ) + sqrt(2 ε τ) F^(-1/2) η`` with ``Γ_i = sum_j d F^-1_ij / d θ_j``

    Args:
        step_size: ε on U; a number or a schedule.
        metric: function of one position (dim,) that returns F (dim, dim), the Fisher information;
            targets offer it as `metric`.
        correction: add Γ, by automatic differentiation.
        temperature: τ.

    Example:
        >>> import torch
        >>> sgrld(step_size=0.01, metric=lambda theta: torch.eye(2)).state_names
        ()
    """
    check_function("sgrld", "metric", metric, "a function of one position (dim,)")
    return make(
        Langevin, "sgrld", step_size, temperature, preconditioner=Fisher(metric, correction)
    )
