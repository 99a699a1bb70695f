"""The sample bank: what goes in comes out, through kills, full disks and damaged files."""

import contextlib
import copy
import errno
import hashlib
import json
import multiprocessing
import os
import pickle
import random
import signal
import subprocess
import sys
import time
import warnings

import pytest
import torch
from bank_models import PRELUDE, SOURCE, damage, filled, linear, randn, same, sealed, seeded, small, whole
from torch import Tensor, nn

from langevin.nn.bank import CorruptDrawError, SampleBank

pytestmark = pytest.mark.filterwarnings("error")


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x):
        return self.head(self.embed(x))


class Odd(nn.Module):
    """Awkward tensors: bfloat16, 0-dim, transposed, expanded, empty, integer, bool, views of one storage."""

    def __init__(self):
        super().__init__()
        flat = randn(10)
        self.a, self.b = nn.Parameter(flat[:4].view(2, 2)), nn.Parameter(flat[4:])
        self.register_buffer("overlap", flat[2:6])
        self.register_buffer("brief", randn(3).bfloat16())
        self.register_buffer("scalar", torch.tensor(3.5))
        self.register_buffer("transposed", randn(2, 3).t())
        self.register_buffer("expanded", randn(1, 3).expand(4, 3))
        self.register_buffer("empty", torch.zeros(0, 2))
        self.register_buffer("empty_too", torch.zeros(0, 2))
        self.register_buffer("count", torch.tensor(7))
        self.register_buffer("mask", torch.tensor([True, False]))


# ---- round trip


@pytest.mark.parametrize("make", [small, Tied, Odd])
def test_every_tensor_comes_back_bit_for_bit(tmp_path, make):
    model = seeded(make)
    SampleBank(tmp_path / "deep" / "bank").add(model)
    assert same(SampleBank.open(tmp_path / "deep" / "bank").state_dict(0), model)


def test_load_writes_into_the_model_and_keeps_its_mode_and_dtype(tmp_path):
    bank, models = filled(tmp_path)
    model = small(9)
    bank.load(model, -1)
    assert same(model.state_dict(), models[2])
    assert model.training
    double = small(9).double()
    bank.load(double, 0)
    assert torch.equal(double[0].weight, models[0][0].weight.double())


def test_tied_weights_are_stored_once_and_stay_tied(tmp_path):
    model, bank = seeded(Tied), SampleBank(tmp_path)
    draw = bank.add(model)
    assert draw.aliases == {"head.weight": "embed.weight"}
    assert draw.bytes < 2 * model.embed.weight.nbytes + 100
    state = bank.state_dict(0)
    assert state["head.weight"] is state["embed.weight"]
    other = seeded(Tied, 1)
    bank.load(other, 0)
    assert other.head.weight is other.embed.weight
    assert torch.equal(other.head.weight, model.head.weight)
    (private,) = bank.models(model)
    assert private.head.weight is private.embed.weight
    assert private.head.weight is not model.head.weight


@pytest.mark.parametrize("part", ["all", "inner"])
def test_draws_of_compiled_and_plain_models_are_interchangeable(tmp_path, part):
    model, bank = small(), SampleBank(tmp_path)
    if part == "all":
        compiled = torch.compile(model, backend="eager")
    else:
        compiled = nn.Sequential(torch.compile(copy.deepcopy(model[0]), backend="eager"), *list(model)[1:])
    assert any("_orig_mod." in name for name in compiled.state_dict())
    bank.add(compiled)
    bank.add(model)
    fresh = small(5)
    bank.load(fresh, 0)
    assert same(fresh.state_dict(), model)
    bank.add(small(7))
    bank.load(compiled, -1)
    assert torch.equal(next(iter(compiled.parameters())), small(7)[0].weight)
    assert len(list(bank.models(compiled))) == 3


def test_records_tell_step_and_metrics(tmp_path):
    bank = SampleBank(tmp_path)
    returned = bank.add(small(), step=4, loss=torch.tensor(0.25), note="warm", nested={"a": [1, None]})
    (draw,) = SampleBank.open(tmp_path).draws
    assert draw == returned
    assert (draw.index, draw.step, draw.path) == (0, 4, tmp_path / "draw-00000000.safetensors")
    assert draw.metrics == {"loss": 0.25, "note": "warm", "nested": {"a": [1, None]}}
    assert draw.bytes == draw.path.stat().st_size
    with pytest.raises(AttributeError):
        draw.step = 5


