"""Adapt a sampler to its target: modes, metric, step size, gradient noise.

A step size is judged by its stationary distribution. Along one direction a sampler with constant
square averages is a linear recursion ``z' = A z + noise``, z = (theta, state). A and the noise
follow from `kernel.update` of unit vectors, and the stationary variance solves
``S = A S A^T + B``. The step size is the largest for which S stays within `share` of the variance
for small steps and exact gradients. No formula of a sampler is repeated here. The energy error of a
step (`work`) limits the step size further. Without a sampler, `warmup` adapts everything.
"""

from langevin.adaptation.bias import inertial_factor, suitable_factor
from langevin.adaptation.contour import contour_weights, learn_contour
from langevin.adaptation.descent import descend, spread_starts
from langevin.adaptation.metric import KINDS
from langevin.adaptation.noise import TURNING, NoiseEstimate, NoiseSource, estimate_noise
from langevin.adaptation.parameterisation import Coordinates, describe_weights
from langevin.adaptation.probe import AFTER_WARMUP, FIRST_STEP
from langevin.adaptation.search import Tuning, find_step_size
from langevin.adaptation.stationary import stationary_error
from langevin.adaptation.warmup import (
    FORCE_LIMIT,
    Cheaper,
    WarmupResult,
    noisy_size,
    sampler_at,
    warm_up,
)
from langevin.adaptation.work import MOST, WORK, describe_work, limit_step

__all__ = [
    "AFTER_WARMUP",
    "FIRST_STEP",
    "FORCE_LIMIT",
    "KINDS",
    "MOST",
    "TURNING",
    "WORK",
    "Cheaper",
    "Coordinates",
    "WarmupResult",
    "NoiseEstimate",
    "NoiseSource",
    "Tuning",
    "contour_weights",
    "descend",
    "describe_weights",
    "describe_work",
    "warm_up",
    "find_step_size",
    "inertial_factor",
    "learn_contour",
    "estimate_noise",
    "limit_step",
    "noisy_size",
    "sampler_at",
    "spread_starts",
    "stationary_error",
    "suitable_factor",
]
