"""Two writers of one run, also after its lock was deleted; and files of one run that were put into another one's folder."""

from __future__ import annotations

import json
import shutil

import pytest
import torch

import langevin as lv
from langevin import storage
from langevin.sampling import loop as driver
from langevin.storage import manifest as runs
from langevin.storage import zarr as disk
from langevin.storage.layout import ARRAYS

TARGET = lv.targets.gaussian([[1.0, 0.5], [0.5, 1.0]])
KERNEL = lv.sgld(0.05)
START = torch.linspace(-1, 1, 8, dtype=torch.float64).reshape(4, 2)
SETTINGS = {"num_steps": 600, "thin": 5, "compile": False, "progress": False}
BLOCKS = {"engine": lv.distributed.Local(1e-6), "block_size": 2}
LOST = r"run\.zarr/lock was deleted or replaced while this process had the lock"


@pytest.fixture(autouse=True)
def many_checkpoints_and_chunks(monkeypatch):
    monkeypatch.setattr(driver, "_CHECKPOINT_SECONDS", -1.0)
    monkeypatch.setattr(disk, "_CHUNK_ELEMENTS", 100)


def run(out, seed=3, **more):
    return lv.sample(TARGET, sampler=KERNEL, init=START, out=out, seed=seed, **SETTINGS, **more).draws


def resume(path):
    return lv.resume(path, TARGET, sampler=KERNEL, progress=False).draws


@pytest.fixture(scope="module")
def expected():
    return lv.sample(TARGET, sampler=KERNEL, init=START, seed=3, **SETTINGS).draws


def after_the_first_save(monkeypatch, act, most=120):
    """Call a function with the folder of a run once some of its draws are on disk."""
    save, done = storage.DiskStore.save, []

    def save_and_act(self, checkpoint):
        save(self, checkpoint)
        if 0 < checkpoint.kept < most and not done:
            done.append(True)
            act(self.path)

    monkeypatch.setattr(storage.DiskStore, "save", save_and_act)


def delete(folder):
    (folder / "lock").unlink()


def replace(folder):
    (folder / "lock").unlink()
    (folder / "lock").touch()


def become_a_link(folder):
    (folder / "lock").rename(folder / "moved")
    (folder / "lock").symlink_to("moved")


def move_the_folder(folder):
    shutil.copytree(folder, folder.with_name("copy"))
    folder.rename(folder.with_name("old"))
    folder.with_name("copy").rename(folder)


@pytest.mark.parametrize("lose", [delete, replace, become_a_link, move_the_folder])
@pytest.mark.parametrize("more", [{}, BLOCKS], ids=["whole", "blocks"])
def test_a_run_whose_lock_is_gone_stops_and_goes_on_with_the_same_bits(tmp_path, monkeypatch, expected, lose, more):
    with monkeypatch.context() as patch:
        after_the_first_save(patch, lose)
        with pytest.raises(RuntimeError, match=LOST):
            run(tmp_path / "run.zarr", **more)
    found = lv.load_samples(tmp_path / "run.zarr").draws
    assert 0 < found.shape[1] < 120 or more
    assert torch.equal(found, expected[:, : found.shape[1]])
    (tmp_path / "run.zarr" / "lock").unlink(missing_ok=True)  # where it is a link
    assert torch.equal(resume(tmp_path / "run.zarr"), expected)


