"""Memory of the bank: what `add`, reading and `predict` need beside the model, measured in a process of its own."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from bank_models import PRELUDE, SOURCE, two_ranks

pytestmark = pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peak memory is read from Linux's /proc")

MEASURE = (
    PRELUDE
    + """
import json
from langevin.predictive import predict
bank = bank.SampleBank
average = {"likelihood": "poisson"}
torch.set_num_threads(1)

def status(what):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(what)) * 1024

def extra(work):
    before = status("VmRSS")
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the high-water mark starts anew
    work()
    return status("VmHWM") - before

folder, kind = sys.argv[2], sys.argv[3]
warm = bank(folder + "/warm")
warm.add(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)))
warm.load(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), 0)
predict(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), warm, torch.zeros(4, 4), **average)
result = {}
if kind == "rows":
    model = nn.Sequential(nn.Linear(4, 2000), nn.ReLU(), nn.Linear(2000, 1))
    few = bank(folder + "/few")
    few.add(model)
    few.add(model)
    x = torch.zeros(20_000, 4)
    predict(model, few, x[:500], batch_size=100, **average)
    result["rows"] = extra(lambda: predict(model, few, x, batch_size=100, **average)) / 2**20
else:
    model = nn.Linear(7000, 7000)  # 196 MB in one tensor, the hardest case
    if kind == "transposed":
        model.weight.data = model.weight.data.t()
    size = sum(p.nbytes for p in model.parameters())
    big = bank(folder + "/big")
    result["add"] = extra(lambda: big.add(model)) / size
    result["read"] = extra(lambda: big.state_dict(0)) / size
    result["load"] = extra(lambda: big.load(model, 0)) / size
print(json.dumps(result))
"""
)


def measured(tmp_path, kind):
    command = [sys.executable, "-c", MEASURE, SOURCE, str(tmp_path), kind]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.mark.parametrize("kind", ["contiguous", "transposed"])
def test_add_takes_a_fifth_of_the_model_at_most_and_reading_one_copy(tmp_path, kind):
    found = measured(tmp_path, kind)
    print(kind, found)
    assert found["add"] < 0.2
    assert found["read"] < 1.2
    assert found["load"] < 1.2


def test_predict_in_batches_takes_memory_for_a_batch_not_for_all_rows(tmp_path):
    found = measured(tmp_path, "rows")
    print(found)
    assert found["rows"] < 30  # megabytes; unbatched it would be 305


SHARDED = (
    MEASURE.split("folder, kind")[0]
    + """
import signal, time
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
first = bank(folder + "/warm-sharded")
first.add(warm)
first.load(warm, 0)
model = sharded(7001, 7000)  # 196 MB in one tensor, of which this rank has half
for p in model.parameters():
    p.to_local().copy_(torch.arange(p.to_local().numel()).remainder_(1001).view(p.to_local().shape))
size, big = sum(p.nbytes for p in model.parameters()), bank(folder + "/big")
result = {"here": sum(p.to_local().nbytes for p in model.parameters()) / size}
result["add"] = extra(lambda: big.add(model)) / size
result["load"] = extra(lambda: big.load(model, 0)) / size
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
again = bank(folder + "/big")
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
