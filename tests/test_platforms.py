"""Other platforms, simulated: no fork, no user ids, no flags of POSIX, no C compiler, no OpenMP, paths of Windows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import PureWindowsPath

import pytest

from langevin.compiler import build
from langevin.storage import layout

pytestmark = pytest.mark.core

BARE = """
import os, sys, warnings
import torch  # which goes by sys.platform
for name in ("fork", "forkpty", "register_at_fork", "getuid", "geteuid", "sched_getaffinity", "statvfs", "ST_NOEXEC",
             "O_DIRECTORY", "O_NOFOLLOW", "O_NONBLOCK", "fchmod"):
    if hasattr(os, name):
        delattr(os, name)
sys.modules["pwd"] = None  # cannot be imported
os.environ["CC"] = "no-such-compiler"
warnings.simplefilter("ignore")
import langevin as lv
"""
USE = """
settings = dict(init=torch.zeros(4, 2), num_steps=200, progress=False)
target, kernel = lv.targets.gaussian([[1.0, 0.5], [0.5, 1.0]]), lv.msgld(0.1, invariant=True)
memory = lv.sample(target, sampler=kernel, **settings)
disk = lv.sample(target, sampler=kernel, out=out, **settings)
assert torch.equal(memory.draws, disk.draws)
assert torch.equal(lv.resume(out, target, sampler=kernel).draws, disk.draws)
assert torch.equal(lv.sample(target, sampler=kernel, engine="local", block_size=4, **settings).draws, memory.draws)
torch.manual_seed(0)
model = torch.nn.Linear(2, 1)
optimizer = lv.optim.MSGLD(model.parameters(), lr=1e-3, num_data=10, prior=lv.priors.gaussian(std=1.0), seed=0)
bank = lv.SampleBank(out + "-bank")
for _ in range(3):
    optimizer.zero_grad()
    model(torch.ones(10, 2)).square().mean().backward()
    optimizer.step()
    bank.add(model)
assert len(lv.SampleBank.open(out + "-bank")) == 3
import langevin.cli.doctor as doctor
found = {each.name: each.state for check in (doctor.versions, doctor.engines, doctor.threads, doctor.caches) for each in check()}
assert found["C compiler"] == "BROKEN", found  # CC names one that does not exist
print(float(memory.draws.sum()))
"""


def run(script, tmp_path, **environment):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(tmp_path), **environment}
    script = f"out = {str(tmp_path / 'run')!r}\n{script}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return float(done.stdout.splitlines()[-1])


def test_without_fork_user_ids_posix_flags_and_a_compiler_the_numbers_are_the_same(tmp_path):
    (tmp_path / "bare").mkdir()
    (tmp_path / "here").mkdir()
    whole = USE.replace('assert found["C compiler"]', 'assert True or found["C compiler"]')
    here = run("import warnings; warnings.simplefilter('ignore')\nimport torch, langevin as lv\n" + whole, tmp_path / "here")
    assert run(BARE + USE, tmp_path / "bare") == pytest.approx(here, rel=1e-4)


def test_without_locks_a_run_on_disk_is_refused_and_one_in_memory_works(tmp_path):
    script = """
import sys
sys.modules["fcntl"] = None
import torch, langevin as lv
settings = dict(sampler=lv.msgld(0.1, invariant=True), init=torch.zeros(4, 1), num_steps=400, compile=False, progress=False)
try:
    lv.sample(lv.targets.gaussian([[1.0]]), out=out, **settings)
except OSError as error:
    assert "fcntl is unavailable" in str(error) and "lock" in str(error), error
else:
    raise AssertionError("written without a lock")
print(len(lv.sample(lv.targets.gaussian([[1.0]]), **settings).draws))
"""
    assert run("import warnings; warnings.simplefilter('ignore')\n" + script, tmp_path) == 4


@pytest.mark.parametrize("system", ["Darwin", "Windows"])
def test_without_openmp_or_unix_a_missing_compiler_is_reported_with_its_remedy(monkeypatch, system):
    monkeypatch.setattr("platform.system", lambda: system)
    monkeypatch.setenv("CC", "no-such-compiler")
    assert "no-such-compiler" in build.missing()


def test_files_of_a_run_have_names_that_windows_allows():
    arrays = layout.array_specs("float64", 4, (2,))
    found = layout.Layout(arrays, 10, 5)
    names = [found.file(PureWindowsPath("C:/draws/run.zarr"), name, 1) for name in arrays]
    for path in names:
        assert path.drive == "C:"
        assert not set('<>:"|?*') & set("".join(path.parts[1:]))
