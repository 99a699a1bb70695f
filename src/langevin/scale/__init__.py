"""More than one process: the ranks of one model, and work on the processes and machines of a pool.

Nothing here imports Ray, or any other pool, before it is asked for.
"""

from langevin.scale.batches import RankBatches
from langevin.scale.checkpoints import load_checkpoint, save_checkpoint
from langevin.scale.engine import Engine, Local, WorkerError, as_engine
from langevin.scale.join import join, leave
from langevin.scale.pool import Pool
from langevin.scale.ray import Ray

__all__ = [
    "Engine",
    "Local",
    "Pool",
    "RankBatches",
    "Ray",
    "WorkerError",
    "as_engine",
    "join",
    "leave",
    "load_checkpoint",
    "save_checkpoint",
]
