"""Where draws are kept: in memory, in a folder that survives being killed, and draws of modules in a bank."""

from langevin.store.zarr import ChainStatus, Checkpoint, DiskStore, MemoryStore, Samples, Stop, load_samples, make_samples

__all__ = ["ChainStatus", "Checkpoint", "DiskStore", "MemoryStore", "Samples", "Stop", "load_samples", "make_samples"]
