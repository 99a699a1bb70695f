"""The report: every number on the page comes from a record."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from langevin_paper import report
from langevin_paper.compare import RULE, Summary, differs, fisher, summarise, welch
from langevin_paper.experiments.landsat import LANDSAT
from langevin_paper.record import Record, Records
from langevin_paper.spec import Published
from toys import TOY

ORIGIN = {"commit": "abc", "versions": {"torch": "2"}, "machine": {"processor": "abacus", "cores": 2}}


def make(folder, values, method="good", scale="paper", **more):
    """Record values of the toy experiment, one for each seed."""
    method = TOY.method(method)
    common = {
        "settings": TOY.settings_of(method, TOY.scale(scale)),
        "seeds": tuple(range(len(values))),
        "seconds": 12.3,
        "origin": ORIGIN,
    }
    records = Records(folder)
    records.add(
        Record(
            "toy",
            scale,
            method.name,
            seed,
            results={"value": value, "law_temperature": 0.25},
            **({"status": "done"} | common | more),
        )
        for seed, value in enumerate(values)
    )
    records.close()


@pytest.fixture(autouse=True)
def toy_is_known(monkeypatch):
    monkeypatch.setattr(report, "EXPERIMENTS", {"toy": TOY})


def page(folder):
    path, _ = report.write_report(folder, folder / "report")
    return path.read_text()


def text_of(html):
    """Return the page's text as a reader sees it."""
    body = re.sub(r"<style>.*?</style>", "", html, flags=re.S)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", body))


def test_the_page_has_ours_beside_published_and_is_self_contained(tmp_path):
    make(tmp_path, [10.0, 11.0, 12.0])
    html = page(tmp_path)
    assert "11.00 ± 0.58" in html
    assert "11.00 ± 0.50" in html
    assert "paper scale" in html
    assert "12.3" in html
    assert "abacus" in html
    assert not re.search(r'(src|href)="(?!data:|#)', html)
    assert "<script" not in html


def test_the_same_records_give_the_same_page_and_a_changed_one_changes_it(tmp_path):
    make(tmp_path, [10.0, 11.0, 12.0])
    before = page(tmp_path)
    assert page(tmp_path) == before
    make(tmp_path, [10.0, 11.0, 15.0])
    after = page(tmp_path)
    assert "12.00 ± 1.53" in after
    assert "11.00 ± 0.58" not in after


def test_a_difference_beyond_chance_is_marked_at_the_papers_scale_only(tmp_path):
    make(tmp_path / "paper", [10.0, 11.0, 12.0])
    make(tmp_path / "paper", [10.0, 11.0, 12.0], method="slow")
    shown = text_of(page(tmp_path / "paper"))
    assert "11.00 ± 0.50 ≈" in shown
    assert "50.00 ± 0.10 ≠" in shown
    make(tmp_path / "quick", [10.0, 11.0], method="slow", scale="quick")
    assert "50.00 ± 0.10 ≠" not in text_of(page(tmp_path / "quick"))
    assert "not comparable" in page(tmp_path / "quick")


def bold(html):
    """Return the values that are set in bold."""
    return re.findall(r'<td><span class="best">([^<]*)</span>', html)


@pytest.mark.parametrize(("better", "expected"), [("high", ["20.00 ± 0.00"]), ("low", ["10.00 ± 0.00"]), ("", [])])
def test_the_best_row_is_set_in_bold_and_no_other(tmp_path, monkeypatch, better, expected):
    (table,) = TOY.tables
    changed = replace(TOY, tables=(replace(table, columns=(replace(table.columns[0], better=better),)),))
    monkeypatch.setattr(report, "EXPERIMENTS", {"toy": changed})
    for method, value in (("good", 10.0), ("slow", 20.0), ("bad", 15.0)):
        make(tmp_path, [value, value], method=method)
    assert bold(page(tmp_path)) == expected


