"""The named samplers, each defined with its equation in the file of its name."""

from langevin.kernels.adadelta import adadelta_sgld
from langevin.kernels.adamax import adamax_sgld
from langevin.kernels.adaptive_sghmc import adaptive_sghmc
from langevin.kernels.asgld import asgld, asgld_full
from langevin.kernels.compose import compose
from langevin.kernels.extra.amagold import amagold
from langevin.kernels.extra.complete_recipe import complete_recipe
from langevin.kernels.extra.cyclical_annealing import cyclical_annealing
from langevin.kernels.extra.replica_exchange import replica_exchange
from langevin.kernels.extra.sglrw import sglrw
from langevin.kernels.extra.sgrhmc import sgrhmc
from langevin.kernels.facts import Samplers
from langevin.kernels.msgld import msgld, nasgld
from langevin.kernels.psgld import psgld
from langevin.kernels.sghmc import sghmc
from langevin.kernels.sgld import sgld
from langevin.kernels.sgnht import sgnht
from langevin.kernels.sgrld import sgrld

__all__ = [
    "SAMPLERS",
    "adadelta_sgld",
    "adamax_sgld",
    "adaptive_sghmc",
    "amagold",
    "asgld",
    "asgld_full",
    "complete_recipe",
    "compose",
    "cyclical_annealing",
    "msgld",
    "nasgld",
    "psgld",
    "replica_exchange",
    "sghmc",
    "sgld",
    "sglrw",
    "sgnht",
    "sgrhmc",
    "sgrld",
]

SAMPLERS = Samplers(
    {
        "sgld": sgld,
        "psgld": psgld,
        "sgrld": sgrld,
        "sglrw": sglrw,
        "sghmc": sghmc,
        "sgnht": sgnht,
        "sgrhmc": sgrhmc,
        "adaptive_sghmc": adaptive_sghmc,
        "amagold": amagold,
        "msgld": msgld,
        "asgld": asgld,
        "asgld_full": asgld_full,
        "adamax_sgld": adamax_sgld,
        "adadelta_sgld": adadelta_sgld,
    }
)
"""Every named sampler that can be built from a step size (and a metric).

Printed, it is a table of stationary distributions, errors, state sizes, costs and requirements;
`SAMPLERS.facts()` returns the same as values."""
