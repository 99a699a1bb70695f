"""One model on several ranks, sharded by FSDP2: the posterior of a small network, with draws and checkpoints that survive a kill.

    torchrun --nproc-per-node 2 --max-restarts 3 examples/ranks.py out

A rank that dies takes the others along; torchrun starts all of them again, and the run goes on from its last checkpoint, step by
step as if nothing had happened. Started again by hand, on any number of ranks that divides the batch, it goes on too.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

import langevin as lv
from langevin.random import Purpose, normal, stream

ROWS, BATCH = 1200, 120


def make_data() -> tuple[torch.Tensor, torch.Tensor]:
    """Return rows of a noisy curve, the same on every rank: whatever is random has an address."""
    x, noise = (normal(7, stream(Purpose.DATA), step, ROWS)[:, None] for step in range(2))
    return x, x.sin() + 0.3 * noise


def make_model() -> nn.Module:
    """Return the network, with weights that are the same on every rank."""
    model = nn.Sequential(nn.Linear(1, 33), nn.Tanh(), nn.Linear(33, 33), nn.Tanh(), nn.Linear(33, 1))
    weights = normal(7, stream(Purpose.INIT), 0, sum(p.numel() for p in model.parameters()))
    nn.utils.vector_to_parameters(0.3 * weights, model.parameters())
    return model


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path, help="folder for checkpoints and draws, which all ranks see")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--every", type=int, default=100, help="steps between two checkpoints")
    asked = parser.parse_args()

    rank, size = lv.distributed.join(timeout=120)
    x, y = make_data()
    model = make_model()
    if size > 1:
        for layer in (*(layer for layer in model if isinstance(layer, nn.Linear)), model):
            fully_shard(layer)
    opt = lv.optim.MSGLD(
        model.parameters(), lr=1e-3, num_data=ROWS, bias_factor=1.0, invariant=True, prior=lv.priors.gaussian(std=1.0), seed=1
    )
    done = lv.distributed.load_checkpoint(asked.out / "checkpoints", model, opt) or 0
    likelihood = lv.likelihoods.gaussian(0.3)
    bank = lv.SampleBank(asked.out / "draws", thin=10, resume=True)
    bank.rewind(done)  # draws of steps after the checkpoint are made again
    for step, rows in enumerate(lv.distributed.RankBatches(ROWS, BATCH, first_step=done, num_steps=asked.steps - done), done + 1):
        opt.zero_grad()
        likelihood.loss(model(x[rows]), y[rows]).backward()
        opt.step()
        bank.add(model, step=step)  # gathered piece by piece, written by rank 0
        if step % asked.every == 0 or step == asked.steps:
            lv.distributed.save_checkpoint(asked.out / "checkpoints", model, opt, step)
            if rank == 0:
                print(f"step {step} of {asked.steps}", flush=True)
    bank.close()
    if rank == 0:
        print(f"{len(bank)} draws in {asked.out / 'draws'}; lv.predict(make_model(), bank, x, likelihood=likelihood) averages them")


if __name__ == "__main__":
    main()
    lv.distributed.leave()  # here, where the model is gone: torch's threads may abort at exit otherwise
