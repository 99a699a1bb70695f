"""SGRHMC: SGHMC in a metric that depends on the position (Ma, Chen and Fox 2015)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from langevin.checks import check_field, check_function, needs
from langevin.kernels.base import Kernel, StepInputs, Traits
from langevin.kernels.compose import StepSize, make
from langevin.kernels.parts import Number, Preconditioner, Tensors
from langevin.kernels.sghmc import Hamiltonian, SGHMCState
from langevin.kernels.sgrld import Fisher
from langevin.targets import Evaluation

__all__ = ["sgrhmc"]

FRICTIONS = ("metric", "even")


@dataclass(frozen=True)
class Riemannian(Kernel):
    """SGHMC in a metric F(θ): the complete recipe with D and Q that depend on θ.

    With any root R of the inverse metric, ``R R^T = F(θ)^-1``,

    ``dθ = R v dt``, ``dv = -(R^T grad U - τ Γ + C v) dt + sqrt(2 τ C) dW``,
    ``Γ_i = sum_j d R_ji / d θ_j``

    so that ``Q = [[0, -R], [R^T, 0]]`` and ``D = diag(0, C)``, with ``C = c R^T R`` as in Ma, Chen
    and Fox (2015), section 4.2, or ``C = c I``. The step is a splitting B O B A with the time step
    ``h^2 = 2 ε / (1 + β)`` and ``c h = 2 (1 - β) / (1 + β)``:

        B   ``v <- v - (h / 2) (R^T g - τ Γ)`` O
        ``v <- v - (c h / 2) R^T R (v + v') + sqrt(2 c h τ) R^T η``, v' the new v; or
        ``v <- β v + sqrt(τ (1 - β^2)) η`` B   as before A   ``θ <- θ + h R(θ + (h / 2) R(θ) v) v``

    In a metric of one it is `Hamiltonian`, v in units of h. At a fixed β and small ε the velocity
    is forgotten while the metric changes as little as θ moves, so two details matter: A moves θ
    along the metric's own flow (midpoint rule), and O keeps N(0, τ I) exactly. Then the error is
    O(ε) for any β (docs/theory.md, section 9). A plain Euler step, as published, is right for β ->
    1 only: it takes a part ``2 β / (1 + β)`` of the slope of the metric, and v has a temperature
    that depends on θ.

    The step is explicit. Where the metric changes much within a step it gains energy, and friction
    in proportion to F^-1 is weak just where F is large: chains can be lost, more easily than with
    even friction. A smaller ε or a prior's part in F helps.

    Args:
        beta: β, the share of the velocity that is kept where the friction is c, in [0, 1).
        metric: F and its root, a `Fisher`.
        friction: "metric" for ``C = c R^T R``, "even" for ``C = c I``.
    """

    state_names: ClassVar[tuple[str, ...]] = SGHMCState._fields
    traits: ClassVar[Traits] = Traits(elementwise=False, reads_position=True)

    beta: float = 0.9
    metric: Fisher = field(kw_only=True)
    friction: str = "metric"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_field(self, self.name, "beta", "0 <= beta < 1", lambda v: 0 <= v < 1)
        if not isinstance(self.friction, str) or self.friction not in FRICTIONS:
            raise needs(self.name, "friction", " or ".join(map(repr, FRICTIONS)), self.friction)

    @override
    def start(self, position: Tensor) -> SGHMCState:
        return SGHMCState(torch.zeros_like(position))

    @override
    def update(
        self,
        position: Tensor,
        evaluation: Evaluation,
        noise: Tensor,
        state: Tensors,
        inputs: StepInputs,
    ) -> tuple[Tensor, Tensors]:
        (velocity,) = state
        (η,) = noise
        metric, τ, β = self.metric, inputs.temperature, self.beta
        stride, drag = (2 * inputs.step_size / (1 + β)) ** 0.5, (1 - β) / (1 + β)  # h, and c h / 2
        here = metric.metric((), position)
        force = metric.pull(here, evaluation.gradient)
        gamma = metric.root_divergence(position)
        if gamma is not None:
            force = force - τ * gamma

        velocity = velocity - 0.5 * stride * force
        if self.friction == "even":
            velocity = β * velocity + (τ * (1 - β * β)) ** 0.5 * η
        else:
            lost = metric.pull(
                here, drag * metric.spread(here, velocity) - (4 * drag * τ) ** 0.5 * η
            )
            velocity = metric.damped(here, velocity - lost, drag)
        velocity = velocity - 0.5 * stride * force

        middle = metric.metric((), position + 0.5 * stride * metric.spread(here, velocity))
        return position + stride * metric.spread(middle, velocity), SGHMCState(velocity)

    @override
    def without_metric(self) -> tuple[Kernel, Preconditioner]:
        if self.friction == "even":
            return Hamiltonian(self.name, self.step_size, self.temperature, self.beta), self.metric
        return (
            self,
            self.metric,
        )  # the friction depends on the metric, too

    @override
    def noise_scale(self, inputs: StepInputs) -> Number:
        return (2 * inputs.temperature * inputs.step_size * (1 - self.beta)) ** 0.5

    @property
    @override
    def description(self) -> str:
        tau, friction = self.temperature, "c I" if self.friction == "even" else "c R^T R"
        law = f"the target, effective temperature {tau:g}, up to O(ε) and the gradient's own noise"
        if not self.metric.correction:
            law = (
                f"the target where the metric is constant, {law.partition(', ')[2]}; elsewhere "
                "off, since Γ is left out"
            )
        return self.described(
            f"dθ = R v dt,  dv = -(R^T grad U - {tau:g} Γ + C v) dt + sqrt(2 * {tau:g} C) dW",
            f"R R^T = F(θ)^-1, F the metric; C = {friction}, "
            f"{'with Γ' if self.metric.correction else 'Γ left out'}",
            f"time step h = sqrt(2 ε / (1 + β)), c = 2 (1 - {self.beta:g}) / ((1 + "
            f"{self.beta:g}) h)",
            settings=f"beta {self.beta:g}, friction {self.friction}",
            law=[law],
        )


def sgrhmc(
    step_size: StepSize,
    *,
    metric: Callable[[Tensor], Tensor],
    beta: float = 0.9,
    friction: str = "metric",
    correction: bool = True,
    temperature: float = 1.0,
) -> Riemannian:
    """Build SGRHMC, Riemannian SGHMC (Ma, Chen and Fox 2015, section 4.2).

    ``dθ = R v dt``, ``dv = -(R^T grad U - τ Γ + C v) dt + sqrt(2 τ C) dW``, ``R R^T = F(θ)^-1``,
    ``Γ_i = sum_j d R_ji / d θ_j``

    SGHMC in a metric that moves with θ: kicks and friction as in `sghmc`, ``θ' = θ + h R v'`` with
    R half way; `kernels.Riemannian` has the step. For F = I it is `sghmc`.

    Args:
        step_size: ε on U in the metric, as in `sghmc`; a number or a schedule. "auto" needs
            ``friction="even"``.
        metric: function of one position (dim,) that returns F (dim, dim), as in `sgrld`: the Fisher
            information, or Ma, Chen and Fox's ``F = I / (D sqrt(|U(θ) + C|))``, or any positive
            definite matrix that is smooth in θ.
        beta: β, the share of the velocity that is kept in a step, where the friction is that of
            ``F = I``.
        friction: "metric" as published, ``C = c F^-1``: weak where F is large. Minibatch noise
            then has the effect that it has in `sghmc` whatever F, and so is the motion where β is
            small. "even", ``C = c I``, is friction as strong in all directions in the metric's own
            units, what a Fisher information of many data needs; for small β its motion is that
            of `sgrld`.
        correction: add Γ, by automatic differentiation; needed whenever F depends on θ.
        temperature: τ.

    Differs from: Ma, Chen and Fox take one Euler step with the symmetric root; ours is a splitting
    whose distribution is right for small ε at any β, not only for β near 1, and R is a Cholesky
    factor, which has derivatives where eigenvalues meet. Any root serves. They subtract the
    gradient's noise, where it is known, from the noise injected; ours does not. A metric that is
    estimated and then frozen is a constant one: ``sample(target, sampler=sghmc(...),
    metric="diagonal")`` estimates it, and costs no derivatives.

    Example:
        >>> import torch
        >>> sgrhmc(step_size=0.01, metric=lambda theta: torch.diag(1 + theta**2)).state_names
        ('velocity',)
    """
    check_function("sgrhmc", "metric", metric, "a function of one position (dim,)")
    fisher = Fisher(metric, correction)
    return make(
        Riemannian, "sgrhmc", step_size, temperature, beta, friction=friction, metric=fisher
    )
