"""Symbolic links inside a run folder or among checkpoints: nothing outside is read, written, made or deleted."""

from __future__ import annotations

import os
import shutil

import pytest
import torch

import langevin as lv
from langevin import storage
from langevin.sampling import loop as driver
from langevin.storage import zarr as disk
from langevin.storage.layout import ARRAYS

TARGET = lv.targets.gaussian([[1.0, 0.5], [0.5, 1.0]])
KERNEL = lv.sgld(0.05)
START = torch.linspace(-1, 1, 8, dtype=torch.float64).reshape(4, 2)
SETTINGS = {"num_steps": 600, "thin": 5, "seed": 3, "compile": False, "progress": False}


@pytest.fixture(scope="module")
def expected():
    return lv.sample(TARGET, sampler=KERNEL, init=START, **SETTINGS).draws


@pytest.fixture(scope="module")
def halves(tmp_path_factory):
    """Return runs as a kill leaves them: one of all chains together, one in blocks of two chains."""
    folder, found = tmp_path_factory.mktemp("halves"), {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver, "_CHECKPOINT_SECONDS", -1.0)
        patch.setattr(disk, "_CHUNK_ELEMENTS", 100)
        save = storage.DiskStore.save

        def save_and_copy(self, checkpoint):
            save(self, checkpoint)
            kind = self.path.stem
            if kind not in found and 0 < checkpoint.kept < 120 and (kind == "plain" or (self.path / "blocks" / "1").exists()):
                found[kind] = shutil.copytree(self.path, folder / f"{kind}.half")

        patch.setattr(storage.DiskStore, "save", save_and_copy)
        lv.sample(TARGET, sampler=KERNEL, init=START, out=folder / "plain.zarr", **SETTINGS)
        lv.sample(
            TARGET,
            sampler=KERNEL,
            init=START,
            out=folder / "blocks.zarr",
            engine=lv.distributed.Local(1e-6),
            block_size=2,
            **SETTINGS,
        )
    return found


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))}


def resume(path):
    return lv.resume(path, TARGET, sampler=KERNEL, progress=False).draws


LINKED = [
    *(("plain", name) for name in ARRAYS),
    *(("plain", f"{name}/zarr.json") for name in ARRAYS),
    *(("plain", f"{name}/{chunk}") for name, chunk in (("draws", "c.0.0.0"), ("energy", "c.0.0"), ("step_size", "c.0"))),
    ("plain", "zarr.json"),
    ("plain", "state.safetensors"),
    ("blocks", "blocks"),
    ("blocks", "blocks/0"),
    ("blocks", "blocks/0/state.safetensors"),
    ("blocks", "state.safetensors"),
    ("blocks", "draws"),
]


@pytest.mark.parametrize("where", ["outside", "inside"])
@pytest.mark.parametrize(("kind", "name"), LINKED)
def test_a_link_is_refused_by_name_and_the_run_goes_on_when_it_is_gone(halves, expected, tmp_path, kind, name, where):
    run = shutil.copytree(halves[kind], tmp_path / "run.zarr")
    place = tmp_path / "outside" if where == "outside" else run / "moved"
    place.mkdir()
    shutil.move(run / name, place / "it")
    (run / name).symlink_to(place / "it")
    if (place / "it").is_dir():
        (place / "it" / ".x.1-ab.tmp").write_text("precious")  # the next writer would remove it
    before = contents(tmp_path)
    for action in (lv.load_samples, resume):
        with pytest.raises(ValueError, match=rf"run\.zarr/{name} is a symbolic link"):
            action(run)
    after = contents(tmp_path)
    assert after.keys() - before.keys() <= {"run.zarr/lock"}
    assert {name: after[name] for name in before} == before
    (run / name).unlink()
    shutil.move(place / "it", run / name)
    assert torch.equal(resume(run), expected)


@pytest.mark.parametrize("name", ["blocks/0", "blocks/0/state.safetensors", "blocks/1"])
def test_a_block_that_is_a_dangling_link_does_not_start_again(halves, tmp_path, name):
    run = shutil.copytree(halves["blocks"], tmp_path / "run.zarr")
    shutil.move(run / name, tmp_path / "kept")
    (run / name).symlink_to(tmp_path / "made by the library")
    for action in (lv.load_samples, resume):
        with pytest.raises(ValueError, match=rf"run\.zarr/{name} is a symbolic link"):
            action(run)
    assert not (tmp_path / "made by the library").exists()


@pytest.mark.parametrize("target", ["precious", "made by the library"])
def test_a_lock_that_is_a_link_is_refused_by_writers_and_readers_do_not_look(halves, tmp_path, target):
    run = shutil.copytree(halves["plain"], tmp_path / "run.zarr")
    (tmp_path / "precious").write_text("precious")  # a lock that is opened with O_TRUNC would empty it
    (run / "lock").unlink(missing_ok=True)
    (run / "lock").symlink_to(tmp_path / target)
    with pytest.raises(ValueError, match=r"run\.zarr/lock is a symbolic link"):
        resume(run)
    assert lv.load_samples(run).draws.shape[1] > 0
    assert (tmp_path / "precious").read_text() == "precious"
    assert not (tmp_path / "made by the library").exists()


