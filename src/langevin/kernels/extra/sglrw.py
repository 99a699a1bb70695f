"""SGLRW: a Langevin step whose noise is a sign (Mensch et al. 2026)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from typing_extensions import override

from langevin.kernels.base import Kernel, StepInputs, Traits
from langevin.kernels.compose import StepSize, make
from langevin.kernels.langevin import Langevin
from langevin.kernels.parts import Identity, Preconditioner, Tensors
from langevin.targets import Evaluation

__all__ = ["sglrw"]


@dataclass(frozen=True)
class Lattice(Kernel):
    """``θ' = θ ± d`` with ``d = sqrt(2 ε τ)``, up with probability ``(1 - ε g / d) / 2``.

    Mensch et al. (2026), after Duffield et al. (2025), as binary steps. Written with a uniform u on
    (-1, 1):

        ``d = max(sqrt(2 ε τ), ε |g|)``,    ``θ' = θ + d sign(d u - ε g)``

    The mean of a step is -ε g, as in SGLD, and its square is 2 ε τ: SGLD's is larger by (ε g)^2.
    Where ε |g| stays below sqrt(2 ε τ) that has two consequences, exact for any step:

    - ``E[θ_i g_i] = τ``, since ``E[θ'^2] = E[θ^2]`` leaves ``2 ε E[θ g] = 2 ε τ``. On a Gaussian
      whose elements are independent the variances are those of the target.
    - Noise in the gradient adds no temperature to an element: its step is still up or down by d,
      and the probability is linear in g, so that only the mean of g matters. What is left of the
      noise is what different elements share, ``ε^2 Σ_ij`` in the mean of their product: with
      correlated noise covariances come out wrong, variances do not.

    In one dimension it is a walk on a lattice, with stationary distribution
    ``π(x + d) / π(x) = (1 - ε g(x) / d) / (1 + ε g(x + d) / d)``. Expanded, ``log π = -U / τ + ε
    (g^2 / (4 τ) - ∫ g^3 / (6 τ^2) - U'' / 6) + O(ε^2)``: the error is of first order, as in SGLD.

    The published step cuts the drift off at sqrt(2 ε τ). Here a larger one is taken whole, by the
    max in d: the mean of a step is -ε g always, and at temperature 0 it is gradient descent. Noise
    of more than sqrt(2 τ / ε) in the gradient adds temperature then, as in SGLD.
    """

    state_names: ClassVar[tuple[str, ...]] = ()
    traits: ClassVar[Traits] = Traits(noise_kind="uniform")

    @override
    def update(
        self,
        position: Tensor,
        evaluation: Evaluation,
        noise: Tensor,
        state: Tensors,
        inputs: StepInputs,
    ) -> tuple[Tensor, Tensors]:
        (u,) = noise
        drift = inputs.step_size * evaluation.gradient
        distance = drift.abs().clamp(min=self.noise_scale(inputs))
        return position + distance * (distance * u - drift).sign(), ()

    @override
    def without_metric(self) -> tuple[Kernel, Preconditioner]:
        # A step size chosen for SGLD serves here too; a sign is not linear.
        return Langevin(self.name, self.step_size, self.temperature), Identity()

    @property
    @override
    def description(self) -> str:
        tau = self.temperature
        return self.described(
            f"dθ = -(grad U) dt + sqrt(2 * {tau:g}) dW, in steps of sqrt(2 ε τ) up or down",
            law=[
                f"the target, effective temperature {tau:g}, up to O(ε) and "
                "the noise that elements of",
                "the gradient share; an element's own noise does not heat it, below sqrt(2 τ / ε)",
            ],
        )


def sglrw(step_size: StepSize, *, temperature: float = 1.0) -> Lattice:
    """Build the stochastic gradient lattice random walk: a sign instead of a normal.

    Mensch et al. (2026); not in section 2.

    ``θ' = θ + d sign(d u - ε g)`` with ``d = max(sqrt(2 ε τ), ε |g|)`` and u uniform on (-1, 1): up
    or down by sqrt(2 ε τ), with the probabilities that make the mean -ε g

    Args:
        step_size: ε on U; a number or a schedule. "auto" takes the step of `sgld`.
        temperature: τ.

    Differs from: the published step cuts the drift off at sqrt(2 ε τ), which is here taken whole
    (`kernels.Lattice`). From `sgld` in that an element's own noise in the gradient adds no
    temperature: variances stay right under minibatches, for ε below ``2 τ / |g|**2``; noise that
    elements share still turns covariances.

    Example:
        >>> sglrw(step_size=0.01).traits.noise_kind
        'uniform'
    """
    return make(Lattice, "sglrw", step_size, temperature)
