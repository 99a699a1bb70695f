"""Ray: a real local cluster, whose workers are killed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from spread_targets import BLOCKS, INIT, SAMPLER, acting, arming, half_square

import langevin as lv
from langevin.distributed import Ray, WorkerError

ray = pytest.importorskip("ray", reason="needs the extra ray")
QUIET = lv.targets.energy(half_square, dim=2)


@pytest.fixture(scope="module", autouse=True)
def cluster():
    """Start a cluster of two workers, once for all tests here."""
    settings = {"num_cpus": 2, "include_dashboard": False, "object_store_memory": 80 * 2**20, "log_to_driver": False}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))  # of its workers, which import what is imported here
        patch.delenv("RAY_ADDRESS", raising=False)
        ray.init(address="local", logging_level="ERROR", **settings)
        yield
        ray.shutdown()


@pytest.fixture(scope="module")
def expected():
    return lv.sample(QUIET, sampler=SAMPLER, init=INIT, engine="local", **BLOCKS)


def run(target=QUIET, engine="ray", **settings):
    return lv.sample(target, sampler=SAMPLER, init=INIT, engine=engine, **{**BLOCKS, **settings})


def test_the_draws_are_those_of_a_local_run(tmp_path, expected):
    found = run(out=tmp_path / "run")
    assert torch.equal(found.draws, expected.draws)
    assert torch.equal(lv.load_samples(tmp_path / "run").draws, expected.draws)
    assert str(found.trust) == str(expected.trust)
    assert ray.is_initialized()  # what was there before is left as it was


def test_a_killed_worker_costs_its_stretch_only(tmp_path, expected):
    """A process is killed from outside while it works; its block goes on in another one, from the last checkpoint."""
    killed, steps = [], []

    def kill(done, total):
        steps.append(done)
        if not killed and done > 0.3 * total:
            killed.append(max(tmp_path.glob("*.pid"), key=lambda file: file.stat().st_mtime))
            os.kill(int(killed[0].stem), signal.SIGKILL)

    found = run(acting("mark", tmp_path), Ray(seconds=0.05), out=tmp_path / "run", progress=kill)
    assert torch.equal(found.draws, expected.draws)
    assert killed
    assert steps == sorted(steps)
    assert steps[-1] == 3 * 600


@pytest.mark.slow  # its workers start anew
def test_a_worker_with_another_version_is_told_apart(tmp_path):
    shutil.copytree(Path(lv.__file__).parent, tmp_path / "langevin", ignore=shutil.ignore_patterns("__pycache__"))
    top = tmp_path / "langevin" / "__init__.py"
    top.write_text(top.read_text().replace(f'__version__ = "{lv.__version__}"', '__version__ = "0.0.7"'))
    with pytest.raises(WorkerError, match=f"another version on a worker: langevin 0.0.7 there, {lv.__version__} here"):
        run(engine=Ray(runtime_env={"env_vars": {"PYTHONPATH": str(tmp_path)}}))


def test_cells_of_an_experiment(tmp_path):
    """One of them loses its worker, another raises: both are recorded, and the rest goes on."""
    from langevin_paper.record import Records
    from langevin_paper.runner import missing_cells, run_cells_on
    from toys import DEADLY, TOY

    records = Records(tmp_path)
    cells = [*missing_cells([TOY], "quick", records, seeds=[0]), *missing_cells([DEADLY], "quick", records, seeds=[0])]
    made = {(record.experiment, record.method): record for record in run_cells_on(Ray(max_retries=0), cells, records)}
    records.close()
    assert len(made) == 5
    assert made["toy", "good"].results["value"] == 10.0
    assert made["toy", "slow"].status == made["deadly", "good"].status == "done"
    assert "ZeroDivisionError: on purpose" in made["toy", "bad"].error
    assert "its worker was lost" in made["deadly", "slow"].error
    assert not missing_cells([TOY], "quick", Records(tmp_path), methods=["good", "slow"], seeds=[0])


def test_a_worker_that_always_dies_ends_the_run_and_loses_nothing(tmp_path, expected):
    target = acting("die", tmp_path)
    words = r"(?s)the block of chains \d+ to \d+: its worker was lost: it died, .* 1 times for one task \(max_retries=0\)"
    with pytest.raises(WorkerError, match=words + r".*langevin\.resume\(") as caught:
        run(target, Ray(seconds=1e-9, max_retries=0), out=tmp_path / "run", progress=arming(tmp_path))
    assert str(tmp_path / "run") in str(caught.value)
    assert any(chain.steps > 0 for chain in lv.load_samples(tmp_path / "run").status)  # which block came first is chance
    (tmp_path / "armed").unlink()
    assert torch.equal(lv.resume(tmp_path / "run", target, sampler=SAMPLER, progress=False).draws, expected.draws)


@pytest.mark.slow
def test_ctrl_c_ends_the_tasks(tmp_path, expected):
    def interrupt(done, total):
        if len(list(tmp_path.glob("run/blocks/*/state.safetensors"))) == 3:  # every block has begun
            signal.raise_signal(signal.SIGINT)

    with pytest.warns(UserWarning, match="interrupted at step"):
        found = run(engine=Ray(seconds=1e-9), out=tmp_path / "run", progress=interrupt)
    assert torch.equal(found.draws, expected.draws[:, : found.draws.shape[1]])
    assert found.draws.shape[1] > 0
    assert torch.equal(lv.resume(tmp_path / "run", QUIET, sampler=SAMPLER, engine="ray", progress=False).draws, expected.draws)


SCRIPT = """
import langevin as lv
from spread_targets import *
lv.sample(acting("mark", {folder!r}), sampler=SAMPLER, init=INIT, engine=lv.distributed.Ray(seconds=0.05), out={out!r}, **BLOCKS)
"""


@pytest.mark.slow
def test_a_killed_driver_with_a_cluster_of_its_own(tmp_path, expected):
    out, environment = tmp_path / "run", {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    code = SCRIPT.format(folder=str(tmp_path), out=str(out))
    process = subprocess.Popen([sys.executable, "-W", "ignore", "-c", code], env=environment)
    while not (out / "blocks" / "2" / "state.safetensors").exists():
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.wait()
    assert lv.load_samples(out).status[0].steps < 600
    assert torch.equal(
        lv.resume(out, acting("mark", tmp_path), sampler=SAMPLER, engine="ray", progress=False).draws, expected.draws
    )
