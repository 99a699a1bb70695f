"""Run by torchrun on any number of ranks: each function compares a sharded model with a plain one, and returns what it saw."""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / "optim"), str(TESTS / "law")]
from catalogue import OPTIMIZERS, build, data, network  # noqa: E402

import langevin as lv  # noqa: E402

SHAPES = [(7, 5), (5,), (3, 2, 4), (1,), (9, 3)]  # no multiples of the number of ranks
ROWS = 12


def whole(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def placed(shape, mesh, placements, dtype=torch.float32, last=0):
    value = torch.linspace(-1, 1, torch.Size(shape).numel() + last).view(-1)[last:].view(shape).to(dtype)
    return nn.Parameter(distribute_tensor(value, mesh, placements, src_data_rank=None))


def path(name, parameters, steps=4, **settings):
    """Take steps with gradients that are a function of the parameters, element by element; return where they end."""
    optimizer = build(name, parameters, **settings)
    for _ in range(steps):
        for p in parameters:
            p.grad = p.detach().cos()
        optimizer.step()
    return [whole(p.detach()) for p in parameters], optimizer


def placements_of(mesh):
    """Return ways to shard a tensor over a mesh, which depend on its number of dimensions."""
    if mesh.ndim == 1:
        return [[Shard(0)], [Shard(1)], [Replicate()], [Shard(2)]]
    from torch.distributed.tensor.placement_types import _StridedShard

    pairs = [[Shard(0), Shard(0)], [Shard(0), Shard(1)], [Shard(1), Shard(0)], [Replicate(), Shard(0)], [Shard(1), Replicate()]]
    return [*pairs, [_StridedShard(0, split_factor=2), Shard(0)], [Shard(2), Shard(0)]]


def meshes():
    size = dist.get_world_size()
    found = [init_device_mesh("cpu", (size,))]
    return [*found, init_device_mesh("cpu", (2, size // 2))] if size == 4 else found


def same_bits():
    """All samplers, engines and ways to shard: bits of the unsharded run."""
    wrong, count = [], 0
    for name in OPTIMIZERS:
        for dtype in (torch.float32, torch.float64, torch.bfloat16) if name in ("SGLD", "MSGLD, invariant") else (torch.float32,):
            for fused in (None, False):
                plain = [nn.Parameter(torch.linspace(-1, 1, torch.Size(s).numel()).view(s).to(dtype)) for s in SHAPES]
                expected, reference = path(name, plain, fused=fused)
                for mesh in meshes():
                    for placements in placements_of(mesh):
                        fitting = [max(getattr(p, "dim", 0) for p in placements) < len(s) for s in SHAPES]
                        sharded = [
                            placed(s, mesh, placements if fits else [Replicate()] * mesh.ndim, dtype)
                            for s, fits in zip(SHAPES, fitting, strict=True)
                        ]
                        found, optimizer = path(name, sharded, fused=fused)
                        states = [
                            torch.equal(whole(optimizer.state[p][key]), reference.state[q][key])
                            for p, q in zip(sharded, plain, strict=True)
                            for key, value in reference.state[q].items()
                            if isinstance(value, torch.Tensor)
                        ]
                        count += 1
                        if not all(map(torch.equal, found, expected)) or not all(states):
                            wrong.append([name, str(dtype), fused, str(placements)])
    return {"compared": count, "wrong": wrong}


def rows(x, y):
    """This rank's rows."""
    return x[dist.get_rank() :: dist.get_world_size()], y[dist.get_rank() :: dist.get_world_size()]


def train(model, optimizer, x, y, steps=6, sync=None):
    for _ in range(steps):
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        if sync is not None:
            sync()
        optimizer.step()
    return torch.cat([whole(p.detach()).flatten() for p in model.parameters()])


def between_ranks(caught):
    """Return the warnings of noise that another rank draws too."""
    texts = [str(warning.message) for warning in caught if issubclass(warning.category, lv.optim.SharedNoiseWarning)]
    return [text for text in texts if "as on rank" in text]


def fsdp(**policy):
    x, y = data(rows=ROWS)
    off = {}
    for name in ("MSGLD, invariant", "ASGLD"):
        model, twin = network(), network()
        for layer in (model[0], model[2], model):
            fully_shard(layer, mesh=init_device_mesh("cpu", (dist.get_world_size(),)), **policy)
        alone = train(twin, build(name, twin.parameters()), x, y)
        found = train(model, build(name, model.parameters()), *rows(x, y))
        off[name] = float((found - alone).abs().max())
    return off


def offload():
    return fsdp(offload_policy=CPUOffloadPolicy(pin_memory=False))


def ddp():
    x, y = data(rows=ROWS)
    model, twin = network(), network()
    alone = train(twin, build("SGHMC", twin.parameters()), x, y)
    wrapped = DistributedDataParallel(model)
    found = train(wrapped, build("SGHMC", wrapped.parameters()), *rows(x, y))
    everyone = [torch.empty_like(found) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, found)
    return {"off": float((found - alone).abs().max()), "equal": all(torch.equal(found, other) for other in everyone)}


def zero_redundancy(*arguments, **settings):
    from torch.distributed.optim import ZeroRedundancyOptimizer  # which warns of torch.jit where it is imported

    return ZeroRedundancyOptimizer(*arguments, **settings)


def zero():
    """Given gradients, so that nothing is reduced: bits of one optimizer in one process."""
    x, y = data(rows=ROWS)
    model, twin = network(), network()
    alone = train(twin, build("MSGLD, invariant", twin.parameters()), x, y)
    lv.optim.fix_addresses(model.parameters())
    cls, settings = OPTIMIZERS["MSGLD, invariant"]
    common = {"lr": 0.02, "num_data": 50, "prior": lv.priors.gaussian(std=0.7), "seed": 5, **settings}
    optimizer = zero_redundancy(model.parameters(), optimizer_class=cls, **common)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = train(model, optimizer, x, y)
    return {"equal": torch.equal(found, alone), "warned": between_ranks(said)}


def zero_without_addresses():
    x, y = data(rows=ROWS)
    model = network()
    cls, settings = OPTIMIZERS["SGLD"]
    optimizer = zero_redundancy(model.parameters(), optimizer_class=cls, lr=0.02, num_data=50, **settings)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        train(model, optimizer, x, y)
    return between_ranks(said)


def even_network():
    """Make a network whose hidden layer can be cut in two: torch's own tensor parallelism needs that."""
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))
    weights = lv.random.normal(1, lv.random.stream(lv.random.Purpose.INIT), 0, sum(p.numel() for p in model.parameters()))
    nn.utils.vector_to_parameters(0.3 * weights, model.parameters())
    return model


def tensor_parallel():
    x, y = data(rows=ROWS)
    size = dist.get_world_size()
    mesh = init_device_mesh("cpu", (size // 2, 2), mesh_dim_names=("dp", "tp")) if size == 4 else init_device_mesh("cpu", (size,))
    model, twin = even_network(), even_network()
    alone = train(twin, build("SGHMC", twin.parameters()), x, y)
    along = mesh["tp"] if mesh.ndim == 2 else mesh
    parallelize_module(model, along, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    if mesh.ndim == 2:
        fully_shard(model, mesh=mesh["dp"])
        share = dist.get_rank() // 2
        x, y = x[share::2], y[share::2]
    optimizer = build("SGHMC", model.parameters())
    found = train(model, optimizer, x, y)
    return {"off": float((found - alone).abs().max()), "placements": [str(p.placements) for p in model.parameters()]}


def corrected():
    """Micro-batches of a sharded model: the variance that is followed is that of the unsharded one."""
    x, y = data(rows=ROWS)
    model, twin = network(), network()
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    states = []
    for net, noise in ((model, "corrected"), (twin, "corrected-diagonal")):  # shards are corrected by elements
        optimizer = build("MSGLD, invariant", net.parameters(), noise=noise)
        for _ in range(3):
            optimizer.zero_grad()
            for part in range(3):
                ((net(x[part::3]) - y[part::3]).square().mean() / 3).backward()
                optimizer.observe()
            optimizer.step()
        states.append([whole(optimizer.state[p]["noise_variance"]) for p in net.parameters()])
        optimizer.heat()
        _ = optimizer.description
    return max(float(((a - b).abs() / b.abs().clamp(min=1e-6)).max()) for a, b in zip(*states, strict=True))


def disagree():
    """Each setting that differs on the last rank, and what every rank hears at the first step."""
    mesh, last = init_device_mesh("cpu", (dist.get_world_size(),)), dist.get_rank() == dist.get_world_size() - 1
    heard = {}
    for name, (good, bad) in {"seed": (0, 1), "num_data": (50, 60), "lr": (0.1, 0.2), "temperature": (1.0, 0.5)}.items():
        parameter = placed((4, 3), mesh, [Shard(0)])
        settings = {"lr": 0.1, "num_data": 50, name: bad if last else good}
        optimizer = lv.optim.SGLD([parameter], **settings)
        parameter.grad = torch.zeros_like(parameter)
        before = whole(parameter.detach()).clone()
        try:
            optimizer.step()
        except lv.optim.RanksDisagreeError as error:
            heard[name] = [str(error), torch.equal(whole(parameter.detach()), before)]
    return heard


def versions():
    """Another version of the library on the last rank."""
    optimizer = lv.optim.SGLD(network().parameters(), lr=0.1, num_data=50)
    real = importlib.metadata.version
    if dist.get_rank() == dist.get_world_size() - 1:
        importlib.metadata.version = lambda name: "99.0" if name == "langevin" else real(name)
    try:
        lv.optim.check_ranks(optimizer)
    except lv.optim.RanksDisagreeError as error:
        return str(error)
    finally:
        importlib.metadata.version = real


def replicas_apart():
    """Replicas under DDP with different seeds: each is told, at the third step; and before the first, where it asks."""
    x, y = data(rows=ROWS)
    wrapped = DistributedDataParallel(network())
    optimizer = lv.optim.SGLD(wrapped.parameters(), lr=0.02, num_data=50, seed=dist.get_rank())
    heard = []
    for check in (lambda: lv.optim.check_ranks(optimizer), lambda: train(wrapped, optimizer, *rows(x, y))):
        try:
            check()
        except lv.optim.RanksDisagreeError as error:
            heard.append([str(error), optimizer.param_groups[0]["step"]])
    return heard


def independent():
    """Independent chains on each rank, some of them with noise in common; and those that are right, which hear nothing."""
    said = {}
    for kind, chain in (("apart", dist.get_rank()), ("together", 0)):
        x, y = data(rows=4 * ROWS)
        model = network()
        optimizer = lv.optim.SGLD(model.parameters(), lr=0.02, num_data=50, chain=chain)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(4):
                train(model, optimizer, *rows(x, y), steps=1)
                dist.barrier()
        said[kind] = between_ranks(caught)
    return said


def torchs_own_noise():
    """What torch's generator gives the shards of one parameter, seeded alike as FSDP2 asks for: pytorch#196562."""
    torch.manual_seed(0)
    theirs = torch.randn_like(placed((8, 6), init_device_mesh("cpu", (dist.get_world_size(),)), [Shard(0)]).detach().to_local())
    parameter = nn.Parameter(distribute_tensor(torch.zeros(8, 6), init_device_mesh("cpu", (dist.get_world_size(),)), [Shard(0)]))
    parameter.grad = torch.zeros_like(parameter)
    lv.optim.SGLD([parameter], lr=0.5, num_data=1).step()
    ours = parameter.detach().to_local()
    found = []
    for noise in (theirs, ours):
        everyone = [torch.empty(8 // dist.get_world_size(), 6) for _ in range(dist.get_world_size())]
        dist.all_gather(everyone, noise.contiguous())
        found.append(bool(torch.equal(everyone[0], everyone[1])))
    return {"torch repeats": found[0], "ours repeats": found[1]}


def batches():
    mine = [lv.distributed.RankBatches(30, 12, seed=3).rows(step).tolist() for step in range(5)]
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    alone = [lv.distributed.RankBatches(30, 12, seed=3, rank=0, num_ranks=1).rows(step).tolist() for step in range(5)]
    return [sorted(row for part in everyone for row in part[step]) == sorted(alone[step]) for step in range(5)]


ALWAYS = ("same_bits", "fsdp", "disagree", "batches")
BATTERY = {
    1: ("fsdp", "batches"),
    2: (*ALWAYS, "offload", "ddp", "zero", "zero_without_addresses", "tensor_parallel", "corrected", "versions", "replicas_apart",
        "independent", "torchs_own_noise"),
    3: (*ALWAYS, "ddp", "zero"),
    4: (*ALWAYS, "tensor_parallel"),
}  # fmt: skip


def main():
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", category=lv.optim.SharedNoiseWarning)  # twins in one process draw the same noise on purpose
    warnings.filterwarnings("ignore", message="DTensor random operators")
    rank, size = lv.distributed.join(timeout=60)
    results = {name: globals()[name]() for name in BATTERY[size]}
    everyone = [None] * size
    dist.all_gather_object(everyone, results)
    if rank == 0:
        Path(sys.argv[1]).write_text(json.dumps(everyone))
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # threads of many groups may outlive the interpreter, and abort it: seen once in ten runs, without our code in it


if __name__ == "__main__":
    main()
