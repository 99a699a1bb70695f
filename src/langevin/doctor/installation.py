"""What is installed: versions, engines, threads."""

from __future__ import annotations

import importlib
import importlib.util
import os
import platform
import shutil
from collections.abc import Iterator
from importlib import metadata

import torch

import langevin
from langevin.doctor.finding import BROKEN, OK, SLOW, Finding

__all__ = ["engines", "threads", "versions"]

EXTRAS = {
    "sklearn": ("scikit-learn", "sklearn", "langevin.estimators"),
    "torchmetrics": ("torchmetrics", "metrics", "lv.metrics"),
    "ray": ("ray", "ray", 'engine="ray"'),
}
"""Modules that some of the library needs: distribution, extra, and what needs it."""


def versions() -> Iterator[Finding]:
    """Say which versions run here; both distributions must have the same."""
    yield Finding("langevin", langevin.__version__)
    if importlib.util.find_spec("langevin_paper") is not None:  # not its metadata: those of an editable install grow old
        paper = importlib.import_module("langevin_paper").__version__
        same = paper == langevin.__version__
        yield Finding(
            "langevin-paper", paper, OK if same else BROKEN, "" if same else f"pip install langevin-paper=={langevin.__version__}"
        )
    yield Finding("python", f"{platform.python_version()}, {platform.system()} {platform.machine()}")
    yield Finding("torch", torch.__version__)
    for name in ("numpy", "scipy", "arviz", "matplotlib"):
        yield Finding(name, metadata.version(name))
    for module, (name, extra, what) in EXTRAS.items():
        there = importlib.util.find_spec(module) is not None
        text = metadata.version(name) if there else f"not installed; only {what} needs it: pip install 'langevin[{extra}]'"
        yield Finding(name, text)


def engines() -> Iterator[Finding]:
    """Say which engines can run: numba on the CPU, a C++ compiler for torch.compile, accelerators."""
    try:
        numba = importlib.import_module("numba")
    except ImportError as error:
        reason = " ".join(str(error).split())
        yield Finding(
            "numba",
            f"cannot be imported ({reason})",
            BROKEN,
            "pip install numba; until then noise and optimizers run on plain torch",
        )
    else:
        yield Finding("numba", f"{numba.__version__}: noise and fused optimizers on the CPU")
    yield compiler()
    cuda = torch.cuda.is_available()
    yield Finding(
        "CUDA", f"{torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}" if cuda else "none here: the CPU is used"
    )
    yield Finding("MPS", "yes" if torch.backends.mps.is_available() else "none here")


def compiler() -> Finding:
    """Look for the C++ compiler that torch.compile calls."""
    asked = os.environ.get("CXX")
    names = [asked] if asked else ["cl"] if platform.system() == "Windows" else ["g++", "clang++", "c++"]
    found = next((path for path in map(shutil.which, names) if path), None)
    if found:
        return Finding("C++ compiler", f"{found}: torch.compile, for long runs of chains")
    what = f"CXX={asked} is not there" if asked else f"none of {', '.join(names)}"
    return Finding("C++ compiler", what, SLOW, "install g++ or set CXX; until then give compile=False to lv.sample")


def threads() -> Iterator[Finding]:
    """Say how many threads torch has, and how many cores there are."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    number, asked = torch.get_num_threads(), os.environ.get("OMP_NUM_THREADS")
    text = f"{number} of torch, {cores} cores" + (f", OMP_NUM_THREADS={asked}" if asked else "")
    if number > cores:
        yield Finding("threads", text, SLOW, f"more threads than cores wait for each other: torch.set_num_threads({cores})")
    else:
        yield Finding("threads", text)
