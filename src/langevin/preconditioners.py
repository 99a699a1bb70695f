"""Preconditioners ``G``: identity, rms (the diagonal of pSGLD), windowed (that of scale-adapted SGHMC) and fisher (of SGRLD).

A preconditioned Langevin step is ``θ' = θ - ε (G force - τ Γ) + sqrt(2 ε τ) G^(1/2) η`` with
``Γ_i = sum_j d G_ij / d θ_j``. Any of these goes with any drift.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor
from typing_extensions import override

from langevin.checks import check_bool, check_field, check_function, needs
from langevin.drifts import Memory, Number

__all__ = ["Fisher", "Identity", "Preconditioner", "RMS", "Windowed"]


@runtime_checkable
class Preconditioner(Protocol):
    """The metric of the noise and of the drift. Elementwise ones use operators only, as drifts do.

    Example:
        >>> isinstance(RMS(), Preconditioner), RMS().memory
        (True, ('metric_average',))
    """

    @property
    def memory(self) -> tuple[str, ...]:
        """Names of the remembered tensors."""
        return ()

    @property
    def is_elementwise(self) -> bool:
        """Whether each element goes its own way, as the fused engine needs."""
        return True

    @property
    def sees_position(self) -> bool:
        """Whether G depends on the position."""
        return False

    def start(self, position: Tensor) -> Memory:
        """Return the memory before the first step."""
        return tuple(torch.zeros_like(position) for _ in self.memory)

    def update(self, memory: Memory, gradient: Tensor, started: Number) -> Memory:
        """Return the memory with this step's gradient in it; `started` is 0 at step 0 and 1 afterwards."""
        return ()

    def metric(self, memory: Memory, position: Tensor) -> Any:
        """Return G in whatever form `apply` and `spread` take."""
        return None

    def apply(self, metric: Any, force: Tensor) -> Tensor:
        """Return ``G force``."""
        ...

    def spread(self, metric: Any, noise: Tensor) -> Tensor:
        """Return ``G^(1/2) noise``, of covariance G."""
        ...

    def divergence(self, metric: Any, memory: Memory, position: Tensor, gradient: Tensor) -> Tensor | None:
        """Return Γ, or None where it is zero or left out."""
        return None

    def describe(self) -> tuple[str, str]:
        """Return the symbol of G for the SDE ('' for the identity) and a sentence on it."""
        ...


@dataclass(frozen=True)
class Identity(Preconditioner):
    """``G = I``.

    Example:
        >>> Identity().apply(None, torch.tensor([1.0, 2.0]))
        tensor([1., 2.])
    """

    @override
    def apply(self, metric: None, force: Tensor) -> Tensor:
        return force

    @override
    def spread(self, metric: None, noise: Tensor) -> Tensor:
        return noise

    @override
    def describe(self) -> tuple[str, str]:
        return "", ""


class _Diagonal(Preconditioner):
    """A metric that is a tensor like the position, one number for each element."""

    @override
    def apply(self, metric: Tensor, force: Tensor) -> Tensor:
        return metric * force

    @override
    def spread(self, metric: Tensor, noise: Tensor) -> Tensor:
        return metric * metric**-0.5 * noise


