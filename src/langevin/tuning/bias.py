"""The bias factor that suits a target: as much inertia as a step can use."""

from __future__ import annotations

import torch
from torch import Tensor

from langevin.checks import needs
from langevin.drifts import Memory, ScaledAverage
from langevin.kernels import Kernel
from langevin.tuning.law import settled_squares

__all__ = ["INERTIA", "inertial_factor", "suitable_factor"]

INERTIA = 0.9  # share of h^2 in 2 ε + h^2


def inertial_factor(beta: float) -> float:
    """Return the bias factor a with ``h^2 = 2 a ε (1 - β) / (1 + β)`` as the share `INERTIA` of ``2 ε + h^2``."""
    return INERTIA / (1 - INERTIA) * (1 + beta) / (1 - beta)


def suitable_factor(kernel: Kernel, squares: Tensor) -> float:
    """Return the bias factor of an invariant kernel for gradients of these mean squares, (dim,).

    The bias is ``a G m``; for Adam's ``G = 1 / sqrt(V + λ)`` a number of its own is meaningless, so a is in units of 1 / G: the
    geometric mean over the elements of where G settles.
    """
    drift = getattr(kernel, "drift", None)
    if not isinstance(drift, ScaledAverage) or not drift.is_elementwise:
        raise needs("sample", "bias_factor", "a number, for a scale that is a matrix", "auto")
    whole = squares.double()[None]

    def follow(memory: Memory, gradient: Tensor) -> Memory:
        return drift.scale_update(memory, gradient)

    settled = settled_squares(follow, drift.scale_memory, whole)
    memory = tuple(whole if value is None else value for value in settled)
    scale = drift.scale(memory, torch.ones_like(whole))
    return inertial_factor(drift.smoothing) / float(scale.clamp(min=1e-300).log().mean().exp())
