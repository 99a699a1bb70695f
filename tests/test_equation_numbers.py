"""Numbers of the paper's equations stand beside the right words, wherever they are given.

In the paper: (1) the adaptive step, (2) the averages with the matrix V, (3) the decay of the learning rate, (4) the mixture prior,
(5) the objective with a penalty; the appendix goes on from (6).
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PHRASES = {
    1: r"a A_t|bias of step t",
    2: r"matrix V|matrix ``V|grad U in V",
    3: r"decay|factor \*\* \(step|gamma and L|\bL is to\b|learning rate",
    4: r"mixture prior|spike-and-slab|slab_weight",
    5: r"objective|penal",
}
OTHER_PAPERS = r"(Chen et al\. 2014|MCMC\", 2019|Zhang et al\. \(2020\)), $"  # right before the word
MENTION = re.compile(r"equations?[ _]\(?(\d+)\)?")
WORDS_AROUND = 110  # characters

FILES = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md"]
FILES += sorted(path for path in (ROOT / "docs").rglob("*") if path.suffix in {".md", ".py", ".html", ".txt"})
FILES += sorted(path for path in (ROOT / "src").rglob("*") if path.suffix in {".py", ".j2"})
FILES += sorted(path for path in (ROOT / "tests").rglob("*.py") if path != Path(__file__))


def wrong_numbers(text):
    """Return every mention of an equation of the paper whose number is not that of the words around it, the nearest first."""
    wrong = []
    for mention in MENTION.finditer(text):
        if re.search(OTHER_PAPERS, text[: mention.start()]):
            continue
        start = max(0, mention.start() - WORDS_AROUND)
        around, place = text[start : mention.end() + WORDS_AROUND], mention.start() - start
        near = {
            number: min((abs(found.start() - place) for found in re.finditer(phrase, around)), default=WORDS_AROUND * 2)
            for number, phrase in PHRASES.items()
        }
        number = min(near, key=near.__getitem__)
        if near[number] == WORDS_AROUND * 2 or int(mention[1]) != number:
            wrong.append(f"{mention[0]!r} in {around!r}")
    return wrong


def name_of(path):
    return path.relative_to(ROOT).as_posix()


def cases():
    for path in FILES:
        if MENTION.search(path.read_text()):
            yield pytest.param(path, id=name_of(path))


@pytest.mark.parametrize("path", list(cases()))
def test_every_number_is_that_of_the_paper(path):
    assert wrong_numbers(path.read_text()) == []


@pytest.mark.parametrize(
    ("text", "is_right"),
    [
        ("the decay of equation (3)", True),
        ("the decay of equation (4)", False),
        ("the mixture prior of equation 4", True),
        ("the mixture prior of equation 5", False),
        ("the matrix V of equation (2), the decay of equation (3)", True),
        ("the matrix V of equation (3), the decay of equation (3)", False),
        ("equation (1) of something else", False),
        ("unit mass (Chen et al. 2014, equation 15)", True),
    ],
)
def test_a_wrong_number_is_seen(text, is_right):
    assert (wrong_numbers(text) == []) == is_right
