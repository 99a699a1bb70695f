"""The general form of section 2 (Ma, Chen and Fox 2015): any diffusion D, any curl Q, any auxiliary variables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from langevin.checks import check_function, check_integer, needs
from langevin.drifts import Memory
from langevin.kernels.base import Kernel, StepInputs
from langevin.targets import Evaluation

__all__ = ["CompleteRecipe"]


def _standard_kinetic(auxiliary: Tensor) -> Tensor:
    return 0.5 * (auxiliary * auxiliary).sum()


@dataclass(frozen=True)
class CompleteRecipe(Kernel):
    """``ξ' = ξ - ε ((D + Q) grad H - τ Γ) + sqrt(2 ε τ) N(0, D)`` with ``Γ_i = sum_j d(D + Q)_ij / d ξ_j``.

    ``ξ = (θ, v)`` with `num_auxiliary` * dim auxiliary variables v and ``H(ξ) = U(θ) + kinetic(v)``. Any choice of a
    positive semi-definite D and a skew-symmetric Q has ``exp(-H / τ)`` as its invariant law. Γ is found by automatic
    differentiation. The auxiliary variables move first and the position sees their new values (symplectic order).

    Differs from the paper's display in two places, which are slips there: Γ carries the factor ``ε τ``, and the left side
    is ξ, not θ.

    Args:
        diffusion: function of one ξ, shape (n,), that returns D, shape (n, n), with n = (1 + num_auxiliary) * dim.
        curl: the same for Q; None for zero.
        num_auxiliary: auxiliary vectors of the length of θ, started at zero.
        kinetic: energy of the auxiliary variables, a function of a vector that returns a number.
    """

    is_elementwise: ClassVar[bool] = False
    sees_position: ClassVar[bool] = True

    diffusion: Callable[[Tensor], Tensor] | None = None
    curl: Callable[[Tensor], Tensor] | None = None
    num_auxiliary: int = 0
    kinetic: Callable[[Tensor], Tensor] = _standard_kinetic

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer(self.name, "num_auxiliary", self.num_auxiliary, 0)
        check_function(self.name, "diffusion", self.diffusion, "a function of one xi that returns a matrix")
        if self.curl is not None:
            check_function(self.name, "curl", self.curl, "None or a function of one xi that returns a matrix")
        check_function(self.name, "kinetic", self.kinetic, "a function of a vector that returns a number", count=1)

    @property
    @override
    def memory(self) -> tuple[str, ...]:
        return tuple(f"auxiliary_{k}" for k in range(self.num_auxiliary))

    @property
    @override
    def num_noises(self) -> int:
        return 1 + self.num_auxiliary

    @override
    def update(
        self, position: Tensor, evaluation: Evaluation, noise: Tensor, memory: Memory, inputs: StepInputs
    ) -> tuple[Tensor, Memory]:
        dim, gradient, kicks = position.shape[-1], evaluation.gradient, torch.cat(list(noise), -1)
        state = torch.cat([position, *memory], -1).reshape(-1, self.num_noises * dim)

        def change(xi: Tensor) -> Tensor:
            matrix, divergence, root = torch.func.vmap(self._coefficients)(xi)
            force = torch.cat([gradient.reshape(-1, dim), self._kinetic_gradient(xi[:, dim:])], -1)
            drift = (matrix @ force[..., None])[..., 0] - inputs.temperature * divergence
            kick = (root @ kicks.reshape(xi.shape)[..., None])[..., 0]
            return -inputs.step_size * drift + self.noise_scale(inputs) * kick

        if self.num_auxiliary:
            state = torch.cat([state[:, :dim], state[:, dim:] + change(state)[:, dim:]], -1)
        state = torch.cat([state[:, :dim] + change(state)[:, :dim], state[:, dim:]], -1)
        moved, *auxiliary = (part.reshape(position.shape) for part in state.split(dim, -1))
        return moved, tuple(auxiliary)

    def _coefficients(self, xi: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return D + Q, Γ and a root of D at one ξ."""

        def both(at: Tensor) -> Tensor:
            diffusion = self._matrix("diffusion", at)
            return diffusion if self.curl is None else diffusion + self._matrix("curl", at)

        divergence = torch.einsum("ijj->i", torch.func.jacrev(both)(xi))
        # D may be singular (SGHMC has no noise on θ), so the root comes from eigenvalues, not from Cholesky.
        values, vectors = torch.linalg.eigh(self._matrix("diffusion", xi))
        return both(xi), divergence, vectors * values.clamp(min=0) ** 0.5 @ vectors.mT

    def _matrix(self, setting: str, xi: Tensor) -> Tensor:
        """Return what a function of the user says of one ξ."""
        what = f"a function of one xi that returns a matrix ({len(xi)}, {len(xi)})"
        try:
            matrix = getattr(self, setting)(xi)
        except TypeError as error:
            raise needs(self.name, setting, f"{what}: {error}", getattr(self, setting), TypeError) from error
        if not isinstance(matrix, Tensor) or matrix.shape != (len(xi), len(xi)):
            raise needs(self.name, setting, what, tuple(matrix.shape) if isinstance(matrix, Tensor) else matrix, TypeError)
        return matrix

    def _kinetic_gradient(self, auxiliary: Tensor) -> Tensor:
        if not self.num_auxiliary:
            return auxiliary
        return torch.func.vmap(torch.func.grad(self.kinetic))(auxiliary)

    @property
    @override
    def description(self) -> str:
        return "\n".join(
            [
                f"{self.name}: dξ = -((D + Q) grad H - {self.temperature:g} Γ) dt + sqrt(2 * {self.temperature:g} D) dW",
                f"  ξ = (θ, {self.num_auxiliary} auxiliary vectors), H = U(θ) + kinetic, auxiliary first",
                f"  step size ε = {self.step_size}",
                f"  target: exp(-H / {self.temperature:g}), its θ-marginal exp(-U / {self.temperature:g})",
                f"  law: the target, effective temperature {self.temperature:g}, up to O(ε) and the gradient's own noise",
            ]
        )
