"""A run in blocks of chains: its draws are those of the chains run together, in one store, whoever is killed or interrupted."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import zarr
from spread_targets import BLOCKS, INIT, SAMPLER, SETTINGS

import langevin as lv
from langevin.distributed import Local
from langevin.sampling.distributed import chains_per_block
from langevin.storage.zarr import DiskStore

GAUSSIAN = lv.targets.gaussian([[1.0, 0.9], [0.9, 1.0]])
ARRAYS = ("draws", "energy", "gradient_norm", "step_size")


def run(target=GAUSSIAN, **settings):
    return lv.sample(target, sampler=SAMPLER, init=INIT, **{**BLOCKS, "engine": "local", **settings})


def assert_same(found, expected):
    assert found.status == expected.status
    for name in ARRAYS:
        assert torch.equal(getattr(found, name).nan_to_num(7.5), getattr(expected, name).nan_to_num(7.5)), name


@pytest.fixture(scope="module")
def together():
    return lv.sample(GAUSSIAN, sampler=SAMPLER, init=INIT, **SETTINGS)


@pytest.mark.parametrize("block_size", [1, 4, 10, 64, None])
def test_blocks_give_what_all_chains_together_give(block_size, together):
    """On a target that computes every chain by itself, bit for bit; 4 leaves two places without a chain."""
    found = run(block_size=block_size)
    assert_same(found, together)
    assert str(found.trust) == str(together.trust)
    assert found.description == together.description


def test_a_store_is_one_zarr_of_all_chains(tmp_path, together):
    found = run(out=tmp_path / "run.zarr")
    assert_same(found, together)
    assert_same(lv.load_samples(tmp_path / "run.zarr"), together)
    assert str(lv.load_samples(tmp_path / "run.zarr").trust) == str(together.trust)
    draws = zarr.open(tmp_path / "run.zarr", mode="r")["draws"]
    assert draws.shape == (501, 10, 2)
    assert draws.chunks[1:] == (4, 2)
    assert torch.equal(torch.from_numpy(draws[:]).transpose(0, 1), together.draws)
    assert DiskStore.open(tmp_path / "run.zarr").manifest["block_size"] == 4


@pytest.mark.parametrize("seconds", [1e-9, 1e9])
def test_bits_do_not_depend_on_how_long_a_task_takes(seconds, together):
    assert_same(run(engine=Local(seconds=seconds)), together)


@pytest.mark.parametrize("disk", [False, True])
def test_chains_that_stop_are_those_of_the_run(tmp_path, disk):
    """The four of the first block stop soon, so that it ends before the others; chain 5 stops in a block that goes on."""

    def energy(theta):
        return torch.where(theta[0] < -10.0, torch.nan, 0.001) * (theta * theta).sum() / torch.where(theta[0] > 10.0, 0.0, 1.0)

    target, settings = lv.targets.energy(energy, dim=2), {**SETTINGS, "num_steps": 400}
    init = INIT.clone()
    init[:, 0] = torch.tensor([9.99, 9.99, 9.98, 9.98, 0, -9.99, 0, 0, 0, 0])
    expected = lv.sample(target, sampler=lv.sgld(0.003), init=init, **settings)
    settings |= {"engine": "local", "block_size": 4, "out": tmp_path / "run" if disk else None}
    found = lv.sample(target, sampler=lv.sgld(0.003), init=init, **settings)
    assert [status.chain for status in found.status if not status.is_healthy] == [0, 1, 2, 3, 5]
    assert max(status.steps for status in found.status[:4]) < 256  # within the first steps, so that the block ends there
    assert_same(found, expected)
    assert found.trust.warnings == expected.trust.warnings
    if disk:
        assert_same(lv.load_samples(tmp_path / "run"), expected)


@pytest.mark.parametrize("keep", ["moments", torch.sum])
def test_other_things_are_kept_as_well(tmp_path, keep):
    settings = {**SETTINGS, "keep": keep}
    expected = lv.sample(GAUSSIAN, sampler=SAMPLER, init=INIT, **settings)
    found = run(keep=keep, out=tmp_path / "run")
    assert str(found.trust) == str(expected.trust)
    if keep == "moments":
        assert torch.equal(found.moments.num, expected.moments.num)
        for name in ("mean", "covariance"):  # sums over draws are rounded otherwise for another number of chains
            torch.testing.assert_close(getattr(found.moments, name), getattr(expected.moments, name), rtol=1e-12, atol=1e-12)
    else:
        assert_same(found, expected)


def test_what_is_learnt_is_learnt_by_all_chains_before(capsys):
    expected = lv.sample(GAUSSIAN, chains=8, num_draws=100, compile=False)
    found = lv.sample(GAUSSIAN, chains=8, num_draws=100, compile=False, engine="local", block_size=3)
    assert_same(found, expected)
    capsys.readouterr()


def test_minibatches_and_a_noise_that_is_absorbed(capsys):
    x = lv.random.normal(0, 0, 0, 400).double().reshape(200, 2)
    model = lv.Model(
        lambda p, x, y: torch.distributions.Normal((x * p["b"]).sum(-1), 1.0).log_prob(y), parameters={"b": lv.real(2)}
    )
    settings = {"data": (x, x.sum(-1)), "batch_size": 20, "chains": 6, "num_draws": 50, "compile": False}
    expected = lv.sample(model, **settings)
    found = lv.sample(model, engine="local", block_size=4, **settings)
    torch.testing.assert_close(found.draws, expected.draws, rtol=1e-6, atol=1e-6)
    capsys.readouterr()


def test_a_run_that_grows_can_be_read(tmp_path, together):
    """What is there is what all blocks have: the first draws of the whole run."""
    seen = []

    def look(done, total):
        if (tmp_path / "run" / "zarr.json").exists():
            seen.append(lv.load_samples(tmp_path / "run"))

    run(out=tmp_path / "run", engine=Local(seconds=1e-9), progress=look)
    lengths = [max(status.draws for status in samples.status) for samples in seen]
    assert lengths == sorted(lengths)
    assert not seen[0].heat  # sums over other steps in each block would tell no temperature
    assert seen[-1].heat
    assert lengths[0] == 0
    assert 0 < lengths[len(lengths) // 2] < lengths[-1] == 501
    middle = seen[len(lengths) // 2].draws
    assert torch.equal(middle, together.draws[:, : middle.shape[1]])


def test_ctrl_c_returns_what_all_blocks_have_and_resume_goes_on(tmp_path, together):
    def interrupt(done, total):
        if done > 0.6 * total:
            signal.raise_signal(signal.SIGINT)

    with pytest.warns(UserWarning, match="interrupted at step"):
        found = run(out=tmp_path / "run", engine=Local(seconds=1e-9), progress=interrupt)
    draws = found.draws
    assert 0 < draws.shape[1] < 501
    assert torch.equal(draws, together.draws[:, : draws.shape[1]])
    assert_same(lv.resume(tmp_path / "run", GAUSSIAN, sampler=SAMPLER, progress=False), together)


SCRIPT = """
import time, langevin as lv
from spread_targets import *
def slowly(done, total):
    time.sleep(0.01)
