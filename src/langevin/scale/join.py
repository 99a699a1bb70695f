"""Ranks meet: what `torch.distributed.init_process_group` does, with the names of ranks that do not come."""

from __future__ import annotations

import gc
import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, TCPStore

from langevin.checks import check_number, needs

__all__ = ["join", "leave"]

_PERIOD = 0.05  # seconds between two looks for the others


def join(*, timeout: float = 300.0, backend: str | None = None) -> tuple[int, int]:
    """Join the process group that `torchrun` started this process for; without torchrun there is one rank, and nothing to do.

    Args:
        timeout: seconds to wait for the other ranks, now and in every later operation. torch's own default is half an hour.
        backend: of `torch.distributed`; None takes nccl where there is a GPU, gloo elsewhere.

    Returns:
        This rank, and how many there are.

    Raises:
        TimeoutError: with the ranks that did not come.

    Example:
        >>> import langevin as lv
        >>> lv.scale.join()  # under torchrun --nproc-per-node 4: (0, 4) to (3, 4)
        (0, 1)
    """
    check_number("join", "timeout", timeout, "> 0", lambda seconds: seconds > 0)
    if dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    if "RANK" not in os.environ:
        return 0, 1
    try:
        rank, size, port = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"))
    except (KeyError, ValueError) as error:
        condition = "RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT as torchrun sets them"
        raise needs("join", "environment", condition, str(error)) from error
    patience = timedelta(seconds=timeout)
    # Under torchrun its agent serves the store; elsewhere rank 0 does, as for init_method="env://".
    serves = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    address = os.environ.get("MASTER_ADDR", "localhost")
    base = TCPStore(address, port, size, is_master=serves, timeout=patience, wait_for_workers=False, multi_tenant=True)
    store = PrefixStore(f"langevin/join/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", base)
    store.set(f"rank {rank}", "here")
    end = time.monotonic() + timeout
    while missing := [other for other in range(size) if not store.check([f"rank {other}"])]:
        if time.monotonic() > end:
            names = ", ".join(map(str, missing[:16])) + (", ..." if len(missing) > 16 else "")
            absent = f"{len(missing)} of {size} ranks have not come: {names}"
            raise TimeoutError(f"join: after {timeout:g} s {absent} (this is rank {rank})")
        time.sleep(_PERIOD)
    if backend is None:
        backend = "nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=patience)
    return rank, size


def leave() -> None:
    """Leave the process group, all ranks together; without one there is nothing to do.

    Call it last, when no model or optimizer is in use any more: sharded models that are still there when Python ends may abort
    their process then, in torch's own threads ("terminate called without an active exception": seen in one of ten runs of FSDP2
    under gloo with torch 2.13, without this library too), which torchrun takes for a failure.
    """
    if dist.is_available() and dist.is_initialized():
        dist.barrier()
        gc.collect()
        dist.destroy_process_group()
