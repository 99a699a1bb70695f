"""Is it converged, is it the right law, at which temperature: arrays of draws in, numbers, sentences and plots out.

Draws have axes (chain, draw, dim); give `samples.draws`, or `samples.healthy` when chains stopped. ESS and R-hat are ArviZ's.
They cannot see the bias of a sampler without an accept step: a chain may mix well and sample another law. Three other
measures can: the kernel Stein discrepancy, the effective temperature, and the distance to a reference.

    can it be trusted?       samples.trust, which `sample` computes by itself and warns of
    do the chains agree?     ess, rhat, mcse, autocorrelation
    is it the target's law?  ksd, effective_temperature (they need its gradient)
    which draws are cold?    cooled, for cyclical step sizes
    how far is it off?       moment_errors, sliced_wasserstein, mode_shares, grid_total_variation (they need the answer)
    what does it look like?  trace, running_mean, autocorrelation_plot, pair
"""

from langevin.diagnostics.convergence import acceptance_rate, autocorrelation, ess, mcse, rhat
from langevin.diagnostics.cooling import Cooled, cooled
from langevin.diagnostics.plots import autocorrelation_plot, pair, running_mean, trace
from langevin.diagnostics.reference import MomentErrors, grid_total_variation, mode_shares, moment_errors, sliced_wasserstein
from langevin.diagnostics.stein import kernel_stein_discrepancy, ksd
from langevin.diagnostics.temperature import (
    Temperature,
    configurational_temperature,
    effective_temperature,
    kinetic_temperature,
)

__all__ = [
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
    "sliced_wasserstein",
    "trace",
]