def test_the_level_is_one_percent():
    # With equal standard errors of five runs each, t has 8 degrees of freedom: 2.90 is p = .020, 3.60 is p = .007.
    for distance, is_marked in ((2.90, False), (3.30, False), (3.40, True), (3.60, True)):
        ours = Summary(5, distance * 2**0.5, 1.0)
        assert differs(ours, Published(0.0, 1.0, 5)) is is_marked, distance
    assert fisher(Summary(10, 0.9, 0.1), Published(0.4, None, 10)) == pytest.approx(0.057, abs=1e-3)
    assert differs(Summary(10, 1.0, 0.1), Published(0.5, None, 10), is_count=True) is False  # p = .033
    assert differs(Summary(10, 1.0, 0.1), Published(0.3, None, 10), is_count=True) is True  # p = .003
    assert "p < 0.01" in RULE


def test_a_page_whose_first_record_failed_is_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "EXPERIMENTS", {"landsat": LANDSAT})
    records = Records(tmp_path)
    for number, method in enumerate(LANDSAT.methods):
        results = {"train": 90.0, "test": 80.0, "train_error": np.full(9, 10.0), "test_error": np.full(9, 20.0)}
        settings = LANDSAT.settings_of(method, LANDSAT.scale("quick"))
        outcome = {"status": "failed", "error": "oh"} if number in (0, 4) else {"status": "done", "results": results}
        records.add([Record("landsat", "quick", method.name, 0, settings=settings, **outcome)])
    path, made = report.write_report(tmp_path, tmp_path / "report")
    assert not made.problems
    assert [picture.name for picture in made.sections[0].pictures] == ["figure-4"]
    assert path.read_text().count("Failed: ") == 2


def test_failures_and_warnings_are_on_the_page(tmp_path):
    make(tmp_path, [1.0], method="good", notes=("a chain stopped",))
    make(tmp_path, [1.0], method="bad", status="failed", error="ZeroDivisionError: <oh>")
    html = page(tmp_path)
    assert "ZeroDivisionError: &lt;oh&gt;" in html
    assert "a chain stopped" in html
    assert "Bad" not in report.plain_tables(report.make_page(tmp_path).sections)


def test_the_largest_scale_is_shown_unless_another_is_asked_for(tmp_path):
    make(tmp_path, [1.0, 1.0], scale="quick")
    make(tmp_path, [2.0, 2.0], scale="paper")
    assert [section.scale.name for section in report.make_page(tmp_path).sections] == ["paper"]
    assert [section.scale.name for section in report.make_page(tmp_path, "quick").sections] == ["quick"]
    with pytest.raises(ValueError, match="at scale short"):
        report.make_page(tmp_path, "short")


def test_a_smaller_scale_is_shown_as_well_where_it_has_rows_that_the_larger_lacks(tmp_path):
    make(tmp_path, [2.0, 2.0], scale="paper")
    make(tmp_path, [1.0, 1.0], scale="quick")
    make(tmp_path, [3.0, 3.0], scale="quick", method="slow")
    sections = report.make_page(tmp_path).sections
    assert [section.scale.name for section in sections] == ["paper", "quick"]
    page, _ = report.write_report(tmp_path, tmp_path / "out")
    assert all(page.read_text().count(f'id="toy-{scale}"') == 1 for scale in ("paper", "quick"))


def test_a_number_that_is_missing_is_a_dash(tmp_path):
    make(tmp_path, [1.0, 1.0], method="slow")
    make(tmp_path, [None, None])
    assert re.search(r"Good +2 +– ", report.plain_tables(report.make_page(tmp_path).sections))


def test_runs_without_a_number_are_counted_and_their_row_is_held_against_nothing(tmp_path):
    make(tmp_path, [10.0, 11.0, 12.0])
    make(tmp_path, [90.0, 91.0, None], method="slow")
    shown = text_of(page(tmp_path))
    assert "90.50 ± 0.50 (without 1 that ran off)" in shown
    assert "50.00 ± 0.10 ≠" not in shown
    assert bold(page(tmp_path)) in ([], ["11.00 ± 0.58"])


def test_a_table_without_any_number_is_not_shown(tmp_path):
    make(tmp_path, [None, None])
    (section,) = report.make_page(tmp_path).sections
    assert section.tables == ()


def nested(monkeypatch, **column):
    """Make the toy's column another one."""
    table = replace(TOY.tables[0], columns=(replace(TOY.tables[0].columns[0], **column),))
    monkeypatch.setattr(report, "EXPERIMENTS", {"toy": replace(TOY, tables=(table,), listings=())})


