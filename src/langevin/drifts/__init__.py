"""Adaptive biases ``a A_t`` of equation (1)."""

from langevin.drifts import adadelta, adam, momentum, total
from langevin.drifts.adadelta import *  # noqa: F403 (each file says in __all__ what it exports)
from langevin.drifts.adam import *  # noqa: F403
from langevin.drifts.base import Drift, Memory, NoDrift, Number
from langevin.drifts.momentum import *  # noqa: F403
from langevin.drifts.total import *  # noqa: F403

__all__ = ["Drift", "Memory", "NoDrift", "Number"]
__all__ += adadelta.__all__
__all__ += adam.__all__
__all__ += momentum.__all__
__all__ += total.__all__
