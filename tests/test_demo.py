"""The tour: six parts with a picture and two sentences each, on a page that is whole whatever happens."""

from __future__ import annotations

import base64
import importlib.util
import os
import re
import signal
import subprocess
import sys
from html.parser import HTMLParser

import pytest
import torch
from langevin_paper.cli import app
from langevin_paper.demo import PARTS, LeftOut, Part, Shown, command, landsat, tour
from matplotlib.figure import Figure
from typer.testing import CliRunner

import langevin as lv

SENTENCES = ("One is 1.", "Two is 2.")


class Page(HTMLParser):
    """What a page has: sections with their sentences and pictures, and anything that would be fetched from elsewhere."""

    def __init__(self, text):
        super().__init__()
        self.sections, self.fetched, self._in_text = [], [], False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        if tag == "section":
            self.sections.append({"sentences": [], "pictures": [], "trouble": ""})
        if tag == "img":
            self.sections[-1]["pictures"].append(attributes["src"])
        self.fetched += [value for name, value in attrs if name in ("src", "href") and not value.startswith("data:")]
        self._in_text = tag == "p"
        self._kind = attributes.get("class", "")

    def handle_data(self, data):
        if self.sections and self._in_text:
            if self._kind == "trouble":
                self.sections[-1]["trouble"] += data
            elif self._kind == "":
                self.sections[-1]["sentences"].append(data)
        self._in_text = False


def picture():
    figure = Figure()
    figure.add_subplot().plot([0, 1])
    return figure


def good(quick):
    return Shown((picture(),), SENTENCES)


def raising(quick):
    raise KeyError("no such thing\nat all")


def lacking(quick):
    raise LeftOut("pip install something")


def interrupted(quick):
    signal.raise_signal(signal.SIGINT)


def swallowing(quick):
    """As `sample` does: it returns what it has."""
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        return good(quick)


def shown(tmp_path, *functions, **options):
    lines = []
    parts = [Part(function.__name__, f"Title of {function.__name__}", function) for function in functions]
    outcome = tour(parts, tmp_path, say=lines.append, **options)
    return outcome, lines, Page(outcome.page.read_text())


