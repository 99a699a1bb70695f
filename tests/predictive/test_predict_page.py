"""docs/predict.md runs as it stands."""

import re
from pathlib import Path

import torch

import langevin as lv


def test_the_page_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (Path(__file__).parents[2] / "docs" / "predict.md").read_text(), re.S)
    assert len(blocks) == 2
    names = {}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        exec(blocks[0], names)
        said = capsys.readouterr().out
        assert len(names["bank"]) == 50
        assert names["found"].warnings == ()
        assert "ECE, 15 bins" in said
        assert lv.metrics(names["found"]).accuracy > 0.7
        exec(blocks[1], names)
    said = capsys.readouterr().out
    assert "NLL, mixture" in said
    assert "within 90 %" in said
    assert "R-hat" in said
    assert names["found"].lower.shape == (2, 200)


def test_the_times_are_those_that_the_benchmark_printed():
    docs = Path(__file__).parents[2] / "docs"
    printed = (docs / "benchmarks" / "predict.txt").read_text()
    ratios = [f"{float(ratio):.2f}" for ratio in re.findall(r"predict, .* (\S+) of bare", printed)]
    told = re.search(r"\*\*Time\*\*.*?\n\n", (docs / "predict.md").read_text(), re.DOTALL)
    assert re.findall(r"(\d\.\d\d) times", told.group()) == ratios
    assert len(ratios) == 4
