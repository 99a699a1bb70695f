"""docs/paper.md has a row for all that the paper numbers, and its links lead to what they say."""

from __future__ import annotations

import ast
import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
spec = importlib.util.spec_from_file_location("paper_map", ROOT / "tools" / "paper_map.py")
paper_map = importlib.util.module_from_spec(spec)
spec.loader.exec_module(paper_map)

PAGE = paper_map.PAGE.read_text()
NUMBERED = [  # what LaTeX numbers in the paper's source
    *(f"Equation ({number})" for number in range(1, 17)),
    *("Algorithm 1", "Algorithm 2", "Theorem 3.1", "Theorem 3.2", "Lemma A.1", "Lemma A.2"),
    *(f"Table {number}" for number in range(1, 9)),
    *(f"Figure {number}" for number in range(1, 5)),
]
SAMPLERS = ["SGLD", "pSGLD", "SGHMC", "SGRLD", "Ma, Chen and Fox"]  # of section 2, without numbers


def rows(page):
    """Return the cells of every row of the page's tables, but for the heads."""
    lines = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| ") and not line.startswith("| ---")]
    return [cells for cells in lines if cells[0] != "in the paper"]


ROWS = rows(PAGE)


def experiments():
    """Return the section of every experiment by its name, or by a pattern of its name, as the sources say."""
    found = {}
    for path in sorted((ROOT / "paper" / "src" / "langevin_paper" / "experiments").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "Experiment":
                given = {word.arg: word.value for word in node.keywords}
                name = given["name"]
                pattern = name.value if isinstance(name, ast.Constant) else re.sub(r"\{\w+\}", "[0-9]+", ast.unparse(name)[2:-1])
                found[pattern] = ast.literal_eval(given["section"])
    return found


@pytest.mark.parametrize("what", [*NUMBERED, *SAMPLERS])
def test_everything_that_the_paper_numbers_has_a_row(what):
    assert [cells[0] for cells in ROWS if re.match(re.escape(what) + r"(?!\w)", cells[0])]


def test_a_row_says_formula_place_and_evidence():
    for cells in ROWS:
        assert len(cells) == 4, cells
        assert all(cells), cells
        assert paper_map.LINK.search(cells[2]) or cells[2].startswith("no code: "), cells[2]
        assert "](" in cells[3] or cells[3] == "not tested", cells[3]


def test_every_link_is_at_the_line_of_its_symbol():
    assert len(paper_map.LINK.findall(PAGE)) > 100
    assert paper_map.refreshed(PAGE) == PAGE, "python tools/paper_map.py brings the links of docs/paper.md to the lines of today"


def test_what_is_linked_as_evidence_in_tests_is_a_test():
    links = [match for cells in ROWS for match in paper_map.LINK.finditer(cells[3])]
    assert all(match["symbol"].startswith("test_") and "tests/" in match["file"] for match in links)


def test_every_other_link_leads_to_a_file_and_a_heading():
    for target in re.findall(r"\]\(([^)]+)\)", paper_map.LINK.sub("", PAGE)):
        file, _, anchor = target.partition("#")
        path = paper_map.PAGE.parent / file if file else paper_map.PAGE
        assert path.exists(), target
        slugs = [
            re.sub(r"[^\w -]", "", head).strip().lower().replace(" ", "-") for head in re.findall("(?m)^#+ (.*)", path.read_text())
        ]
        assert not anchor or anchor in slugs, target


def test_commands_name_an_experiment_of_that_table_or_figure():
    known, seen = experiments(), set()
    for cells in ROWS:
        for name in re.findall(r"langevin-paper run ([\w-]+)", cells[3]):
            (section,) = (section for pattern, section in known.items() if re.fullmatch(pattern, name))
            assert cells[0].lower() in section, (cells[0], name, section)
            seen.add(cells[0])
    assert seen == {*(f"Table {number}" for number in range(1, 5)), *(f"Figure {number}" for number in range(1, 5))}


@pytest.fixture
def toy(tmp_path):
    """Make a project of two files."""
    (tmp_path / "src" / "new").mkdir(parents=True)
    (tmp_path / "src" / "kept.py").write_text("@mark\nclass Kept:\n    def step(self): ...\n\n\nA, B = 1, 2\n")
    (tmp_path / "src" / "new" / "place.py").write_text("\ndef moved(): ...\n")
    return tmp_path


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("[src/kept.py](../src/kept.py#L9) `Kept`", "[src/kept.py](../src/kept.py#L2) `Kept`"),
        ("[src/kept.py](../src/kept.py) `Kept.step`", "[src/kept.py](../src/kept.py#L3) `Kept.step`"),
        ("[src/kept.py](../src/kept.py#L1) `B`", "[src/kept.py](../src/kept.py#L6) `B`"),
        ("[src/old.py](../src/old.py#L7) `moved`", "[src/new/place.py](../src/new/place.py#L2) `moved`"),
        ("[src/kept.py](../src/kept.py#L7) `moved`", "[src/new/place.py](../src/new/place.py#L2) `moved`"),
    ],
    ids=["line", "method", "constant", "file gone", "symbol gone"],
)
def test_links_are_brought_to_where_the_symbol_is(toy, before, after):
    assert paper_map.refreshed(f"| {before}<br>x |", toy) == f"| {after}<br>x |"


def test_a_symbol_that_is_gone_or_twice_is_an_error(toy):
    with pytest.raises(ValueError, match=r"needs gone in src/kept.py or once in its folder, got nowhere"):
        paper_map.refreshed("[src/kept.py](../src/kept.py#L1) `gone`", toy)
    (toy / "src" / "other.py").write_text("def moved(): ...\n")
    with pytest.raises(ValueError, match=r"(?s)needs gone .* got src/new/place.py, src/other.py$"):  # all of them at once
        paper_map.refreshed("[src/kept.py](../src/kept.py#L1) `gone` [src/old.py](../src/old.py#L1) `moved`", toy)
