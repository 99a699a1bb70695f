"""Atomic checkpoints of model and optimizer, readable on any number of ranks."""

from __future__ import annotations

import os
import re
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from langevin.checks import check_integer, needs
from langevin.storage.safe_io import check_no_links, resolve_root

__all__ = ["load_checkpoint", "save_checkpoint"]

_NAME = re.compile(r"step-(\d{12})")


def save_checkpoint(
    folder: str | Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    step: int,
    *,
    keep: int = 2,
) -> Path:
    """Save parameters, buffers and optimizer state; call it on all ranks.

    The checkpoint is written under a temporary name and renamed when it is complete, so that a kill
    leaves the previous one. Each rank saves its own shards.

    Args:
        folder: shared by all ranks; created if needed.
        model: a module, with or without DTensor parameters (`fully_shard`), or a
            DistributedDataParallel.
        optimizer: its optimizer.
        step: number of steps taken.
        keep: number of checkpoints to keep.

    Returns:
        The folder of this checkpoint.

    Raises:
        ValueError: a checkpoint or draft is a symbolic link; `folder` itself may be one.

    Example:
        >>> import tempfile, torch, langevin as lv
        >>> model = torch.nn.Linear(2, 1)
        >>> opt = lv.optim.SGLD(model.parameters(), lr=0.1, num_data=100)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = lv.distributed.save_checkpoint(folder, model, opt, step=7)
        ...     lv.distributed.load_checkpoint(folder, model, opt)
        7
    """
    from torch.distributed.checkpoint.state_dict_saver import save

    check_integer("save_checkpoint", "step", step, 0)
    check_integer("save_checkpoint", "keep", keep, 1)
    root, is_first = resolve_root(Path(folder)), not _ranks() or dist.get_rank() == 0
    draft, path = root / f".step-{step:012d}.draft", root / f"step-{step:012d}"

    def prepare() -> None:
        root.mkdir(parents=True, exist_ok=True)
        for left in root.glob(".step-*.draft"):  # of a killed process
            check_no_links(left, root)
            shutil.rmtree(left)

    def finish() -> None:
        check_no_links(path, root)
        if path.exists():  # written by an earlier process, from which this one restarted
            shutil.rmtree(path)
        os.replace(draft, path)
        for old in sorted(_steps(root))[:-keep]:
            shutil.rmtree(root / f"step-{old:012d}")

    _on_first(is_first, prepare)
    with _quiet():
        save(_state(model, optimizer), checkpoint_id=draft, no_dist=not _ranks())
    _on_first(is_first, finish)
    return path


def load_checkpoint(
    folder: str | Path, model: nn.Module, optimizer: torch.optim.Optimizer
) -> int | None:
    """Load the last complete checkpoint of a folder; call it on all ranks.

    The number of ranks and the sharding may differ from those at saving. torch reads a pickle (the
    checkpoint's metadata): load only files that you trust.

    Args:
        folder: the folder given to `save_checkpoint`.
        model: has the same parameters.
        optimizer: has the same type and groups.

    Returns:
        The number of steps taken; None if there is no checkpoint, and then nothing is changed.
    """
    from torch.distributed.checkpoint.state_dict import set_state_dict
    from torch.distributed.checkpoint.state_dict_loader import load

    root = resolve_root(Path(folder))
    if root.exists() and not root.is_dir():
        raise needs("load_checkpoint", "folder", "a folder", str(folder))
    step = max(_steps(root), default=None)
    if _ranks():  # rank 0 decides, so that all ranks load the same
        found = [step]
        dist.broadcast_object_list(found, src=0)
        (step,) = found
    if step is None:
        return None
    for file in (root / f"step-{step:012d}").iterdir():
        check_no_links(file, root)
    state = _state(model, optimizer)
    with _quiet():
        load(state, checkpoint_id=root / f"step-{step:012d}", no_dist=not _ranks())
    set_state_dict(
        model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
    )
    return step


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress torch's warnings about a single process."""
    with warnings.catch_warnings():
        pattern = "torch.distributed is unavailable|.*single process"
        warnings.filterwarnings("ignore", message=pattern)
        yield


def _ranks() -> bool:
    return dist.is_available() and dist.is_initialized()


def _state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    from torch.distributed.checkpoint.state_dict import get_state_dict

    found, state = get_state_dict(model, optimizer)
    return {"model": found, "optimizer": state}


def _steps(root: Path) -> list[int]:
    if not root.is_dir():
        return []
    steps = []
    for path in root.iterdir():
        if match := _NAME.fullmatch(path.name):
            check_no_links(path, root)
            if path.is_dir():
                steps.append(int(match[1]))
    return steps


def _on_first(is_first: bool, work: Any) -> None:
    """Run `work` on one rank while the others wait; raise its error on all ranks."""
    failure: list[Any] = [None]
    if is_first:
        try:
            work()
        except (OSError, ValueError) as error:
            failure = [error]
    if _ranks():
        dist.broadcast_object_list(failure, src=0)
    if failure[0] is not None:
        raise failure[0]