def test_a_run_that_keeps_moments_only_stops_too_when_its_lock_is_gone(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        after_the_first_save(patch, delete, most=600)
        with pytest.raises(RuntimeError, match=LOST):
            run(tmp_path / "run.zarr", keep="moments")
    lv.resume(tmp_path / "run.zarr", TARGET, sampler=KERNEL, progress=False)


def test_a_second_writer_that_came_when_the_lock_was_deleted_finishes_alone(tmp_path, monkeypatch, expected):
    found = []

    def intrude(folder):
        delete(folder)
        found.append(resume(folder))

    with monkeypatch.context() as patch:
        after_the_first_save(patch, intrude)
        with pytest.raises(RuntimeError, match=LOST):
            run(tmp_path / "run.zarr")
    assert torch.equal(found[0], expected)
    assert torch.equal(lv.load_samples(tmp_path / "run.zarr").draws, expected)


def test_a_second_call_of_sample_leaves_a_running_and_a_finished_run_alone(tmp_path, monkeypatch, expected):
    refused = []

    def second(folder):
        with pytest.raises(FileExistsError, match=r"langevin\.resume\('.*run\.zarr', \.\.\.\), or give another folder") as error:
            run(folder, seed=4)
        refused.append(error)

    with monkeypatch.context() as patch:
        after_the_first_save(patch, second)
        run(tmp_path / "run.zarr")
    second(tmp_path / "run.zarr")
    assert len(refused) == 2
    assert torch.equal(lv.load_samples(tmp_path / "run.zarr").draws, expected)


# ---- files of another run


@pytest.mark.parametrize("seed", [3, 4], ids=["the same settings", "another seed"])
@pytest.mark.parametrize("names", [("state.safetensors",), ("state.safetensors", *ARRAYS), ("zarr.json",)], ids=len)
@pytest.mark.parametrize("more", [{}, BLOCKS], ids=["whole", "blocks"])
def test_files_of_another_run_are_refused(tmp_path, seed, names, more):
    run(tmp_path / "run.zarr", **more)
    run(tmp_path / "other.zarr", seed=seed, **more)
    for name in names:
        if (tmp_path / "other.zarr" / name).is_dir():
            shutil.rmtree(tmp_path / "run.zarr" / name)
            shutil.copytree(tmp_path / "other.zarr" / name, tmp_path / "run.zarr" / name)
        else:
            shutil.copy(tmp_path / "other.zarr" / name, tmp_path / "run.zarr" / name)
    for action in (lv.load_samples, resume):
        with pytest.raises(ValueError, match=r"run\.zarr/state\.safetensors is damaged or was edited: it belongs to another run"):
            action(tmp_path / "run.zarr")
    assert lv.load_samples(tmp_path / "other.zarr").draws.shape[1] == 120


def test_blocks_of_another_run_are_refused(tmp_path):
    run(tmp_path / "run.zarr", **BLOCKS)
    run(tmp_path / "other.zarr", seed=4, **BLOCKS)
    for name in ("blocks", *ARRAYS):
        shutil.rmtree(tmp_path / "run.zarr" / name)
        shutil.copytree(tmp_path / "other.zarr" / name, tmp_path / "run.zarr" / name)
    with pytest.raises(ValueError, match=r"blocks/0/state\.safetensors .* it belongs to another run"):
        lv.load_samples(tmp_path / "run.zarr")


def test_blocks_that_are_swapped_with_all_their_draws_are_refused(tmp_path):
    folder = tmp_path / "run.zarr"
    run(folder, **BLOCKS)
    pairs = [(folder / "blocks" / "0", folder / "blocks" / "1")]
    for name in ARRAYS:
        for path in (folder / name).glob("c.*"):
            parts = path.name.split(".")
            if parts[2] == "0":
                pairs.append((path, path.with_name(".".join([*parts[:2], "1", *parts[3:]]))))
    assert len(pairs) > len(ARRAYS)
    for first, second in pairs:
        first.rename(folder / "between")
        second.rename(first)
        (folder / "between").rename(second)
    with pytest.raises(ValueError, match=r"blocks/0/state\.safetensors .* it belongs to another run, or other chains"):
        lv.load_samples(folder)


@pytest.mark.parametrize(("name", "value"), [("seed", 4), ("description", "x"), ("temperature", 7.0), ("id", "0" * 32)])
def test_an_edited_manifest_with_the_right_checksum_does_not_fit_its_state(tmp_path, name, value):
    folder = tmp_path / "run.zarr"
    run(folder)
    document = json.loads((folder / "zarr.json").read_text())
    manifest = document["attributes"]["langevin"]
    manifest[name] = value
    manifest["sha256"] = runs._seal(manifest)
    (folder / "zarr.json").write_text(json.dumps(document))
    with pytest.raises(ValueError, match="it belongs to another run"):
        lv.load_samples(folder)
