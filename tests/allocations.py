"""Memory that a call allocates, as counted by the allocators of torch, NumPy and Python.

The resident size of a process would also count imported modules, thread pools, caches and the blocks that the C library keeps:
it differs between machines by more than the tests ask for.
"""

import gc
import tracemalloc

from torch.autograd.profiler import profile


def peak_bytes(work):
    """Return the most memory that a call holds at a time beyond what was there before, in bytes.

    It is the peak of the tensors plus the peak of Python's and NumPy's objects, which may be at different moments.
    """
    gc.collect()
    with profile(profile_memory=True, acc_events=True):
        pass  # modules that the profiler imports are not counted
    with profile(profile_memory=True, acc_events=True) as found:
        tracemalloc.start()
        try:
            work()
            objects = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    held = peak = 0
    for event in sorted(found.kineto_results.events(), key=lambda event: event.start_ns()):
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    return peak + objects