def test_a_temporary_file_that_is_a_link_is_removed_and_not_what_it_leads_to(halves, expected, tmp_path):
    run = shutil.copytree(halves["plain"], tmp_path / "run.zarr")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "precious").write_text("precious")
    links = [run / ".state.safetensors.1-ab.tmp", run / "draws" / ".c.0.0.0.1-ab.tmp", run / "draws" / ".c.1.0.0.1-ab.tmp"]
    for link, target in zip(links, ("precious", "precious", ""), strict=True):
        link.symlink_to(tmp_path / "outside" / target)
    assert torch.equal(resume(run), expected)
    assert not any(os.path.lexists(link) for link in links)
    assert contents(tmp_path / "outside") == {"precious": b"precious"}


def test_a_leftover_draft_that_is_a_link_is_left_alone(tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "precious").write_text("precious")
    (tmp_path / ".run.zarr.1.aa.new").symlink_to(tmp_path / "outside")
    lv.sample(TARGET, sampler=KERNEL, init=START, out=tmp_path / "run.zarr", **SETTINGS)
    assert contents(tmp_path / "outside") == {"precious": b"precious"}


@pytest.mark.parametrize("name", ["draws", "state.safetensors", "energy/c.0.0"])
def test_a_link_that_comes_while_the_run_is_written_is_not_followed(expected, tmp_path, monkeypatch, name):
    run, outside, save, swapped = tmp_path / "run.zarr", tmp_path / "outside", storage.DiskStore.save, []
    monkeypatch.setattr(driver, "_CHECKPOINT_SECONDS", -1.0)

    def save_and_swap(self, checkpoint):
        save(self, checkpoint)
        if checkpoint.kept and not swapped:
            swapped.append(shutil.move(run / name, outside))
            (run / name).symlink_to(outside)
            swapped.append(contents(tmp_path / "outside") if outside.is_dir() else outside.read_bytes())

    monkeypatch.setattr(storage.DiskStore, "save", save_and_swap)
    try:
        lv.sample(TARGET, sampler=KERNEL, init=START, out=run, **SETTINGS)
    except ValueError as error:
        assert f"{run / name} is a symbolic link" in str(error)  # noqa: PT017
        (run / name).unlink()
        shutil.move(outside, run / name)
    else:
        assert not (run / name).is_symlink()  # a file that is replaced whole
        assert outside.read_bytes() == swapped[1]
    assert torch.equal(resume(run), expected)


def test_the_folder_itself_may_be_a_link_which_is_resolved_once(halves, expected, tmp_path):
    shutil.copytree(halves["plain"], tmp_path / "disk" / "run.zarr")
    (tmp_path / "link").symlink_to(tmp_path / "disk" / "run.zarr")
    assert lv.load_samples(tmp_path / "link").draws.shape[1] > 0
    assert torch.equal(resume(tmp_path / "link"), expected)
    (tmp_path / "place").symlink_to(tmp_path / "disk")
    lv.sample(TARGET, sampler=KERNEL, init=START, out=tmp_path / "place" / "new.zarr", **SETTINGS)
    assert torch.equal(lv.load_samples(tmp_path / "disk" / "new.zarr").draws, expected)


# ---- checkpoints of a model and its optimizer


def training():
    with torch.random.fork_rng():
        model = torch.nn.Linear(2, 1)
    return model, lv.optim.SGLD(model.parameters(), lr=0.1, num_data=100)


@pytest.mark.parametrize("name", ["step-000000000007", "step-000000000007/.metadata", "step-000000000007/__0_0.distcp"])
def test_a_checkpoint_that_is_a_link_is_not_loaded(tmp_path, name):
    model, opt = training()
    lv.distributed.save_checkpoint(tmp_path / "all", model, opt, step=7)
    shutil.move(tmp_path / "all" / name, tmp_path / "outside")
    (tmp_path / "all" / name).symlink_to(tmp_path / "outside")
    with pytest.raises(ValueError, match=rf"all/{name} is a symbolic link"):
        lv.distributed.load_checkpoint(tmp_path / "all", model, opt)


@pytest.mark.parametrize("name", [".step-000000000003.draft", "step-000000000007", "step-000000000001"])
def test_saving_a_checkpoint_deletes_nothing_through_a_link(tmp_path, name):
    model, opt = training()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "precious").write_text("precious")
    (tmp_path / "all").mkdir()
    (tmp_path / "all" / name).symlink_to(tmp_path / "outside")
    with pytest.raises(ValueError, match=rf"all/{name} is a symbolic link"):
        lv.distributed.save_checkpoint(tmp_path / "all", model, opt, step=7, keep=1)
    assert contents(tmp_path / "outside") == {"precious": b"precious"}


def test_the_folder_of_checkpoints_may_be_a_link(tmp_path):
    model, opt = training()
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    lv.distributed.save_checkpoint(tmp_path / "link", model, opt, step=7)
    assert lv.distributed.load_checkpoint(tmp_path / "disk", model, opt) == 7
