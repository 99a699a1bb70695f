"""More than one process: the ranks of one model."""

from langevin.scale.batches import RankBatches
from langevin.scale.checkpoints import load_checkpoint, save_checkpoint
from langevin.scale.join import join, leave

__all__ = ["RankBatches", "join", "leave", "load_checkpoint", "save_checkpoint"]
