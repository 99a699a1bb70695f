"""The step size for a wanted accuracy, from a short warm-up that measures curvature and gradient noise.

A step size is judged by the law it leads to. Along one direction a sampler with frozen square averages is a linear recursion
``z' = A z + noise``, z = (theta, whatever is remembered). A and the noise are read off `kernel.update` by feeding it unit vectors,
the stationary variance is the solution of ``S = A S A^T + B``, and the step is the largest below which S stays within `share` of
the variance that the sampler has for small steps and exact gradients. No formula of any sampler is repeated here.
"""

from langevin.tuning.law import stationary_error
from langevin.tuning.search import Tuning, find_step_size

__all__ = ["Tuning", "find_step_size", "stationary_error"]
