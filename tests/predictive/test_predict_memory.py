"""Averages need memory for the result and a batch, not for draws x rows; measured in a process of its own."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peak memory is read from Linux's /proc")

MEASURE = """
import json, sys, warnings
import torch
from torch import nn
import langevin as lv
torch.set_num_threads(1)

def status(what):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(what)) / 1024

def extra(work):
    before = status("VmRSS")
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the high-water mark starts anew
    work()
    return status("VmHWM") - before

models = [nn.Linear(4, 10) for _ in range(40)]
posterior = lv.Posterior(models[0], "categorical", prior=lv.priors.gaussian(std=1.0), num_data=10)
positions = torch.stack([posterior.space.flatten(model) for model in models])
x, y = torch.zeros(60_000, 4).uniform_(), torch.zeros(60_000, dtype=torch.int64)
options = {"y": y, "batch_size": 4000}
lv.predict(posterior, positions, x[:8000], y=y[:8000], batch_size=4000)  # what is kept for later calls is there now
found = {
    "modules": extra(lambda: lv.predict(None, models, x, likelihood="categorical", **options)),
    "positions": extra(lambda: lv.predict(posterior, positions, x, **options)),
    "kept": extra(lambda: lv.predict(None, models, x, likelihood="categorical", per_draw=True, **options)),
}
print(json.dumps(found))
"""


def test_averages_do_not_hold_draws_times_rows():
    command = [sys.executable, "-W", "ignore", "-c", MEASURE]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    print(found)
    held = 40 * 60_000 * 10 * 4 / 2**20  # megabytes of all outputs: 92
    assert found["modules"] < held / 2
    assert found["positions"] < held / 2
    assert found["kept"] > held  # the measure sees what is held
