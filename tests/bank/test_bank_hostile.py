"""Banks whose files were forged, with the right checksums: refused by line and field, and the draws stay."""

import hashlib
import io
import json
import os
import shutil

import pytest
import torch
from bank_models import filled, randn, sealed, small, whole

from langevin.nn.bank import CorruptDrawError, SampleBank


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """Return a bank with lines of all kinds: header, draw (4), update (4), drop, calls."""
    folder = tmp_path_factory.mktemp("original") / "bank"
    bank, _ = filled(folder, 4, max_draws=5)
    bank.update_bn(small(), [randn(8, 3)])
    bank.max_draws = 3
    bank.add(small(4), step=4)
    bank.rewind(9)
    bank.close()
    kinds = [json.loads(line)["kind"] for line in (folder / "manifest.jsonl").read_text().splitlines()]
    assert kinds == ["header", *["draw"] * 4, *["update"] * 4, "draw", "drop", "drop", "calls"]
    return folder


@pytest.fixture
def bank(original, tmp_path):
    return shutil.copytree(original, tmp_path / "bank")


def forge(folder, line, **changes):
    """Change a line of the manifest and give all lines the seals that they then have; ... removes a field."""
    manifest = folder / "manifest.jsonl"
    lines = [json.loads(text) for text in manifest.read_text().splitlines()]
    lines[line] = {name: value for name, value in (lines[line] | changes).items() if value is not ...}
    manifest.write_text(sealed(list(map(json.dumps, lines))))


ODD = [..., None, True, 2.5, -1, "x", [], {}, [1], 2**63, float("nan"), 10**400]
DRAW, UPDATE, DROP, CALLS = 2, 6, 10, 12
RIGHT = {  # what a bank could have written
    "step": [None, -1, 2**63, 10**400],
    "metrics": [{}],
    "time": [2.5, -1],
    "bytes": [],
    "aliases": [{}],
    "tensors": [{}],
}
FIELDS = {
    0: ["tensors"],
    DRAW: ["index", "file", "sha256", "bytes", "aliases", "calls", "step", "time", "metrics"],
    UPDATE: ["index", "file", "sha256", "bytes", "aliases"],
    DROP: ["index"],
    CALLS: ["calls"],
}
CASES = [
    (line, name, value) for line, names in FIELDS.items() for name in names for value in ODD if value not in RIGHT.get(name, [])
]
CASES += [
    (DRAW, "index", 0), (DRAW, "index", 7), (UPDATE, "index", 0), (UPDATE, "index", 9), (DROP, "index", 3.0), (DROP, "index", 99),
    (DRAW, "file", "draw-00000000.safetensors"), (DRAW, "file", "/etc/passwd"), (DRAW, "file", "../draw-00000001.safetensors"),
    (DRAW, "file", "draw-00000001.safetensors\n"), (DRAW, "file", "draw-٠٠٠٠٠٠٠١.safetensors"), (DRAW, "file", "manifest.jsonl"),
    (UPDATE, "file", "draw-00000000.1.safetensors"), (UPDATE, "file", "draw-00000001.01.safetensors"),
    (DRAW, "sha256", "0" * 63), (DRAW, "sha256", "G" * 64), (DRAW, "calls", 0), (CALLS, "calls", 1.0),
    (DRAW, "aliases", {"0.weight": "no such tensor"}), (DRAW, "aliases", {"no such tensor": "0.weight"}),
    (DRAW, "aliases", {"0.weight": 3}), (0, "tensors", {"a": 3}), (0, "tensors", {"a": ["float32", [-1]]}),
    (0, "tensors", {"a": ["float32", [2.5]]}), (0, "tensors", {"a": ["float32", [True]]}), (0, "tensors", {"a": ["float32"]}),
    (0, "tensors", {"a": [3, [1]]}), (0, "tensors", {"a": ["float32", "x"]}), (0, "frozen", "x"), (0, "frozen", [3]),
    (0, "frozen", {"a": 1}), (0, "frozen", {"0.weight": []}), (0, "frozen", {"a": ["x"]}),
    (0, "version", True), (0, "version", 2.5), (0, "format", None),
    (DRAW, "kind", ["draw"]), (DRAW, "kind", None), (DRAW, "kind", {}),
]  # fmt: skip


