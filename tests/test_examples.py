"""The examples run as they stand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("name", ["mnist_mlp.py", "one_line.py"])
def test_examples_stay_short(name):
    assert len((ROOT / "examples" / name).read_text().splitlines()) <= 60
