"""A damaged run is refused with the path of the file, or gives the right draws: no wrong draw, no NaN, no other error."""

from __future__ import annotations

import json
import os
import random
import shutil

import pytest
import torch
import zarr
from safetensors.torch import save_file

import langevin as lv
from langevin import storage
from langevin.sampling import loop as driver
from langevin.storage import checkpoint as state
from langevin.storage import layout
from langevin.storage import manifest as runs
from langevin.storage import zarr as disk
from langevin.storage.layout import ARRAYS

TARGET = lv.targets.gaussian([[1.0, 0.5], [0.5, 1.0]])
KERNEL = lv.msgld(0.05, bias_factor=0.5)
START = torch.linspace(-1, 1, 6, dtype=torch.float64).reshape(3, 2)
SETTINGS = {"num_steps": 600, "thin": 5, "seed": 3, "compile": False}  # blocks of 256 steps
ERRORS = (ValueError, FileNotFoundError, RuntimeError)


@pytest.fixture(scope="module")
def half(tmp_path_factory):
    """Return a run as a kill after its first checkpoint leaves it: 51 draws in 4 chunks, the last one in part."""
    folder = tmp_path_factory.mktemp("damage")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver, "_CHECKPOINT_SECONDS", -1.0)
        patch.setattr(disk, "_CHUNK_ELEMENTS", 100)
        save = storage.DiskStore.save

        def save_and_copy(self, checkpoint):
            save(self, checkpoint)
            if checkpoint.kept == 51:
                shutil.copytree(self.path, folder / "half.zarr")

        patch.setattr(storage.DiskStore, "save", save_and_copy)
        lv.sample(TARGET, sampler=KERNEL, init=START, out=folder / "whole.zarr", **SETTINGS)
    return folder / "half.zarr"


@pytest.fixture(scope="module")
def expected():
    return lv.sample(TARGET, sampler=KERNEL, init=START, **SETTINGS)


def outcome(action, path, expected):
    """Return "same" or the error's text; wrong draws and any other error fail."""
    try:
        samples = action(path)
        arrays = {name: getattr(samples, name) for name in ARRAYS}
    except ERRORS as error:
        text = str(error)
    else:
        for name, found in arrays.items():
            axis = min(1, found.ndim - 1)
            assert found.shape[axis] in (51, 120)
            assert torch.equal(found, getattr(expected, name).narrow(axis, 0, found.shape[axis])), name
        assert all(status.is_healthy for status in samples.status)
        return "same"
    assert str(path) in text
    return text


def resume(path):
    return lv.resume(path, TARGET, sampler=KERNEL)


def files_of(folder):
    return sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file() and path.name != "lock")


def test_the_undamaged_run_has_all_kinds_of_files(half, expected, tmp_path):
    names = [str(name) for name in files_of(half)]
    assert names[:6] == ["draws/c.0.0.0", "draws/c.1.0.0", "draws/c.2.0.0", "draws/c.3.0.0", "draws/zarr.json", "energy/c.0.0"]
    assert len(names) == 4 * 5 + 2
    copy = shutil.copytree(half, tmp_path / "run.zarr")
    assert outcome(lv.load_samples, copy, expected) == "same"
    assert outcome(resume, copy, expected) == "same"
    assert outcome(lv.load_samples, copy, expected) == "same"


def flip(path, data, rng):
    where = rng.randrange(len(data))
    data[where] ^= 1 << rng.randrange(8)
    path.write_bytes(data)