# ---- thinning, cap, resume


def test_thin_keeps_every_nth_call_and_the_count_survives_reopening(tmp_path):
    kept = []
    for first, last in [(0, 2), (2, 4), (4, 5), (5, 11)]:
        with SampleBank(tmp_path, thin=3, resume=True) as bank:
            assert bank.calls == first
            kept += [bank.add(small(), step=k) is not None for k in range(first, last)]
    assert [draw.step for draw in bank.draws] == [2, 5, 8]
    assert sum(kept) == 3


def test_cap_drops_the_oldest_and_their_files(tmp_path):
    bank, models = filled(tmp_path, 5, max_draws=2)
    for view in (bank, SampleBank.open(tmp_path)):
        assert [draw.index for draw in view.draws] == [3, 4]
        assert len(view) == 2
        assert same(view.state_dict(0), models[3])
    assert sorted(p.name for p in tmp_path.glob("draw*")) == [d.path.name for d in bank.draws]
    bank.close()
    smaller = SampleBank(tmp_path, max_draws=1, resume=True)
    smaller.add(small())
    assert [draw.index for draw in smaller.draws] == [5]


@pytest.mark.parametrize("checkpoint", [2, 3, 4, 6, 7])
def test_rewind_to_a_checkpoint_gives_the_draws_of_an_uninterrupted_run(tmp_path, checkpoint):
    whole_run, resumed = SampleBank(tmp_path / "a", thin=2), SampleBank(tmp_path / "b", thin=2)
    for k in range(9):
        whole_run.add(small(k), step=k)
    for k in range(6):
        resumed.add(small(k), step=k)
    resumed._journal.unlock()  # killed: nothing is written on the way out
    resumed = SampleBank(tmp_path / "b", thin=2, resume=True)
    resumed.rewind(checkpoint)
    assert resumed.calls == SampleBank.open(tmp_path / "b").calls == checkpoint
    for k in range(checkpoint, 9):
        resumed.add(small(k), step=k)
    assert whole(resumed) == whole(whole_run) == whole(SampleBank.open(tmp_path / "b"))
    assert sorted(p.name for p in (tmp_path / "b").glob("draw*")) == [d.path.name for d in resumed.draws]


def test_the_next_writer_clears_leftovers_and_keeps_a_draw_that_took_the_name_of_a_deleted_one(tmp_path):
    bank, _ = filled(tmp_path)
    bank.rewind(1)
    bank.add(small(5), step=5)
    dead = tmp_path / "draw-00000002.safetensors"
    for leftover in (dead, tmp_path / ".draw-00000007.safetensors.12-ab.tmp"):
        leftover.touch()
    bank.close()
    SampleBank(tmp_path, resume=True).rewind(2)
    assert whole(SampleBank.open(tmp_path)) == [(0, small(0)[0].weight.tolist()), (5, small(5)[0].weight.tolist())]
    assert sorted(p.name for p in tmp_path.glob("*draw*")) == ["draw-00000000.safetensors", "draw-00000001.safetensors"]


def test_a_writer_that_comes_back_counts_on_from_what_others_wrote(tmp_path):
    first, second = SampleBank(tmp_path, thin=5, resume=True), SampleBank(tmp_path, thin=5, resume=True)
    for _ in range(3):
        first.add(small())
    first.close()
    second.rewind(1)
    second.close()
    first.add(small())
    assert first.calls == 2


# ---- kills

CHILD = (
    PRELUDE
    + """
bank = bank.SampleBank(sys.argv[2], thin=2, max_draws=int(sys.argv[3]) or None, resume=True)
model = nn.Sequential(nn.Linear(3, 2))
print("ready", flush=True)
for k in range(bank.calls, int(sys.argv[4])):
    with torch.no_grad():
        model[0].weight.fill_(k)
    bank.add(model, step=k)
"""
)


