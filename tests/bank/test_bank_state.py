"""What of a module is stored: names without wrappers, extra state, finite parameters; and in which files."""

import hashlib
import json
import os
import sys

import pytest
import safetensors.torch
import torch
from bank_models import linear, randn, sealed, seeded, small
from torch import nn

import langevin as lv
import langevin.nn.tensor_bytes
from langevin.nn.bank import SampleBank

# ---- non-finite draws


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("name", ["0.bias", "3.weight"])
def test_a_non_finite_parameter_is_refused_by_name_and_earlier_draws_stay(tmp_path, bad, name):
    bank = SampleBank(tmp_path)
    bank.add(small(), step=0)
    model = small(1)
    with torch.no_grad():
        model.get_parameter(name).view(-1)[-1] = bad
    with pytest.raises(ValueError, match=rf"SampleBank\.add\(model=\.\.\.\) needs finite parameters \({name} is not\), got {bad}"):
        bank.add(model, step=1)
    assert [draw.step for draw in bank.draws] == [draw.step for draw in SampleBank.open(tmp_path).draws] == [0]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["draw-00000000.safetensors", "lock", "manifest.jsonl"]
    bank.add(small(2), step=2)
    assert (bank.calls, [draw.step for draw in bank.draws]) == (2, [0, 2])


def test_buffers_may_be_infinite_and_integer_or_tiny_float_parameters_are_fine(tmp_path):
    model, bank = linear(3, 2).requires_grad_(False), SampleBank(tmp_path)  # all are frozen: all are stored
    model.register_buffer("mask", torch.full((2, 2), -float("inf")).triu(1))
    model.whole = nn.Parameter(torch.tensor([1, 2]), requires_grad=False)
    model.tiny = nn.Parameter(torch.ones(3).to(torch.float8_e4m3fn), requires_grad=False)
    bank.add(model)
    assert torch.equal(bank.state_dict(0)["mask"], model.mask)
    model.tiny = nn.Parameter(torch.full((3,), float("nan")).to(torch.float8_e4m3fn), requires_grad=False)
    with pytest.raises(ValueError, match=r"needs finite parameters \(tiny is not\), got nan"):
        bank.add(model)


def test_a_parameter_is_found_under_a_wrapper_and_under_the_name_of_a_buffer_that_shares_its_memory(tmp_path):
    wrapped, shared = nn.DataParallel(linear(3, 2)), nn.Sequential(nn.Module(), linear(3, 2))
    shared[0].register_buffer("view", shared[1].weight.data)
    for model, name in ((wrapped, "weight"), (shared, "0.view")):
        with torch.no_grad():
            next(model.parameters())[0, 0] = float("nan")
        with pytest.raises(ValueError, match=rf"needs finite parameters \({name} is not\)"):
            SampleBank(tmp_path / name).add(model)


# ---- wrappers


