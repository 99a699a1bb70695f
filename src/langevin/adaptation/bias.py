"""Choose the bias factor of an invariant sampler from the scale of its gradients."""

from __future__ import annotations

import torch
from torch import Tensor

from langevin.adaptation.stationary import settled_squares
from langevin.checks import needs
from langevin.kernels import Kernel
from langevin.kernels.drifts import ScaledAverage, Tensors

__all__ = ["INERTIA", "inertial_factor", "suitable_factor"]

INERTIA = 0.9  # share of h^2 in 2 ε + h^2


def inertial_factor(beta: float) -> float:
    """Return the bias factor a for which h^2 is the share `INERTIA` of ``2 ε + h^2``.

    ``h^2 = 2 a ε (1 - β) / (1 + β)``
    """
    return INERTIA / (1 - INERTIA) * (1 + beta) / (1 - beta)


def suitable_factor(kernel: Kernel, squares: Tensor) -> float:
    """Return the bias factor of an invariant kernel for gradients of these mean squares, (dim,).

    The bias is ``a G m``. For Adam's ``G = 1 / sqrt(V + λ)`` a is meaningless by itself, so a is in
    units of 1 / G, the geometric mean over the elements of the limit of G.
    """
    drift = getattr(kernel, "drift", None)
    if not isinstance(drift, ScaledAverage) or not drift.is_elementwise:
        what = "a number for a sampler whose metric is a matrix"
        raise needs("sample", "bias_factor", what, "auto")
    whole = squares.double()[None]

    def follow(memory: Tensors, gradient: Tensor) -> Tensors:
        return drift.scale_update(memory, gradient)

    settled = settled_squares(follow, drift.scale_names, whole)
    memory = tuple(whole if value is None else value for value in settled)
    metric = drift.scale(memory, torch.ones_like(whole))
    return inertial_factor(drift.smoothing) / float(metric.clamp(min=1e-300).log().mean().exp())