@dataclass(frozen=True)
class RMS(_Diagonal):
    """The diagonal of pSGLD (section 2): ``G = 1 / (λ + sqrt(V))``, ``V' = β V + (1 - β) (g / num_data)**2``.

    V holds the current gradient when it is used, as in Li et al. (2016) and unlike the averages of a drift. It starts at
    the first squared gradient: started at zero it makes the first step huge.

    Its law: for small steps V follows the gradient, and without Γ the density is off by the factor 1/G: on N(0, 1) with λ = 1
    the variance is 1.44 (the project's law tests). Γ, taken through the newest gradient, repairs that fully for
    β = 0 and in part otherwise; a V that stands still needs none.

    Args:
        beta: β, the smoothing factor of V, in [0, 1).
        eps: λ, outside the root.
        num_data: N when V is to average gradients of the mean loss, as pSGLD codes do; 1 for gradients of U itself.
        curvature: function of one position (dim,) that returns the diagonal of the Hessian of U; when given, Γ is added.
    """

    memory: ClassVar[tuple[str, ...]] = ("metric_average",)

    beta: float = 0.99
    eps: float = 1e-5
    num_data: float = 1.0
    curvature: Callable[[Tensor], Tensor] | None = None

    def __post_init__(self) -> None:
        check_field(self, "RMS", "beta", "0 <= beta < 1", lambda v: 0 <= v < 1)
        check_field(self, "RMS", "eps", "> 0", lambda v: v > 0)
        check_field(self, "RMS", "num_data", "0 < num_data <= 1e150", lambda v: 0 < v <= 1e150)
        if self.curvature is not None:
            check_function("RMS", "curvature", self.curvature, "None or a function of one position (dim,)")

    @property
    @override
    def is_elementwise(self) -> bool:
        return self.curvature is None

    @property
    @override
    def sees_position(self) -> bool:
        return self.curvature is not None

    @override
    def update(self, memory: Memory, gradient: Tensor, started: Number) -> Memory:
        (average,) = memory
        beta = self.beta * started
        mean_gradient = gradient / self.num_data
        return (beta * average + (1 - beta) * (mean_gradient * mean_gradient),)

    @override
    def metric(self, memory: Memory, position: Tensor) -> Tensor:
        (average,) = memory
        return 1 / (self.eps + 1 / average**-0.5)

    @override
    def divergence(self, metric: Tensor, memory: Memory, position: Tensor, gradient: Tensor) -> Tensor | None:
        if self.curvature is None:
            return None
        # dG/dθ = -G^2 d sqrt(V)/dθ, and V depends on θ through the newest gradient only.
        (average,) = memory
        curvature = _over_chains("RMS", "curvature", self.curvature, position)
        return -(1 - self.beta) * metric**2 * gradient * curvature / (self.num_data**2 * (average + 1e-30) ** 0.5)

    @override
    def describe(self) -> tuple[str, str]:
        scale = "grad U" if self.num_data == 1 else f"grad U / {self.num_data:g}"
        gamma = "no Γ: exact only while V stands still" if self.curvature is None else "Γ of the newest gradient: exact for beta 0"
        return "G", f"G = 1 / ({self.eps:g} + sqrt(V)), V averages ({scale})^2 with beta {self.beta:g}, {gamma}"


@dataclass(frozen=True)
class Windowed(_Diagonal):
    """The diagonal of scale-adapted SGHMC: ``G = (V + λ)^(-1/2)``, V over a window as long as gradients are mostly noise.

    ``w' = w - w m**2 / (V + λ) + 1``, ``m' = m + (g - m) / (1 + w)``, ``V' = V + (g**2 - V) / (1 + w)``, g over num_data

    So that w tends to V / m**2: many gradients where noise is all there is, few where they agree (Springenberg et al. 2016,
    section 4, after Schaul et al. 2013; their letters are τ, g and V). All three start at one, and a new gradient counts
    1 / (1 + w), as in the authors' code; with 1 / w a window of one would never grow.

    Args:
        eps_root: λ, inside the root.
        num_data: as in `RMS`.

    Example:
        >>> window, average, square = Windowed().update((torch.ones(1),) * 3, torch.tensor([3.0]), 1.0)
        >>> square  # half way from 1 to 9, with a window of one
        tensor([5.])
    """

    memory: ClassVar[tuple[str, ...]] = ("window", "average", "square_average")

    eps_root: float = 1e-10
    num_data: float = 1.0

    def __post_init__(self) -> None:
        check_field(self, "Windowed", "eps_root", "> 0", lambda v: v > 0)
        check_field(self, "Windowed", "num_data", "0 < num_data <= 1e150", lambda v: 0 < v <= 1e150)

    @override
    def start(self, position: Tensor) -> Memory:
        return tuple(torch.ones_like(position) for _ in self.memory)

    @override
    def update(self, memory: Memory, gradient: Tensor, started: Number) -> Memory:
        window, average, square_average = memory
        mean_gradient, share = gradient / self.num_data, 1 / (1 + window)
        agreement = average * average / (square_average + self.eps_root)
        return (
            window - window * agreement + 1,
            average + share * (mean_gradient - average),
            square_average + share * (mean_gradient * mean_gradient - square_average),
        )

    @override
    def metric(self, memory: Memory, position: Tensor) -> Tensor:
        return (memory[2] + self.eps_root) ** -0.5

    @override
    def describe(self) -> tuple[str, str]:
        scale = "grad U" if self.num_data == 1 else f"grad U / {self.num_data:g}"
        return "G", f"G = (V + {self.eps_root:g})^(-1/2), V averages ({scale})^2 over a window of its own, until it is frozen"


