"""The README's examples run, and its table names samplers that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.functional import softplus

import langevin as lv

TEXT = (Path(__file__).parents[1] / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.S)


@pytest.fixture
def names(tmp_path, monkeypatch):
    """Return what the examples take for granted: a model, a loader, data and starting points."""
    monkeypatch.chdir(tmp_path)
    with torch.random.fork_rng():
        model = nn.Linear(3, 2)
    x = lv.noise.normal(0, 0, 0, 600).reshape(200, 3)
    labels = (x[:, 0] > 0).long()
    return {
        "lv": lv, "softplus": softplus, "model": model, "loss_fn": nn.functional.cross_entropy, "x_test": x[:5],
        "loader": [(x, labels)] * 200, "x": x, "y": labels.float(), "net": model, "init": torch.zeros(2, 3),
    }  # fmt: skip


@pytest.mark.parametrize("number", range(4))
def test_the_examples_run(number, names, capsys):
    code = BLOCKS[number].replace("30_000", "300").replace("10_000", "100").replace("20_000", "300").replace("1_000", "100")
    if number == 2:  # it goes on with the model of the block before
        exec(BLOCKS[1].partition("samples =")[0], names)
        code = code.replace("batch_size=100)  # as above", "batch_size=100, num_draws=50)  # as above")
    exec(code, names)
    capsys.readouterr()
    if number == 0:
        assert names["prediction"].probabilities.shape == (5, 2)
    else:
        assert names["samples"].draws.isfinite().all()


def test_there_are_four_examples_and_two_commands():
    assert len(BLOCKS) == 4
    assert "make demo" in TEXT
    assert "make test" in TEXT


def rows_of_the_sampler_table():
    section = TEXT.partition("## Samplers")[2].partition("\n## ")[0]
    return [line.split("|")[1:3] for line in section.splitlines() if line.startswith("| `")]


def test_the_sampler_table_names_what_exists():
    """It need not name everything; `SAMPLERS` does."""
    samplers, optimizers = (re.findall(r"`(\w+)", "".join(cells)) for cells in zip(*rows_of_the_sampler_table(), strict=True))
    assert len(set(samplers)) > 5
    assert len(set(optimizers)) > 3
    assert [name for name in samplers if name not in lv.samplers.__all__] == []
    assert [name for name in optimizers if name not in lv.optim.__all__] == []
