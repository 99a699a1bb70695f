"""Work on many processes and machines; nothing here imports Ray, or any other pool, before it is asked for."""

from langevin.scale.engine import Engine, Local, WorkerError, as_engine
from langevin.scale.pool import Pool
from langevin.scale.ray import Ray

__all__ = ["Engine", "Local", "Pool", "Ray", "WorkerError", "as_engine"]
