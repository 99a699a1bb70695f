"""Caches that were filled ahead: a later process compiles nothing in its first step."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import langevin as lv
from langevin.optim import caches, named

FILL = """
from langevin.optim import caches, named
named.__all__ = ["SGHMC", "MSGLD"]
print(*(what for what, _ in caches.fill_caches()), sep="\\n")
"""
USE = """
import sys, torch
import langevin as lv
p = torch.nn.Parameter(torch.zeros(100, 3))
p.grad = torch.ones(100, 3)
for kind in sys.argv[1:]:
    getattr(lv.optim, kind)([p], lr=1e-3, num_data=50, prior=lv.priors.gaussian(std=0.1), seed=3, fused=True).step()
lv.random.normal(1, 2, range(3), 50)
"""


def programs(folder):
    return {path.relative_to(folder) for path in folder.rglob("*.so")}


def run(script, folder, *arguments):
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder)}
    command = [sys.executable, "-c", textwrap.dedent(script), *arguments]
    return subprocess.run(command, check=True, timeout=300, env=environment, capture_output=True, text=True).stdout


def test_after_filling_the_first_step_compiles_nothing(tmp_path):
    said = run(FILL, tmp_path).splitlines()
    assert {"minibatches", "SGHMC", "SGHMC, Gaussian prior", "MSGLD, invariant, Gaussian prior"} <= set(said)
    filled = programs(tmp_path)
    run(USE, tmp_path, "SGHMC", "MSGLD")
    assert programs(tmp_path) == filled
    run(USE, tmp_path, "SGLD")  # which was not filled
    assert len(programs(tmp_path)) == len(filled) + 1


def test_every_named_optimizer_is_filled():
    assert {what.partition(",")[0] for what, _ in caches._works()} >= set(named.__all__)


def test_without_a_compiler_there_is_nothing_to_fill(monkeypatch):
    monkeypatch.setattr(caches, "has_fused_engine", lambda: False)
    assert lv.optim.fill_caches() == []
