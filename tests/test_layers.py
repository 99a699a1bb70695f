"""Data goes one way: an import may only point to a lower level."""

from __future__ import annotations

import ast
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "langevin"

LEVELS = [
    {"checks", "cpu"},
    {"plain"},
    {"moments", "noise", "schedules", "space"},
    {"targets"},
    {"gradients", "drifts"},
    {"preconditioners"},
    {"kernels"},
    {"samplers", "engines", "store"},
    {"tuning", "optim", "predictive"},
    {"chains"},
    {"diagnostics"},
]
LEVEL = {name: level for level, names in enumerate(LEVELS) for name in names}


def imports(text):
    """Yield the parts of langevin that a source text imports, by name."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[1] for alias in node.names if alias.name.startswith("langevin."))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "langevin":
            parts = node.module.split(".")
            yield from [parts[1]] if len(parts) > 1 else (alias.name for alias in node.names)


def upward(part, text):
    """Return the imports of a part's text that do not point down."""
    return [name for name in imports(text) if name != part and LEVEL[name] >= LEVEL[part]]


def test_imports_point_down_only():
    files = [path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py"]
    parts = {path: path.relative_to(SOURCE).with_suffix("").parts[0] for path in files}
    assert set(parts.values()) == set(LEVEL)
    assert {str(path): upward(part, path.read_text()) for path, part in parts.items() if upward(part, path.read_text())} == {}


def test_an_upward_import_is_seen():
    text = "from langevin.chains import sample\nimport langevin.checks\nfrom langevin import kernels, store\nimport torch"
    assert upward("drifts", text) == ["chains", "kernels", "store"]
