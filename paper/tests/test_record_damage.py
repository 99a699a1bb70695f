"""`langevin report` survives any record: what is damaged is left out and named, and the rest is shown."""

from __future__ import annotations

import io
import json
import os
import shutil
from dataclasses import fields

import langevin_paper.cli
import numpy as np
import pytest
from langevin_paper import report
from langevin_paper.figures.base import Drawn, panel_grid
from langevin_paper.record import Record, Records
from langevin_paper.schema import _canonical, digest
from toys import TOY
from typer.testing import CliRunner

GOOD = "10.50 ± 0.50 [paper 11.00 ± 0.50]"  # of method good, which no damage touches
DEEP = json.loads("[" * 400 + "]" * 400)


def draw_curves(view):
    figure, (panel,) = panel_grid(1, 1, 2.0, 1.5)
    for method in view.methods("curve"):
        panel.plot(np.stack(list(view.of(method, "curve").values())).mean(0))
    return figure


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A folder with two seeds of the methods good and slow: a header and four lines."""
    folder = tmp_path_factory.mktemp("whole")
    records = Records(folder)
    for method in TOY.methods[:2]:
        settings = TOY.settings_of(method, TOY.scale("quick"))
        records.add(
            Record(
                "toy", "quick", method.name, seed, "done", settings, {"value": 10.0 + seed, "curve": np.arange(3.0)}, seeds=(0, 1)
            )
            for seed in (0, 1)
        )
    records.close()
    return folder


@pytest.fixture
def folder(whole, tmp_path, monkeypatch):
    monkeypatch.setattr(report, "EXPERIMENTS", {"toy": TOY})
    monkeypatch.setattr(report, "FIGURES", {})
    return shutil.copytree(whole, tmp_path / "records")


def lines(folder):
    return (folder / "records.jsonl").read_bytes().split(b"\n")[:-1]


def write(folder, found):
    (folder / "records.jsonl").write_bytes(b"".join(line + b"\n" for line in found))


def line_of(entry):
    """Return a line with the checksum that it should have, where it can have one."""
    content = {name: value for name, value in entry.items() if name not in ("kind", "sha256")}
    try:
        return json.dumps({"kind": "record", **content, "sha256": digest(_canonical(content))}).encode()
    except ValueError:
        return json.dumps({"kind": "record", **content, "sha256": "0" * 16}).encode()


def shown(folder):
    """Write the page; return its tables, and the problems, which stand on the page too."""
    path, page = report.write_report(folder, folder / "page")
    html = path.read_text()
    assert html.count('<p class="note">') >= len(page.problems)
    assert ("Left out" in html) == bool(page.problems)
    return report.plain_tables(page.sections), [str(problem) for problem in page.problems]


def check(folder, where="records.jsonl line 4"):
    tables, problems = shown(folder)
    assert GOOD in tables
    assert len(problems) == 1, problems
    assert where in problems[0]
    assert len(problems[0]) < 600
    return problems[0]


def test_whole_records_have_no_problems(folder):
    tables, problems = shown(folder)
    assert tables.count("10.50 ± 0.50") == 2
    assert problems == []


RAW = {
    "empty line": b"", "blank": b"   ", "text": b"hello", "null": b"null", "list": b"[]", "number": b"3", "string": b'"x"',
    "object": b"{}", "not UTF-8": b"\xff\xfe\x00", "nul": b"\0" * 50, "deep": b"[" * 100_000, "nan": b'{"kind": NaN}',
    "huge integer": b"9" * 10_000, "header": b'{"kind": "header", "format": "langevin records", "version": 2}',
    "other kind": b'{"kind": "draw"}', "kind only": b'{"kind": "record"}', "two at once": b'{"kind": "record"}{"kind": "record"}',
    "UTF-16": '{"kind": "record"}'.encode("utf-16"),
}  # fmt: skip


@pytest.mark.parametrize("raw", RAW.values(), ids=RAW)
def test_a_line_that_is_something_else_is_left_out(folder, raw):
    found = lines(folder)
    found[3] = raw
    write(folder, found)
    check(folder)


@pytest.mark.parametrize("share", [0.0, 0.02, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 0.99])
def test_a_line_that_is_cut_is_left_out(folder, share):
    found = lines(folder)
    found[3] = found[3][: int(share * len(found[3]))]
    write(folder, found)
    check(folder)


@pytest.mark.parametrize("seed", range(24))
def test_a_flipped_bit_is_seen_wherever_it_is(folder, seed):
    found = lines(folder)
    generator = np.random.default_rng(seed)
    place, bit = int(generator.integers(len(found[3]))), 1 << int(generator.integers(8))
    changed = bytearray(found[3])
    changed[place] ^= bit
    if changed[place] == 10:  # a line break makes two lines of one
        changed[place] ^= 1
    found[3] = bytes(changed)
    write(folder, found)
    check(folder)


def test_a_kill_while_a_line_is_written_costs_that_line(folder):
    data = (folder / "records.jsonl").read_bytes()
    (folder / "records.jsonl").write_bytes(data[:-30])
    assert "cut short" in check(folder, "records.jsonl")


@pytest.mark.parametrize("name", [field.name for field in fields(Record)])
@pytest.mark.parametrize(
    "value", ["absent", None, 3.5, -1, True, "x", "\ud800", [], {}, [[]], {"a": []}, 1e300, 10**400, DEEP], ids=str
)
def test_a_field_of_the_wrong_kind_is_left_out_even_with_the_right_checksum(folder, name, value):
    found = lines(folder)
    entry = json.loads(found[3])
    before = entry.pop(name)
    if value != "absent":
        entry[name] = value
    found[3] = line_of(entry)
    write(folder, found)
    page = report.make_page(folder)
    assert GOOD in report.plain_tables(page.sections)
    # What is another value of the right kind is another record, or a page with one detail less.
    if type(value) is not type(before) and not (name in ("arrays", "error") and value is None) and name not in OPEN:
        assert page.problems, (name, value)


OPEN = ("results", "origin", "seconds", "cpu_seconds")  # 3.5 seconds are as good as 3


@pytest.mark.parametrize("value", ["x", [1], {}, True, 1e300, DEEP], ids=lambda value: str(value)[:9])
@pytest.mark.parametrize("name", ["value", "law_temperature"])
def test_a_result_that_is_no_number_is_left_out(folder, name, value):
    records = Records(folder)
    settings = TOY.settings_of(TOY.methods[1], TOY.scale("quick"))
    entry = Record("toy", "quick", "slow", 0, "done", settings, {"value": 1.0, name: value})
    if value == 1e300:  # too large to be a result: none
        records.add([entry])
        assert shown(folder)[1] == []
        return
    records.add([entry])
    assert f"its result {name} needs to be a number" in check(folder, "toy quick slow 0")


def test_records_of_other_settings_or_experiments_are_left_out(folder):
    records = Records(folder)
    settings = TOY.settings_of(TOY.methods[1], TOY.scale("quick"))
    records.add([Record("toy", "quick", "slow", 0, "done", {**settings, "scale": {"steps": 5}}, {"value": 99.0})])
    records.add([Record("other", "quick", "slow", 0, "done", settings), Record("toy", "huge", "slow", 0, "done", settings)])
    records.add([Record("toy", "quick", "none", 0, "done", settings)])
    tables, problems = shown(folder)
    assert "99" not in tables
    assert sorted(problem.partition(", ")[2] for problem in problems) == [
        "other quick slow 0: there is no experiment 'other' in this version",
        "toy huge slow 0: Experiment(scale=...) needs one of quick, paper, got 'huge'",
        "toy quick none 0: Experiment(method=...) needs one of good, slow, bad, got 'none'",
        "toy quick slow 0: it was run with other settings than this version's: scale.steps is 5, here 4",
    ]


def test_without_its_header_the_records_still_count(folder):
    found = lines(folder)
    write(folder, [b"\0" * 30, *found[1:]])
    assert "line 1" in check(folder, "records.jsonl line 1")


# ---- arrays


def packed(**arrays):
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    return buffer.getvalue()


def damage_in_place(kind):
    def damage(path):
        data = path.read_bytes()
        if kind == "directory":
            path.unlink()
            path.mkdir()
        elif kind == "loop":
            path.unlink()
            path.symlink_to(path.name)
        elif kind == "missing":
            path.unlink()
        else:
            at = {"cut": data[:100], "empty": b"", "text": b"hello", "flipped": data[:50] + bytes([data[50] ^ 1]) + data[51:]}
            path.write_bytes(at[kind])

    return damage


@pytest.mark.parametrize("kind", ["cut", "empty", "text", "flipped", "directory", "loop", "missing"])
def test_a_damaged_array_file_costs_its_curves_only(folder, monkeypatch, kind):
    monkeypatch.setattr(report, "FIGURES", {"toy": (Drawn("curves", "Curves.", draw_curves),)})
    (path,) = (folder / "arrays").glob("toy-quick-slow-*")
    damage_in_place(kind)(path)
    check(folder, path.name)
    assert (folder / "page" / "curves.png").stat().st_size > 500


STRANGE = {
    "objects": {"0/curve": np.array([{}, []], dtype=object)},
    "texts": {"0/curve": np.array(["a", "b"])},
    "other lengths": {"0/curve": np.arange(3.0), "1/curve": np.arange(4.0)},
    "a single number": {"0/curve": np.float32(3.0), "1/curve": np.arange(4.0)},
    "three axes": {"0/curve": np.zeros((2, 3, 4)), "1/curve": np.zeros((2, 3, 4))},
}
HARMLESS = {
    "no seed": {"curve": np.arange(3.0)},
    "nothing": {"0/curve": np.zeros(0), "1/curve": np.zeros(0)},
    "not finite": {"0/curve": np.full(3, np.nan), "1/curve": np.full(3, np.inf)},
    "huge": {"0/curve": np.full(3, 1e37), "1/curve": np.full(3, -1e37)},
    "another name": {"0/other": np.arange(3.0)},
}


@pytest.mark.parametrize("kind", [*STRANGE, *HARMLESS])
def test_arrays_of_the_wrong_kind_or_shape_cost_a_picture_at_most(folder, monkeypatch, kind):
    monkeypatch.setattr(report, "FIGURES", {"toy": (Drawn("curves", "Curves.", draw_curves),)})
    data = packed(**{**STRANGE, **HARMLESS}[kind])
    name = f"toy-quick-slow-0-1-{digest(data)}.npz"
    (folder / "arrays" / name).write_bytes(data)
    found = lines(folder)
    for number in (3, 4):
        found[number] = line_of(json.loads(found[number]) | {"arrays": name})
    write(folder, found)
    tables, problems = shown(folder)
    assert GOOD in tables
    assert len(problems) <= 1
    if kind in STRANGE:
        assert name in problems[0] or "picture curves" in problems[0]


def test_an_array_file_outside_the_folder_is_not_read(folder):
    found = lines(folder)
    for name in ("../../etc/passwd", "/etc/passwd", "a/b.npz", "..npz"):
        write(folder, [*found[:3], line_of(json.loads(found[3]) | {"arrays": name}), found[4]])
        assert "arrays needs the name of a file" in check(folder)


# ---- the command


def call(*arguments):
    return CliRunner().invoke(langevin_paper.cli.app, [str(argument) for argument in arguments])


def test_the_command_says_what_is_left_out_and_ends_well(folder):
    found = lines(folder)
    found[3] = b"hello"
    write(folder, found)
    done = call("report", "--records", folder, "--out", folder / "page")
    assert done.exit_code == 0, done.output
    assert f"left out: {folder / 'records.jsonl'} line 4: " in done.stderr
    assert GOOD in done.stdout


@pytest.mark.parametrize(
    "kind", ["missing", "empty", "directory", "loop", "header only", "all damaged", "version", "file as folder"]
)
def test_with_nothing_to_show_the_command_says_why_in_words(folder, kind):
    path, header = folder / "records.jsonl", lines(folder)[0]
    path.unlink()
    if kind == "directory":
        path.mkdir()
    elif kind == "loop":
        os.symlink(path, path)
    elif kind != "missing":
        content = {"empty": b"", "header only": header + b"\n", "all damaged": header + b"\nx\ny\n"}
        path.write_bytes(content.get(kind, header.replace(b'"version": 2', b'"version": 1') + b"\n"))
    done = call("report", "--records", path if kind == "file as folder" else folder, "--out", folder / "page")
    assert done.exit_code == 2, done.output
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.output
    assert "records" in done.stderr


def test_who_writes_is_refused_a_damaged_journal_and_told_the_line(folder):
    found = lines(folder)
    found[3] = found[3].replace(b"10.0", b"90.0")
    write(folder, found)
    before = (folder / "records.jsonl").read_bytes()
    with pytest.raises(ValueError, match=r"line 4: its checksum is wrong.* remove that line"):
        Records(folder)
    assert (folder / "records.jsonl").read_bytes() == before


def test_nothing_is_written_that_would_not_be_read(tmp_path):
    records = Records(tmp_path)
    with pytest.raises(ValueError, match="status needs done or failed, got 'perhaps'"):
        records.add([Record("toy", "quick", "good", 0, "perhaps", {})])
    assert not (tmp_path / "records.jsonl").exists()
    records.add([Record("toy", "quick", "good", 0, "failed", {}, error="no file \udcff", notes=("\ud800",))])
    assert records.all()[0].error == "no file \\udcff"
