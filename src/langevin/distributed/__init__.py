"""Run on several processes: ranks of one model, and tasks on the workers of a pool or a cluster.

Ray and other pools are imported only when they are used.
"""

from langevin.distributed.batches import RankBatches
from langevin.distributed.checkpoints import load_checkpoint, save_checkpoint
from langevin.distributed.engine import Engine, Local, WorkerError, as_engine
from langevin.distributed.join import join, leave
from langevin.distributed.pool import Pool
from langevin.distributed.ray import Ray

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