class Holder(nn.Module):
    """A module whose child is really called `module`: no wrapper, the name stays."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, x):
        return self.module(x)


WRAPS = {
    "data parallel": nn.DataParallel,
    "compiled in data parallel": lambda m: nn.DataParallel(torch.compile(m, backend="eager")),
    "data parallel, compiled": lambda m: torch.compile(nn.DataParallel(m), backend="eager"),
}


@pytest.mark.parametrize("wrap", WRAPS.values(), ids=WRAPS)
@pytest.mark.parametrize("inside", [False, True])
def test_names_have_no_wrappers_and_draws_load_into_plain_and_wrapped_models(tmp_path, wrap, inside):
    def put(seed, wrap):
        return Holder(nn.Sequential(wrap(small(seed)), linear(2, 2))) if inside else wrap(Holder(small(seed)))

    plain, wrapped = put(0, lambda m: m), put(0, wrap)
    bank = SampleBank(tmp_path)
    bank.add(wrapped)
    bank.add(put(1, lambda m: m))
    assert list(bank.state_dict(0)) == list(plain.state_dict())
    assert all(name.startswith("module.") for name in bank.state_dict(0))
    assert all(torch.equal(value, plain.state_dict()[name]) for name, value in bank.state_dict(0).items())
    bank.load(wrapped, 1)
    bank.load(plain, 1)
    assert all(torch.equal(a, b) for a, b in zip(wrapped.parameters(), plain.parameters(), strict=True))
    assert not any(isinstance(m, nn.DataParallel) for m in next(bank.models(wrapped)).modules())
    x = randn(5, 3)
    by_wrapped, by_plain = (lv.predict(model, bank, x, transform=lambda z: z).mean for model in (wrapped, plain))
    torch.testing.assert_close(by_wrapped, by_plain)


# ---- extra state


class Counter(nn.Module):
    """A module that remembers `extra`, as its `get_extra_state` says."""

    def __init__(self, extra):
        super().__init__()
        self.weight, self.extra = nn.Parameter(torch.zeros(2)), extra

    def get_extra_state(self):
        return self.extra

    def set_extra_state(self, state):
        self.extra = state


EXTRAS = [None, 3, 0.1, "words", [1, [2.5, None]], {"a": {"b": True}}, torch.tensor([1.5, float("nan")]), torch.arange(3)]


@pytest.mark.parametrize("extra", EXTRAS, ids=str)
@pytest.mark.parametrize("inner", [False, True])
def test_extra_state_comes_back(tmp_path, extra, inner):
    def put(extra):
        return nn.Sequential(linear(2, 2), Counter(extra)) if inner else Counter(extra)

    bank = SampleBank(tmp_path)
    bank.add(put(extra))
    bank = SampleBank.open(tmp_path)
    for read in ("load", "load_state_dict", "models"):
        other = put(torch.zeros(7) if isinstance(extra, torch.Tensor) else "before")
        if read == "load":
            bank.load(other, 0)
        elif read == "load_state_dict":
            other.load_state_dict(bank.state_dict(0))
        else:
            other = next(bank.models(other))
        found = (other[1] if inner else other).extra
        assert torch.equal(found.nan_to_num(), extra.nan_to_num()) if isinstance(extra, torch.Tensor) else found == extra
        assert type(found) is type(extra)


NO_EXTRAS = [{1, 2}, (1, 2), {1: 2}, {"a": torch.ones(1)}, object(), b"x", float("nan"), torch.eye(2).to_sparse()]


@pytest.mark.parametrize("extra", NO_EXTRAS)
def test_extra_state_that_cannot_be_stored_is_refused_by_module(tmp_path, extra):
    bank = SampleBank(tmp_path)
    with pytest.raises(TypeError, match=r"needs 1 \(Counter\) to give a dense tensor or a JSON value in get_extra_state, got"):
        bank.add(nn.Sequential(linear(2, 2), Counter(extra)))
    assert len(bank) == 0


def test_extra_state_that_could_never_be_loaded_is_refused(tmp_path):
    class OneWay(nn.Linear):
        def get_extra_state(self):
            return 1

    with pytest.raises(TypeError, match=r"OneWay.*set_extra_state"):
        SampleBank(tmp_path).add(seeded(lambda: OneWay(1, 1)))


# ---- files


def test_tensors_of_every_kind_are_read_by_safetensors_itself(tmp_path):
    model = nn.Module()
    dtypes = [torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64]
    for dtype in [*dtypes, torch.bool, torch.complex64, torch.uint16, torch.uint32, torch.uint64, torch.float8_e5m2]:
        model.register_buffer(str(dtype).replace(".", "_"), torch.arange(6).reshape(2, 3).to(dtype))
    turned = torch.complex(randn(3), randn(4)[:3])
    for name, value in {"complex": turned, "conjugate": turned.conj(), "part": turned.imag, "negative": turned.conj().imag}.items():
        model.register_buffer(name, value)  # the same memory, other numbers
    model.register_buffer('snow ☃ "quoted"', torch.ones(1))
    bank = SampleBank(tmp_path)
    bank.add(model)
    theirs, ours = safetensors.torch.load_file(bank.draws[0].path), bank.state_dict(0)
    for name, value in model.state_dict().items():
        for found in (theirs[name], ours[name]):
            assert found.dtype == value.dtype
            assert found.tolist() == value.tolist()
    assert not bank.draws[0].aliases


def test_a_big_transposed_tensor_is_written_in_pieces_and_comes_back(tmp_path, monkeypatch):
    monkeypatch.setattr(langevin.nn.tensor_bytes, "PIECE", 64)
    model = nn.Module()
    model.register_buffer("transposed", randn(17, 9, 3).permute(2, 1, 0))
    model.register_buffer("long", randn(1000))
    model.register_buffer("thin", randn(1, 1, 100)[:, :, ::3])
    model.register_buffer("expanded", randn(1, 1).expand(40, 40))
    bank = SampleBank(tmp_path)
    bank.add(model)
    assert all(torch.equal(bank.state_dict(0)[name], value) for name, value in model.state_dict().items())


def test_a_draws_header_is_checked_against_the_manifest_before_memory_is_taken(tmp_path):
    bank = SampleBank(tmp_path)
    bank.add(linear(2, 2))
    bank.close()
    path = bank.draws[0].path
    for change in (
        {"weight": {"dtype": "F32", "shape": [10**12, 10**6], "data_offsets": [0, 16]}},
        {"weight": {"dtype": "F32", "shape": [2, 2], "data_offsets": [4, 20]}},
        {"weight": {"dtype": "F64", "shape": [2, 2], "data_offsets": [0, 16]}},
        {"weight": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 10**15]}},
        {"weight": None},
        {"__metadata__": {"extra_state": "[]"}},
    ):
        data = path.read_bytes()
        length = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + length])
        body = json.dumps(header | change).encode()
        forged = len(body).to_bytes(8, "little") + body + data[8 + length :]
        forgery = tmp_path.parent / f"{tmp_path.name}-forged"
        forgery.mkdir(exist_ok=True)
        (forgery / path.name).write_bytes(forged)
        lines = (tmp_path / "manifest.jsonl").read_text().splitlines()
        line = json.loads(lines[1]) | {"sha256": hashlib.sha256(forged).hexdigest(), "bytes": len(forged)}
        (forgery / "manifest.jsonl").write_text(sealed([lines[0], json.dumps(line)]))
        with pytest.raises(ValueError, match=r"draw-00000000\.safetensors.*not a (safetensors )?draw"):
            SampleBank.open(forgery).state_dict(0)


def test_a_name_that_safetensors_keeps_for_itself_is_refused(tmp_path):
    model = nn.Module()
    model.register_buffer("__metadata__", torch.ones(1))
    with pytest.raises(TypeError, match="has __metadata__"):
        SampleBank(tmp_path).add(model)


def test_a_machine_of_the_other_byte_order_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "byteorder", "big")
    with pytest.raises(NotImplementedError, match="little-endian"):
        SampleBank(tmp_path).add(linear(1, 1))
    assert not list(tmp_path.glob("*draw*"))


def test_every_write_has_a_temporary_name_of_its_own(tmp_path, monkeypatch):
    bank, seen, real = SampleBank(tmp_path), [], os.replace
    monkeypatch.setattr(os, "replace", lambda a, b: (seen.append(str(a)), real(a, b)))
    bank.add(small())
    bank.rewind(0)
    bank.add(small())  # the same file again
    assert len(seen) == len(set(seen)) == 2
