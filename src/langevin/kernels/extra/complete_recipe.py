"""The complete recipe (Ma, Chen and Fox 2015; section 2): any diffusion D and any curl Q."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from typing_extensions import override

from langevin.checks import check_function, check_integer, needs
from langevin.kernels.base import Kernel, StepInputs, Traits
from langevin.kernels.compose import StepSize, make
from langevin.kernels.parts import Tensors
from langevin.targets import Evaluation

__all__ = ["complete_recipe"]


def _standard_kinetic(auxiliary: Tensor) -> Tensor:
    return 0.5 * (auxiliary * auxiliary).sum()


@dataclass(frozen=True)
class CompleteRecipe(Kernel):
    """``ξ' = ξ - ε ((D + Q) grad H - τ Γ) + sqrt(2 ε τ) N(0, D)``, for any D and Q.

    ``Γ_i = sum_j d(D + Q)_ij / d ξ_j``

    ``ξ = (θ, v)`` with `num_auxiliary` * dim auxiliary variables v and
    ``H(ξ) = U(θ) + kinetic(v)``. Any choice of a positive semi-definite D and a skew-symmetric Q
    has ``exp(-H / τ)`` as its stationary distribution. Γ is found by automatic differentiation. The
    auxiliary variables move first and the position sees their new values (symplectic order).

    Differs from the paper's display in two points, which are slips there: Γ carries the factor
    ``ε τ``, and the left side is ξ, not θ.

    Args:
        diffusion: function of one ξ, shape (n,), that returns D, shape (n, n), with n = (1 +
            num_auxiliary) * dim.
        curl: the same for Q; None for zero.
        num_auxiliary: auxiliary vectors of the length of θ, started at zero.
        kinetic: energy of the auxiliary variables, a function of a vector that returns a number.
    """

    diffusion: Callable[[Tensor], Tensor] | None = None
    curl: Callable[[Tensor], Tensor] | None = None
    num_auxiliary: int = 0
    kinetic: Callable[[Tensor], Tensor] = _standard_kinetic

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer(self.name, "num_auxiliary", self.num_auxiliary, 0)
        check_function(
            self.name, "diffusion", self.diffusion, "a function of one xi that returns a matrix"
        )
        if self.curl is not None:
            check_function(
                self.name, "curl", self.curl, "None or a function of one xi that returns a matrix"
            )
        check_function(
            self.name,
            "kinetic",
            self.kinetic,
            "a function of a vector that returns a number",
            count=1,
        )

    @property
    @override
    def state_names(self) -> tuple[str, ...]:
        return tuple(f"auxiliary_{k}" for k in range(self.num_auxiliary))

    @cached_property
    @override
    def traits(self) -> Traits:
        return Traits(num_noises=1 + self.num_auxiliary, elementwise=False, reads_position=True)

    @override
    def update(
        self,
        position: Tensor,
        evaluation: Evaluation,
        noise: Tensor,
        state: Tensors,
        inputs: StepInputs,
    ) -> tuple[Tensor, Tensors]:
        dim, gradient, kicks = position.shape[-1], evaluation.gradient, torch.cat(list(noise), -1)
        xi = torch.cat([position, *state], -1).reshape(-1, (1 + self.num_auxiliary) * dim)

        def change(xi: Tensor) -> Tensor:
            matrix, divergence, root = torch.func.vmap(self._coefficients)(xi)
            force = torch.cat([gradient.reshape(-1, dim), self._kinetic_gradient(xi[:, dim:])], -1)
            drift = (matrix @ force[..., None])[..., 0] - inputs.temperature * divergence
            kick = (root @ kicks.reshape(xi.shape)[..., None])[..., 0]
            return -inputs.step_size * drift + self.noise_scale(inputs) * kick

        if self.num_auxiliary:
            xi = torch.cat([xi[:, :dim], xi[:, dim:] + change(xi)[:, dim:]], -1)
        xi = torch.cat([xi[:, :dim] + change(xi)[:, :dim], xi[:, dim:]], -1)
        moved, *auxiliary = (part.reshape(position.shape) for part in xi.split(dim, -1))
        return moved, tuple(auxiliary)

    def _coefficients(self, xi: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return D + Q, Γ and a root of D at one ξ."""

        def both(at: Tensor) -> Tensor:
            diffusion = self._matrix("diffusion", at)
            return diffusion if self.curl is None else diffusion + self._matrix("curl", at)

        divergence = torch.einsum("ijj->i", torch.func.jacrev(both)(xi))
        # D may be singular (SGHMC has no noise on θ), so the root comes from eigenvalues, not from
        # Cholesky.
        values, vectors = torch.linalg.eigh(self._matrix("diffusion", xi))
        return both(xi), divergence, vectors * values.clamp(min=0) ** 0.5 @ vectors.mT

    def _matrix(self, setting: str, xi: Tensor) -> Tensor:
        """Return the value of a user's function at one ξ."""
        what = f"a function of one xi that returns a matrix ({len(xi)}, {len(xi)})"
        try:
            matrix = getattr(self, setting)(xi)
        except TypeError as error:
            raise needs(
                self.name, setting, f"{what}: {error}", getattr(self, setting), TypeError
            ) from error
        if not isinstance(matrix, Tensor) or matrix.shape != (len(xi), len(xi)):
            raise needs(
                self.name,
                setting,
                what,
                tuple(matrix.shape) if isinstance(matrix, Tensor) else matrix,
                TypeError,
            )
        return matrix

    def _kinetic_gradient(self, auxiliary: Tensor) -> Tensor:
        if not self.num_auxiliary:
            return auxiliary
        return torch.func.vmap(torch.func.grad(self._kinetic_energy))(auxiliary)

    def _kinetic_energy(self, auxiliary: Tensor) -> Tensor:
        energy = self.kinetic(auxiliary)
        if not isinstance(energy, Tensor) or energy.ndim:
            found = tuple(energy.shape) if isinstance(energy, Tensor) else energy
            what = "a function of a vector that returns a number, as a tensor"
            raise needs(self.name, "kinetic", what, found, TypeError)
        return energy

    @property
    @override
    def description(self) -> str:
        tau = self.temperature
        return "\n".join(
            [
                f"{self.name}: dξ = -((D + Q) grad H - {tau:g} Γ) dt + sqrt(2 * {tau:g} D) dW",
                f"  ξ = (θ, {self.num_auxiliary} auxiliary vectors), H = U(θ) + kinetic, "
                "auxiliary first",
                f"  step size ε = {self.step_size}",
                f"  target: exp(-H / {tau:g}), its θ-marginal exp(-U / {tau:g})",
                f"  law: the target, effective temperature {tau:g}, up to O(ε) and the "
                "gradient's own noise",
            ]
        )


def complete_recipe(
    step_size: StepSize,
    *,
    diffusion: Callable[[Tensor], Tensor],
    curl: Callable[[Tensor], Tensor] | None = None,
    num_auxiliary: int = 0,
    kinetic: Callable[[Tensor], Tensor] | None = None,
    temperature: float = 1.0,
) -> CompleteRecipe:
    """Build the sampler of any diffusion D and curl Q (section 2).

    See `kernels.CompleteRecipe`.

    Example:
        >>> import torch
        >>> complete_recipe(step_size=0.01, diffusion=lambda xi: torch.eye(2)).state_names  # SGLD
        ()
    """
    kinetic = CompleteRecipe.kinetic if kinetic is None else kinetic
    return make(
        CompleteRecipe,
        "complete_recipe",
        step_size,
        temperature,
        diffusion,
        curl,
        num_auxiliary,
        kinetic,
    )
