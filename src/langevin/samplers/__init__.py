"""The named samplers by family: a kernel put together from parts, with the paper's words for the settings."""

from langevin.samplers import adaptive, ensembles, hamiltonian, overdamped
from langevin.samplers.adaptive import *  # noqa: F403 (a family says in __all__ what it exports)
from langevin.samplers.ensembles import *  # noqa: F403
from langevin.samplers.facts import Samplers
from langevin.samplers.hamiltonian import *  # noqa: F403
from langevin.samplers.overdamped import *  # noqa: F403

__all__ = ["SAMPLERS"]
__all__ += adaptive.__all__
__all__ += ensembles.__all__
__all__ += hamiltonian.__all__
__all__ += overdamped.__all__

SAMPLERS = Samplers({**overdamped.NAMED, **hamiltonian.NAMED, **adaptive.NAMED})
"""Every named sampler that needs no parts from the user; a test fails for one that the table of the tests does not list.

Printed, it is a table of laws, errors, memory, costs and needs; `SAMPLERS.facts()` has the same as values."""
