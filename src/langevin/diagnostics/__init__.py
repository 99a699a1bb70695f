"""Diagnostics of draws: convergence, temperature, distance from the target, and plots.

Draws have axes (chain, draw, dim): pass `samples.draws`, or `samples.healthy` if chains stopped.
ESS and R-hat do not detect the bias of a sampler without an accept step: a chain may mix well and
sample another distribution. The kernel Stein discrepancy, the effective temperature and the
distance to a reference do.

- all checks of a run: `samples.trust`; `sample` warns if one fails
- convergence: ess, rhat, mcse, autocorrelation
- distance from the target, by its gradient: ksd, effective_temperature
- draws of small steps in a cyclical schedule: cooled
- calibration on simulated data: sbc
- distance from a known answer: moment_errors, sliced_wasserstein, mode_shares, grid_total_variation
- plots: trace, running_mean, autocorrelation_plot, pair
"""

from langevin.diagnostics.calibration import Calibration, sbc
from langevin.diagnostics.convergence import acceptance_rate, autocorrelation, ess, mcse, rhat
from langevin.diagnostics.distances import (
    MomentErrors,
    grid_total_variation,
    kernel_stein_discrepancy,
    ksd,
    mode_shares,
    moment_errors,
    sliced_wasserstein,
)
from langevin.diagnostics.plots import autocorrelation_plot, pair, running_mean, trace
from langevin.diagnostics.temperature import (
    Cooled,
    Temperature,
    configurational_temperature,
    cooled,
    effective_temperature,
    kinetic_temperature,
)

__all__ = [
    "Calibration",
    "Cooled",
    "MomentErrors",
    "Temperature",
    "acceptance_rate",
    "autocorrelation",
    "autocorrelation_plot",
    "configurational_temperature",
    "cooled",
    "effective_temperature",
    "ess",
    "grid_total_variation",
    "kernel_stein_discrepancy",
    "kinetic_temperature",
    "ksd",
    "mcse",
    "mode_shares",
    "moment_errors",
    "pair",
    "rhat",
    "running_mean",
    "sbc",
    "sliced_wasserstein",
    "trace",
]
