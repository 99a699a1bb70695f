"""Memory of the bank: what `add`, reading and `predict` allocate beside the model."""

import json
from pathlib import Path

import allocations
import numpy as np
import pytest
import torch
from allocations import peak_bytes
from bank_models import PRELUDE, seeded, two_ranks
from torch import nn

from langevin.nn.bank import SampleBank
from langevin.nn.predictive import predict

MB = 2**20


@pytest.mark.parametrize("kind", ["contiguous", "transposed"])
def test_add_takes_a_fifth_of_the_model_at_most_and_reading_one_copy(tmp_path, kind):
    model = nn.Linear(7000, 7000, device="meta").to_empty(device="cpu")  # 196 MB in one tensor, the hardest case
    for parameter in model.parameters():
        parameter.data.zero_()
    if kind == "transposed":
        model.weight.data = model.weight.data.t()
    size, bank = sum(p.nbytes for p in model.parameters()), SampleBank(tmp_path)
    found = {
        "add": peak_bytes(lambda: bank.add(model)) / size,
        "read": peak_bytes(lambda: bank.state_dict(0)) / size,
        "load": peak_bytes(lambda: bank.load(model, 0)) / size,
    }
    print(kind, found)
    assert found["add"] < 0.05
    assert 0.99 < found["read"] < 1.05
    assert 0.99 < found["load"] < 1.05


@pytest.fixture
def wide(tmp_path):
    """A model with a wide layer, its bank, and rows whose activations take 153 MB."""
    model = seeded(lambda: nn.Sequential(nn.Linear(4, 2000), nn.ReLU(), nn.Linear(2000, 1)))
    bank = SampleBank(tmp_path)
    bank.add(model)
    bank.add(model)
    return model, bank, torch.zeros(20_000, 4)


def test_predict_in_batches_takes_memory_for_a_batch_not_for_all_rows(wide):
    model, bank, x = wide
    predict(model, bank, x[:500], batch_size=100, likelihood="poisson")  # imports modules
    found = peak_bytes(lambda: predict(model, bank, x, batch_size=100, likelihood="poisson")) / MB
    whole = peak_bytes(lambda: predict(model, bank, x, batch_size=None, likelihood="poisson")) / MB
    print(found, whole)
    assert found < 10
    assert whole > 150  # the measure sees what is held


KINDS = {
    "tensor": lambda: torch.zeros(10 * MB, dtype=torch.uint8),
    "array": lambda: np.ones(10 * MB, "u1"),
    "bytes": lambda: bytearray(10 * MB),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_measure_counts_what_is_held_at_a_time(kind):
    make = KINDS[kind]
    kept = [make()]  # from before: not counted

    def work():
        kept.append(make())
        for _ in range(5):
            make()
        kept.clear()

    assert 20 <= peak_bytes(work) / MB < 21


SHARDED = (
    PRELUDE
    + Path(allocations.__file__).read_text()
    + """
import json, signal, time
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import distribute_tensor, Shard

folder, rank = sys.argv[2], int(sys.argv[3])
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
mesh = dist.init_device_mesh("cpu", (2,))

def sharded(rows, columns):
    with torch.device("meta"):
        model = nn.Linear(columns, rows)
    fully_shard(model, mesh=mesh)
    return model.to_empty(device="cpu").requires_grad_(False)

warm = sharded(6, 6)
for p in warm.parameters():
    p.to_local().fill_(1.0)
bank = bank.SampleBank
first = bank(folder + "/warm-sharded")
first.add(warm)
first.load(warm, 0)
model = sharded(7001, 7000)  # 196 MB in one tensor, of which this rank has half
for p in model.parameters():
    p.to_local().copy_(torch.arange(p.to_local().numel()).remainder_(1001).view(p.to_local().shape))
size, big = sum(p.nbytes for p in model.parameters()), bank(folder + "/big")
result = {"here": sum(p.to_local().nbytes for p in model.parameters()) / size}
result["add"] = peak_bytes(lambda: big.add(model)) / size
result["load"] = peak_bytes(lambda: big.load(model, 0)) / size
dist.barrier()

# the rank is killed while it sends: the writer's call ends, with an error, and the first draw stays
if rank == 1:
    print(json.dumps(result), flush=True)
    sends, real = [], dist.send
    def send(*arguments):
        sends.append(0)
        if len(sends) == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        real(*arguments)
    dist.send = send
start = time.monotonic()
try:
    big.add(model)
except Exception as error:
    result["error"], result["seconds"] = f"{type(error).__name__}: {error}", time.monotonic() - start
result["files"] = sorted(os.listdir(folder + "/big"))
again = bank.open(folder + "/big")
result["draws"] = [len(again), again.state_dict(0)["weight"].shape == (7001, 7000)]
print(json.dumps(result), flush=True)
os._exit(0)  # the other rank is gone
"""
)


@pytest.fixture(scope="module")
def sharded(tmp_path_factory):
    """What the two processes measured; the second one kills itself in the end."""
    done = two_ranks(SHARDED, tmp_path_factory.mktemp("sharded"))
    assert [code for code, _, _ in done] == [0, -9], done
    return [json.loads(output) for _, output, _ in done]


def test_add_and_load_of_a_sharded_model_take_no_second_copy_on_any_rank(sharded):
    print(sharded)
    for found in sharded:
        assert 0.49 < found["here"] < 0.51
        assert found["add"] < 0.1
        assert found["load"] < found["here"] + 0.1  # the rank's own part, before the model is touched


def test_when_a_rank_is_killed_while_it_sends_the_writer_says_so_and_the_bank_is_whole(sharded):
    writer, _ = sharded
    assert "SampleBank.add has lost rank 1 while weight was gathered: " in writer["error"]
    assert writer["seconds"] < 30
    assert writer["files"] == ["draw-00000000.safetensors", "lock", "manifest.jsonl"]
    assert writer["draws"] == [1, True]