@pytest.mark.parametrize(("line", "name", "value"), CASES, ids=lambda value: f"{value!r:.30}")
def test_a_field_that_no_bank_writes_is_refused_with_its_line_and_the_draws_stay(bank, original, line, name, value):
    forge(bank, line, **{name: value})
    before = {path.name: path.read_bytes() for path in bank.iterdir()}
    for use in (lambda: SampleBank.open(bank), lambda: SampleBank(bank, resume=True), lambda: SampleBank(bank)):
        with pytest.raises(ValueError, match=rf"bank/manifest\.jsonl line {line + 1}: (?!not a line)") as caught:
            use()
        assert name in str(caught.value) or "expected" in str(caught.value)
        assert len(str(caught.value)) < 1000
    assert {path.name: path.read_bytes() for path in bank.iterdir()} == before
    shutil.copy(original / "manifest.jsonl", bank)
    assert [step for step, _ in whole(SampleBank.open(bank))] == [2, 3, 4]


@pytest.mark.parametrize(
    "text", [b"[" * 200_000 + b"\n", b'{"kind": "calls", "calls": ' + b"9" * 5000 + b"}\n", b'"x"\n', b"7\n", b"\n"]
)
def test_a_line_that_is_no_line_is_refused(bank, text):
    with (bank / "manifest.jsonl").open("ab") as file:
        file.write(text)
    with pytest.raises(ValueError, match=r"bank/manifest\.jsonl line 14: "):
        SampleBank.open(bank)


@pytest.mark.parametrize("index", [1, 9])
def test_a_draw_whose_number_and_file_agree_but_are_not_the_next_ones_is_refused(bank, index):
    forge(bank, 9, index=index, file=f"draw-{index:08d}.safetensors")
    with pytest.raises(ValueError, match=rf"line 10: index needs 4, the number of the next draw, found {index}"):
        SampleBank.open(bank)


def become_a_folder(path):
    path.unlink()
    path.mkdir()


def become_a_pipe(path):
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("become", [become_a_folder, become_a_pipe])
@pytest.mark.parametrize("name", ["manifest.jsonl", "lock", "draw-00000003.1.safetensors"])
def test_a_file_that_is_a_folder_or_a_pipe_is_refused_and_nobody_waits_for_it(bank, become, name):
    def use():
        with SampleBank(bank, resume=True) as writer:
            writer.state_dict(1)
            writer.add(small(5), step=5)

    become(bank / name)
    with pytest.raises(ValueError, match=rf"bank/{name} is not a regular file"):
        use()


def draw_file(**header):
    body = json.dumps(header).encode()
    return len(body).to_bytes(8, "little") + body


BODIES = {
    "empty": b"",
    "a length beyond the file": (2**62).to_bytes(8, "little") + b"{}",
    "a header that is a list": draw_file()[:8] + b"[]",
    "deep nesting": (100_000).to_bytes(8, "little") + b"[" * 100_000,
    "offsets of text": draw_file(weight={"dtype": "F32", "shape": [2], "data_offsets": ["a", "b"]}),
    "no dtype": draw_file(weight={"shape": [2], "data_offsets": [0, 8]}),
    "metadata that is a list": draw_file(__metadata__=[]),
    "extra state that is a number": draw_file(__metadata__={"extra_state": "3"}),
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_a_forged_draw_is_refused_by_name_and_the_others_are_read(bank, body):
    (bank / "draw-00000003.1.safetensors").write_bytes(body)
    forge(bank, 8, sha256=hashlib.sha256(body).hexdigest(), bytes=len(body))
    reader = SampleBank.open(bank)
    with pytest.raises(CorruptDrawError, match=r"draw-00000003\.1\.safetensors"):
        reader.state_dict(1)
    assert torch.equal(reader.state_dict(0)["0.weight"], small(2)[0].weight)
    assert torch.equal(reader.state_dict(2)["0.weight"], small(4)[0].weight)


def test_a_manifest_that_claims_a_huge_tensor_takes_no_memory_for_it(bank):
    forge(bank, 0, tensors={"weight": ["float32", [2**40, 2**20]]})
    with pytest.raises(CorruptDrawError, match="not a draw of this bank"):
        SampleBank.open(bank).state_dict(0)


def test_a_manifest_that_is_larger_than_memory_is_refused_by_name(bank, monkeypatch):
    class Large(io.BytesIO):
        def read(self):
            raise MemoryError

        def fileno(self):
            return os.open(bank / "manifest.jsonl", os.O_RDONLY)

    monkeypatch.setattr(os, "fdopen", lambda fd, mode: (os.close(fd), Large())[1])
    with pytest.raises(ValueError, match=r"bank/manifest\.jsonl has \d+ bytes, more than memory can hold"):
        SampleBank.open(bank)
