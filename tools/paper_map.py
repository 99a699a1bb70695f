"""The lines that docs/paper.md points at: `python tools/paper_map.py` writes them anew, after a move of files too.

A link of the page to a definition is written [src/langevin/x.py](../src/langevin/x.py#L12) `symbol`: a class, a function, a
constant, or a method such as `Langevin.update`. A symbol that is no longer in its file is looked for in the whole of the same
folder (src, paper/src, tests or paper/tests), where it must be defined once.
"""

from __future__ import annotations

import ast
import functools
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "paper.md"
FOLDERS = ("src", "paper/src", "tests", "paper/tests")
LINK = re.compile(r"\[(?P<label>[^\]]*)\]\(\.\./(?P<file>[^)#]+\.py)(?:#L(?P<line>\d+))?\) `(?P<symbol>[\w.]+)`")


@functools.cache
def definitions(path: Path) -> dict[str, int]:
    """Return the lines of what a file defines, by name; a method is `Class.method`."""
    found: dict[str, int] = {}

    def look(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                found[prefix + node.name] = node.lineno
                if isinstance(node, ast.ClassDef):
                    look(node.body, f"{prefix}{node.name}.")
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    names = (name.id for name in ast.walk(target) if isinstance(name, ast.Name))
                    found.update({prefix + name: node.lineno for name in names})

    look(ast.parse(path.read_text()).body, "")
    return found


def locate(file: str, symbol: str, root: Path = ROOT) -> tuple[str, int]:
    """Return the file and the line of a symbol that was in `file` once; a ValueError names what was found instead."""
    if (root / file).exists() and symbol in definitions(root / file):
        return file, definitions(root / file)[symbol]
    folder = next((folder for folder in FOLDERS if file.startswith(f"{folder}/")), None)
    places = [path for path in sorted((root / folder).rglob("*.py")) if symbol in definitions(path)] if folder else []
    if len(places) != 1:
        found = ", ".join(path.relative_to(root).as_posix() for path in places) or "nowhere"
        raise ValueError(f"docs/paper.md needs {symbol} in {file} or once in its folder, got {found}")
    return places[0].relative_to(root).as_posix(), definitions(places[0])[symbol]


def refreshed(text: str, root: Path = ROOT) -> str:
    """Return the page with every link at the line where its symbol is defined; a ValueError names all that are not found."""
    faults: list[str] = []

    def link(match: re.Match[str]) -> str:
        try:
            file, line = locate(match["file"], match["symbol"], root)
        except ValueError as error:
            faults.append(str(error))
            return match[0]
        return f"[{file}](../{file}#L{line}) `{match['symbol']}`"

    page = LINK.sub(link, text)
    if faults:
        raise ValueError("\n".join(dict.fromkeys(faults)))
    return page


if __name__ == "__main__":
    try:
        PAGE.write_text(refreshed(PAGE.read_text()))
    except ValueError as error:
        sys.exit(str(error))
