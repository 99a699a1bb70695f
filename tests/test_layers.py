"""Data goes one way: an import may only point to a lower level."""

from __future__ import annotations

import ast
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "langevin"

LEVELS = [
    {"checks"},
    {"compiler", "serialization"},
    {"random"},
    {"targets"},
    {"kernels"},
    {"execution"},
    {"diagnostics"},
    {"storage"},
    {"adaptation", "distributed", "optim"},
    {"sampling"},
    {"nn"},
    {"tabular"},
    {"cli"},
    {"__main__"},
]
STEPPERS = {
    "execution/compiled.py",
    "execution/eager.py",
    "execution/fused/trace.py",
    "execution/settings.py",
    "optim/update.py",
    "adaptation/stationary.py",
}
STEPPERS |= {"paper/experiments/minibatch/laws.py"}
LEVEL = {name: level for level, names in enumerate(LEVELS) for name in names}


def imports(text):
    """Yield the parts of langevin that a source text imports, by name; what only type checkers import does not count."""
    tree = ast.parse(text)
    blocks = [node for node in ast.walk(tree) if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    for_types = {part for block in blocks for part in ast.walk(block)}
    for node in ast.walk(tree):
        if node in for_types:
            continue
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
    text = "from langevin.sampling import sample\nimport langevin.checks\nfrom langevin import kernels, storage\nimport torch"
    assert upward("random", text) == ["sampling", "kernels", "storage"]


def steps_of_kernels(text):
    """Yield the calls in a source text that step a kernel: `kernel.step(...)`, or an `update` with a kernel's five arguments."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = ast.unparse(node.func.value)
            if (node.func.attr == "step" and owner.endswith("kernel")) or (node.func.attr == "update" and len(node.args) == 5):
                yield ast.unparse(node.func)


def test_two_places_step_a_kernel():
    """The block runner and the optimizer; adaptation/stationary.py and the atlas' laws probe a formula with unit vectors."""
    source = {path.relative_to(SOURCE).as_posix(): path.read_text() for path in SOURCE.rglob("*.py")}
    paper = SOURCE.parents[1] / "paper" / "src" / "langevin_paper"
    source |= {f"paper/{path.relative_to(paper).as_posix()}": path.read_text() for path in paper.rglob("*.py")}
    found = {name: list(steps_of_kernels(text)) for name, text in source.items() if not name.startswith("kernels/")}
    assert {name for name, calls in found.items() if calls} == STEPPERS
