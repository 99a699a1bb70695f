"""Where draws are kept: in memory, in a folder that survives being killed, and draws of modules in a bank."""

from langevin.store.blocks import Blocks, DiskBlocks, MemoryBlocks, block_ranges
from langevin.store.checkpoint import Checkpoint, Stop
from langevin.store.memory import MemoryStore, Store
from langevin.store.samples import About, ChainStatus, Samples, load_samples, make_samples
from langevin.store.zarr import DiskStore

__all__ = [
    "About",
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
