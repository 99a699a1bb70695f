"""A recorded turn as machine code that goes round: where it is kept, how it is called.

The code is written by torch's compiler in a process beside this one (`compiler`), and kept under a name that says all that it
depends on. Loading it needs no compiler, and takes less than a millisecond.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import os
import platform
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from langevin.engines.tape import Tape, digest, signature

__all__ = ["Loop", "find", "folder", "name_of"]


def name_of(tape: Tape, carry: Sequence[Tensor], scanned: Sequence[Tensor]) -> str:
    """Return the name of the code of a turn: equal names are equal programs for equal machines."""
    return digest(_versions(), str(torch.get_default_dtype()), tape.text(), signature(carry), signature(scanned))


@functools.cache
def _versions() -> str:
    """Return what machine code depends on besides: torch, the processor, and the file that has it written."""
    information = Path("/proc/cpuinfo")
    lines = information.read_text().splitlines() if information.exists() else []
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())
    sources = [Path(__file__).with_name(f"{name}.py").read_text() for name in ("compiler", "small")]
    return "\n".join([torch.__version__, platform.machine(), torch.backends.cpu.get_cpu_capability(), flags, *sources])


@functools.cache
def folder() -> Path:
    """Return where code is kept: in the user's private cache, or, where there is none, until this process ends."""
    from langevin.cpu.code_cache import private_folder  # numba takes long

    kept = private_folder()
    if kept is None:
        temporary = tempfile.TemporaryDirectory(prefix="langevin")
        _temporary.append(temporary)
        return Path(temporary.name)
    place = kept / "loops"
    try:
        place.mkdir(mode=0o700, exist_ok=True)
    except OSError:
        folder.cache_clear()
        raise
    return place


_temporary: list[Any] = []  # they live as long as the process


def find(name: str) -> Path | None:
    """Return the file of some code, if there is one that is whole: its name has a digest of what is in it."""
    for path in folder().glob(f"{name}-*.so"):
        with contextlib.suppress(OSError):  # another process may remove it
            if path.stem == f"{name}-{checksum(path)}":
                os.utime(path)  # it was used: what was not for the longest time is removed first
                return path
            path.unlink(missing_ok=True)
            path.with_suffix(".json").unlink(missing_ok=True)
    return None


def checksum(path: Path, *others: Path) -> str:
    """Return a digest of a file and of others, by default of what stands beside it."""
    beside = others or [other for other in [path.with_suffix(".json")] if other.exists()]
    return hashlib.sha256(b"".join(each.read_bytes() for each in [path, *beside])).hexdigest()[:16]


class Loop:
    """Machine code of a turn that goes round as often as there is something to scan over.

    Args:
        path: a shared library, as torch's ahead-of-time compiler writes it.
        layouts: `signature` of the tensors that it takes; those that it is given are compared with it at every call.
        num_results: tensors that it returns.
    """

    def __init__(self, path: Path, layouts: str, num_results: int) -> None:
        """Load it."""
        self._layouts, self._num_results = layouts, num_results
        self._runner: Any = None
        if path.with_suffix(".json").exists():  # it needs what only torch's own loader gives it; that lets no other thread run
            self._runner = torch._C._aoti.AOTIModelContainerRunnerCpu(str(path), 1)
            return
        library = ctypes.CDLL(str(path), os.RTLD_LOCAL | os.RTLD_NOW)
        self._run = library.AOTInductorModelContainerRun  # ctypes lets other threads run while this does
        container = ctypes.c_void_p()
        created = library.AOTInductorModelContainerCreateWithDevice(
            ctypes.byref(container), ctypes.c_size_t(max(1, os.cpu_count() or 1)), b"cpu", None
        )
        if created:
            raise RuntimeError(f"compiled code cannot be loaded from {path}")
        self._container = container

    def __call__(self, given: Sequence[Tensor]) -> list[Tensor]:
        """Run; the tensors must be laid out as those that it was made for."""
        if signature(given) != self._layouts:
            raise RuntimeError(f"compiled code is for {self._layouts}, got {signature(given)}")
        if self._runner is not None:
            return list(self._runner.run(list(given)))
        handles = torch._C._aoti.unsafe_alloc_void_ptrs_from_tensors(list(given))  # the code takes them over
        taken = (ctypes.c_void_p * len(given))(*(_address(handle, None) for handle in handles))
        made = (ctypes.c_void_p * self._num_results)()
        sizes = ctypes.c_size_t(len(given)), ctypes.c_size_t(self._num_results)
        if self._run(self._container, taken, sizes[0], made, sizes[1], None, None):
            raise RuntimeError("compiled code failed")
        return list(torch._C._aoti.alloc_tensors_by_stealing_from_void_ptrs([_capsule(address, None, None) for address in made]))


_address = ctypes.pythonapi.PyCapsule_GetPointer
_address.restype, _address.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
_capsule = ctypes.pythonapi.PyCapsule_New
_capsule.restype, _capsule.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
