"""The report: every number on the page comes from a record."""

from __future__ import annotations

import json
import re

import pytest
from experiments.toys import TOY

from langevin.experiments import report
from langevin.experiments.compare import Summary, differs, fisher, summarise, welch
from langevin.experiments.record import Record, Records
from langevin.experiments.spec import Published

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
    make(tmp_path, [None, None])
    assert "–" in report.plain_tables(report.make_page(tmp_path).sections)


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
