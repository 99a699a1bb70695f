"""The pages under docs/concepts, docs/guides and docs/migration: what is said to run runs, links lead somewhere, tables are whole.

A block of another library is marked as theirs, ```python title="..."```, and is compiled only.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

DOCS = Path(__file__).parents[1] / "docs"
PAGES = sorted(path for folder in ("concepts", "guides", "migration", "tutorials") for path in (DOCS / folder).glob("*.md"))
NAMES = [f"{path.parent.name}/{path.stem}" for path in PAGES]
RUN = [path for path in PAGES if path.parent.name != "tutorials"]  # those have scripts: test_tutorials.py


def blocks(path, theirs=False):
    title = r" title=\"[^\"\n]+\"" if theirs else ""
    return re.findall(rf"^```python{title}\n(.*?)^```", path.read_text(), re.S | re.M)


@pytest.mark.parametrize("path", RUN, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_our_blocks_run_in_order(path, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "page"}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for number, code in enumerate(blocks(path)):
            exec(compile(code, f"{path.name}, block {number}", "exec"), names)
    capsys.readouterr()


def test_every_fence_is_ours_theirs_or_text():
    """A block whose mark has a typing error would be run by nobody."""
    for path in PAGES:
        openings = re.findall(r"^```(.*)$", path.read_text(), re.M)[::2]
        for mark in openings:
            assert re.fullmatch(r"python|python title=\"[^\"]+\"|text|", mark), (path, mark)


@pytest.mark.parametrize("path", PAGES, ids=NAMES)
def test_their_blocks_are_python(path):
    for code in blocks(path, theirs=True):
        compile(code, str(path), "exec")


def anchors(path):
    """Return the headings as GitHub and mkdocs name them, for plain headings."""
    heads = re.findall(r"^#+ (.*)$", path.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("path", PAGES, ids=NAMES)
def test_links_lead_to_files_and_headings(path):
    for link in re.findall(r"\]\(([^)]+)\)", path.read_text()):
        assert "://" not in link, link
        name, _, anchor = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_the_table_of_checks_has_every_check_of_the_source_and_says_what_is_said():
    source = (DOCS.parent / "src" / "langevin" / "diagnostics" / "trust.py").read_text()
    named = set(re.findall(r'Check\(\s*"([^"]+)"', source)) | set(re.findall(r'name(?:, \w+)? = "([^"]+)"', source))
    named |= set(re.findall(r'\(\("([^"]+)", found.bulk\), \("([^"]+)", found.tail\)\)', source)[0])
    rows = [line.split("|")[1:3] for line in (DOCS / "concepts" / "trust.md").read_text().splitlines() if line.startswith("| `")]
    assert {name for cell, _ in rows for name in re.findall(r"`([^`]+)`", cell)} == named
    assert len(named) > 14
    said = re.sub(r'"\s*f?"', "", source)  # sentences that go on in the next line
    for _, cell in rows:
        for phrase in re.findall(r"\*([^*]+)\*", cell):
            assert re.sub(r"\d+", "", phrase.partition(" of ")[0]).strip(" :") in re.sub(r"\d+", "", said), phrase
