"""The steps of "How to add a sampler" in CONTRIBUTING.md, taken in a copy of the repository: they work, in four files at most."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SECTION = (ROOT / "CONTRIBUTING.md").read_text().partition("## How to add a sampler")[2].partition("\n## ")[0]
BLOCKS = {path: textwrap.dedent(code) for path, code in re.findall(r"```python\n +# (\S+)\n(.*?)```", SECTION, re.S)}
NEW = "amsgrad"
ALGORITHM = f"src/langevin/kernels/{NEW}.py"


def run_tests(copy, *arguments):
    """Run pytest in the copy, over the package that stands there."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    path = os.pathsep.join([str(copy / "src"), str(ROOT / "paper" / "src")])
    environment = {**os.environ, "PYTHONPATH": path, "XDG_CACHE_HOME": str(copy / "cache")}
    return subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    copy = tmp_path_factory.mktemp("copy")
    for part in ("src", "tests"):
        shutil.copytree(ROOT / part, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", copy)
    for path, code in BLOCKS.items():
        with (copy / path).open("a") as file:
            file.write("\n\n" + code)
    return copy


def test_a_sampler_takes_four_files_one_of_them_new():
    assert len(BLOCKS) == 4 == SECTION.count("\n   ```python")
    assert [path for path in BLOCKS if not (ROOT / path).exists()] == [ALGORITHM]
    assert not any(NEW in (ROOT / path).read_text().lower() for path in BLOCKS if path != ALGORITHM)


def test_the_new_sampler_passes_the_tests_of_the_table(copy):
    """Contract, plain loops, reductions and documentation; of the optimizer that it equals the sampler, fused or not."""
    chosen = f"in_the_table or {NEW} and (not optim or (functional_sampler or fused_engine) and None and dtype0)"
    places = ("tests/contract", "tests/law", "tests/optim/test_optimizer.py", ALGORITHM)
    found = run_tests(copy, "-k", chosen, *places)
    assert found.returncode == 0, found.stdout[-3000:] + found.stderr[-1000:]
    assert int(re.search(r"(\d+) passed", found.stdout)[1]) > 40


def test_a_mistake_in_it_is_seen(copy):
    path = copy / ALGORITHM
    right = path.read_text()
    path.write_text(right.replace("largest.maximum(square_average)", "square_average"))
    try:
        found = run_tests(copy, "-k", NEW, "tests/law/test_golden.py")
    finally:
        path.write_text(right)
    assert found.returncode == 1
    assert "2 failed" in found.stdout
