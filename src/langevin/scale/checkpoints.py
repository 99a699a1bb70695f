"""Checkpoints of a model and its optimizer by `torch.distributed.checkpoint`: whole after a kill, read on any number of ranks."""

from __future__ import annotations

import os
import re
import shutil
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from langevin.checks import check_integer, needs

__all__ = ["load_checkpoint", "save_checkpoint"]

_NAME = re.compile(r"step-(\d{12})")


def save_checkpoint(folder: str | Path, model: nn.Module, optimizer: torch.optim.Optimizer, step: int, *, keep: int = 2) -> Path:
    """Save parameters, buffers and the optimizer's state after a step; all ranks are to call it.

    The checkpoint is written beside the others and renamed when it is whole, so that a kill at any moment leaves the last one.
    Shards are saved as they are, each by the rank that has it.

    Args:
        folder: that all ranks see; made if need be.
        model: plain, or with parameters sharded by `fully_shard` or as DTensors in any other way; or a DistributedDataParallel.
        optimizer: its optimizer.
        step: how many steps were taken.
        keep: how many checkpoints stay.

    Returns:
        The checkpoint's own folder.

    Example:
        >>> import tempfile, torch, langevin as lv
        >>> model = torch.nn.Linear(2, 1)
        >>> opt = lv.optim.SGLD(model.parameters(), lr=0.1, num_data=100)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = lv.scale.save_checkpoint(folder, model, opt, step=7)
        ...     lv.scale.load_checkpoint(folder, model, opt)
        7
    """
    from torch.distributed.checkpoint.state_dict_saver import save

    check_integer("save_checkpoint", "step", step, 0)
    check_integer("save_checkpoint", "keep", keep, 1)
    root, is_first = Path(folder), not _ranks() or dist.get_rank() == 0
    draft, path = root / f".step-{step:012d}.draft", root / f"step-{step:012d}"

    def prepare() -> None:
        root.mkdir(parents=True, exist_ok=True)
        for left in root.glob(".step-*.draft"):  # of a life that was killed
            shutil.rmtree(left)

    def finish() -> None:
        if path.exists():  # of a life that got further than the checkpoint that this one began from
            shutil.rmtree(path)
        os.replace(draft, path)
        for old in sorted(_steps(root))[:-keep]:
            shutil.rmtree(root / f"step-{old:012d}")

    _on_first(is_first, prepare)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is unavailable|.*single process")
        save(_state(model, optimizer), checkpoint_id=draft, no_dist=not _ranks())
    _on_first(is_first, finish)
    return path


def load_checkpoint(folder: str | Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> int | None:
    """Load the last whole checkpoint of a folder into a model and its optimizer; all ranks are to call it.

    The number of ranks, and how parameters are sharded, may be others than when it was saved. torch reads a pickle here
    (the checkpoint's metadata): load your own files only.

    Args:
        folder: that was given to `save_checkpoint`.
        model: of the same parameters.
        optimizer: of the same kind, with the same groups.

    Returns:
        How many steps were taken, or None where there is no checkpoint: nothing has changed then.
    """
    from torch.distributed.checkpoint.state_dict import set_state_dict
    from torch.distributed.checkpoint.state_dict_loader import load

    root = Path(folder)
    if root.exists() and not root.is_dir():
        raise needs("load_checkpoint", "folder", "a folder", str(folder))
    step = max(_steps(root), default=None)
    if _ranks():  # one rank looks, so that all load the same
        found = [step]
        dist.broadcast_object_list(found, src=0)
        (step,) = found
    if step is None:
        return None
    state = _state(model, optimizer)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is unavailable|.*single process")
        load(state, checkpoint_id=root / f"step-{step:012d}", no_dist=not _ranks())
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    return step


def _ranks() -> bool:
    return dist.is_available() and dist.is_initialized()


def _state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    from torch.distributed.checkpoint.state_dict import get_state_dict

    found, state = get_state_dict(model, optimizer)
    return {"model": found, "optimizer": state}


def _steps(root: Path) -> list[int]:
    if not root.is_dir():
        return []
    return [int(match[1]) for path in root.iterdir() if (match := _NAME.fullmatch(path.name)) and path.is_dir()]


def _on_first(is_first: bool, work: Any) -> None:
    """Do something on one rank while the others wait; what goes wrong there is raised everywhere."""
    failure: list[Any] = [None]
    if is_first:
        try:
            work()
        except OSError as error:
            failure = [error]
    if _ranks():
        dist.broadcast_object_list(failure, src=0)
    if failure[0] is not None:
        raise failure[0]
