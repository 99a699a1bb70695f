"""The examples run as they stand."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import langevin as lv

ROOT = Path(__file__).parents[1]


def run(name, *arguments, cwd, **environment):
    """Run an example in a folder of its own and return what it printed."""
    command = [sys.executable, "-W", "error", str(ROOT / "examples" / name), *arguments]
    done = subprocess.run(command, cwd=cwd, env={**os.environ, **environment}, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_spread_of_the_one_line_example_is_large_where_there_are_no_data(tmp_path):
    printed = run("one_line.py", cwd=tmp_path)
    spread = {float(place): float(sd) for place, sd in re.findall(r"^\s*(-?\d\.\d\d)\s+\S+\s+\S+\s+(\S+)", printed, re.M)}
    assert spread[0.0] > 3 * max(sd for place, sd in spread.items() if place != 0.0)


@pytest.mark.slow
@pytest.mark.skipif("LANGEVIN_DATA" not in os.environ, reason="needs MNIST in the folder LANGEVIN_DATA")
def test_the_mnist_example_averages_better_than_one_draw(tmp_path):
    printed = run("mnist_mlp.py", "--epochs", "3", cwd=tmp_path)
    one, many = (float(nll) for nll in re.findall(r"NLL (\S+)", printed))
    assert many < one


def test_the_average_of_sampled_adapters_is_better_than_one_draw_and_than_the_base(tmp_path):
    printed = run("lora.py", "--quick", cwd=tmp_path, OMP_NUM_THREADS="1", TMPDIR=str(tmp_path))
    assert printed.startswith("group 0: 8,192 elements, step 400")  # before it lint would speak
    bits = {name.strip(): float(value) for name, value in re.findall(r"^(\D.*?)\s{2,}(\d\.\d{3})\s+\d\.\d{3}$", printed, re.M)}
    assert bits.keys() == {
        "base", "MAP, all steps", "MAP, stopped by validation", "one draw, mean of all", "average of 13 draws"
    }  # fmt: skip
    # It is never above the mean of the draws (-log is convex); it is as low as that only where all draws are the same.
    assert bits["average of 13 draws"] < bits["one draw, mean of all"] - 0.03
    assert bits["average of 13 draws"] < bits["base"] - 0.15
    (bank,) = {path.parent for path in tmp_path.glob("*/draw-*.safetensors")}
    elements = {parameter.numel() for parameter in lv.SampleBank.open(bank).state_dict(0).values()}
    assert max(elements) == 4 * 256  # rank 4, width 256: no weight of the base is kept


def test_the_trainer_of_transformers_samples_the_adapters_of_peft(tmp_path):
    for name in ("transformers", "peft", "accelerate"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"needs {name}, of the extra huggingface")
    command = [sys.executable, "-W", "ignore", str(ROOT / "examples" / "lora_peft.py"), "--quick"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "gradients are clipped" not in done.stderr
    nll = {
        name: float(value) for name, value in re.findall(r"^(the last draw|average).*? (\d\.\d{3})   \d\.\d{3}$", done.stdout, re.M)
    }
    assert nll["average"] < nll["the last draw"] < 1.2
    (bank,) = {path.parent for path in tmp_path.glob("*/draw-*.safetensors")}
    state = lv.SampleBank.open(bank).state_dict(0)
    assert all("lora_" in name or "classifier" in name for name in state)  # no weight of the base is kept


@pytest.fixture(scope="module")
def lora():
    spec = importlib.util.spec_from_file_location("lora", ROOT / "examples" / "lora.py")
    module = sys.modules["lora"] = importlib.util.module_from_spec(spec)  # where dataclasses look
    spec.loader.exec_module(module)
    yield module
    del sys.modules["lora"]


@pytest.fixture
def forked():
    """Let torch initialise layers, which the example overwrites, without moving the global generator."""
    with torch.random.fork_rng():
        yield


def numbers(step, *shape):
    return lv.random.normal(5, 0, step, torch.Size(shape).numel()).view(shape)


def test_an_adapted_layer_is_the_layer_with_the_product_added_to_its_weights(lora, forked):
    base = nn.Linear(5, 3)
    adapted, x = lora.LoRALinear(base, rank=2, alpha=6.0), numbers(0, 7, 5)
    assert torch.equal(adapted(x), base(x))
    down, up = numbers(1, 2, 5), numbers(2, 3, 2)
    adapted.adapter.load_state_dict({"down": down, "up": up})
    expected = nn.functional.linear(x, base.weight + 3 * up @ down, base.bias)
    assert torch.allclose(adapted(x), expected, atol=1e-5)


def test_the_transformer_does_not_look_ahead(lora, forked):
    model = lora.Transformer(lora.Config(vocabulary=9, context=8), seed=0)
    x = torch.arange(8)[None] % 9
    y = x.clone()
    y[0, 5] = 8
    difference = (model(x) - model(y)).detach().abs().amax((0, 1))
    assert difference[:5].max() == 0
    assert difference[5:].min() > 0


@pytest.mark.filterwarnings("ignore::langevin.optim.SharedNoiseWarning")  # twins draw the same noise on purpose
def test_adapters_in_bfloat16_lose_no_steps_below_their_spacing(lora, forked):
    """200 steps of a fiftieth of the spacing, all in one direction: with copies every element moves, without none."""
    moved = {}
    for master in (True, False):
        adapters = lora.add_adapters(lora.Transformer(lora.Config(vocabulary=9, layers=1), seed=0), seed=0).bfloat16()
        down = adapters[0]["down"]
        start = down.detach().clone()
        optimizer = lv.optim.MSGLD(adapters.parameters(), lr=1e-5, num_data=10**9, invariant=True, temperature=0.0, master=master)
        for _ in range(200):
            down.grad = torch.ones_like(down)
            optimizer.step()
        large = start.abs() > 0.125  # where the spacing is at least 2**-10; with a momentum of the same size they go 0.004
        moved[master] = float((down != start)[large].float().mean())
    assert moved == {True: 1.0, False: 0.0}


@pytest.mark.parametrize("name", ["mnist_mlp.py", "one_line.py"])
def test_examples_stay_short(name):
    assert len((ROOT / "examples" / name).read_text().splitlines()) <= 60
