"""Langevin steps without inertia: SGLD, in a metric that follows the gradients or the position, and with any parts."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from langevin.checks import check_bool, check_function, needs
from langevin.drifts import Drift, NoDrift, ScaledAverage, Total
from langevin.gradient_noise import as_noise
from langevin.kernels import Invariant, Kernel, Langevin, Lattice
from langevin.preconditioners import RMS, Fisher, Identity, Preconditioner
from langevin.samplers.base import NoiseSetting, StepSize, make
from langevin.schedules import as_schedule

__all__ = ["compose", "psgld", "sgld", "sglrw", "sgrld"]


def sgld(step_size: StepSize, *, temperature: float = 1.0) -> Langevin:
    """Stochastic gradient Langevin dynamics (Welling and Teh 2011; section 2).

    ``θ' = θ - ε g + sqrt(2 ε τ) η``

    Args:
        step_size: ε, on the energy U = N * mean NLL - log prior; a number or a schedule.
        temperature: τ; the target is exp(-U / τ).

    Differs from: the original paper writes ``ε / 2`` for our ``ε``.

    Example:
        >>> sgld(step_size=0.01).describe()
        sgld: dθ = -(grad U) dt + sqrt(2 * 1) dW
          step size ε = 0.01
          target: exp(-U / 1)
          law: the target, effective temperature 1, up to O(ε) and the gradient's own noise
    """
    return make(Langevin, "sgld", step_size, temperature)


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

    ``V' = β V + (1 - β) (g / num_data)**2``, ``G = 1 / (λ + sqrt(V'))``, ``θ' = θ - ε (G g - τ Γ) + sqrt(2 ε τ G) η``

    Args:
        step_size: ε on U; a number or a schedule.
        beta: β, the smoothing factor of V.
        eps: λ, outside the root.
        num_data: N makes V an average over gradients of the mean loss, as the paper's settings need; 1 takes grad U.
        curvature: function of one position that returns the diagonal of the Hessian; turns the Γ term on.
        adapt_steps: steps after which V is frozen, so that the law is the target; None never freezes it, as published, but for
            ``step_size="auto"``, which takes the warm-up of `sample`.
        temperature: τ.

    Differs from: Li et al. start V at zero, which makes the first step huge; ours starts at the first squared gradient.
    Without Γ the law is the target only while V stands still (`preconditioners.RMS` says by how much it is off).

    Example:
        >>> psgld(step_size=0.01).memory
        ('metric_average',)
    """
    return make(
        Langevin, "psgld", step_size, temperature, preconditioner=RMS(beta, eps, num_data, curvature), adapt_steps=adapt_steps
    )


def sgrld(
    step_size: StepSize, *, metric: Callable[[Tensor], Tensor], correction: bool = True, temperature: float = 1.0
) -> Langevin:
    """Stochastic gradient Riemannian Langevin dynamics (Girolami and Calderhead 2011; section 2).

    ``θ' = θ - ε (F^-1 g - τ Γ) + sqrt(2 ε τ) F^(-1/2) η`` with ``Γ_i = sum_j d F^-1_ij / d θ_j``

    Args:
        step_size: ε on U; a number or a schedule.
        metric: function of one position (dim,) that returns F (dim, dim), the Fisher information; targets offer it as `metric`.
        correction: add Γ, by automatic differentiation.
        temperature: τ.

    Example:
        >>> import torch
        >>> sgrld(step_size=0.01, metric=lambda theta: torch.eye(2)).memory
        ()
    """
    check_function("sgrld", "metric", metric, "a function of one position (dim,)")
    return make(Langevin, "sgrld", step_size, temperature, preconditioner=Fisher(metric, correction))


def sglrw(step_size: StepSize, *, temperature: float = 1.0) -> Lattice:
    """Stochastic gradient lattice random walk (Mensch et al. 2026): a sign instead of a normal; not in section 2.

    ``θ' = θ + d sign(d u - ε g)`` with ``d = max(sqrt(2 ε τ), ε |g|)`` and u uniform on (-1, 1): up or down by sqrt(2 ε τ), with
    the probabilities that make the mean -ε g

    Args:
        step_size: ε on U; a number or a schedule. "auto" takes the step that serves `sgld`, heat included.
        temperature: τ.

    Differs from: the published step cuts the drift off at sqrt(2 ε τ), which is here taken whole (`kernels.Lattice`). From `sgld`
    in that an element's own noise in the gradient does not heat it: variances stay right under minibatches, for ε below
    ``2 τ / |g|**2``; noise that elements share still turns covariances.

    Example:
        >>> sglrw(step_size=0.01).noise_kind
        'uniform'
    """
    return make(Lattice, "sglrw", step_size, temperature)


def compose(
    step_size: StepSize,
    *,
    drift: Drift | None = None,
    preconditioner: Preconditioner | None = None,
    annealing: Callable[[int], float] | float = 1.0,
    invariant: bool = False,
    adapt_steps: int | None = None,
    noise: NoiseSetting = None,
    temperature: float = 1.0,
) -> Langevin | Invariant:
    """Put any drift and any preconditioner together (section 3.3: "can be used together"), as published or with the target's law.

    ``θ' = θ - ε P (g + a A_t) + sqrt(2 ε τ) P^(1/2) η``; `drifts.Total` is a sum of biases, the conclusion's "complex bias term".

    Args:
        step_size: ε on U; a number or a schedule.
        drift: the bias ``a A_t``; None for none. When invariant, a scaled average or a `Total` of them.
        preconditioner: P; None for one. When invariant, a diagonal (`RMS`) that is frozen after the warm-up.
        annealing: what the bias is multiplied by, a number or a schedule.
        invariant: give every average of the bias its own noise, so that exp(-U / τ) is invariant (`kernels.Invariant`).
        adapt_steps: steps after which what is learnt is frozen; None takes the warm-up of `sample` when invariant, else never.
        noise: (Σ, τ K) of a gradient noise that is absorbed, when invariant; "corrected" for one average and no preconditioner.
        temperature: τ.

    Example:
        >>> from langevin.drifts import Momentum, Total
        >>> from langevin.preconditioners import RMS
        >>> compose(step_size=0.01, drift=Momentum(), preconditioner=RMS()).memory
        ('average', 'metric_average')
        >>> short_and_long = Total((Momentum(10.0, beta=0.8), Momentum(100.0, beta=0.99)))
        >>> compose(step_size=0.01, drift=short_and_long, invariant=True).memory
        ('velocity_0', 'velocity_1', 'passing_velocity')
    """
    check_bool("compose", "invariant", invariant)
    metric, factor = Identity() if preconditioner is None else preconditioner, as_schedule("compose", "annealing", annealing)
    if invariant:
        if not isinstance(drift, ScaledAverage | Total):
            what = "a scaled average of gradients, or a Total of them, when invariant"
            raise needs("compose", "drift", what, drift, TypeError)
        absorbed = as_noise("compose", noise)
        return make(Invariant, "compose", step_size, temperature, drift, factor, adapt_steps, absorbed, metric)
    if noise is not None:
        raise needs("compose", "noise", "None for the published form: a correction needs invariant=True", noise)
    return make(Langevin, "compose", step_size, temperature, NoDrift() if drift is None else drift, metric, factor, adapt_steps)


NAMED: dict[str, Callable[..., Kernel]] = {"sgld": sgld, "psgld": psgld, "sgrld": sgrld, "sglrw": sglrw}