def record(folder, results):
    records = Records(folder)
    settings = TOY.settings_of(TOY.method("good"), TOY.scale("paper"))
    records.add([Record("toy", "paper", "good", 0, "done", settings, results)])
    records.close()


def test_a_column_reaches_into_mappings_and_shows_what_stands_beside_it(tmp_path, monkeypatch):
    nested(monkeypatch, key="law/10/error", aside="law/10/chance", digits=1)
    record(tmp_path, {"law": {"10": {"error": 3.14, "chance": 0.26}}})
    assert " 3.1 (0.3) [" in report.plain_tables(report.make_page(tmp_path).sections)
    record(tmp_path, {"law": {"10": {"error": 3.14}}})
    assert " 3.1 [" in report.plain_tables(report.make_page(tmp_path).sections)
    record(tmp_path, {"law": {"10": {"error": 3.14, "chance": "low"}}})
    with pytest.raises(ValueError, match="law/10/chance needs to be a number, got 'low'"):
        report.make_page(tmp_path)


def test_there_is_no_minus_zero(tmp_path):
    make(tmp_path, [-1e-9])
    assert " 0.00 [" in report.plain_tables(report.make_page(tmp_path).sections)


def test_the_laws_temperature_is_shown_where_it_was_asked_for(tmp_path):
    make(tmp_path / "asked", [1.0])
    assert "<th>law’s temperature" in page(tmp_path / "asked")
    record(tmp_path / "not", {"value": 1.0})
    assert "<th>law’s temperature" not in page(tmp_path / "not")


def test_the_page_in_markdown_has_the_same_tables_and_what_the_records_say(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "FINDINGS", {"toy": lambda view: [f"{len(view.records)} records & no more."]})
    make(tmp_path, [10.0, 11.0, 12.0])
    html = page(tmp_path)
    text = (tmp_path / "report" / "report.md").read_text()
    assert "| Good | 3 | **11.00 ± 0.58**; paper 11.00 ± 0.50 ≈ |\n" in text
    assert "| | n | value |\n| --- | --- | --- |\n| Good |" in text
    assert "| Good | v | 10.0; paper 1.0 | 11.0; paper 2.0 | 12.0 |\n" in text
    assert "- 3 records & no more.\n" in text
    assert "<li>3 records &amp; no more.</li>" in html


def test_welch_is_scipys():
    from scipy.stats import ttest_ind

    ours, theirs = [1.0, 2.0, 4.0, 3.5], [5.0, 6.5, 5.5]
    found = summarise(theirs)
    expected = ttest_ind(ours, theirs, equal_var=False).pvalue
    assert welch(summarise(ours), Published(found.mean, found.error, found.n)) == pytest.approx(expected)


def test_there_is_no_test_without_two_standard_errors():
    assert differs(Summary(1, 3.0, None), Published(1.0, 0.1, 5)) is None
    assert differs(Summary(5, 3.0, 0.1), Published(1.0, None, 5)) is None
    assert differs(Summary(5, 3.0, 0.0), Published(1.0, 0.0, 5)) is None
    assert fisher(Summary(5, 1.0, 0.0), Published(1.0, 0.0, 5)) == 1.0
    assert summarise([None, float("nan")]) is None


def test_records_of_other_programs_are_refused(tmp_path):
    (tmp_path / "records.jsonl").write_text(json.dumps({"kind": "header", "format": "other", "version": 1}) + "\n")
    with pytest.raises(ValueError, match="langevin records"):
        report.make_page(tmp_path)


def test_listings_show_every_run(tmp_path):
    make(tmp_path, [3.14, 2.72])
    (section,) = report.make_page(tmp_path).sections
    assert section.listings[0].rows[0][2:] == (("3.1", "2.7"), ("1.0", "2.0"))


def test_the_page_says_when_it_was_run(tmp_path):
    make(tmp_path, [1.0, 2.0], finished="2026-11-16T01:10:16+00:00")
    assert "run 2026-11-16 " in text_of(page(tmp_path))
    make(tmp_path, [1.0, 2.0], method="bad", finished="2026-11-18T01:10:16+00:00")
    assert "run 2026-11-16 to 2026-11-18 " in text_of(page(tmp_path))
