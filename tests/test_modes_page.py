"""docs/modes.md runs as it stands."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[1] / "docs" / "modes.md"


@pytest.mark.filterwarnings("ignore::langevin.TrustWarning")  # short runs
def test_the_page_runs_and_finds_all_modes():
    (block,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    names = {}
    exec(block, names)
    target = names["target"]
    for name in ("samples", "cycles"):
        assert len(target.nearest_mode(names[name].draws).unique()) == 3
    assert float((names["weights"] * (names["flat"].draws[..., 0] > 1)).sum()) == pytest.approx(0.5, abs=0.15)
