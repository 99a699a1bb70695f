"""Join a process group like `init_process_group`, and name the ranks that are missing."""

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

_POLL_SECONDS = 0.05


def join(*, timeout: float = 300.0, backend: str | None = None) -> tuple[int, int]:
    """Join the process group of `torchrun`; without torchrun there is one rank and no group.

    Args:
        timeout: seconds to wait for the other ranks, here and in every later operation (torch's
            default: 30 minutes).
        backend: of `torch.distributed`; by default nccl with a GPU, otherwise gloo.

    Returns:
        This rank and the number of ranks.

    Raises:
        TimeoutError: lists the missing ranks.

    Example:
        >>> import langevin as lv
        >>> lv.distributed.join()  # under torchrun --nproc-per-node 4: (0, 4) to (3, 4)
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
    # The agent of torchrun serves the store; otherwise rank 0 does, as for init_method="env://".
    serves = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    address = os.environ.get("MASTER_ADDR", "localhost")
    base = TCPStore(
        address, port, size, serves, patience, wait_for_workers=False, multi_tenant=True
    )
    store = PrefixStore(f"langevin/join/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", base)
    store.set(f"rank {rank}", "here")
    end = time.monotonic() + timeout
    while missing := [other for other in range(size) if not store.check([f"rank {other}"])]:
        if time.monotonic() > end:
            names = ", ".join(map(str, missing[:16])) + (", ..." if len(missing) > 16 else "")
            text = f"timed out after {timeout:g} s waiting for {len(missing)} of {size} ranks"
            raise TimeoutError(f"join: {text}: {names} (this is rank {rank})")
        time.sleep(_POLL_SECONDS)
    if backend is None:
        backend = "nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=patience)
    return rank, size


def leave() -> None:
    """Leave the process group after a barrier; a no-op without a group.

    Call it last, when no model or optimizer is in use. A sharded model that still exists when
    Python exits may abort the process in torch's threads ("terminate called without an active
    exception": one in ten runs of FSDP2 under gloo with torch 2.13, also without this library),
    which torchrun reports as a failure.
    """
    if dist.is_available() and dist.is_initialized():
        dist.barrier()
        gc.collect()
        dist.destroy_process_group()
