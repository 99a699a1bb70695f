"""Where a result comes from: commit, versions, machine."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

__all__ = ["provenance"]

PACKAGES = ("langevin", "torch", "numpy", "scipy", "matplotlib")


def provenance() -> dict[str, Any]:
    """Return what produced a result: commit, versions, machine."""
    versions = {name: metadata.version(name) for name in PACKAGES if _is_installed(name)}
    return {
        "commit": _commit(),
        "versions": {"python": platform.python_version(), **versions, "torch": torch.__version__},
        "machine": {"system": platform.system(), "processor": _processor(), "cores": os.cpu_count()},
    }


def _is_installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def _commit() -> str | None:
    """Return the commit of the source, with a mark when the source has changes on top of it; None outside a repository."""
    here = Path(__file__).parents[1]

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=here, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        return git("rev-parse", "HEAD") + ("+changes" if git("status", "--porcelain", "--", ".") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
