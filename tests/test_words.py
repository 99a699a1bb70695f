"""Messages and docstrings use the field's terms: a short list of phrases must not come back."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "langevin"
FILES = sorted(SOURCE.rglob("*.py"))
PHRASES = [
    r"speaks? against",
    r"found (their|its) places?",
    r"\banew\b",
    r"\bin words\b",
    r"\b(is|are) (asked|handed|told)\b",
    r"\b(is|are|was|were) (said|learnt)\b",
    r"\blearnt\b",
    r"\babsorb",
    r"\bwarmth\b",
    r"\bsoftness\b",
    r"departs from a quadratic",
    r"come apart|have not come",
    r"a folder in a folder",
    r"\bruns off\b",
    r"\bparcels?\b",
    r"\bstretch(es)?\b",
    r"what it is like",
]
PATTERN = re.compile("|".join(PHRASES), re.IGNORECASE)


def texts(source):
    """Yield (line, text) of every string in a module; f-strings in pieces."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_no_phrase_of_the_old_dialect_is_in_a_string(path):
    found = [f"{path.name}:{line}: {match[0]!r}" for line, text in texts(path.read_text()) if (match := PATTERN.search(text))]
    assert not found


@pytest.mark.parametrize(
    "text", ["What speaks against the draws", "it is drawn anew", "the noise is absorbed", "as is said in words"]
)
def test_the_list_sees_the_old_dialect(text):
    assert PATTERN.search(text)
