"""Size of the library: files, lines of code, tokens and uses of `Any`, per package and in all.

    python tools/size.py [FOLDER ...]

Lines and tokens leave out blanks, comments and docstrings. The table has a row for each package of
`src/langevin`, the budget, and each FOLDER (a checkout of blackjax/blackjax, optax/optax, ...).
"""

from __future__ import annotations

import argparse
import ast
import io
import tokenize
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
LIBRARY = ROOT / "src" / "langevin"
BUDGET = {"files": 160, "lines": 16_500, "tokens": 175_000, "any": 200}  # of src/langevin
IGNORED = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
    tokenize.ENDMARKER, tokenize.ENCODING,
}  # fmt: skip


class Size(NamedTuple):
    """What is counted."""

    files: int = 0
    lines: int = 0
    tokens: int = 0
    any: int = 0  # lines that mention typing.Any

    def __add__(self, other: Size) -> Size:  # type: ignore[override]
        return Size(*(a + b for a, b in zip(self, other, strict=True)))


def docstring_lines(tree: ast.AST) -> set[int]:
    """The line numbers of docstrings."""
    lines: set[int] = set()
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        for statement in body:  # the docstring, and bare strings under attributes
            value = statement.value if isinstance(statement, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                lines.update(range(statement.lineno, (statement.end_lineno or statement.lineno) + 1))
    return lines


def size_of_source(source: str) -> Size:
    """The size of one module."""
    documentation = docstring_lines(ast.parse(source))
    lines: set[int] = set()
    tokens = 0
    mentions: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in IGNORED or token.start[0] in documentation:
            continue
        tokens += 1
        lines.update(range(token.start[0], token.end[0] + 1))
        if token.type == tokenize.NAME and token.string == "Any":
            mentions.add(token.start[0])
    return Size(1, len(lines), tokens, len(mentions))


def size_of(folder: Path) -> Size:
    """The size of every module below a folder, tests left out."""
    total = Size()
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).parts
        if not {"tests", "test", "_tests"} & set(parts) and not path.name.endswith("_test.py"):
            total = total + size_of_source(path.read_text())
    return total


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path)
    arguments = parser.parse_args()
    packages = [folder for folder in sorted(LIBRARY.iterdir()) if any(folder.rglob("*.py"))]
    rows = [(package.name, size_of(package)) for package in packages]
    loose = Size()
    for path in sorted(LIBRARY.glob("*.py")):
        loose = loose + size_of_source(path.read_text())
    rows += [("(top level)", loose), ("langevin", size_of(LIBRARY)), ("budget", Size(**BUDGET))]
    rows += [(str(folder), size_of(folder)) for folder in arguments.folders]
    print(f"{'':16s}{'files':>8s}{'lines':>9s}{'tokens':>10s}{'Any':>7s}")
    for name, size in rows:
        print(f"{name:16s}{size.files:8,d}{size.lines:9,d}{size.tokens:10,d}{size.any:7,d}")


if __name__ == "__main__":
    main()