def test_the_tour_has_six_parts_each_with_a_picture_and_two_sentences_on_one_page(tmp_path):
    done = CliRunner().invoke(app, ["demo", "--quick", "--no-open", "--out", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    assert re.findall(r"^(\d)/6 .*: \d+\.\d s$", done.output, re.M) == list("123456")
    page = tmp_path / "out" / "index.html"
    assert done.output.rstrip().endswith(page.as_uri())
    text = page.read_text()
    found = Page(text)
    assert len(found.sections) == len(PARTS) == 6
    for section in found.sections:
        assert len(section["sentences"]) == 2
        assert all(re.search(r"\d", sentence) and sentence.endswith(".") for sentence in section["sentences"])
        assert section["pictures"]
        for source in section["pictures"]:
            assert base64.b64decode(source.partition("base64,")[2]).startswith(b"\x89PNG")
    assert found.fetched == []
    assert "the numbers say little" in text
    assert "nan" not in re.sub(r'src="[^"]*"', "", text).lower().replace("nanosecond", "")


def test_a_part_that_raises_is_reported_and_the_others_go_on(tmp_path):
    outcome, lines, page = shown(tmp_path, good, raising, good)
    assert outcome.failed == ["raising"]
    assert lines[1] == "2/3 raising: FAILED: KeyError: 'no such thing\\nat all'"
    assert [bool(section["pictures"]) for section in page.sections] == [True, False, True]
    assert page.sections[1]["trouble"].startswith("Failed: KeyError")
    assert "Traceback" not in "\n".join(lines)
    assert "in raising" in "\n".join(shown(tmp_path, raising, debug=True)[1])


def test_a_part_that_lacks_something_says_what_to_install_and_is_no_failure(tmp_path):
    outcome, lines, page = shown(tmp_path, lacking, good)
    assert (outcome.failed, outcome.left_out) == ([], ["lacking"])
    assert lines[0] == "1/2 lacking: left out: pip install something"
    assert page.sections[0]["trouble"] == "Left out: pip install something"


@pytest.mark.parametrize("function", [interrupted, swallowing])
def test_ctrl_c_keeps_what_is_done_and_says_so(tmp_path, function):
    before = signal.getsignal(signal.SIGINT)
    outcome, lines, page = shown(tmp_path, good, function, good)
    assert outcome.interrupted
    assert len(page.sections) == 1
    assert lines[-1] == f"2/3 {function.__name__}: interrupted; the page has what was done before"
    assert "1 of 3 parts are here" in outcome.page.read_text()
    assert signal.getsignal(signal.SIGINT) is before


def test_ctrl_c_in_a_run_ends_the_part_at_once_without_a_warning(tmp_path, recwarn):
    reached = []

    def part(quick):
        target, start = lv.targets.gaussian([[1.0]]), torch.zeros(2, 1)
        lv.sample(
            target,
            sampler=lv.sgld(0.1),
            init=start,
            num_steps=5_000,
            compile=False,
            progress=lambda *_: signal.raise_signal(signal.SIGINT),
        )
        reached.append("the run after it")

    outcome, _, _ = shown(tmp_path, part, good)
    assert outcome.interrupted
    assert reached == []
    assert [str(each.message) for each in recwarn] == []


@pytest.mark.parametrize(("function", "code"), [(good, 0), (raising, 1), (lacking, 0), (interrupted, 130)])
def test_the_exit_code_says_how_it_went(tmp_path, monkeypatch, function, code):
    monkeypatch.setattr("langevin_paper.demo.PARTS", (Part("part", "Part", function),))
    done = CliRunner().invoke(app, ["demo", "--no-open", "--out", str(tmp_path)])
    assert done.exit_code == code, done.output
    assert (tmp_path / "index.html").as_uri() in done.output


def test_the_page_is_opened_when_asked_and_not_without_a_screen(tmp_path, monkeypatch):
    opened = []
    monkeypatch.setattr("langevin_paper.demo.PARTS", (Part("part", "Part", good),))
    monkeypatch.setattr(command.webbrowser, "open", opened.append)
    CliRunner().invoke(app, ["demo", "--out", str(tmp_path)])
    assert opened == []
    CliRunner().invoke(app, ["demo", "--open", "--out", str(tmp_path)])
    assert opened == [(tmp_path / "index.html").as_uri()]


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    done = CliRunner().invoke(app, ["demo", "--no-open", "--out", str(tmp_path / "file")])
    assert done.exit_code == 2
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("error: ")


def test_what_is_shown_is_escaped(tmp_path):
    _, _, page = shown(tmp_path, lambda quick: Shown((picture(),), ("a < b & c > d.", "<script>x</script>.")))
    assert len(page.sections) == 1
    assert "<script>" not in (tmp_path / "index.html").read_text()


def test_without_the_paper_the_landsat_part_says_what_to_install(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "langevin_paper" else find(name))
    with pytest.raises(LeftOut, match="pip install langevin-paper"):
        landsat.load()


def test_landsat_classes_are_whole_numbers_without_gaps():
    data = landsat.load()
    assert data.y.unique().tolist() == data.y_test.unique().tolist() == list(range(6))
    assert data.x.shape == (4435, 36)
    assert data.x.std(0).sub(1).abs().max() < 1e-5


@pytest.mark.slow
def test_the_whole_tour_shows_what_it_is_meant_to(tmp_path):
    """Numbers of the whole tour, read off its sentences: what each part is there for must come out."""
    command = [sys.executable, "-c", "from langevin_paper.cli import main; main()", "demo", "--no-open", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stdout + done.stderr
    texts = [" ".join(section["sentences"]) for section in Page((tmp_path / "index.html").read_text()).sections]
    assert "nothing that speaks against them" in texts[0]
    assert re.search(r"ends with \d warning", texts[0])
    cold, _, *_ = map(float, re.findall(r"(\d+\.\d+) ±", texts[1]))
    assert cold < 0.2
    hot, _, right, soft = map(float, re.findall(r"([\d.]+) ±", texts[2]))
    assert hot > 10
    assert abs(right - 1) < 0.15
    assert abs(soft - 1) < 0.15
    assert re.search(r"[5-8] of 8 chains", texts[4])