lv.sample(lv.targets.gaussian([[1.0, 0.9], [0.9, 1.0]]), sampler=SAMPLER, init=INIT,
          engine=lv.distributed.Local(seconds=1e-9), out={out!r}, **{{**BLOCKS, "progress": slowly}})
"""


def test_a_killed_driver_and_two_writers(tmp_path, together):
    """A process writes; a second writer is refused; the first is killed, and the run goes on from what it wrote."""
    out, environment = tmp_path / "run", {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen([sys.executable, "-W", "ignore", "-c", SCRIPT.format(out=str(out))], env=environment)
    try:
        while not (out / "blocks" / "2" / "state.safetensors").exists():
            assert process.poll() is None
            time.sleep(0.01)
        with pytest.raises(RuntimeError, match=r"run is being written: another process"):
            lv.resume(out, GAUSSIAN, sampler=SAMPLER, engine="local")
        with pytest.raises(FileExistsError, match=r"langevin\.resume.*another folder, or remove"):
            run(out=out)
    finally:
        process.kill()
        process.wait()
    steps = lv.load_samples(out).status[0].steps
    assert 0 < steps < 600
    done = []
    assert_same(lv.resume(out, GAUSSIAN, sampler=SAMPLER, progress=lambda now, total: done.append(now)), together)
    assert done[0] >= 3 * steps  # it did not begin anew
    assert_same(
        lv.resume(out, GAUSSIAN, sampler=SAMPLER, engine="local", progress=lambda now, total: pytest.fail("done")), together
    )


def test_a_run_in_blocks_is_resumed_by_its_own_sampler_only(tmp_path):
    run(out=tmp_path / "run", num_steps=400)
    with pytest.raises(ValueError, match="another"):
        lv.resume(tmp_path / "run", GAUSSIAN, sampler=lv.msgld(step_size=0.06, invariant=True))
    lv.sample(GAUSSIAN, sampler=SAMPLER, init=INIT, out=tmp_path / "plain", **SETTINGS)
    with pytest.raises(ValueError, match="no blocks of chains"):
        lv.resume(tmp_path / "plain", GAUSSIAN, sampler=SAMPLER, engine="local")


def test_a_damaged_block_is_named(tmp_path):
    run(out=tmp_path / "run")
    chunk = next((tmp_path / "run" / "draws").glob("c.0.1.0"))
    chunk.write_bytes(chunk.read_bytes()[:-3])
    with pytest.raises(ValueError, match=r"c\.0\.1\.0 is damaged"):
        lv.load_samples(tmp_path / "run").draws  # noqa: B018
    (tmp_path / "run" / "blocks" / "2" / "state.safetensors").write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"2/state\.safetensors is damaged"):
        lv.load_samples(tmp_path / "run")


@pytest.mark.parametrize(
    ("settings", "kind", "words"),
    [
        ({"engine": "spark"}, TypeError, 'needs None, "local", "ray"'),
        ({"engine": 3}, TypeError, "a pool with a method map"),
        ({"engine": None}, ValueError, "block_size=...) needs None without an engine"),
        ({"block_size": 0}, ValueError, "block_size"),
        ({"block_size": 2.0}, TypeError, "block_size"),
    ],
)
def test_bad_values_are_said(settings, kind, words):
    with pytest.raises(kind) as caught:
        run(**settings)
    assert words in str(caught.value)


def test_chains_with_different_settings_run_together():
    kernel = lv.side_by_side([lv.sgld(0.1), lv.sgld(0.2)], chains_each=5)
    with pytest.raises(ValueError, match="chains with different settings"):
        lv.sample(GAUSSIAN, sampler=kernel, init=INIT, engine="local", **SETTINGS)


def test_blocks_are_alike_and_depend_on_sizes_alone():
    for chains in (1, 2, 3, 8, 9, 17, 100, 1000, 1025, 10_000):
        size = chains_per_block(None, SAMPLER, torch.zeros(chains, 2))
        count = -(-chains // size)
        assert min(3, chains) <= size <= min(64, max(4, -(-chains // 16)))
        assert count * size - chains < count  # fewer empty places than blocks
    assert chains_per_block(None, SAMPLER, torch.zeros(8, 2)) == 4
    assert chains_per_block(16, SAMPLER, torch.zeros(8, 2)) == 8


def test_the_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (Path(__file__).parents[2] / "docs" / "scale_chains.md").read_text(), re.S)
    assert len(blocks) == 2
    names = {}
    for block in blocks:
        exec(block, names)
    assert names["samples"].draws.shape == (32, 2500, 2)


def test_ray_is_not_imported_before_it_is_asked_for():
    code = "import sys, langevin; langevin.distributed.Ray(); assert not {'ray', 'joblib', 'cloudpickle'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
