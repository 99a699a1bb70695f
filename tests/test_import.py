"""`import langevin` does not wait for what it may never need, and has every name all the same."""

from __future__ import annotations

import ast
import importlib
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import langevin as lv

HEAVY = {"arviz", "filelock", "matplotlib", "numcodecs", "pandas", "ray", "scipy", "sklearn", "sympy", "typer", "xarray"}
HEAVY |= {"torch._dynamo", "torch._inductor", "torch.distributed.tensor", "zarr"}


def run(script, **environment):
    """Run a script in a fresh process, and return what it prints."""
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env={**os.environ, **environment})
    assert found.returncode == 0, found.stderr
    return found.stdout


def loaded_by(statement):
    """Return the heavy modules that a statement loads beyond those that `import torch` loads."""
    script = f"import sys, torch; before = set(sys.modules)\n{statement}\nprint(*set(sys.modules) - before)"
    return HEAVY & set(run(script).split())


def test_every_name_is_there_without_compilers_and_pictures():
    assert loaded_by("import langevin as lv; [getattr(lv, name) for name in lv.__all__]") == set()


def test_what_is_heavy_would_be_seen():
    assert {"filelock"} <= loaded_by("import filelock")


def test_noise_loads_nothing_heavy():
    assert loaded_by("import langevin as lv; lv.random.normal(0, 0, 0, 1)") == set()


def test_torch_itself_is_not_loaded_before_it_is_needed():
    assert run("import langevin, sys; print(langevin.__version__, 'torch' in sys.modules)").split() == [lv.__version__, "False"]


def test_every_public_name_can_be_had():
    script = "import langevin as lv; print(all(hasattr(lv, name) for name in lv.__all__), set(lv.__all__) <= set(dir(lv)))"
    assert run(script).split() == ["True", "True"]
    assert run("from langevin import *; print(msgld.__name__, sample.__name__, optim.__name__, lint.__name__)").split() == [
        *("msgld", "sample", "langevin.optim", "lint")
    ]
    with pytest.raises(AttributeError, match="module 'langevin' has no attribute 'msgdl'"):
        lv.msgdl  # noqa: B018


def test_type_checkers_see_the_names_that_are_there():
    tree = ast.parse(Path(lv.__file__).with_suffix(".pyi").read_text())
    imported = [(node.module, alias.name) for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names]
    listed = next(node for node in tree.body if isinstance(node, ast.Assign)).value.elts
    names = {name.value for name in listed}
    assert names == {name for _, name in imported} - {"*"}
    assert sorted(names | set(lv.samplers.__all__)) == sorted(lv.__all__)
    for module, name in imported:
        if name != "*":
            assert getattr(lv, name) is getattr(importlib.import_module(module), name)


@pytest.mark.parametrize(("name", "file"), [("lint", "run"), ("llc", "estimate")])
def test_a_function_is_not_hidden_by_the_folder_of_its_name(name, file):
    script = f"import langevin.nn.{name}.{file}; print(type(langevin.{name}).__name__)"
    assert run(script).split() == ["function"]


def test_threads_may_ask_at_once():
    script = """
import concurrent.futures, langevin as lv
with concurrent.futures.ThreadPoolExecutor(8) as pool:
    names = ["sample", "optim", "random", "predict", "msgld", "sgld", "SampleBank", "lint"]
    found = list(pool.map(lambda name: getattr(lv, name), names))
    draws = list(pool.map(lambda seed: float(lv.random.normal(seed % 2, 0, 0, 1)), range(8)))
print(all(getattr(lv, name) is value for name, value in zip(names, found)), len(set(draws)))
"""
    assert run(script).split() == ["True", "2"]


def test_without_a_compiler_the_torch_engine_serves():
    script = """
import os, sys, torch
os.environ["CC"] = "no-such-compiler"
import langevin as lv
weight = torch.nn.Parameter(torch.ones(3))
weight.grad = torch.ones(3)
lv.optim.SGLD([weight], lr=0.1, num_data=10).step()
print(torch.isfinite(lv.random.normal(0, 0, 0, 5)).all().item(), bool((weight != 1).all()))
"""
    assert run(script).split() == ["True", "True"]


def test_what_was_loaded_late_is_pickled_by_its_name():
    assert pickle.loads(pickle.dumps(lv.msgld(0.1))) == lv.msgld(0.1)
    assert pickle.loads(pickle.dumps(lv.optim.MSGLD)) is lv.optim.MSGLD
