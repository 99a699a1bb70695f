"""docs/lint.md: its example runs, it names every finding, and its numbers are those that the benchmark printed."""

from __future__ import annotations

import re
from pathlib import Path

import torch
from lint_setups import CLEAN

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "lint.md").read_text()


def test_the_example_runs(capsys):
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        exec(code, {})
    assert capsys.readouterr().out.count("\n  -> ") == 3


def test_the_table_has_every_finding_of_the_source():
    source = "".join(path.read_text() for path in (ROOT / "src" / "langevin" / "nn" / "lint").glob("*.py") if path.stem != "report")
    named = set(re.findall(r'Finding\(\s*"([^"]+)"', source))
    assert len(named) > 15
    rows = [line.split("|")[1] for line in PAGE.splitlines() if line.startswith("| `")]
    notes = {"robust loss"}
    assert {name for row in rows for name in re.findall(r"`([^`]+)`", row)} == named - notes
    assert all(f"`{name}`" in PAGE for name in notes)


def test_the_page_counts_the_correct_set_ups():
    assert f"the {len(CLEAN)} correct set-ups" in PAGE
    assert f"{len(CLEAN) * 3 * 3 * 20:,} calls" in PAGE


def test_the_numbers_are_those_of_the_benchmark():
    printed = (ROOT / "docs" / "benchmarks" / "lint.txt").read_text().splitlines()[1:]
    numbers = {line[:34].strip(): line[34:].split() for line in printed}
    table = {line.split("`")[1]: line.split("|")[3:5] for line in PAGE.splitlines() if line.startswith("| `")}
    assert f"sd {numbers.pop('no mistake')[0]} and bias 0.07" in PAGE
    seen = 0
    for name, pair in numbers.items():
        row = next((table[key] for key in table if name.startswith(key)), None)
        if row is not None and name != "penalty of the prior's size":  # too small to be in the table
            assert all(number.replace("nan", "NaN") in cell for number, cell in zip(pair, row, strict=True)), name
            seen += 1
    assert seen == len(numbers) - 1