@pytest.mark.parametrize("cap", [0, 5])
def test_a_run_killed_at_random_moments_ends_like_an_uninterrupted_one(tmp_path, cap):
    total, rng = 400, random.Random(cap)
    command = [sys.executable, "-c", CHILD, SOURCE, str(tmp_path), str(cap), str(total)]
    kills, calls = 0, []
    for attempt in range(4):
        child = subprocess.Popen(command, stdout=subprocess.PIPE)
        child.stdout.readline()
        if attempt < 3:
            time.sleep(rng.uniform(0.01, 0.12))
            child.send_signal(signal.SIGKILL)
        kills += child.wait() == -signal.SIGKILL
        child.stdout.close()
        bank = SampleBank(tmp_path, resume=True)
        calls.append(bank.calls)
        assert [step for step, _ in whole(bank)] == list(range(1, bank.calls, 2))[-cap:]
    assert kills >= 2
    assert calls == sorted(calls)
    steps = list(range(1, total, 2))[-cap:]
    assert whole(bank) == [(step, [[float(step)] * 3] * 2) for step in steps]
    names = [d.path.name for d in bank.draws]
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([*names, "lock", "manifest.jsonl"])


class Killed(BaseException):
    pass


def kill_at(monkeypatch, number):
    """Stop at the number-th system call that changes the folder; a write is cut in half first."""
    seen = [0]

    def wrap(name):
        real = getattr(os, name)

        def call(*args, **kwargs):
            seen[0] += 1
            if seen[0] == number:
                if name == "write":
                    real(args[0], args[1][: len(args[1]) // 2])
                raise Killed
            return real(*args, **kwargs)

        monkeypatch.setattr(os, name, call)

    for name in ("write", "fsync", "replace", "unlink", "ftruncate"):
        wrap(name)
    return seen


@pytest.mark.parametrize("reopen", [True, False])
def test_a_stop_at_every_single_system_call_loses_nothing(tmp_path, monkeypatch, reopen):
    """`reopen`: the process died. Otherwise it was interrupted (Ctrl-C) and goes on with the same object."""
    number = 0
    while True:
        number += 1
        path = tmp_path / str(number)
        bank, _ = filled(path, 2, max_draws=2)
        before = whole(bank)
        with monkeypatch.context() as patch:
            seen = kill_at(patch, number)
            with contextlib.suppress(Killed):
                bank.add(small(2), step=2)
        if seen[0] < number:
            break
        if reopen:
            bank._journal.unlock()
            bank = SampleBank(path, max_draws=2, resume=True)
        assert whole(SampleBank.open(path))[-2:] in (before, [*before[1:], (2, small(2)[0].weight.tolist())])
        for k in range(bank.calls, 4):
            bank.add(small(k), step=k)
        expected = [(k, small(k)[0].weight.tolist()) for k in (2, 3)]
        assert whole(bank) == whole(SampleBank.open(path)) == expected
        names = [d.path.name for d in bank.draws]
        assert sorted(p.name for p in path.iterdir()) == sorted([*names, "lock", "manifest.jsonl"])
    assert number > 6


def test_a_stop_at_every_single_system_call_of_update_bn_loses_nothing(tmp_path, monkeypatch):
    loader, number = [randn(8, 3)], 0
    while True:
        number += 1
        path = tmp_path / str(number)
        bank, models = filled(path, 2)
        with monkeypatch.context() as patch:
            seen = kill_at(patch, number)
            with contextlib.suppress(Killed):
                bank.update_bn(small(), loader)
        bank._journal.unlock()
        bank = SampleBank(path, resume=True)
        assert [v for _, v in whole(bank)] == [m[0].weight.tolist() for m in models]
        if seen[0] < number:
            break
        bank.update_bn(small(), loader)
        assert [bank.state_dict(i)["1.num_batches_tracked"].item() for i in range(2)] == [1, 1]
    assert number > 10


def test_a_manifest_cut_at_any_byte_of_its_last_line_drops_that_draw_only(tmp_path):
    bank, models = filled(tmp_path)
    bank.close()
    manifest = tmp_path / "manifest.jsonl"
    data = manifest.read_bytes()
    start = data.rstrip().rfind(b"\n") + 1
    for size in range(start, len(data)):
        manifest.write_bytes(data[:size])
        bank = SampleBank(tmp_path, resume=True)
        assert [d.index for d in bank.draws] == [0, 1]
        assert bank.calls == 2
        assert manifest.stat().st_size == size  # a reader changes nothing
    bank.add(models[2], step=2, loss=1.0)
    again = SampleBank.open(tmp_path)
    assert [d.index for d in again.draws] == [0, 1, 2]
    assert same(again.state_dict(2), models[2])
    manifest.write_bytes(data[:10])  # half a header, but there are draws: nothing may be overwritten
    bank.close()
    with pytest.raises(ValueError, match=r"manifest\.jsonl: expected a manifest"):
        SampleBank(tmp_path).add(small())


# ---- full disk


@pytest.mark.parametrize(("function", "at"), [("write", 1), ("write", 2), ("fsync", 1), ("fsync", 3), ("replace", 1)])
def test_a_full_disk_names_the_file_and_keeps_earlier_draws(tmp_path, monkeypatch, function, at):
    bank, models = filled(tmp_path, 2)
    real, count = getattr(os, function), [0]

    def full(*args):
        count[0] += 1
        if count[0] == at:
            raise OSError(errno.ENOSPC, "No space left on device", *map(str, args[:1] if function == "replace" else ()))
        return real(*args)

    with monkeypatch.context() as patch:
        patch.setattr(os, function, full)
        with pytest.raises(OSError, match="No space left") as caught:
            bank.add(small(2), step=2)
    assert caught.value.errno == errno.ENOSPC
    assert caught.value.filename.startswith(str(tmp_path))
    assert not list(tmp_path.glob(".*"))
    assert same(bank.state_dict(0), models[0])
    assert same(bank.state_dict(1), models[1])
    assert len(bank) == 2
    for k in range(2, 4):
        bank.add(small(k), step=k)
    assert [draw.step for draw in bank.draws] == [0, 1, 2, 3]
    assert whole(SampleBank.open(tmp_path)) == [(k, small(k)[0].weight.tolist()) for k in range(4)]


# ---- damaged and foreign files


@pytest.mark.parametrize("how", ["flip", "cut", "missing", "foreign"])
def test_a_damaged_draw_is_named_and_can_be_skipped(tmp_path, how):
    bank, models = filled(tmp_path)
    damage(bank.draws[1].path, how)
    name = r"draw-00000001\.safetensors"
    with pytest.raises(CorruptDrawError, match=name):
        bank.state_dict(1)
    with pytest.raises(CorruptDrawError, match=name):
        list(bank.models(small()))
    target = small(9)
    with pytest.raises(CorruptDrawError, match=name):
        bank.load(target, 1)
    assert same(target.state_dict(), small(9))
    with pytest.warns(UserWarning, match=f"skipped .*{name}") as caught:
        assert [m[0].weight.tolist() for m in bank.models(small(), on_error="skip")] == [
            models[0][0].weight.tolist(),
            models[2][0].weight.tolist(),
        ]
    assert caught[0].filename == __file__
    assert issubclass(CorruptDrawError, ValueError)


class Bomb:
    def __reduce__(self):
        return (os.mkdir, (os.environ["BOMB"],))


def test_a_pickle_with_the_right_checksum_is_refused_and_not_run(tmp_path, monkeypatch):
    monkeypatch.setenv("BOMB", str(tmp_path / "exploded"))
    bank, _ = filled(tmp_path / "bank")
    torch.save(Bomb(), bank.draws[0].path)
    data = bank.draws[0].path.read_bytes()
    rewrite(bank, 1, sha256=hashlib.sha256(data).hexdigest(), bytes=len(data))
    with pytest.raises(CorruptDrawError, match=r"draw-00000000\.safetensors.*not a safetensors"):
        SampleBank.open(bank.path).state_dict(0)
    assert not (tmp_path / "exploded").exists()


def rewrite(bank, line, **changes):
    manifest = bank.path / "manifest.jsonl"
    lines = manifest.read_text().splitlines()
    lines[line] = json.dumps(json.loads(lines[line]) | changes)
    manifest.write_text(sealed(lines))


@pytest.mark.parametrize(
    ("line", "changes", "match"),
    [
        (0, {"version": 1}, "line 1: expected langevin-bank version 2, found langevin-bank version 1"),
        (0, {"format": "zarr"}, "expected langevin-bank version 2, found zarr"),
        (0, {"kind": "draw"}, "line 1: expected a langevin-bank header"),
        (1, {"kind": "header"}, "line 2: expected a langevin-bank header on line 1 and only there"),
        (1, {"kind": "what"}, "line 2: expected draw, update, drop or calls, found 'what'"),
        (1, {"file": "../draw-00000000.safetensors"}, "line 2: expected a draw file in this folder"),
    ],
)
def test_a_foreign_manifest_is_refused_with_expected_and_found(tmp_path, line, changes, match):
    bank, _ = filled(tmp_path)
    rewrite(bank, line, **changes)
    with pytest.raises(ValueError, match=r"manifest\.jsonl.*" + match):
        SampleBank.open(tmp_path)


def test_a_damaged_line_in_the_middle_of_the_manifest_is_named(tmp_path):
    filled(tmp_path)
    manifest = tmp_path / "manifest.jsonl"
    lines = manifest.read_bytes().split(b"\n")
    for broken in (lines[1][:-5], b"[]", b"{}", b"\xff"):
        manifest.write_bytes(b"\n".join([lines[0], broken, *lines[2:]]))
        with pytest.raises(ValueError, match=r"manifest\.jsonl line 2: "):
            SampleBank.open(tmp_path)


def broken(data, rng):
    """Damage bytes in one of many ways."""
    data, at = bytearray(data), rng.randrange(len(data))
    how = rng.randrange(6)
    if how == 0:
        data[at] ^= 1 << rng.randrange(8)
    elif how == 1:
        del data[at:]
    elif how == 2:
        del data[at : at + rng.randrange(1, 40)]
    elif how == 3:
        data[at:at] = rng.randbytes(rng.randrange(1, 40))
    elif how == 4:
        data[at : at + 16] = bytes(16)
    else:
        data[at] = rng.choice(b"0123456789")
    return bytes(data)


def outcomes_of(path, truth):
    """Read a bank that may be damaged: what came of each draw."""
    try:
        bank = SampleBank(path, resume=True)
    except ValueError as error:
        return ["bank refused" if "manifest.jsonl" in str(error) else f"unclear: {error}"]
    outcomes = []
    for i in range(len(bank)):
        try:
            state = bank.state_dict(i)
            right = any(state.keys() == t.keys() and all(torch.equal(state[name], t[name]) for name in t) for t in truth)
            outcomes.append("right" if right else f"wrong: {bank.draws[i]}")
        except CorruptDrawError as error:
            outcomes.append("draw refused" if str(path / "draw-") in str(error) else f"unclear: {error}")
    return outcomes


def test_seven_hundred_damaged_banks_give_no_wrong_draw(tmp_path):
    bank, _ = filled(tmp_path)
    bank.update_bn(small(), [randn(8, 3)])
    bank.close()
    truth = [bank.state_dict(i) for i in range(3)]
    names = ["manifest.jsonl", *(draw.path.name for draw in bank.draws)]
    rng, outcomes = random.Random(0), []
    for case in range(700):
        path = tmp_path / names[rng.randrange(1, 4) if case % 2 else 0]
        data = path.read_bytes()
        path.write_bytes(broken(data, rng))
        outcomes += outcomes_of(tmp_path, truth)
        path.write_bytes(data)
    assert set(outcomes) == {"right", "draw refused", "bank refused"}
    assert min(map(outcomes.count, set(outcomes))) > 100


def test_another_model_is_refused_when_adding_and_when_loading(tmp_path):
    bank, _ = filled(tmp_path)
    other = nn.Sequential(linear(3, 5), nn.BatchNorm1d(5), nn.Dropout(0.5), linear(5, 2))
    shapes = r"0\.weight: expected float32\[4, 3\], found float32\[5, 3\].*more"
    with pytest.raises(ValueError, match=r"manifest\.jsonl: another model than before: " + shapes):
        bank.add(other)
    before = copy.deepcopy(other.state_dict())
    with pytest.raises(ValueError, match=r"draw-00000000\.safetensors: does not fit Sequential: 0\.weight: expect"):
        bank.load(other, 0)
    assert same(before, other)
    with pytest.raises(ValueError, match=r"expected float32.*found float64"):
        bank.add(small().double())
    with pytest.raises(ValueError, match="expected no such tensor, found float32"):
        bank.add(nn.Sequential(*small(), linear(2, 2)))
    bank.add(small())
    assert bank.calls == len(bank) == 4


# ---- averages over draws


def test_models_yields_each_draw_in_eval_mode_and_leaves_the_users_model_alone(tmp_path):
    bank, models = filled(tmp_path)
    model = small(9)
    seeded(lambda: model(randn(5, 3)).sum().backward())  # dropout draws
    before, grads = copy.deepcopy(model.state_dict()), [p.grad.clone() for p in model.parameters()]
    seen = [(same(m.state_dict(), expected), id(m)) for m, expected in zip(bank.models(model), models, strict=True)]
    assert all(equal for equal, _ in seen)
    assert len({module for _, module in seen}) == 1
    assert not any(m.training for m in next(iter(bank.models(model))).modules())
    assert same(before, model)
    assert model.training
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), grads, strict=True))


