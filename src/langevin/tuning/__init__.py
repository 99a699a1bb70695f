"""The step size for a wanted accuracy, from a short warm-up that measures curvature and gradient noise.

A step size is judged by the law it leads to. Along one direction a sampler with frozen square averages is a linear recursion
``z' = A z + noise``, z = (theta, whatever is remembered). A and the noise are read off `kernel.update` by feeding it unit vectors,
the stationary variance is the solution of ``S = A S A^T + B``, and the step is the largest below which S stays within `share` of
the variance that the sampler has for small steps and exact gradients. No formula of any sampler is repeated here. Off Gaussians
the work over a step (`work`) bounds it further. A call without a sampler finds everything else, too (`warmup`).
"""

from langevin.tuning.bias import inertial_factor, suitable_factor
from langevin.tuning.contour import contour_weights, learn_contour
from langevin.tuning.descent import descend, spread_starts
from langevin.tuning.law import stationary_error
from langevin.tuning.metric import KINDS
from langevin.tuning.noise import TURNING, Learnt, Rows, learn_noise
from langevin.tuning.search import Tuning, find_step_size
from langevin.tuning.walk import AFTER_WARMUP, FIRST_STEP
from langevin.tuning.warmup import Cheaper, Found, find_everything, noisy_size, sampler_at
from langevin.tuning.work import WORK, limit_step

__all__ = [
    "AFTER_WARMUP",
    "FIRST_STEP",
    "KINDS",
    "TURNING",
    "WORK",
    "Cheaper",
    "Found",
    "Learnt",
    "Rows",
    "Tuning",
    "contour_weights",
    "descend",
    "find_everything",
    "find_step_size",
    "inertial_factor",
    "learn_contour",
    "learn_noise",
    "limit_step",
    "noisy_size",
    "sampler_at",
    "spread_starts",
    "stationary_error",
    "suitable_factor",
]
