"""Memory of the bank: what `add`, reading and `predict` need beside the model, measured in a process of its own."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from bank_models import PRELUDE, SOURCE

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