@pytest.mark.parametrize("kind", ["tensor", "tuple", "list"])
def test_update_bn_agrees_with_torch_on_every_draw(tmp_path, kind):
    def plain(seed):
        return nn.Sequential(*[m for m in small(seed) if not isinstance(m, nn.Dropout)])

    bank, inputs = SampleBank(tmp_path), [randn(n, 3) for n in (8, 8, 5)]
    for seed in range(2):
        bank.add(plain(seed), step=seed)
    loader = {"tensor": inputs, "tuple": [(x, None) for x in inputs], "list": [[x] for x in inputs]}[kind]
    model = plain(9)
    for _ in range(2):  # the second time gives the same: the statistics are reset
        assert bank.update_bn(model, loader) == 2
    assert same(model.state_dict(), plain(9))
    assert model[1].momentum == 0.1
    for view in (bank, SampleBank.open(tmp_path)):
        for seed, draw in enumerate(view.draws):
            expected = plain(seed)
            torch.optim.swa_utils.update_bn(inputs, expected)
            assert same(view.state_dict(seed), expected)
            assert draw.step == seed
    assert len(list(tmp_path.glob("draw*"))) == 2


def test_update_bn_keeps_dropout_off(tmp_path):
    bank = SampleBank(tmp_path)
    model = nn.Sequential(nn.Dropout(0.5), nn.BatchNorm1d(3))
    bank.add(model)
    x = randn(64, 3)
    bank.update_bn(model, [x])
    torch.testing.assert_close(bank.state_dict(0)["1.running_mean"], x.mean(0))


