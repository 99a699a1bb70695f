"""Ranks of one model: time and bytes of a step, memory of a rank, and what follows for more ranks than there are here.

    python benchmarks/scale.py | tee docs/benchmarks/scale.txt

Time is that of whole training steps on 1 and 2 processes with one thread each, samplers and SGD in turn in one run. Bytes are those
that went over the loopback of a network of its own (`unshare --net`, as root), so that nobody else's are counted.
"""

from __future__ import annotations

import datetime
import itertools
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import langevin as lv

SIZES = (784, 1024, 1024, 10)
BATCH, STEPS, ROUNDS = 512, 10, 7


def network():
    layers = [part for a, b in itertools.pairwise(SIZES) for part in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


def broadcast_sgld(params, lr):
    """SGLD that draws its noise on rank 0 and sends it to the others: what a design without addresses has to do."""
    params = list(params)

    @torch.no_grad()
    def step():
        for p in params:
            noise = torch.randn_like(p)
            if dist.get_world_size() > 1:
                dist.broadcast(noise, 0)
            p.sub_(p.grad, alpha=lr).add_(noise, alpha=1e-4)

    return step


def optimizers(params):
    params = list(params)
    return {
        "SGD, momentum": torch.optim.SGD(params, lr=1e-3, momentum=0.9, fused=True).step,
        "MSGLD": lv.optim.MSGLD(params, lr=1e-3, num_data=60_000).step,
        "MSGLD, invariant": lv.optim.MSGLD(params, lr=1e-3, num_data=60_000, invariant=True, chain=1).step,
        "SGLD, noise sent": broadcast_sgld(params, 1e-3),
    }


def loopback_bytes():
    for line in Path("/proc/net/dev").read_text().splitlines():
        if line.strip().startswith("lo:"):
            return int(line.split()[1])
    return 0


def timed(model, step, batch):
    """Return the seconds and the bytes of a training step."""
    x, y = torch.ones(batch, SIZES[0]), torch.zeros(batch, dtype=torch.long)
    dist.barrier()
    begin, sent = time.perf_counter(), loopback_bytes()
    for _ in range(STEPS):
        model.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        step()
    dist.barrier()
    return (time.perf_counter() - begin) / STEPS, (loopback_bytes() - sent) / STEPS


def measure_steps():
    rank, size = lv.distributed.join()
    model = DistributedDataParallel(network())
    contenders, found = optimizers(model.parameters()), {}
    for kind, batch in (("strong", BATCH // size), ("weak", BATCH)):
        for step in contenders.values():
            timed(model, step, batch)
        rounds = [{name: timed(model, step, batch) for name, step in contenders.items()} for _ in range(ROUNDS)]
        found[kind] = {name: [[one[name][k] for one in rounds] for k in (0, 1)] for name in contenders}
    return rank, found


def resident():
    """Return the bytes of memory that this process has now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def measure_memory(sampler):
    """Return the bytes of parameters, gradients and state on this rank, and how much the process has grown after three steps."""
    rank, size = lv.distributed.join()
    x = torch.ones(8, 2048)
    start = resident()
    with torch.device("meta"):  # so that no rank ever has the whole model
        model = nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(6)))
    if size > 1:
        for layer in (*model, model):
            fully_shard(layer)
    model.to_empty(device="cpu")
    for p in model.parameters():
        nn.init.constant_(p, 1e-3)
    if sampler:
        opt = lv.optim.MSGLD(model.parameters(), lr=1e-6, num_data=60_000, invariant=True)
    else:
        opt = torch.optim.SGD(model.parameters(), lr=1e-6, momentum=0.9)
    for _ in range(3):
        opt.zero_grad()
        model(x).square().mean().backward()
        opt.step()
    held = [t for p in model.parameters() for t in (p, p.grad, *(v for v in opt.state[p].values() if isinstance(v, torch.Tensor)))]
    local = [t.to_local() if hasattr(t, "to_local") else t for t in held]
    return rank, [sum(t.numel() * t.element_size() for t in local), resident() - start]


def run(what, ranks):
    """Run this script on ranks, in a network of its own where that is allowed."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), __file__, what]
    alone = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"] if os.geteuid() == 0 else []
    printed = subprocess.run(
        [*alone, *command],
        env={**os.environ, "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"},
        stdout=subprocess.PIPE,
        text=True,
    )
    if printed.returncode:
        raise SystemExit(f"{what} on {ranks} ranks failed")
    return json.loads(next(line for line in printed.stdout.splitlines() if line.startswith("{"))), bool(alone)


def report():
    numel = sum(a * b + b for a, b in itertools.pairwise(SIZES))
    megabytes = 4 * numel / 1e6
    print(f"ranks of one model, {datetime.date.today()}, {platform.processor() or platform.machine()}, {os.cpu_count()} cores, "
          f"torch {torch.__version__}, gloo, one thread a rank")  # fmt: skip
    print(f"{'-'.join(map(str, SIZES))}, {numel:,} parameters, {megabytes:.1f} MB, batch {BATCH}; medians of {ROUNDS} rounds\n")
    (one, _), (two, is_alone) = run("steps", 1), run("steps", 2)
    for kind, meaning in (("strong", f"{BATCH} rows in all"), ("weak", f"{BATCH} rows a rank")):
        print(f"{kind} scaling ({meaning}): ms per training step, range, and the time of SGD on as many ranks = 1")
        for name in one[kind]:
            cells = []
            for found in (one, two):
                seconds, base = found[kind][name][0], statistics.median(found[kind]["SGD, momentum"][0])
                middle = statistics.median(seconds)
                cells.append(f"{1e3 * middle:7.1f} ({1e3 * min(seconds):.0f}-{1e3 * max(seconds):.0f}) {middle / base:5.2f}")
            ratio = statistics.median(one[kind][name][0]) / statistics.median(two[kind][name][0])
            print(f"  {name:18s} 1 rank {cells[0]}   2 ranks {cells[1]}   speed-up {ratio * (2 if kind == 'weak' else 1):.2f}")
        print()
    where = "a network of its own" if is_alone else "the machine's loopback, on which others may send too"
    print(f"bytes per step over {where}, 2 ranks, MB (both directions count once each):")
    for name in two["strong"]:
        print(f"  {name:18s} {statistics.median(two['strong'][name][1]) / 1e6:7.2f}")
    print(f"  gradients alone, ring all-reduce: 2 ranks x 2 (w - 1) / w x {megabytes:.1f} MB = {2 * megabytes:.2f} MB\n")
    print("model of the bytes that a rank sends per step, in units of the parameters' bytes (w ranks, ring):")
    print(f"  {'ranks':>6s} {'DDP':>8s} {'with noise sent':>16s} {'FSDP2':>8s} {'with noise sent':>16s}")
    for ranks in (2, 8, 64, 1024):
        share = (ranks - 1) / ranks
        print(f"  {ranks:6d} {2 * share:8.3f} {3 * share:16.3f} {3 * share:8.3f} {4 * share:16.3f}")
    print("  DDP: reduce-scatter and all-gather of gradients; FSDP2: two gathers of parameters, one reduce-scatter of gradients;")
    print("  noise by address adds nothing, noise that is drawn in one place and sent adds the parameters' bytes once more.\n")
    print("memory of a rank, 6 layers of 2048 x 2048, MB: parameters, gradients and state; growth of the process after three steps")
    for ranks, where in ((1, "one process"), (2, "FSDP2, 2 ranks")):
        for what, name in (("sgd", "SGD, momentum"), ("sampler", "MSGLD, invariant")):
            held, grown = run(what, ranks)[0]["found"]
            print(f"  {where:16s} {name:18s} {held / 1e6:7.1f} {grown / 1e6:9.1f}")
    print("  FSDP2 under gloo keeps buffers of its own, as the rows of SGD show; what is sharded is the first column.")


def main():
    if len(sys.argv) == 1:
        report()
        return
    torch.set_num_threads(1)
    if sys.argv[1] == "steps":
        rank, found = measure_steps()
    else:
        rank, numbers = measure_memory(sys.argv[1] == "sampler")
        found = {"found": numbers}
    if rank == 0:
        print(json.dumps(found), flush=True)
    lv.distributed.leave()


if __name__ == "__main__":
    main()
