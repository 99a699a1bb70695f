"""The tutorials run with --quick, print what their pages claim, and their pages show the very script."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NAMES = sorted(path.stem.removeprefix("tutorial_") for path in (ROOT / "examples").glob("tutorial_*.py"))


def run(name, tmp_path):
    command = [sys.executable, "-W", "error", str(ROOT / "examples" / f"tutorial_{name}.py"), "--quick"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def numbers(text):
    return [float(number) for number in re.findall(r"-?\d+\.\d+", text)]


@pytest.mark.parametrize("name", NAMES)
def test_the_page_shows_the_script(name):
    page, path = (ROOT / "docs" / "tutorials" / f"{name}.md").read_text(), ROOT / "examples" / f"tutorial_{name}.py"
    (shown,) = re.findall(rf'^```python title="examples/tutorial_{name}\.py"\n(.*?)^```', page, re.S | re.M)
    assert shown == path.read_text()
    assert 40 <= len(shown.splitlines()) <= 90


def test_every_script_has_a_page_and_every_page_a_script():
    assert sorted(path.stem for path in (ROOT / "docs" / "tutorials").glob("*.md")) == NAMES
    assert len(NAMES) == 4


def test_the_posterior_agrees_with_the_grid(tmp_path):
    printed = run("posterior", tmp_path)
    for name in ("alpha", "beta", "half of them"):
        mean, sd, drawn_mean, drawn_sd = numbers(re.search(rf"^{name} .*±.*±.*$", printed, re.M)[0])
        assert abs(drawn_mean - mean) < 0.15 * sd  # about 1000 effective draws: a chance of 0.03
        assert abs(drawn_sd / sd - 1) < 0.15
    assert "WARNING" not in printed
    assert numbers(re.search(r"skewness of beta .*", printed)[0])[0] > 0.4


def test_minibatches_heat_and_the_remedies_help(tmp_path):
    printed = run("minibatch", tmp_path)
    ratios = {}
    for line in printed.splitlines():
        if match := re.match(r"(\S.*?)\s+sd ratio (.*)   temperature\s+(\S+)", line):
            ratios[match[1]] = numbers(match[2]), float(match[3])
    assert len(ratios) == 6
    mean = {name: sum(values) / 4 for name, (values, _) in ratios.items()}
    assert mean["SGLD, independent rows"] > mean["SGLD, reshuffled epochs"] > 1.08 > mean["SGLD, control variates"]
    assert ratios["SGLD, independent rows"][1] > 1.4
    for name in ("noise absorbed", "default call"):
        assert max(abs(ratio - 1) for ratio in ratios[name][0]) < 0.15
        assert abs(ratios[name][1] - 1) < 0.15


def test_the_average_of_the_draws_predicts_better_than_one_and_disagrees_far_out(tmp_path):
    printed = run("network", tmp_path)
    assert "lint: nothing" in printed
    adam, one, many = numbers(re.search(r"test NLL: .*", printed)[0])
    assert many < one < adam
    near, far = numbers(re.search(r"what the draws disagree on.*", printed)[0])
    assert far > 1.3 * near
    assert 0.1 < numbers(re.search(r"minibatch noise: \d.*", printed)[0])[0] < 1  # before the correction


def test_the_invariant_form_of_the_new_sampler_has_the_right_law_and_the_published_one_is_cold(tmp_path):
    printed = run("custom_sampler", tmp_path)
    rows = {name: numbers(re.search(rf"^{name} .*", printed, re.M)[0]) for name in ("published", "invariant", "SGLD")}
    assert max(rows["published"][:2]) < 0.8
    assert rows["published"][2] < 0.7
    assert max(abs(ratio - 1) for ratio in rows["invariant"][:2]) < 0.05
    assert rows["invariant"][3] < 1.05 < rows["SGLD"][3]
    assert "equal bit for bit: True" in printed