def test_update_bn_warns_without_batchnorm_and_refuses_what_it_cannot_read_twice(tmp_path):
    bank = SampleBank(tmp_path / "a")
    bank.add(linear(2, 2))
    with pytest.warns(UserWarning, match="Linear has no BatchNorm"):
        assert bank.update_bn(linear(2, 2), [randn(3, 2)]) == 0
    bank, models = filled(tmp_path / "b")
    for loader, error, match in [
        (iter([randn(4, 3)]), TypeError, r"loader=\.\.\.\) needs .*no iterator, got <list_iterator"),
        ([], ValueError, r"loader=\.\.\.\) needs at least one batch, got \[\]"),
        (["x"], TypeError, r"loader=\.\.\.\) needs a tensor, a tuple or dict of tensors.*got <class 'str'>"),
    ]:
        with pytest.raises(error, match=match):
            bank.update_bn(small(), loader)
    assert all(same(bank.state_dict(i), m) for i, m in enumerate(models))


# ---- one writer


def test_a_second_writer_is_refused_while_readers_see_the_draws_so_far(tmp_path):
    writer, _ = filled(tmp_path)
    reader = SampleBank(tmp_path, resume=True)
    assert len(whole(reader)) == 3
    with pytest.raises(RuntimeError, match=f"{tmp_path}: another writer holds the lock"):
        reader.add(small())
    code = PRELUDE + "b = bank.SampleBank(sys.argv[2], resume=True)\nprint(len(b))\n"
    code += "try: b.add(nn.Linear(1, 1))\nexcept RuntimeError as error: print(error)"
    command = [sys.executable, "-c", code, SOURCE, str(tmp_path)]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert lines[0] == "3"
    assert "another writer" in lines[1]
    writer.add(small(), step=3)
    writer.close()
    reader.add(small(), step=4)  # now it may, and it first learns what the other wrote
    assert [draw.step for draw in reader.draws] == [0, 1, 2, 3, 4]
    with pytest.raises(RuntimeError, match="another writer"):
        writer.add(small())
    del reader
    writer.add(small(), step=5)
    assert len(writer) == 6


