"""Records: whole lines only, the newest counts, arrays beside them, one writer."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from langevin_paper.provenance import provenance
from langevin_paper.record import Record, Records, fingerprint, read_records

ONE = Record("toy", "quick", "good", 0, "done", {"a": 1}, {"value": 1.5}, seeds=(0,))


def test_what_is_added_is_read_again(tmp_path):
    records = Records(tmp_path)
    values = {"value": np.float64(2.0), "nothing": float("nan"), "list": [1, float("inf")], "curve": np.arange(4.0)}
    records.add([replace(ONE, seed=seed, seeds=(0, 1), results=values | {"curve": np.arange(4.0) + seed}) for seed in (0, 1)])
    found, arrays = (whole := read_records(tmp_path)).records, whole.arrays
    assert not whole.problems
    assert found == records.all()
    assert found[1].results == {"value": 2.0, "nothing": None, "list": [1, None]}
    assert arrays[found[1].key]["curve"].tolist() == [1, 2, 3, 4]
    assert arrays[found[1].key]["curve"].dtype == np.float32
    assert len(list((tmp_path / "arrays").iterdir())) == 1
    assert "NaN" not in (tmp_path / "records.jsonl").read_text()


def test_a_line_cut_short_is_ignored_with_a_warning_and_then_overwritten(tmp_path):
    records = Records(tmp_path)
    records.add([ONE])
    records.close()
    path = tmp_path / "records.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"kind": "record", "experi')
    found = read_records(tmp_path)
    assert len(found.records) == 1
    assert "cut short" in str(found.problems[0])
    with pytest.warns(UserWarning, match="cut short"):
        records = Records(tmp_path)
    records.add([replace(ONE, seed=1, seeds=(1,))])
    assert path.read_bytes().startswith(whole)
    assert [json.loads(line)["kind"] for line in path.read_text().splitlines()] == ["header", "record", "record"]


def test_the_last_result_counts_and_a_later_failure_does_not_hide_it(tmp_path):
    records = Records(tmp_path)
    records.add([ONE])
    records.add([replace(ONE, results={"value": 3.0})])
    records.add([replace(ONE, status="failed", results={}, error="oh")])
    assert [record.results for record in records.all()] == [{"value": 3.0}]
    assert records.is_done("toy", "quick", "good", 0, {"a": 1})
    assert not records.is_done("toy", "quick", "good", 0, {"a": 2})
    records.add([replace(ONE, status="failed", settings={"a": 2}, error="oh")])
    assert [record.status for record in records.all()] == ["failed"]


def test_two_writers_are_one_too_many(tmp_path):
    records = Records(tmp_path)
    with pytest.raises(RuntimeError, match="another writer"):
        Records(tmp_path)
    records.close()
    Records(tmp_path)


def test_no_records_and_bad_results_are_said_in_words(tmp_path):
    with pytest.raises(FileNotFoundError, match="langevin-paper run"):
        read_records(tmp_path)
    with pytest.raises(TypeError, match="got object"):
        Records(tmp_path).add([replace(ONE, results={"value": object()})])


def test_provenance_names_commit_versions_and_machine():
    found = provenance()
    assert {"python", "torch", "numpy"} <= set(found["versions"])
    assert found["machine"]["cores"] >= 1
    assert found["commit"] is None or len(found["commit"].removesuffix("+changes")) == 40


def test_a_fingerprint_changes_with_the_settings_and_not_with_their_order():
    assert fingerprint({"a": 1, "b": 2}) == fingerprint({"b": 2, "a": 1}) != fingerprint({"a": 1, "b": 3})