def truncate(path, data, rng):
    path.write_bytes(data[: rng.choice([0, 1, len(data) // 2, len(data) - 1, rng.randrange(len(data))])])


def append(path, data, rng):
    path.write_bytes(bytes(data) + rng.randbytes(rng.randint(1, 40)))


def overwrite(path, data, rng):
    start = rng.randrange(len(data))
    path.write_bytes(bytes(data[:start]) + rng.randbytes(rng.randint(1, 20)) + bytes(data[start + 20 :]))


def take_a_neighbour(path, data, rng):
    path.write_bytes(
        rng.choice([p for p in path.parent.iterdir() if p.is_file() and p.name not in (path.name, "lock")]).read_bytes()
    )


def delete(path, data, rng):
    path.unlink()


def become_a_folder(path, data, rng):
    path.unlink()
    path.mkdir()


def become_a_pipe(path, data, rng):
    path.unlink()
    os.mkfifo(path)


DAMAGES = {flip: 6, truncate: 3, append: 2, overwrite: 3, take_a_neighbour: 1, delete: 1, become_a_folder: 1, become_a_pipe: 1}


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
@pytest.mark.parametrize("action", [lv.load_samples, resume], ids=["open", "resume"])
def test_a_damaged_run_is_refused_or_right(half, expected, tmp_path, monkeypatch, damage, action):
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    rng, texts = random.Random(damage.__name__), []
    for name in files_of(half):
        for case in range(DAMAGES[damage]):
            copy = shutil.copytree(half, tmp_path / f"{name.parent}.{name.name}.{case}.zarr".replace("/", "."))
            damage(copy / name, bytearray((copy / name).read_bytes()), rng)
            texts.append(outcome(action, copy, expected))
            if name.name == state.STATE:
                assert texts[-1] != "same"
            if texts[-1] != "same":
                assert str(copy / name) in texts[-1] or name.name == "zarr.json"  # a foreign folder is named as one
    # Harmless are damages of the blanks in a zarr.json, and of a padding that nobody reads.
    assert len(texts) == 22 * DAMAGES[damage]
    assert texts.count("same") <= 0.1 * len(texts)


@pytest.mark.parametrize("chunk", ["draws/c.0.0.0", "energy/c.1.0", "gradient_norm/c.2.0", "step_size/c.3"])
def test_a_missing_chunk_is_named_before_the_draws_are_read(half, tmp_path, chunk):
    copy = shutil.copytree(half, tmp_path / "run.zarr")
    (copy / chunk).unlink()
    for action in (lv.load_samples, resume):
        with pytest.raises(ValueError, match=rf"run\.zarr/{chunk} is missing: chunk [0-3] of {chunk.split('/')[0]}"):
            action(copy)


def test_a_chunk_older_or_newer_than_the_checkpoint(half, expected, tmp_path):
    """A copy of a growing run may have an old chunk: an error. A kill leaves new ones: no harm."""
    whole = half.with_name("whole.zarr")
    new = shutil.copytree(whole, tmp_path / "new.zarr")
    shutil.copy(half / state.STATE, new)
    assert outcome(lv.load_samples, new, expected) == "same"
    assert outcome(resume, new, expected) == "same"
    old = shutil.copytree(whole, tmp_path / "old.zarr")
    shutil.copy(half / "draws/c.3.0.0", old / "draws")
    assert f"{old}/draws/c.3.0.0 is damaged, chunk 3 of draws" in outcome(lv.load_samples, old, expected)


def edit(path, **changes):
    """Change a manifest, give it the checksum that it then has, and bind the checkpoint to it."""
    document = json.loads((path / "zarr.json").read_text())
    manifest = document["attributes"]["langevin"]
    manifest.update(changes)
    for name in [name for name, value in changes.items() if value is ...]:
        del manifest[name]
    manifest["sha256"] = runs._seal(manifest)
    (path / "zarr.json").write_text(json.dumps(document))
    tensors, words = state.read_state(path)
    state.write_state(path, tensors, {**words, "manifest": manifest["sha256"]})
    return manifest


@pytest.mark.parametrize("name", ["seed", "first_chain", "thin", "num_steps", "warmup", "batch_size", "tuned", "description"])
def test_an_edited_manifest_is_refused(half, tmp_path, name):
    copy = shutil.copytree(half, tmp_path / "run.zarr")
    document = json.loads((copy / "zarr.json").read_text())
    document["attributes"]["langevin"][name] = 7
    (copy / "zarr.json").write_text(json.dumps(document))
    for action in (lv.load_samples, resume):
        with pytest.raises(ValueError, match=r"run\.zarr/zarr\.json is damaged or was edited: its checksum"):
            action(copy)


WRONG = [..., "x", [None], {"a": 1}, -1, 1.5, float("nan")]  # ... for none at all
RIGHT = [
    ("description", "x"),
    ("found", "x"),
    ("tuned", 1.5),
    ("temperature", 1.5),
    ("bias_factor", 1.5),
    ("fingerprints", {"a": 1}),
]  # nothing that `open` needs


def arrays(**changes):
    """Return what the manifest says of the arrays, (draw, *tail), with some of it changed."""
    right = {"draws": [3, 2], "energy": [3], "gradient_norm": [3], "step_size": []}
    specs = {name: {"dtype": "float64", "tail": tail} for name, tail in right.items()}
    return {name: value for name, value in {**specs, **changes}.items() if value is not ...}


def of(*tail, dtype="float64"):
    return {"dtype": dtype, "tail": list(tail)}


FORGED = [(name, value) for name in runs._FIELDS for value in WRONG if (name, value) not in RIGHT] + [
    ("num_chains", 10**9), ("num_chains", 0), ("num_chains", True), ("num_draws", 10**12), ("num_draws", 119), ("dim", 3),
    ("chunk", 121), ("chunk", 17), ("warmup", 600), ("seed", 2**64), ("keep", "moments"), ("control_variate", [1.0]),
    ("arrays", arrays(draws=of(3, 2, dtype="float32"))), ("arrays", arrays(draws=of(3, 2, dtype="object"))),
    ("arrays", {name: {**array, "dtype": "float32"} for name, array in arrays().items()}), ("arrays", arrays(draws=of(3, 10**12))),
    ("arrays", arrays(draws=of(3, 0))), ("arrays", arrays(draws=of(3, 2.0))), ("arrays", arrays(draws=of(2, 3))),
    ("arrays", arrays(draws=of())), ("arrays", arrays(energy=of())), ("arrays", arrays(energy=of(3, 1))),
    ("arrays", arrays(step_size=of(3))), ("arrays", arrays(step_size=of(2))), ("arrays", arrays(step_size=...)),
    ("num_chains", 2**62), ("dim", 2**62), ("temperature", 10**400), ("control_variate", [10**400, 1.0]),
    ("recipe", [10**400, 1.0]),
    ("temperatures", [10**400]), ("temperatures", 3), ("temperatures", {"a": 1.0}), ("compile", 1), ("keep", ["positions"]),
    ("batches", ["x"]), ("scale", []), ("id", "x" * 32), ("id", "0" * 31), ("id", "A" * 32), ("block_size", 0), ("block_size", 2.0),
    ("arrays", arrays(energy=3)), ("arrays", arrays(energy={"dtype": "float64"})), ("arrays", {**arrays(), "../draws": of(3)}),
]  # fmt: skip


def test_the_arrays_of_a_manifest_that_are_forged_below_differ_from_the_right_ones(half):
    assert json.loads((half / "zarr.json").read_text())["attributes"]["langevin"]["arrays"] == arrays()


@pytest.mark.parametrize(("name", "value"), FORGED, ids=str)
def test_a_forged_manifest_is_refused_at_once(half, tmp_path, name, value):
    copy = shutil.copytree(half, tmp_path / "run.zarr")
    edit(copy, **{name: value})
    for action in (lv.load_samples, resume):
        with pytest.raises(ValueError, match=r"run\.zarr.*(damaged|edited)"):
            action(copy)


def test_a_manifest_that_claims_huge_chunks_is_refused_before_memory_is_taken(half, tmp_path):
    copy = shutil.copytree(half, tmp_path / "run.zarr")
    many = 2**50
    found = edit(copy, num_steps=5 * many, num_draws=many, chunk=many)
    for name in ARRAYS:
        (copy / name / "zarr.json").write_text(json.dumps(layout.Layout.of(found).document(name)))
    for action in (lv.load_samples, resume):
        with pytest.raises(ValueError, match=r"run\.zarr/zarr\.json is damaged or was edited: chunk needs at most 174762 draws"):
            action(copy)


def test_a_chunk_that_is_too_small_for_its_draws_is_refused_before_memory_is_taken(half, tmp_path):
    """A draw may be as large as it likes, so that a chunk of one is bounded by what its file can hold."""
    copy = shutil.copytree(half, tmp_path / "run.zarr")
    found = edit(copy, keep="function", chunk=1, arrays=arrays(draws=of(3, 10**12)))
    for name in ARRAYS:
        (copy / name / "zarr.json").write_text(json.dumps(layout.Layout.of(found).document(name)))
    forge(copy, {"digests": torch.zeros(4, 1, 32, dtype=torch.uint8)}, kept=1)
    for action in (lv.load_samples, resume):
        with pytest.raises(ValueError, match=r"run\.zarr/draws/c\.0\.0\.0 is damaged, .* bytes cannot hold 24000000000000 bytes"):
            action(copy)


def test_a_chunk_of_equal_draws_is_not_too_small(tmp_path):
    """The best that Zstandard can do: what the library wrote, it reads."""
    start = torch.zeros(2, 100, dtype=torch.float64)
    target = lv.targets.gaussian(torch.eye(100).tolist())
    lv.sample(
        target,
        sampler=KERNEL,
        init=start,
        keep=lambda theta: 0 * theta.abs(),
        num_steps=6000,
        out=tmp_path / "run.zarr",
        compile=False,
    )
    assert (tmp_path / "run.zarr" / "draws" / "c.0.0.0").stat().st_size < 1000
    assert not lv.load_samples(tmp_path / "run.zarr").draws.any()


def forge(path, tensors=None, **words):
    """Change a checkpoint and give it the checksum that it then has."""
    old, found = state.read_state(path)
    changed = {name: tensor for name, tensor in {**old, **(tensors or {})}.items() if tensor is not None}
    state.write_state(path, changed, {**found, **words})


FORGED_WORDS = [
    {"kept": 10**9}, {"kept": -1}, {"kept": 51.0}, {"step": 601}, {"step": "x"}, {"step": True}, {"seconds": "1"},
    {"seconds": -1.0}, {"seconds": float("nan")}, {"stopped": {"0": 3}}, {"stopped": {"7": [3, 1, "x"]}},
    {"stopped": {"x": [3, 1, "x"]}},
    {"stopped": 3}, {"stopped": {"0": [3, 52, "x"]}}, {"stopped": {"0": [3, 1, 1]}}, {"compiled": 1}, {"judged": 257}, {"more": 1},
    {"manifest": "0" * 64}, {"manifest": None}, {"manifest": ["x"]}, {"block": 0}, {"step": 10**400},
    {"stopped": {"0": [10**400, 1, "x"]}}, {"seconds": 10**400},
    {"stopped": {"0": "xyz"}}, {"stopped": {"0": {"a": 1}}}, {"stopped": {"0": []}},
    {"kept": [51]}, {"judged": None},
]  # fmt: skip


@pytest.mark.parametrize("words", FORGED_WORDS, ids=str)
def test_a_forged_checkpoint_is_refused(half, tmp_path, words):
    copy = shutil.copytree(half, tmp_path / "run.zarr")
    forge(copy, **words)
    for action in (lv.load_samples, resume):
        with pytest.raises(ValueError, match=r"run\.zarr/state\.safetensors is damaged or was edited"):
            action(copy)


FORGED_TENSORS = [
    {"position": START[:2]}, {"position": START.float()}, {"position": START / 0}, {"position": None},
    {"memory_0": START[:1]}, {"memory_0": START.float()},
    {"memory_0": None, "memory_1": START}, {"memory_7": START}, {"foreign": START}, {"moments_count": START},
    {"digests": None}, {"digests": torch.zeros(4, 3, 32, dtype=torch.uint8)},
]  # fmt: skip


@pytest.mark.parametrize("tensors", FORGED_TENSORS, ids=lambda tensors: ", ".join(tensors))
def test_a_checkpoint_with_other_tensors_is_refused(half, tmp_path, tensors):
    copy = shutil.copytree(half, tmp_path / "run.zarr")
    forge(copy, tensors)
    for action in (lv.load_samples, resume):
        with pytest.raises(ValueError, match=r"run\.zarr/state\.safetensors is damaged or was edited"):
            action(copy)


def test_what_only_the_sampler_knows_is_checked_on_resume(half, tmp_path):
    for number, (tensors, words) in enumerate(
        [({"memory_1": START}, {}), ({"memory_0": torch.zeros(3, 5).double()}, {}), ({}, {"step": 100, "judged": 100})]
    ):
        copy = shutil.copytree(half, tmp_path / f"{number}.zarr")
        forge(copy, tensors, **words)
        with pytest.raises(ValueError, match=rf"{number}\.zarr was run with another (sampler state|number of draws so far)"):
            resume(copy)


FORGED_ARRAYS = [
    {"data_type": "object"}, {"data_type": {"name": "fixed_length_utf32", "configuration": {"length_bytes": 4}}},
    {"codecs": [{"name": "numcodecs.pickle"}]}, {"codecs": [{"name": "bytes"}, {"name": "os.system"}]}, {"fill_value": 0.0},
    {"shape": [10**12, 3, 2]}, {"chunk_key_encoding": {"name": "v2"}}, {"attributes": {"x": 1}},
    {"storage_transformers": [{"name": "x"}]},
]  # fmt: skip


@pytest.mark.parametrize("changes", FORGED_ARRAYS, ids=str)
def test_an_array_that_is_not_the_runs_is_refused_before_zarr_sees_it(half, tmp_path, changes):
    copy = shutil.copytree(half, tmp_path / "run.zarr")
    file = copy / "draws" / "zarr.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
    for action in (lv.load_samples, resume):
        with pytest.raises(ValueError, match=rf"run\.zarr/draws/zarr\.json is damaged or was edited: {next(iter(changes))}"):
            action(copy)


@pytest.mark.parametrize(
    "text", ["[" * 100_000, "9" * 10_000, "null", "[]", '{"attributes": []}', '{"attributes": {"langevin": 3}}', "\xff"]
)
def test_odd_json_is_refused(half, tmp_path, text):
    copy = shutil.copytree(half, tmp_path / "run.zarr")
    (copy / "zarr.json").write_bytes(text.encode("latin1"))
    for action in (lv.load_samples, resume):
        with pytest.raises(ValueError, match=r"run\.zarr"):
            action(copy)


def test_a_foreign_checkpoint_is_refused(half, tmp_path):
    copy = shutil.copytree(half, tmp_path / "run.zarr")
    save_file({"position": START}, copy / state.STATE, {"langevin": "{}"})
    with pytest.raises(ValueError, match=r"state\.safetensors is damaged or foreign: it has no checksum"):
        lv.load_samples(copy)


def test_zarr_reads_what_we_write(half, expected):
    """The folder is Zarr 3, for those who have no langevin."""
    group = zarr.open_group(str(half.with_name("whole.zarr")), mode="r")
    for name in ARRAYS:
        by_chain = getattr(expected, name)
        assert torch.equal(torch.from_numpy(group[name][:]), by_chain.transpose(0, 1) if by_chain.ndim > 1 else by_chain), name