def test_a_forked_or_pickled_copy_does_not_inherit_the_lock(tmp_path):
    bank, _ = filled(tmp_path)
    with pytest.raises(RuntimeError, match="another writer"):
        pickle.loads(pickle.dumps(bank)).add(small())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # fork beside threads: the child only tries the lock and sleeps
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe()
        child = context.Process(target=_fork_child, args=(bank, theirs), daemon=True)
        child.start()
    assert "another writer" in ours.recv()
    bank._journal.unlock()  # what the death of the parent does; the living child must not keep the lock
    other = SampleBank(tmp_path, resume=True)
    other.add(small())
    child.kill()
    child.join()


def _fork_child(bank, pipe):
    try:
        with bank._writing():
            pipe.send("wrote")
    except RuntimeError as error:
        pipe.send(str(error))
    time.sleep(60)


# ---- bad input


def with_buffer(value):
    model = nn.Module()
    model.register_buffer("odd", value)
    return model


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda p: SampleBank(3), TypeError, r"path=\.\.\.\) needs the path of a folder, got 3"),
        (lambda p: SampleBank(b"x"), TypeError, "got b'x'"),
        (lambda p: SampleBank(""), ValueError, "needs the path of a folder, got ''"),
        (lambda p: SampleBank(__file__), ValueError, "needs a folder, got .*test_bank"),
        (lambda p: SampleBank(p, thin=0), ValueError, r"thin=\.\.\.\) needs an int >= 1, got 0"),
        (lambda p: SampleBank(p, thin=1.5), TypeError, "thin.*got 1.5"),
        (lambda p: SampleBank(p, thin=True), TypeError, "thin.*got True"),
        (lambda p: SampleBank(p, max_draws=0), ValueError, "max_draws.*got 0"),
        (lambda p: SampleBank(p, max_draws="9"), TypeError, "max_draws.*got '9'"),
        (lambda p: SampleBank(p).add({"a": 1}), TypeError, r"add\(model=\.\.\.\) needs an nn.Module, got <class 'dict'>"),
        (lambda p: SampleBank(p).add(small(), step=0.5), TypeError, "step.*got 0.5"),
        (lambda p: SampleBank(p).add(small(), loss=object()), TypeError, r"add\(loss=\.\.\.\) needs a number"),
        (lambda p: SampleBank(p).add(small(), loss=torch.ones(2)), TypeError, r"add\(loss=\.\.\.\) needs a number"),
        (lambda p: SampleBank(p).add(nn.LazyLinear(2)), TypeError, "weight: Uninitialized"),
        (lambda p: SampleBank(p).add(nn.Linear(2, 2, device="meta")), TypeError, "plain dense"),
        (lambda p: SampleBank(p).add(with_buffer(torch.eye(2).to_sparse())), TypeError, "odd: Tensor"),
        (lambda p: SampleBank(p).add(with_buffer(torch.ones(2).cdouble())), TypeError, "complex128"),
        (lambda p: SampleBank(p).rewind(-1), ValueError, "calls.*got -1"),
        (lambda p: SampleBank(p).load(None, 0), TypeError, r"load\(model=\.\.\.\) needs an nn.Module, got <class 'NoneType'>"),
        (lambda p: SampleBank(p).load(small(), 0), IndexError, "no draw 0, the bank has 0"),
        (lambda p: SampleBank(p).state_dict(-1), IndexError, "no draw -1"),
        (lambda p: SampleBank(p).models(small(), on_error="x"), ValueError, "on_error.*got 'x'"),
        (lambda p: SampleBank(p).update_bn(3, []), TypeError, r"update_bn\(model=\.\.\.\) needs an nn.Module, got <class 'int'>"),
    ],
)
def test_bad_input_is_refused_with_its_name_and_value_and_writes_no_draw(tmp_path, call, error, match):
    with pytest.raises(error, match=match):
        call(tmp_path / "bank")
    assert not list(tmp_path.rglob("draw*"))
    assert len(SampleBank(tmp_path / "bank")) == 0


def test_reading_an_absent_bank_creates_nothing(tmp_path):
    bank = SampleBank(tmp_path / "none")
    assert len(bank) == 0
    assert bank.draws == []
    assert list(bank.models(small())) == []
    bank.close()
    assert not (tmp_path / "none").exists()


def test_the_draws_are_ordinary_safetensors_files(tmp_path):
    from safetensors.torch import load_model

    bank, model = SampleBank(tmp_path), seeded(Tied)
    bank.add(model)
    other = seeded(Tied, 1)
    load_model(other, bank.draws[0].path)
    assert isinstance(other.head.weight, Tensor)
    assert torch.equal(other.head.weight, model.head.weight)