@dataclass(frozen=True)
class Fisher(Preconditioner):
    """The matrix of SGRLD (section 2): ``G = F(θ)^-1`` with F the Fisher information, or any positive definite metric.

    Args:
        information: function of one position (dim,) that returns F, shape (dim, dim). Targets offer it as `metric`.
        correction: add Γ, by automatic differentiation; needed whenever F depends on θ.

    Example:
        >>> metric = Fisher(lambda theta: torch.diag(1 + theta**2))
        >>> factor = metric.metric((), torch.tensor([[1.0, 2.0]]))
        >>> metric.apply(factor, torch.ones(1, 2))  # F^-1 g
        tensor([[0.5000, 0.2000]])
    """

    is_elementwise: ClassVar[bool] = False
    sees_position: ClassVar[bool] = True

    information: Callable[[Tensor], Tensor]
    correction: bool = True

    def __post_init__(self) -> None:
        check_function("Fisher", "information", self.information, "a function of one position (dim,)")
        check_bool("Fisher", "correction", self.correction)

    @override
    def metric(self, memory: Memory, position: Tensor) -> Tensor:
        information = _over_chains("Fisher", "information", self.information, position)
        if information.shape != (*position.shape, position.shape[-1]):
            raise needs("Fisher", "information", "a result of shape (dim, dim)", tuple(information.shape[position.ndim - 1 :]))
        # A chain that went non-finite must not take the others with it, so no exception from a failed factor.
        return torch.linalg.cholesky_ex(information).L

    @override
    def apply(self, metric: Tensor, force: Tensor) -> Tensor:
        return torch.cholesky_solve(force[..., None], metric)[..., 0]

    @override
    def spread(self, metric: Tensor, noise: Tensor) -> Tensor:
        return torch.linalg.solve_triangular(metric.mT, noise[..., None], upper=True)[..., 0]

    @override
    def divergence(self, metric: Tensor, memory: Memory, position: Tensor, gradient: Tensor) -> Tensor | None:
        if not self.correction:
            return None

        def gamma(theta: Tensor) -> Tensor:
            derivative = torch.func.jacrev(lambda at: torch.linalg.inv(self.information(at)))(theta)
            return torch.einsum("ijj->i", derivative)

        return _over_chains("Fisher", "information", gamma, position)

    # The root of F^-1 that `spread` applies, R = L^-T for F = L L^T, is what a velocity lives in (`kernels.Riemannian`).

    def pull(self, metric: Tensor, force: Tensor) -> Tensor:
        """Return ``R^T force``."""
        return torch.linalg.solve_triangular(metric, force[..., None], upper=False)[..., 0]

    def damped(self, metric: Tensor, velocity: Tensor, drag: float) -> Tensor:
        """Return ``(I + drag R^T R)^-1 velocity``: R^T R is the inverse of L^T L, which has the eigenvalues of F."""
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

        return _over_chains("Fisher", "information", gamma, position)

    @override
    def describe(self) -> tuple[str, str]:
        gamma = "with Γ" if self.correction else "Γ left out: right only where the metric is constant"
        return "G", f"G = F(θ)^-1, F the Fisher information, {gamma}"


def _over_chains(who: str, argument: str, function: Callable[[Tensor], Tensor], position: Tensor) -> Tensor:
    """Apply a function of the user, written for one position (dim,), along all leading axes of `position`."""
    mapped, what = function, "a function of one position (dim,) that returns a tensor"
    for _ in range(position.ndim - 1):
        mapped = torch.func.vmap(mapped)
    try:
        result = mapped(position)
    except (TypeError, ValueError, RuntimeError) as error:
        raise needs(who, argument, f"{what}: {error}", function, TypeError) from error
    if not isinstance(result, Tensor):
        raise needs(who, argument, what, result, TypeError)
    return result
