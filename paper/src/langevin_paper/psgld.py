"""pSGLD as section 2 might be read: what the text leaves open about V, λ and the noise is a setting here."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import override

from langevin.checks import needs
from langevin.kernels import Kernel, StepInputs
from langevin.kernels.drifts import Tensors
from langevin.targets import Evaluation

__all__ = ["PSGLDReading"]

STARTS, ORDERS, ROOTS, SPREADS = ("first", "zero"), ("newest", "before"), ("outside", "inside"), ("metric", "plain", "squared")


@dataclass(frozen=True)
class PSGLDReading(Kernel):
    """``θ' = θ - h G g + sqrt(2 h τ) R η`` with ``G = 1 / (λ + sqrt(V'))``, ``V' = β V + (1 - β) (g / num_data)**2``.

    With its defaults it is `langevin.psgld`.

    Args:
        beta: β of V.
        eps: λ.
        num_data: what gradients of U are divided by before they enter V.
        start_at: V begins with the "first" squared gradient, or at "zero".
        order: G knows the "newest" gradient, or only those "before", as the indices of section 2 say.
        root: λ is added "outside" the root, or "inside" it.
        spread: R is the root of the "metric" G, or 1 ("plain": only the drift is preconditioned), or G itself ("squared").
        prior_precision: of a Gaussian prior that is left out of V and of the metric, as a weight decay that is added to the step;
            0 for the prior as part of U.
        step_factor: h / ε; ½ is Li et al.'s form, whose ε is twice ours.
        gamma: whether ``h τ Γ`` is added to the step, with ``Γ = dG / dθ = -G**2 (1 - β) g H / (num_data**2 sqrt(V'))`` and H the
            diagonal of the Hessian, which has to be the second half of the gradient (`WithCurvature`).
    """

    beta: float = 0.9
    eps: float = 1e-5
    num_data: float = 1.0
    start_at: str = "first"
    order: str = "newest"
    root: str = "outside"
    spread: str = "metric"
    prior_precision: float = 0.0
    step_factor: float = 1.0
    gamma: bool = False

    def __post_init__(self) -> None:
        """Check the words."""
        super().__post_init__()
        for name, words in (("start_at", STARTS), ("order", ORDERS), ("root", ROOTS), ("spread", SPREADS)):
            if getattr(self, name) not in words:
                raise needs("PSGLDReading", name, f"one of {', '.join(words)}", getattr(self, name))
        if self.gamma and (self.order, self.root, self.prior_precision) != ("newest", "outside", 0.0):
            raise needs("PSGLDReading", "gamma", "False where order, root or prior_precision is changed", self.gamma)

    @property
    @override
    def state_names(self) -> tuple[str, ...]:
        return ("metric_average",)

    @property
    @override
    def effective_temperature(self) -> float | None:
        return None

    @property
    @override
    def description(self) -> str:
        return f"a reading of pSGLD: {self}"

    @override
    def update(
        self, position: Tensor, evaluation: Evaluation, noise: Tensor, memory: Tensors, inputs: StepInputs
    ) -> tuple[Tensor, Tensors]:
        (before,), (η,) = memory, noise
        shrink = self.prior_precision * position
        gradient = evaluation.gradient - shrink
        mean_gradient = gradient / self.num_data
        beta = self.beta * inputs.started if self.start_at == "first" else self.beta
        average = beta * before + (1 - beta) * (mean_gradient * mean_gradient)
        known = average if self.order == "newest" else before
        if (self.order, self.start_at) == ("before", "first"):
            known = inputs.started * before + (1 - inputs.started) * average
        root = known.sqrt() + self.eps if self.root == "outside" else (known + self.eps).sqrt()
        metric = 1 / root
        spread = {"metric": metric.sqrt(), "plain": torch.ones_like(metric), "squared": metric}[self.spread]
        step = inputs.step_size * self.step_factor
        kick = (2 * step * inputs.temperature) ** 0.5 * spread * η
        moved = position - step * (metric * gradient + shrink) + kick
        if self.gamma:
            θ, rest = moved.chunk(2, -1)
            slope, curvature = gradient.chunk(2, -1)
            G, V = metric.chunk(2, -1)[0], average.chunk(2, -1)[0]
            per_square = (1 - beta) * slope * curvature / self.num_data**2  # sqrt(V) dsqrt(V) / dθ
            Γ = -G * G * per_square / V.sqrt().clamp(min=torch.finfo(V.dtype).tiny)
            moved = torch.cat([θ + step * inputs.temperature * Γ, torch.zeros_like(rest)], -1)
        return moved, (average,)
