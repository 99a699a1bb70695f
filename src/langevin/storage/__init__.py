"""Samples and their storage, in memory or in a folder that survives kills."""

from langevin.storage.blocks import Blocks, DiskBlocks, MemoryBlocks, block_ranges
from langevin.storage.checkpoint import Checkpoint, Stop
from langevin.storage.memory import MemoryStore, Store
from langevin.storage.samples import ChainStatus, Samples, load_samples, make_samples
from langevin.storage.zarr import DiskStore

__all__ = [
    "Blocks",
    "ChainStatus",
    "Checkpoint",
    "DiskBlocks",
    "DiskStore",
    "MemoryBlocks",
    "MemoryStore",
    "Samples",
    "Stop",
    "Store",
    "block_ranges",
    "load_samples",
    "make_samples",
]
