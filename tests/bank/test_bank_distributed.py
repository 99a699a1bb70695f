"""The bank under DistributedDataParallel: two real processes on the loopback."""

import json

import pytest
import torch
from bank_models import PRELUDE, two_ranks
from torch import nn

from langevin.nn.bank import SampleBank

WORKER = (
    PRELUDE
    + """
import json, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from langevin.nn.bank import SampleBank

rank, folder = int(sys.argv[3]), sys.argv[2]
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
torch.manual_seed(0)
path, found = folder + "/bank", {}
make = lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
model = DistributedDataParallel(make())
data = torch.randn(2, 8, 3)  # the same on both ranks
bank = SampleBank(path, thin=2)
kept = []
for step in range(8):
    model.zero_grad()
    model(data[rank]).square().mean().backward()
    with torch.no_grad():
        for p in model.parameters():
            p -= 0.1 * p.grad
    kept.append(bank.add(model, step=step) is not None)
found["kept"], found["calls"], found["last"] = kept, bank.calls, model.module[0].weight.tolist()
found["rewind"] = bank.rewind(6)
found["update_bn"] = bank.update_bn(model, data)
found["close"] = bank.close()
dist.barrier()
found["files"] = sorted(os.listdir(path))
again = SampleBank.open(path)
found["steps"] = [draw.step for draw in again.draws]
found["mean"] = torch.stack([one(data[0]) for one in again.models(model)]).mean(0).tolist()
again.load(model, -1)
plain = make()
again.load(plain, -1)
found["loaded"] = torch.equal(plain[0].weight, model.module[0].weight)
dist.barrier()

synced = SampleBank(folder + "/synced")
layers = nn.SyncBatchNorm.convert_sync_batchnorm(make(), dist.group.WORLD)
synced.add(layers)  # on the CPU DDP itself refuses such layers
found["synced"] = synced.update_bn(layers, data)  # rank 1 is not there: this must not wait for it
dist.barrier()

def refused(work, *arguments):
    try:
        work(*arguments)
    except TypeError as error:
        return str(error)

from torch.distributed.fsdp import FullyShardedDataParallel
fsdp1 = FullyShardedDataParallel(make(), device_id=torch.device("cpu"))
found["fsdp1"] = [refused(SampleBank(folder + "/sharded").add, fsdp1), refused(again.load, fsdp1, 0), refused(again.models, fsdp1)]
found["sharded files"] = os.path.exists(folder + "/sharded")

from torch.distributed.optim import ZeroRedundancyOptimizer  # shards the optimizer's state, not the model
with SampleBank(folder + "/zero") as zero:
    steps = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)
    for _ in range(3):
        steps.zero_grad()
        model(data[rank]).square().mean().backward()
        steps.step()
        zero.add(model)
dist.barrier()
read = SampleBank.open(folder + "/zero")
found["zero"] = [len(read), torch.equal(read.state_dict(-1)["0.weight"], model.module[0].weight)]
dist.barrier()
print("FOUND", json.dumps(found))
leave()
"""
)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What the two processes found, and their folder."""
    folder = tmp_path_factory.mktemp("ddp")
    done = two_ranks(WORKER, folder)
    for code, _, errors in done:
        assert code == 0, errors
    return folder, [json.loads(output.split("FOUND")[1]) for _, output, _ in done]


def test_rank_0_writes_and_the_other_ranks_do_nothing(ranks):
    _, (first, second) = ranks
    assert first["last"] == second["last"]  # the ranks did train together
    assert (first["kept"], first["calls"]) == ([False, True] * 4, 8)
    assert (second["kept"], second["calls"]) == ([False] * 8, 0)
    assert (first["update_bn"], second["update_bn"]) == (3, None)
    assert second["rewind"] is second["close"] is None
    assert first["files"] == second["files"] == [*(f"draw-0000000{k}.1.safetensors" for k in range(3)), "lock", "manifest.jsonl"]


def test_every_rank_reads_the_same_draws(ranks):
    _, (first, second) = ranks
    assert first["steps"] == second["steps"] == [1, 3, 5]
    assert first["mean"] == second["mean"]
    assert first["loaded"]
    assert second["loaded"]


def test_names_have_no_module_and_load_into_a_plain_model(ranks):
    folder, _ = ranks
    with torch.random.fork_rng(devices=[]):
        model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    bank = SampleBank.open(folder / "bank")
    assert list(bank.state_dict(0)) == list(model.state_dict())
    model.load_state_dict(bank.state_dict(0))
    assert model[1].num_batches_tracked == 2


def test_update_bn_of_synchronised_layers_does_not_wait_for_other_ranks(ranks):
    _, (first, second) = ranks
    assert (first["synced"], second["synced"]) == (1, None)


def test_fsdp1_is_refused_on_every_rank_with_advice(ranks):
    for found in ranks[1]:
        for name, text in zip(("add", "load", "models"), found["fsdp1"], strict=True):
            assert f"SampleBank.{name}(model=...) needs whole tensors or DTensors, got a FullyShardedDataParallel" in text
            assert "fully_shard" in text
        assert not found["sharded files"]


def test_a_zero_redundancy_optimizer_needs_nothing(ranks):
    for found in ranks[1]:
        assert found["zero"] == [3, True]
