"""Whether a run can be trusted: what is gathered while chains run, R-hat and ESS in milliseconds, and checks in words.

`samples.trust` is a `Trust`; `sample` ends with its warnings.
"""

from langevin.trust.heat import MAX_ELEMENTS, Heat, add_heat, energy_residuals, epoch_weights, heat_stride, no_heat, read_heat
from langevin.trust.judge import Evidence, judge
from langevin.trust.mixing import evenly_spaced
from langevin.trust.report import Check, Trust, TrustWarning

__all__ = [
    "MAX_ELEMENTS",
    "Check",
    "Evidence",
    "Heat",
    "Trust",
    "TrustWarning",
    "add_heat",
    "energy_residuals",
    "epoch_weights",
    "heat_stride",
    "evenly_spaced",
    "judge",
    "no_heat",
    "read_heat",
]
