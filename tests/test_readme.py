"""README and front page of the site: every snippet runs, the table names commands and pages that exist, all fits on a screen."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import nn

import langevin as lv

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text()
SHORT = {  # what would take too long here; each must be there to be replaced
    "LangevinRegressor()": "LangevinRegressor((4,), chains=2, adam_steps=20, burn_in=300, num_steps=50, n_jobs=1)",
    "data=(x, y))": "data=(x, y), num_draws=50)",
}


def blocks(page):
    return re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.S | re.M)


@pytest.fixture
def names(tmp_path, monkeypatch):
    """Return what the examples take for granted: networks, loaders and data."""
    monkeypatch.chdir(tmp_path)
    x = lv.random.normal(0, 0, 0, 600).reshape(200, 3)
    y = x.sum(1) + 0.1 * lv.random.normal(0, 0, 1, 200)
    labels = (x[:, 0] > 0).long()
    with torch.random.fork_rng():
        net = nn.Linear(3, 2)
    return {
        "net": net, "loss_fn": nn.functional.cross_entropy, "batch": (x, labels), "loader": [(x, labels)] * 200, "x_new": x[:5],
        "x": x, "y": y, "X": x.double().numpy(), "X_new": x[:5].double().numpy(),
    }  # fmt: skip


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_every_snippet_runs_in_order(page, names, capsys):
    """In order: a later one may go on with names of an earlier one, as a reader does."""
    code = blocks(page)
    assert len(code) >= 3
    assert len(code) == len(re.findall(r"^```python", (ROOT / page).read_text(), re.M))
    whole = "\n".join(code)
    for long, short in SHORT.items():
        assert whole.count(long) == 1, long
        code = [block.replace(long, short) for block in code]
    y = names["y"]
    for block in code:
        names["y"] = y.double().numpy() if "X" in block else y  # the loop of another block had labels of that name
        exec(compile(block, page, "exec"), names)
    capsys.readouterr()
    assert names["prediction"].probabilities.shape == (5, 2)
    assert names["samples"].draws.isfinite().all()
    assert names["std"].shape == (5,)
    assert (names["std"] > 0).all()


def test_it_is_one_screen_with_one_picture_and_two_commands():
    assert len(TEXT.splitlines()) <= 90
    assert len(blocks("README.md")) == 3
    assert TEXT.count("![") == 1
    assert re.findall(r"^make (\w+)", TEXT, re.M) == ["demo", "test"]


def test_links_lead_to_files():
    for link in re.findall(r"\]\(([^)\s]+)\)", TEXT):
        assert (ROOT / link.partition("#")[0]).is_file(), link


def rows():
    table = TEXT.partition("## Measured")[2]
    return [line for line in table.splitlines() if line.startswith("| ") and not line.startswith(("| what", "| ---"))]


def test_every_measured_fact_has_a_command_that_exists_and_a_page():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    assert len(rows()) > 5
    for row in rows():
        last = row.split("|")[-2]
        (command,) = re.findall(r"`([^`]+)`", last)
        words = command.split()
        known = {"make": targets, "langevin": {"doctor"}, "langevin-paper": {"check", "demo", "run", "report"}}
        assert words[1] in known[words[0]], command
        assert re.search(r"\]\(docs/[^)]+\)", last), row


def test_the_caption_has_the_numbers_that_the_picture_was_made_with():
    caption = TEXT.partition("three times.")[2].partition("(`python tools")[0]
    said = [float(number) for number in re.findall(r"(\.\d+|\d+\.\d+) ±", caption)]
    made = [float(number) for number in re.findall(r"([\d.]+) ±", (ROOT / "docs/assets/law.txt").read_text())]
    assert len(said) == 3
    for one, other in zip(said, made, strict=True):
        assert one == pytest.approx(other, abs=0.006)


def test_the_table_of_steps_names_what_exists():
    """It need not name everything; `SAMPLERS` does."""
    section = (ROOT / "docs/which_sampler.md").read_text().partition("## The steps")[2].partition("\n## ")[0]
    cells = [line.split("|")[1:3] for line in section.splitlines() if line.startswith("| `")]
    samplers, optimizers = (re.findall(r"`(\w+)", "".join(column)) for column in zip(*cells, strict=True))
    assert len(set(samplers)) > 5
    assert len(set(optimizers)) > 3
    assert [name for name in samplers if name not in lv.samplers.__all__] == []
    assert [name for name in optimizers if name not in lv.optim.__all__] == []
