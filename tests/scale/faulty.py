"""A rank of a run that goes wrong, started with what torchrun would set: `faulty.py fault folder`."""

from __future__ import annotations

import os
import resource
import signal
import sys
from pathlib import Path

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

import langevin as lv


def train(model, opt, steps):
    for _ in range(steps):
        opt.zero_grad()
        model(torch.ones(4, 3)).square().mean().backward()
        opt.step()


def main():
    fault, folder = sys.argv[1], Path(sys.argv[2])
    torch.set_num_threads(1)
    rank, size = lv.distributed.join(timeout=3 if fault == "absent" else 60)
    model = nn.Linear(3, 300)
    fully_shard(model)
    opt = lv.optim.MSGLD(model.parameters(), lr=1e-3, num_data=10)
    train(model, opt, 2)
    lv.distributed.save_checkpoint(folder, model, opt, 2)
    if fault == "killed" and rank == size - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "memory" and rank == size - 1:
        resource.setrlimit(resource.RLIMIT_AS, (2**20, 2**20))  # no more than there is
    if fault == "memory":
        torch.empty(2**28).zero_() if rank == size - 1 else None
    if fault == "disk" and rank == size - 1:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))  # a write beyond fails, as it does on a full disk
    train(model, opt, 1)
    lv.distributed.save_checkpoint(folder, model, opt, 3)
    print("done", flush=True)


if __name__ == "__main__":
    main()
